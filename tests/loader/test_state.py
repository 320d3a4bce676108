"""The checkpoint: nothing lost, nothing twice, onto any world; refused where it doesn't fit."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import StateMismatch
from loader.order import Order
from loader.ranges import Ranges
from loader.schedule import Schedule, Tail
from loader.state import RankProgress, Run, State, fingerprint, merge_states

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/state.json").read_text())

COUNTS = np.array([3, 0, 5, 1, 4, 2])
NAMES = ["a.tar", "b.tar", "sub/c.tar", "d.tar", "日本.tar", "caf\udce9.tar"]
ORDER = Order(COUNTS, seed=42, epoch=3, shuffle_size=6, lanes=2)
STATE = State.of(
    ORDER,
    fingerprint(NAMES, COUNTS),
    Ranges([(0, 3), (5, 6)]),
    Run(2, 2, 2, (RankProgress(0, 2, (3, 2), 1), RankProgress(1, 2, (2, 2)))),
)


class Rank:
    """A rank's DataLoader in plain Python: a batch from each worker in turn, bad samples left out."""

    def __init__(self, state: State, schedule: Schedule, rank: int, bad: set[int]) -> None:
        self.state, self.schedule, self.bad = state, schedule, bad
        self.progress = state.start(schedule, rank)
        self.order = [self.progress.stream(worker) for worker in range(schedule.num_workers)]
        self.streams = {
            stream: schedule.stream(rank, stream, self.progress.consumed[stream]).tolist()
            for stream in self.order
        }

    def next_batch(self) -> list[int]:
        """Positions of the next batch; empty once all workers have ended."""
        while self.order:
            stream = self.order.pop(0)
            batch, left = [], self.streams[stream]
            before = len(left)
            while left and len(batch) < self.schedule.batch_size:
                position = left.pop(0)
                if position not in self.bad:
                    batch.append(position)
            if batch:
                self.order.append(stream)
                self.progress = self.progress.handed(stream, before - len(left))
                return batch
        return []

    def saved(self) -> State:
        schedule = self.schedule
        dealt = (schedule.world_size, schedule.batch_size, schedule.num_workers)
        return through_json(replace(self.state, done=schedule.done, run=Run(*dealt, (self.progress,))))


def ranks_of(state: State, world: tuple[int, int, int], tail: Tail, bad: set[int]) -> list[Rank]:
    schedule = state.schedule(*world, tail)
    return [Rank(state, schedule, rank, bad) for rank in range(schedule.world_size)]


worlds = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))
bad_sets = st.sets(st.integers(0, 89), max_size=40)


def through_json(state: State) -> State:
    return State.from_dict(json.loads(json.dumps(state.to_dict())))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 90), bad_sets, st.data())
def test_what_remains_comes_once_each_however_often_it_stops(
    samples: int, bad: set[int], data: st.DataObject
) -> None:
    """Any worlds one after the other, workers made uneven by bad samples, states of all ranks merged."""
    state = fresh(samples)
    seen: list[int] = []
    for stop in (*data.draw(st.lists(st.integers(0, 6), max_size=3)), samples + 1):
        ranks = ranks_of(state, data.draw(worlds), "keep", bad)
        for _ in range(stop):
            for rank in ranks:
                seen += rank.next_batch()
        state = through_json(merge_states(rank.saved() for rank in reversed(ranks)))
    assert sorted(seen) == [p for p in range(samples) if p not in bad]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 90), worlds, st.sampled_from(["drop", "pad", "even", "keep"]), bad_sets, st.data())
def test_on_the_same_world_the_rest_is_as_uninterrupted(
    samples: int, world: tuple[int, int, int], tail: Tail, bad: set[int], data: st.DataObject
) -> None:
    """Batch by batch, whatever was skipped; each rank with its own state, or all with the merged one."""
    wanted = [all_batches(rank) for rank in ranks_of(fresh(samples), world, tail, bad)]
    ranks = ranks_of(fresh(samples), world, tail, bad)
    got: list[list[list[int]]] = [[] for _ in ranks]
    for stop in data.draw(st.lists(st.integers(0, 6), max_size=3)):
        for rank, batches in zip(ranks, got, strict=True):
            batches += [batch for _ in range(stop) if (batch := rank.next_batch())]
        saved = [rank.saved() for rank in ranks]
        if data.draw(st.booleans()):
            saved = [through_json(merge_states(saved))] * len(saved)
        ranks = [ranks_of(state, world, tail, bad)[number] for number, state in enumerate(saved)]
    for rank, batches in zip(ranks, got, strict=True):
        batches += all_batches(rank)
    assert got == wanted


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 90), worlds, st.integers(0, 9), worlds, st.data())
def test_any_one_rank_is_enough_where_nothing_was_skipped(
    samples: int, world: tuple[int, int, int], steps: int, other: tuple[int, int, int], data: st.DataObject
) -> None:
    tail: Tail = data.draw(st.sampled_from(["drop", "pad", "even"]))
    ranks = ranks_of(fresh(samples), world, tail, set())
    schedule = ranks[0].schedule
    for rank in ranks:
        for _ in range(steps):
            rank.next_batch()
    states = [rank.saved() for rank in ranks]
    handed = schedule.delivered(min(steps, schedule.global_batches))
    merged = merge_states(states)
    for state in (*states, merged):
        assert state.delivered() == handed
        assert state.schedule(*world, tail) == schedule
        assert [state.start(schedule, rank) for rank in range(schedule.world_size)] == list(merged.run.ranks)
        left = [schedule.batches_left(rank.progress.rank, rank.progress.consumed) for rank in ranks]
        assert left == [len(all_batches(rank)) for rank in ranks_of(state, world, tail, set())]
        moved = state.schedule(*other, tail)
        if other != world:
            assert moved.done == handed
            assert moved.streams_after(0, 0) == state.start(moved, 0).consumed == (0,) * moved.num_workers


@pytest.mark.parametrize("stop", [0, 1, 4, 7, 9])
def test_torch_asks_workers_as_the_turn_says(stop: int) -> None:
    """The same under torch's own DataLoader: three uneven workers, one of which ends early."""
    torch = pytest.importorskip("torch")
    bad = {*range(0, 60, 7), *range(4, 60, 12)}

    class Streams(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __init__(self, state: State) -> None:
            self.schedule = state.schedule(1, 4, 3, "keep")
            self.begin = state.start(self.schedule, 0)

        def __iter__(self) -> Iterator[int]:
            stream = self.begin.stream(torch.utils.data.get_worker_info().id)
            for piece in self.schedule.iterate(0, stream, self.begin.consumed[stream]):
                yield from (position for position in piece.tolist() if position not in bad)

    rank = ranks_of(fresh(60), (1, 4, 3), "keep", bad)[0]
    before = [rank.next_batch() for _ in range(stop)]
    with (
        warnings.catch_warnings()
    ):  # torch minds 3 workers on 2 cores, Python a fork of a process with threads
        warnings.simplefilter("ignore")
        loader = torch.utils.data.DataLoader(Streams(rank.saved()), batch_size=4, num_workers=3)
        after = [batch.tolist() for batch in loader]
    assert before + after == all_batches(ranks_of(fresh(60), (1, 4, 3), "keep", bad)[0])


def all_batches(rank: Rank) -> list[list[int]]:
    return list(iter(rank.next_batch, []))


def fresh(samples: int) -> State:
    return State(0, 0, True, 10, 1, samples, "sha256:0")


def test_a_rank_that_got_further_keeps_it() -> None:
    """Rank 0 skipped one sample and so used five of its entries for two batches; rank 1 is taken to be even."""
    state = replace(fresh(20), run=Run(2, 2, 1, (RankProgress(0, 2, (5,)),)))
    assert list(state.delivered()) == [(0, 9)]
    assert state.start(state.schedule(2, 2), 1) == RankProgress(1, 2, (4,))
    merged = merge_states([state, replace(state, run=Run(2, 2, 1, (RankProgress(1, 2, (6,)),)))])
    assert list(merged.delivered()) == [(0, 10), (11, 12)]
    assert merged.schedule(2, 2, 0).done == Ranges()
    assert merged.schedule(1, 4).done == merged.delivered()


def test_it_is_a_value() -> None:
    assert through_json(STATE) == STATE
    assert pickle.loads(pickle.dumps(STATE)) == STATE
    assert hash(through_json(STATE)) == hash(STATE)
    assert State.from_dict({**STATE.to_dict(), "added later": 1}) == STATE
    assert len(json.dumps(STATE.to_dict())) < 600


def test_numbers_of_numpy_become_plain() -> None:
    state = State.of(Order(COUNTS, seed=np.int64(3), epoch=np.uint8(1)), "sha256:0")  # type: ignore[arg-type]
    assert through_json(state) == state
    assert type(state.to_dict()["seed"]) is int


def test_golden_values() -> None:
    """A checkpoint that exists somewhere must load in every later release, or be refused by its version."""
    assert STATE.to_dict() == GOLDEN["state"]
    assert State.from_dict(GOLDEN["state"]) == STATE
    assert list(STATE.delivered()) == [tuple(pair) for pair in GOLDEN["delivered"]]
    assert fingerprint([], []) == GOLDEN["empty fingerprint"]


def test_the_fingerprint_tells_datasets_apart() -> None:
    prints = [
        fingerprint(["a", "b"], [1, 2]),
        fingerprint(["a", "b"], [2, 1]),
        fingerprint(["b", "a"], [1, 2]),
        fingerprint(["ab", ""], [1, 2]),
        fingerprint(["", "ab"], [1, 2]),
        fingerprint(["a"], [1]),
        fingerprint([], []),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint(("a", "b"), np.array([1, 2], dtype=np.uint32)) == prints[0]
    with pytest.raises(ValueError, match="2 names and counts of shape"):
        fingerprint(["a", "b"], [1])


PROGRESS = GOLDEN["state"]["run"]["ranks"][0]

FITS: dict[str, Any] = {
    "fingerprint": STATE.fingerprint,
    "samples": 15,
    "seed": 42,
    "shuffle": True,
    "shuffle_size": 6,
}


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({}, []),
        ({"lanes": 2}, []),
        ({"samples": 14, "fingerprint": "x"}, ["dataset with 15 samples, this one has 14"]),
        ({"fingerprint": "sha256:x"}, ["with other shards, or with these in another order"]),
        (
            {"seed": 1, "shuffle_size": 7},
            ["made with seed=42, here it is 1", "made with shuffle_size=6, here it is 7"],
        ),
        ({"shuffle": False, "seed": 1}, ["made with shuffle=True, here it is False"]),
        ({"lanes": 1, "samples": 1}, ["dataset with 15 samples", "made with 2 lanes, here 1 are set"]),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence_each(
    change: dict[str, Any], reasons: list[str]
) -> None:
    if not reasons:
        return STATE.check(**{**FITS, **change})
    with pytest.raises(StateMismatch) as refused:
        STATE.check(**{**FITS, **change})
    lines = str(refused.value).split("\n")
    assert len(lines) == len(reasons)
    assert all(reason in line and line.endswith(".") for reason, line in zip(reasons, lines, strict=True))
    return None


def test_the_seed_does_not_matter_without_shuffling() -> None:
    state = replace(STATE, shuffle=False)
    state.check(**{**FITS, "shuffle": False, "seed": 1, "shuffle_size": 9})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "no state of a Shardflow dataset"),
        ({"version": 2}, "format has version 2, this Shardflow reads 1"),
        ({"version": None}, "format has version None"),
        ({"order": 9}, "order that the checkpoint follows has version 9"),
        ({"seed": "42"}, "'seed' is '42'"),
        ({"seed": 2**64}, "'seed' is 18446744073709551616"),
        ({"epoch": -1}, "'epoch' is -1"),
        ({"epoch": True}, "'epoch' is True"),
        ({"shuffle": 1}, "'shuffle' is 1: bool was expected"),
        ({"lanes": 0}, "'lanes' is 0"),
        ({"fingerprint": None}, "'fingerprint' is None"),
        ({"done": None}, "'done' is None"),
        ({"done": [[0, 3], [2, 6]]}, "'done' is damaged"),
        ({"done": [[0, 3], [3, 6]]}, "'done' is damaged"),
        ({"done": [[0, 16]]}, "'done' is damaged"),
        ({"done": [[3, 3]]}, "start < stop was expected"),
        ({"done": [7]}, "'done' holds 7"),
        ({"done": [[0, 2**63]]}, "'done' is 9223372036854775808"),
        ({"run": []}, "'run' is \\[\\]: dict was expected"),
        ({"run": {}}, "'world_size' is None"),
        ({"run": {**GOLDEN["state"]["run"], "world_size": 1}}, "progress of rank 1"),
        ({"run": {**GOLDEN["state"]["run"], "world_size": 2**60}}, "'world_size' is"),
        ({"run": {**GOLDEN["state"]["run"], "num_workers": 3}}, "with 2 workers, can't be of a run"),
        ({"run": {**GOLDEN["state"]["run"], "ranks": [1]}}, "'ranks' holds 1"),
        (
            {"run": {**GOLDEN["state"]["run"], "ranks": [{"rank": 0, "batches": 1, "consumed": [1, -1]}]}},
            "is -1",
        ),
        (
            {"run": {**GOLDEN["state"]["run"], "ranks": [{"rank": 0, "batches": 99, "consumed": [1, 1]}]}},
            "is 99",
        ),
    ],
)
def test_damaged_states_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StateMismatch, match=message):
        State.from_dict({**GOLDEN["state"], **change})


def test_no_state_at_all_is_refused() -> None:
    for nothing in (None, [], {}, "state"):
        with pytest.raises(StateMismatch, match="no state of a Shardflow dataset"):
            State.from_dict(nothing)  # type: ignore[arg-type]


def of_rank(rank: int, **change: Any) -> State:
    run = Run(3, 2, 1, (RankProgress(rank, 1, (2,)),))
    return replace(State(0, 0, True, 10, 1, 30, "sha256:0", run=run), **change)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([], "No states to merge"),
        ([of_rank(0), of_rank(2)], "Of 3 ranks the states of 1 are missing"),
        ([of_rank(0), of_rank(1, epoch=1), of_rank(2)], "differ in epoch \\(0 and 1\\)"),
        ([of_rank(0), of_rank(1, done=Ranges.until(1))], "differ in done"),
        ([of_rank(0), of_rank(1, run=None)], "world size 3, batch size 2, 1 workers; not begun"),
        ([of_rank(0), of_rank(1, run=Run(3, 4, 1))], "dealt out differently"),
        (
            [of_rank(0), of_rank(0, run=Run(3, 2, 1, (RankProgress(0, 2, (4,)),)))],
            "different progress of rank 0",
        ),
    ],
)
def test_what_does_not_merge_is_refused(states: list[State], message: str) -> None:
    with pytest.raises(StateMismatch, match=message):
        merge_states(states)


def test_merging_what_shares_a_rank_or_has_not_begun() -> None:
    merged = merge_states([of_rank(2), of_rank(0), of_rank(0), of_rank(1)])
    assert merged == of_rank(0, run=Run(3, 2, 1, tuple(RankProgress(rank, 1, (2,)) for rank in range(3))))
    assert merge_states([merged, merged]) == merged
    assert merge_states([fresh(5), fresh(5)]) == fresh(5)
