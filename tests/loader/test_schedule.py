"""Dealing positions out: against lists in plain Python, and under torch's own DataLoader."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.ranges import Ranges
from loader.schedule import Schedule, Tail
from loader.world import current_world

TAILS: tuple[Tail, ...] = ("drop", "pad", "even", "keep")

done_sets = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=4).map(
    lambda pairs: Ranges([(start, start + size) for start, size in pairs])
)


@st.composite
def schedules(draw: st.DrawFn, tails: tuple[Tail, ...] = TAILS, batch: int = 6) -> Schedule:
    done = draw(done_sets)
    return Schedule(
        samples=done.stop + draw(st.integers(0, 70)),
        world_size=draw(st.integers(1, 6)),
        batch_size=draw(st.integers(1, batch)),
        num_workers=draw(st.integers(0, 5)),
        tail=draw(st.sampled_from(tails)),
        done=done,
    )


def plain_list(schedule: Schedule) -> list[int]:
    """The list of entries as the module's head tells it."""
    left = [p for p in range(schedule.samples) if not schedule.done.contains(p)]
    unit = {"even": schedule.world_size, "keep": 1}.get(schedule.tail, schedule.global_batch_size)
    odd = len(left) % unit
    if not odd:
        return left
    if schedule.tail == "drop":
        return left[:-odd]
    return left + [i % schedule.samples for i in range(unit - odd)]


def streams(schedule: Schedule) -> dict[tuple[int, int], list[int]]:
    return {
        (rank, worker): schedule.stream(rank, worker).tolist()
        for rank in range(schedule.world_size)
        for worker in range(schedule.num_workers)
    }


def batches_in_turn(schedule: Schedule, rank: int) -> list[list[int]]:
    """What torch's DataLoader makes of the streams: whole batches from each worker in turn, until all end."""
    size = schedule.batch_size
    own = [schedule.stream(rank, worker).tolist() for worker in range(schedule.num_workers)]
    cut = [[stream[i : i + size] for i in range(0, len(stream), size)] for stream in own]
    return [cut[w][i] for i in range(max(map(len, cut))) for w in range(len(cut)) if i < len(cut[w])]


@settings(deadline=None, max_examples=300)
@given(schedules())
def test_it_deals_out_the_list(schedule: Schedule) -> None:
    wanted, size = plain_list(schedule), schedule.global_batch_size
    assert schedule.entries == len(wanted)
    cut = [wanted[low : low + size] for low in range(0, len(wanted), size)]
    assert schedule.global_batches == len(cut)
    assert [schedule.global_batch(t).tolist() for t in range(len(cut))] == cut
    for rank in range(schedule.world_size):
        own = [batch[rank :: schedule.world_size] for batch in cut if batch[rank :: schedule.world_size]]
        assert [schedule.batch(rank, t).tolist() for t in range(schedule.rank_batches(rank))] == own
        assert batches_in_turn(schedule, rank) == own
        assert schedule.rank_samples(rank) == sum(map(len, own))
        for worker in range(schedule.num_workers):
            assert schedule.worker_batches(rank, worker) == len(own[worker :: schedule.num_workers])
    for (rank, worker), stream in streams(schedule).items():
        assert schedule.worker_samples(rank, worker) == len(stream)


@settings(deadline=None, max_examples=200)
@given(schedules())
def test_each_remaining_position_comes_as_stated(schedule: Schedule) -> None:
    dealt = sorted(chain.from_iterable(streams(schedule).values()))
    left = schedule.remaining.select(np.arange(schedule.remaining.size)).tolist()
    match schedule.tail:
        case "keep":
            assert dealt == left
        case "drop":
            assert len(set(dealt)) == len(dealt) > len(left) - schedule.global_batch_size
            assert set(dealt) <= set(left)
        case _:
            assert set(left) <= set(dealt)
            unit = schedule.world_size if schedule.tail == "even" else schedule.global_batch_size
            assert len(dealt) < len(left) + unit
            assert bool(dealt) == bool(left)


@settings(deadline=None, max_examples=200)
@given(schedules(("drop", "pad", "even")))
def test_ranks_end_together(schedule: Schedule) -> None:
    shapes = [
        [len(schedule.batch(rank, t)) for t in range(schedule.rank_batches(rank))]
        for rank in range(schedule.world_size)
    ]
    assert all(shape == shapes[0] for shape in shapes)
    assert len(shapes[0]) == schedule.global_batches
    if schedule.tail != "even":
        assert set(shapes[0]) <= {schedule.batch_size}


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 200),
    st.sampled_from([1, 2, 6, 12, 24]),
    st.sampled_from(["drop", "pad"]),
    st.integers(0, 3),
)
def test_one_global_batch_size_one_sequence(samples: int, size: int, tail: Tail, workers: int) -> None:
    """Whatever the number of ranks and workers, put together from what each rank's DataLoader would give."""
    sequences = []
    for world_size in (w for w in range(1, size + 1) if size % w == 0):
        schedule = Schedule(samples, world_size, size // world_size, workers, tail)
        ranks = [batches_in_turn(schedule, rank) for rank in range(world_size)]
        whole = [np.array(parts).T.ravel().tolist() for parts in zip(*ranks, strict=True)]
        assert whole == [schedule.global_batch(t).tolist() for t in range(schedule.global_batches)]
        sequences.append(whole)
    assert all(sequence == sequences[0] for sequence in sequences)


@settings(deadline=None, max_examples=200)
@given(schedules(("drop", "pad"), batch=4), st.data())
def test_resumed_after_whole_batches_it_is_the_same(schedule: Schedule, data: st.DataObject) -> None:
    """Three stops in one epoch, padding included, on any world with the same global batch."""
    whole = [schedule.global_batch(t).tolist() for t in range(schedule.global_batches)]
    size, at, part = schedule.global_batch_size, 0, schedule
    for _ in range(3):
        step = data.draw(st.integers(0, len(whole) - at))
        at += step
        world_size = data.draw(st.sampled_from([w for w in range(1, size + 1) if size % w == 0]))
        workers = data.draw(st.integers(0, 4))
        done = part.delivered(step)
        part = Schedule(schedule.samples, world_size, size // world_size, workers, schedule.tail, done)
        assert [part.global_batch(t).tolist() for t in range(part.global_batches)] == whole[at:]


@settings(deadline=None, max_examples=300)
@given(schedules(), st.data())
def test_what_uneven_streams_consumed(schedule: Schedule, data: st.DataObject) -> None:
    reached = {
        rank: [
            data.draw(st.integers(0, schedule.worker_samples(rank, worker)))
            for worker in range(schedule.num_workers)
        ]
        for rank in range(schedule.world_size)
    }
    own = streams(dataclasses.replace(schedule, tail="keep"))  # padding counts for nothing
    wanted = set(chain.from_iterable(own[r, w][: reached[r][w]] for r, w in own))
    done = schedule.consumed(reached)
    assert done == schedule.done.union(Ranges.of(sorted(wanted)))
    world_size, workers = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 3))
    rest = Schedule(schedule.samples, world_size, 3, workers, "keep", done)
    dealt = sorted(chain.from_iterable(streams(rest).values()))
    already = wanted | {p for start, stop in schedule.done for p in range(start, stop)}
    assert dealt == [p for p in range(schedule.samples) if p not in already]


@settings(deadline=None, max_examples=200)
@given(schedules(), st.data())
def test_one_rank_speaks_for_all_where_nothing_was_skipped(schedule: Schedule, data: st.DataObject) -> None:
    batches = data.draw(st.integers(0, schedule.global_batches))
    rank = data.draw(st.integers(0, schedule.world_size - 1))
    turns = [len(range(worker, batches, schedule.num_workers)) for worker in range(schedule.num_workers)]
    counts = [
        min(turn * schedule.batch_size, schedule.worker_samples(rank, worker))
        for worker, turn in enumerate(turns)
    ]
    assert schedule.consumed({rank: counts}, batches) == schedule.delivered(batches)
    handed = chain.from_iterable(schedule.global_batch(t).tolist() for t in range(batches))
    assert schedule.delivered(batches) == schedule.done.union(Ranges.of(list(handed)))


@settings(deadline=None, max_examples=100)
@given(schedules(), st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))
def test_a_stream_in_pieces(schedule: Schedule, start: int, chunk: int, first: int) -> None:
    for (rank, worker), stream in streams(schedule).items():
        pieces = [piece.tolist() for piece in schedule.iterate(rank, worker, start, chunk, first)]
        assert list(chain.from_iterable(pieces)) == stream[start:]
        assert all(0 < len(piece) <= chunk for piece in pieces)
        assert schedule.stream(rank, worker, start, start + chunk).tolist() == stream[start : start + chunk]


def test_known_cases() -> None:
    hundred = Schedule(100, world_size=4)
    assert [hundred.rank_samples(rank) for rank in range(4)] == [25] * 4
    three = Schedule(100, batch_size=8, num_workers=3, tail="even")
    assert [three.worker_batches(0, worker) for worker in range(3)] == [5, 4, 4]
    assert [three.worker_samples(0, worker) for worker in range(3)] == [36, 32, 32]
    crowd = Schedule(3, world_size=5, batch_size=2, num_workers=4, tail="pad")
    assert crowd.global_batch(0).tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert Schedule(3, world_size=5).entries == 0
    assert Schedule(0, world_size=2, tail="pad").global_batches == 0
    assert Schedule(5, num_workers=0) == Schedule(5, num_workers=1)


def test_a_huge_epoch_costs_nothing() -> None:
    schedule = Schedule(10**15, 512, 64, 8, "pad", Ranges([(0, 10**14), (10**14 + 5, 10**14 + 6)]))
    piece = next(schedule.iterate(511, 7, start=10**9))
    assert len(piece) == 256
    assert schedule.consumed({}, 10**9).prefix == schedule.global_batch(10**9)[0]
    ahead = schedule.consumed({0: [10**6] * 8}, 10**5)  # rank 0 consumed more than its batches say
    assert ahead.prefix == schedule.global_batch(10**5)[0] + 1
    assert ahead.size == schedule.consumed({}, 10**5).size + 8 * 10**6 - 64 * 10**5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": -1}, "samples is -1"),
        ({"world_size": 0}, "world_size is 0: an integer of at least 1"),
        ({"batch_size": None}, "batch_size is None"),
        ({"batch_size": True}, "batch_size is True"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"tail": "cut"}, "tail is 'cut': one of drop, pad, even, keep"),
        ({"done": Ranges.until(11)}, "position 10 is done, in an epoch of 10 samples"),
    ],
)
def test_it_refuses_what_cannot_be_meant(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**{"samples": 10, **arguments})


def test_it_refuses_who_is_not_there() -> None:
    schedule = Schedule(20, world_size=2, num_workers=3)
    for refused in (
        lambda: schedule.rank_samples(2),
        lambda: schedule.stream(0, 3),
        lambda: schedule.batch(-1, 0),
    ):
        with pytest.raises(ValueError, match="was expected"):
            refused()
    for missing in (lambda: schedule.batch(0, 10), lambda: schedule.global_batch(-1)):
        with pytest.raises(IndexError):
            missing()
    with pytest.raises(ValueError, match="3 numbers ≥ 0"):
        schedule.consumed({0: [1, 2]})


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("tail", ["drop", "even"])
def test_under_torch_dataloader(workers: int, tail: Tail) -> None:
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Iterator[int]:
            world = current_world(rank=1, world_size=2)
            schedule = Schedule(101, 2, 8, world.num_workers, tail)
            for piece in schedule.iterate(1, world.worker, chunk=5, first=2):
                yield from piece.tolist()

    with (
        warnings.catch_warnings()
    ):  # torch minds 3 workers on 2 cores, Python a fork of a process with threads
        warnings.simplefilter("ignore")
        batches = list(torch.utils.data.DataLoader(Stream(), batch_size=8, num_workers=workers))
    schedule = Schedule(101, 2, 8, workers, tail)
    assert [batch.tolist() for batch in batches] == [
        schedule.batch(1, t).tolist() for t in range(schedule.rank_batches(1))
    ]
    assert len(batches[-1]) == (8 if tail == "drop" else 3)
