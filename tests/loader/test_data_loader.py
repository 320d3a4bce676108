"""The loader against a model in plain Python: any shards, world, workers, batch, tail, bad samples and stops."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from made_up import Numbers, made_up
from simulated import SimulatedLoader

from loader.data_loader import EpochDataLoader, ShardedDataLoader
from loader.errors import StateMismatch, TooManyBad
from loader.schedule import Schedule
from loader.state import State, merge_states

Batches = list[list[int]]


@dataclass(frozen=True)
class Case:
    """What a run is made with."""

    counts: tuple[int, ...]
    world_size: int = 1
    batch_size: int = 1
    num_workers: int = 0
    tail: Any = "even"
    seed: int = 0
    shuffle: bool = True
    shuffle_size: int = 6
    sharding: Any = "auto"
    on_bad: Any = "skip"
    bad: frozenset[int] = field(default_factory=frozenset)
    unwanted: frozenset[int] = field(default_factory=frozenset)

    @property
    def samples(self) -> int:
        return sum(self.counts)

    @property
    def left_out(self) -> frozenset[int]:
        return self.bad | self.unwanted

    @property
    def good(self) -> list[int]:
        return [index for index in range(self.samples) if index not in self.left_out]

    def dataset(self, root: Path, rank: int, **keywords: Any) -> Numbers:
        address = root / "-".join(map(str, self.counts))
        if not address.exists():
            made_up(address, self.counts)
        return Numbers(
            str(address),
            shuffle_size=self.shuffle_size,
            seed=self.seed,
            shuffle=self.shuffle,
            sharding=self.sharding,
            rank=rank,
            world_size=self.world_size,
            on_bad=self.on_bad,
            max_bad_in_row=10**6,
            max_bad_fraction=1.0,
            bad=self.bad,
            unwanted=self.unwanted,
            **keywords,
        )

    def loader(self, root: Path, rank: int, **keywords: Any) -> SimulatedLoader:
        return SimulatedLoader(
            self.dataset(root, rank),
            self.batch_size,
            num_workers=self.num_workers,
            tail=self.tail,
            collate_fn=list,
            **keywords,
        )

    def loaders(self, root: Path, **keywords: Any) -> list[SimulatedLoader]:
        return [self.loader(root, rank, **keywords) for rank in range(self.world_size)]


counts = st.lists(st.integers(0, 9), min_size=1, max_size=14).map(tuple)
cases = st.builds(
    Case,
    counts,
    world_size=st.integers(1, 5),
    batch_size=st.integers(1, 5),
    num_workers=st.integers(0, 4),
    tail=st.sampled_from(["drop", "pad", "even", "keep"]),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.booleans(),
    shuffle_size=st.integers(1, 60),
    sharding=st.sampled_from(["auto", "sample", "url"]),
)
# Mostly with one bad sample or a few; sometimes with nearly nothing that can be read.
troubles = st.one_of(
    st.just(frozenset[int]()),
    st.frozensets(st.integers(0, 30), max_size=3),
    st.frozensets(st.integers(0, 126), max_size=60),
)
troubled = st.builds(
    lambda case, bad, unwanted, on_bad: replace(case, bad=bad, unwanted=unwanted, on_bad=on_bad),
    cases,
    troubles,
    troubles,
    st.sampled_from(["skip", "substitute"]),
)


def model(case: Case, order: Any) -> list[Batches]:
    """An epoch, as docs and docstrings state it: the batches of each rank."""
    schedule = Schedule(case.samples, case.world_size, case.batch_size, max(1, case.num_workers), case.tail)
    shards, numbers = order.at(np.arange(case.samples))
    begins = np.concatenate(([0], np.cumsum(case.counts)))
    index = (begins[shards] + numbers).tolist()
    ranks = []
    for rank in range(case.world_size):
        made = [
            yielded(case, index, schedule.stream(rank, worker).tolist())
            for worker in range(schedule.num_workers)
        ]
        size = case.batch_size
        cut = [[stream[at : at + size] for at in range(0, len(stream), size)] for stream in made]
        rounds = range(max(map(len, cut)))
        ranks.append([batches[turn] for turn in rounds for batches in cut if turn < len(batches)])
    return ranks


def yielded(case: Case, index: list[int], stream: list[int]) -> list[int]:
    """What one worker makes of its positions."""
    samples, out = len(index), []
    half = samples // 2
    if case.on_bad == "substitute":
        for position in stream:
            candidates = [position, *((position + half + step) % samples for step in range(samples))]
            out.append(next(index[p] for p in candidates if index[p] not in case.left_out))
        return out
    out = [index[p] for p in stream if index[p] not in case.left_out]
    if case.tail == "keep" or len(out) == len(stream):
        return out
    again = [*stream, *((stream[0] + half + step) % samples for step in range(10 * samples))]
    more = [index[p] for p in again if index[p] not in case.left_out]
    return out + more[: len(stream) - len(out)]


def size_of(epoch: list[Batches]) -> list[list[int]]:
    return [[len(batch) for batch in batches] for batches in epoch]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("loader.indexed_tar_dataset")
    logger.setLevel(logging.ERROR)  # thousands of bad samples are meant here
    yield
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made-up")


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(state))
    return copied


# -- one epoch


@settings(deadline=None, max_examples=300)
@given(troubled, st.integers(0, 3))
def test_an_epoch_is_what_the_model_says(root: Path, case: Case, epoch: int) -> None:
    loaders = case.loaders(root)
    for loader in loaders:
        loader.set_epoch(epoch)
    promised = [len(loader) for loader in loaders]
    if not case.good and case.tail != "keep" and any(promised):
        with pytest.raises(TooManyBad, match="finds no sample"):
            [list(loader) for loader in loaders]
        return
    if not case.good and case.on_bad == "substitute" and case.samples:
        return
    order = loaders[0].indexed.order()
    got = [list(loader) for loader in loaders]
    assert got == model(case, order)
    assert [loader.epoch for loader in loaders] == [epoch + 1] * case.world_size
    if case.tail != "keep":
        sizes = size_of(got)
        assert all(each == sizes[0] for each in sizes)
        if case.tail != "even":
            assert set(chain(*sizes)) <= {case.batch_size}
    if case.tail != "keep" or not case.left_out or case.on_bad == "substitute":
        assert promised == [len(batches) for batches in got]


@settings(deadline=None, max_examples=150)
@given(cases)
def test_each_sample_comes_once_an_epoch(root: Path, case: Case) -> None:
    times = Counter(chain(*chain(*[list(loader) for loader in case.loaders(root)])))
    samples, whole = case.samples, case.world_size * case.batch_size
    match case.tail:
        case "keep":
            assert times == Counter(range(samples))
        case "drop":
            assert set(times.values()) <= {1}
            assert times.total() == samples // whole * whole
        case tail:
            unit = whole if tail == "pad" else case.world_size
            assert set(times) == set(range(samples))
            assert times.total() == -(-samples // unit) * unit
            assert not times or max(times.values()) <= 1 + -(-unit // samples)


@settings(deadline=None, max_examples=100)
@given(
    counts,
    st.sampled_from([1, 2, 4, 6, 12]),
    st.sampled_from(["drop", "pad"]),
    st.integers(0, 2**32),
    st.sampled_from(["sample", "url"]),
    st.data(),
)
def test_one_global_batch_one_sequence(
    root: Path, counts: tuple[int, ...], size: int, tail: Any, seed: int, sharding: Any, data: st.DataObject
) -> None:
    """Any world, any number of workers; under url mode from a state, which holds the lanes."""
    state = None
    sequences = []
    for world_size in (w for w in range(1, size + 1) if size % w == 0):
        workers = data.draw(st.integers(0, 3))
        case = Case(counts, world_size, size // world_size, workers, tail, seed, sharding=sharding)
        loaders = case.loaders(root)
        state = state or loaders[0].state_dict()
        for loader in loaders:
            loader.load_state_dict(state)
        epochs = []
        for _ in range(2):
            ranks = [list(loader) for loader in loaders]
            epochs.append([np.array(parts).T.ravel().tolist() for parts in zip(*ranks, strict=True)])
        sequences.append(epochs)
    assert all(sequence == sequences[0] for sequence in sequences)


def test_more_ranks_and_workers_than_samples(root: Path) -> None:
    case = Case((1, 0, 2), world_size=5, batch_size=2, num_workers=4, tail="even")
    got = [list(loader) for loader in case.loaders(root)]
    assert size_of(got) == [[1]] * 5
    assert set(chain(*chain(*got))) == {0, 1, 2}
    assert [list(loader) for loader in replace(case, tail="drop").loaders(root)] == [[]] * 5
    one_bad = replace(case, bad=frozenset({1}))
    assert size_of([list(loader) for loader in one_bad.loaders(root)]) == [[1]] * 5


def test_the_tail_that_the_dataset_says(root: Path) -> None:
    dataset = Case((10,)).dataset(root, 0, tail="pad")
    assert sum(map(len, SimulatedLoader(dataset, 4))) == 12
    assert sum(map(len, SimulatedLoader(dataset, 4, tail="keep"))) == 10
    assert sum(map(len, SimulatedLoader(dataset, 4, drop_last=True))) == 8


# -- resume


@settings(deadline=None, max_examples=150)
@given(troubled, st.lists(st.integers(0, 12), max_size=3), st.booleans())
def test_resumed_it_is_as_uninterrupted(root: Path, case: Case, stops: list[int], merged: bool) -> None:
    """This epoch and the next two, after up to three resumes, from each rank's own state or one of all."""
    if not case.good:
        return
    wanted = [[list(loader) for _ in range(5)] for loader in case.loaders(root)]
    loaders = case.loaders(root)
    got: list[list[Batches]] = [[[]] for _ in loaders]
    for stop in stops:
        for loader, epochs in zip(loaders, got, strict=True):
            epochs[-1] += (head := taken(loader, stop))
            if len(head) < stop:  # came to the end, and into the next epoch
                epochs.append([])
        states = [through_json(loader.state_dict()) for loader in loaders]
        if merged and len({loader.epoch for loader in loaders}) == 1:
            together = merge_states(State.from_dict(state) for state in states).to_dict()
            states = [together] * len(states)
        loaders = case.loaders(root)
        for loader, state, epochs in zip(loaders, states, got, strict=True):
            loader.load_state_dict(state)
            assert through_json(loader.state_dict()) == state
            if case.tail != "keep":
                assert len(loader) == len(wanted[0][0]) - len(epochs[-1])
    for loader, epochs in zip(loaders, got, strict=True):
        epochs[-1] += list(loader)
        while len(epochs) < 5:
            epochs.append(list(loader))
    assert got == wanted


def taken(loader: ShardedDataLoader, count: int) -> Batches:
    """The first batches of an iteration, which is then left; fewer if it came to its end."""
    batches = iter(loader)
    return [batch for _ in range(count) if (batch := next(batches, None)) is not None]


@settings(deadline=None, max_examples=150)
@given(troubled, st.lists(st.integers(0, 9), max_size=3), st.data())
def test_onto_other_worlds_what_remains_comes_once(
    root: Path, case: Case, stops: list[int], data: st.DataObject
) -> None:
    """Merged states; worlds, batches and workers change at each stop. Nothing is padded or dropped on the way."""
    case = replace(case, tail="keep", on_bad="skip")
    times: Counter[int] = Counter()
    state = None
    for stop in (*stops, None):
        case = replace(
            case,
            world_size=data.draw(st.integers(1, 4)),
            batch_size=data.draw(st.integers(1, 4)),
            num_workers=data.draw(st.integers(0, 3)),
        )
        loaders = case.loaders(root)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            times.update(chain(*taken(loader, case.samples + 1 if stop is None else stop)))
        epochs = {loader.epoch for loader in loaders}
        if len(epochs) > 1 or epochs == {1}:  # some or all have ended the epoch: nothing to save any more
            event("ended early" if stop is not None else "ended")
            for loader in loaders:
                if loader.epoch == 0:
                    times.update(chain(*rest_of(loader)))
            break
        state = merge_states(State.from_dict(loader.state_dict()) for loader in loaders).to_dict()
    assert times == Counter(case.good)


def test_a_rank_that_gets_no_batch_has_a_state_like_the_others(root: Path) -> None:
    case = Case((1,), world_size=2, tail="keep")
    loaders = case.loaders(root)
    running = [iter(loader) for loader in loaders]
    assert next(running[0]) == [0]
    state = merge_states(State.from_dict(loader.state_dict()) for loader in loaders).to_dict()
    alone = replace(case, world_size=1).loader(root, 0)
    alone.load_state_dict(state)
    assert list(alone) == []


def rest_of(loader: ShardedDataLoader) -> Batches:
    """The batches that a loader would still give, from its own state."""
    state = loader.state_dict()
    loader.load_state_dict(state)
    return list(loader)


@settings(deadline=None, max_examples=60)
@given(cases, st.integers(0, 9), cases)
def test_any_rank_s_state_serves_all_where_nothing_is_left_out(
    root: Path, case: Case, stop: int, other: Case
) -> None:
    case = replace(case, tail="pad")
    other = replace(
        other, counts=case.counts, seed=case.seed, shuffle=case.shuffle, shuffle_size=case.shuffle_size,
        tail="keep",
    )  # fmt: skip
    loaders = case.loaders(root)
    heads = [taken(loader, min(stop, len(loader))) for loader in loaders]
    states = [loader.state_dict() for loader in loaders]
    rests = []
    for state in {
        json.dumps(State.from_dict(state).delivered().to_list()): state for state in states
    }.values():
        for loader in (theirs := other.loaders(root)):
            loader.load_state_dict(state)
        rests.append([list(loader) for loader in theirs])
    assert len(rests) == 1
    seen = Counter(chain(*chain(*heads))) + Counter(chain(*chain(*rests[0])))
    padded = case.world_size * case.batch_size
    assert set(seen) == set(range(case.samples))
    assert seen.total() - case.samples <= padded


@settings(deadline=None, max_examples=60)
@given(troubled, st.integers(0, 3))
def test_the_end_of_an_epoch(root: Path, case: Case, epoch: int) -> None:
    """Saved after the last batch, before and after the loop has ended: the next epochs follow."""
    if not case.good:
        return
    for rank in range(case.world_size):
        loader = case.loader(root, rank)
        loader.set_epoch(epoch)
        wanted = [list(loader) for _ in range(3)]
        loader = case.loader(root, rank)
        loader.set_epoch(epoch)
        batches = iter(loader)
        for _ in wanted[0]:
            next(batches)
        before = loader.state_dict()
        assert next(batches, None) is None
        after = loader.state_dict()
        assert State.from_dict(after).epoch == epoch + 1
        resumed = case.loader(root, rank)
        if wanted[0]:
            resumed.load_state_dict(before)
            assert resumed.epoch == epoch
            if case.tail != "keep":
                assert len(resumed) == 0
            assert [list(resumed) for _ in range(3)] == [[], *wanted[1:]]
        resumed.load_state_dict(after)
        assert [list(resumed) for _ in range(2)] == wanted[1:]


# -- epochs


@settings(deadline=None, max_examples=60)
@given(troubled, st.booleans())
def test_epochs_with_workers_that_live_on(root: Path, case: Case, persistent: bool) -> None:
    """Counted, set by hand, left early, resumed: persistent workers or new ones, the same."""
    if not case.good:
        return
    persistent = persistent and case.num_workers > 0
    fresh = case.loader(root, 0)
    epochs = [list(fresh) for _ in range(4)]
    loader = case.loader(root, 0, persistent_workers=persistent)
    assert list(loader) == epochs[0]
    assert taken(loader, 1) == epochs[1][:1]
    state = loader.state_dict()
    if len(epochs[1]) > 1:
        assert list(loader) == epochs[1]  # begun again
    else:
        loader.set_epoch(2)
    assert list(loader) == epochs[2]
    loader.set_epoch(0)
    assert list(loader) == epochs[0]
    loader.load_state_dict(state)
    assert list(loader) == epochs[1][1:]
    loader.indexed.set_epoch(1)  # what was loaded is done with
    assert list(loader) == epochs[1]
    loader.set_epoch(3)
    assert list(loader) == epochs[3]


def test_epochs_differ_and_repeat(root: Path) -> None:
    case = Case((10, 10, 10), batch_size=4, num_workers=2)
    loader, other = case.loader(root, 0), replace(case, seed=1).loader(root, 0)
    epochs = [list(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert list(other) != epochs[0]
    loader.set_epoch(1)
    assert list(loader) == epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_over_after_its_last_batch_even_if_nobody_asks_for_more(root: Path, workers: int) -> None:
    """Trainers that count up to len never see StopIteration."""
    case = Case((10, 10, 10), batch_size=4, num_workers=workers)
    wanted = [list(loader) for loader in [case.loader(root, 0)] for _ in range(3)]
    loader = case.loader(root, 0)
    got = [taken(loader, len(loader)) for _ in range(3)]
    assert got == wanted
    loader.set_epoch(2)  # the one that was just delivered, once more
    assert list(loader) == wanted[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_that_counts_epochs_and_batches_itself(root: Path, workers: int) -> None:
    """As Lightning does it: len and iter once at the start, then set_epoch at the sampler, and len batches an epoch."""

    class Simulated(SimulatedLoader, EpochDataLoader):
        pass

    def loader() -> Simulated:
        return Simulated(case.dataset(root, 0), 4, num_workers=workers, collate_fn=list)

    case = Case((10, 10, 10), bad=frozenset({4, 5}))
    reference = SimulatedLoader(case.dataset(root, 0), 4, num_workers=workers, collate_fn=list)
    wanted = [list(reference) for _ in range(3)]

    def train(epoch: int = 0, done: int = 0, state: Any = None, stop: int = 10**6) -> tuple[list[Any], Any]:
        got: list[Any] = []
        trained = loader()
        if state is not None:
            trained.load_state_dict(state)
        batches = iter(trained)
        length = len(trained)
        assert length == len(wanted[0])
        for number in range(epoch, 3):
            trained.sampler.set_epoch(number)  # type: ignore[attr-defined]
            while done < length:
                got.append(next(batches))
                done += 1
                if len(got) == stop:
                    return got, (number, done, through_json(trained.state_dict()))
            done, batches = 0, iter(trained)
        return got, None

    whole = [batch for epoch in wanted for batch in epoch]
    assert train()[0] == whole
    for stop in range(1, len(whole)):
        head, (epoch, done, state) = train(stop=stop)
        if done == len(wanted[0]):  # at the end of an epoch: with the loader's state, or without
            assert head + train(epoch + 1)[0] == whole
            epoch, done = epoch + 1, 0
        assert head + train(epoch, done, state)[0] == whole
    # In another world, len is what the trainer has had and what remains.
    head, (_, done, state) = train(stop=3)
    other = EpochDataLoader(case.dataset(root, 0), 2, collate_fn=list)
    other.load_state_dict(state)
    assert len(other) == 3 + 9 == done + len(list(other))


def test_accelerate_is_told_that_there_is_nothing_to_prepare(root: Path) -> None:
    """It would split once more what is split already."""
    assert SimulatedLoader(Case((3,)).dataset(root, 0))._is_accelerate_prepared


def test_set_epoch_on_the_dataset_that_was_given(root: Path) -> None:
    case = Case((10, 10, 10), batch_size=4)
    wanted = [list(loader) for loader in [case.loader(root, 0)] for _ in range(3)]
    dataset = case.dataset(root, 0)
    loader = SimulatedLoader(dataset, 4, collate_fn=list)
    dataset.set_epoch(2)
    assert list(loader) == wanted[2]
    loader.dataset.set_epoch(1)  # type: ignore[attr-defined]
    assert list(loader) == wanted[1]


def test_one_dataset_serves_several_loaders(root: Path) -> None:
    case = Case((10, 10, 10))
    dataset = case.dataset(root, 0)
    one = SimulatedLoader(dataset, 4, collate_fn=list)
    two = SimulatedLoader(dataset, 4, collate_fn=list)
    first = [list(one), list(one)]
    batches = zip(two, list(dataset), strict=False)
    assert [batch for batch, _ in batches] == first[0]
    assert list(two) == first[1]


# -- misuse


def test_an_iteration_left_for_a_newer_one(root: Path) -> None:
    case = Case((10, 10, 10), batch_size=4)
    for workers in (0, 2):
        loader = replace(case, num_workers=workers).loader(root, 0)
        wanted = list(replace(case, num_workers=workers).loader(root, 0))
        old = iter(loader)
        assert next(old) == wanted[0]
        new = iter(loader)
        assert next(new) == wanted[0]
        with pytest.raises(RuntimeError, match="a newer one began on the same loader"):
            next(old)
        assert list(new) == wanted[1:]  # undisturbed


@pytest.mark.parametrize("workers", [0, 2])
def test_another_epoch_or_a_state_ends_what_runs(root: Path, workers: int) -> None:
    case = Case((10, 10, 10), batch_size=4, num_workers=workers)
    wanted = [list(loader) for loader in [case.loader(root, 0)] for _ in range(3)]
    loader = case.loader(root, 0)
    for what in ("epoch", "state"):
        loader.set_epoch(0)
        running = iter(loader)
        next(running)
        if what == "epoch":
            loader.set_epoch(2)
        else:
            loader.load_state_dict(loader.state_dict())
        with pytest.raises(RuntimeError, match="given a state or another epoch"):
            next(running)
    assert list(loader) == wanted[0][1:]
    # At its last batch nothing is lost, and the epoch that was set is the one that comes.
    loader.set_epoch(0)
    got = []
    for batch in loader:
        got.append(batch)
        if len(got) == len(wanted[0]):
            loader.set_epoch(2)
    assert got == wanted[0]
    assert list(loader) == wanted[2]


@pytest.mark.parametrize("name", ["shuffle", "sampler", "batch_sampler"])
def test_what_an_iterable_dataset_does_not_take(root: Path, name: str) -> None:
    dataset = Case((3,)).dataset(root, 0)
    with pytest.raises(ValueError, match=f"{name} doesn't go with .* say shuffle"):
        ShardedDataLoader(dataset, 2, **{name: [1]})
    ShardedDataLoader(dataset, 2, **{name: None})


def test_other_misuse(root: Path) -> None:
    dataset = Case((3,)).dataset(root, 0)
    with pytest.raises(TypeError, match="dataset is a list: an IndexedTarDataset was expected"):
        ShardedDataLoader([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in_order=False"):
        ShardedDataLoader(dataset, in_order=False)
    with pytest.raises(ValueError, match="drop_last says 'drop', tail says 'pad'"):
        ShardedDataLoader(dataset, drop_last=True, tail="pad")
    with pytest.raises(ValueError, match="tail is 'cut'"):
        ShardedDataLoader(dataset, tail="cut")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size should be a positive integer"):
        ShardedDataLoader(dataset, 0)
    with pytest.raises(ValueError, match="epoch is -1"):
        ShardedDataLoader(dataset).set_epoch(-1)


def test_a_state_that_does_not_fit(root: Path) -> None:
    case = Case((4, 5), seed=3)
    state = case.loader(root, 0).state_dict()
    for other, reason in (
        (Case((4, 6), seed=3), "9 samples, this one has 10"),
        (Case((5, 4), seed=3), "other shards"),
        (Case((4, 5), seed=4), "seed=3, here it is 4: set seed=3"),
        (Case((4, 5), seed=3, shuffle_size=7), "shuffle_size=6"),
        (Case((4, 5), seed=3, shuffle=False), "shuffle=True"),
    ):
        loader = other.loader(root, 0)
        before = loader.state_dict()
        with pytest.raises(StateMismatch, match=reason):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
    with pytest.raises(StateMismatch, match="no state of a Shardflow dataset"):
        case.loader(root, 0).load_state_dict({"epoch": 1})
