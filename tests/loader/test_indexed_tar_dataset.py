"""The base class on its own: what a subclass sees and says, counts and statuses, copies and pickles."""

from __future__ import annotations

import copy
import json
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from design_example import Mine
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import Numbers, made_up, numbers
from simulated import PlainSimulatedLoader, as_worker

from loader.data_loader import ShardedDataLoader, collate
from loader.datasets import SampleDataset
from loader.errors import BadSample, TooManyBad, UnknownDataset
from loader.indexed_tar_dataset import DataStatus, IndexedTarDataset, RetSample
from loader.writer import write_shard

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/loader.json"


# -- a subclass as the design page has it


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_subclass_as_the_design_page_has_it(root: str, world_size: int, workers: int) -> None:
    got = []
    for rank in range(world_size):
        dataset = Mine({"name": root, "data_type": "text"}, 5, 2, 7, rank=rank, world_size=world_size)
        assert repr(dataset) == f"Mine({root})"
        assert (dataset.rank, dataset.world_size) == (rank, world_size)
        loader = ShardedDataLoader(dataset, 4, num_workers=workers, collate_fn=list)
        got += list(loader)
    samples = list(chain(*got))
    assert sorted(sample.index for sample in samples) == list(range(30))
    for sample in samples:
        assert sample.name == root and sample.data_type == "text"
        assert sample.sample == {"__key__": f"{sample.index:07d}", ".txt": str(sample.index)}
        url, i = sample.url_index
        shard = int(Path(url).stem)
        assert sample.index == {0: 0, 2: 10, 3: 22}[shard] + i
        assert (sample.missing_indices, sample.missing_urls_indices, sample.missing_samples) == ([], [], [])
        assert 0 <= sample.worker_id < sample.num_workers == max(1, workers)


def test_its_bad_samples(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = Mine(broken, shuffle=False)
    samples = list(dataset)
    # Order on disk, and three of the first ones once more, so that ranks end together.
    assert [sample.index for sample in samples] == [n for n in range(30) if n not in (3, 14, 15)] + [0, 1, 2]
    told = {sample.index: sample for sample in samples[:-3] if sample.missing_indices}
    assert told.keys() == {4, 16}
    assert told[16].missing_indices == [14, 15]
    assert told[16].missing_urls_indices == [(f"{broken}/1.tar", 4), (f"{broken}/1.tar", 5)]
    assert "member '0000014.json'" in told[16].missing_samples[0]
    logged = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(logged) == 2  # once a shard
    assert f"{broken}/0.tar: sample '0000003', member '0000003.json'" in logged[0]
    with pytest.raises(
        BadSample, match=r"0\.tar: sample '0000003', member '0000003\.json' at byte \d+: no JSON"
    ):
        list(Mine(broken, shuffle=False, on_bad="raise"))
    substituted = list(Mine(broken, shuffle=False, on_bad="substitute"))
    assert [s.index for s in substituted] == [*range(3), 18, *range(4, 14), 29, 0, *range(16, 30)]
    assert substituted[3].missing_indices == [3]


def test_without_a_data_generator(root: str) -> None:
    dataset = IndexedTarDataset(root)
    assert "30 samples in 4 shards" in repr(dataset)
    with pytest.raises(NotImplementedError, match="IndexedTarDataset has no data_generator"):
        list(dataset)


# -- what a subclass uses


def test_indices_one_by_one_or_all_together(root: str) -> None:
    dataset = IndexedTarDataset(root, seed=3)
    wanted = list(Numbers(root, seed=3))
    assert list(IndexedTarDataset(root, seed=3).index_generator()) == wanted
    got = []
    with pytest.raises(StopIteration):
        while True:
            got.append(dataset.next_index())
    assert got == wanted


def test_places_of_any_index(root: str) -> None:
    dataset = IndexedTarDataset(root)
    places = [dataset.index2indices(index) for index in range(30)]
    assert places[9:11] == [(f"{root}/00000.tar", 9), (f"{root}/00002.tar", 0)]
    assert [dataset.read(*place)[".txt"] for place in places] == [str(n) for n in range(30)]
    with pytest.raises(IndexError, match="there is no sample 30"):
        dataset.index2indices(30)
    with pytest.raises(LookupError, match="none of the shards"):
        dataset.read("elsewhere.tar", 0)


def test_open_shards_are_bounded(root: str) -> None:
    dataset = SampleDataset(root, 100, lru_size=2, transform=numbers)
    assert sorted(dataset) == list(range(30))
    assert len(dataset._shards) == 2 == dataset.lru_size


def test_large_samples_are_read_small_ones_mapped(tmp_path: Path) -> None:
    write_shard(f"{tmp_path}/large.tar", [(f"{n}", [(".bin", bytes(40_000))]) for n in range(3)])
    write_shard(f"{tmp_path}/small.tar", [(f"{n}", [(".bin", bytes(4))]) for n in range(3)])
    for options, backends in (
        ({}, ["read", "mmap"]),
        ({"views": True, "decode": False}, ["mmap", "mmap"]),
        ({"backend": "mmap"}, ["mmap", "mmap"]),
    ):
        dataset = SampleDataset(f"{tmp_path}/*.tar", **options)  # type: ignore[arg-type]
        assert [dataset.open_shard(shard).tar.backend for shard in range(2)] == backends
        assert sorted(len(sample[".bin"]) for sample in dataset) == [4] * 3 + [40_000] * 3


def test_told_once_that_windows_are_wider_than_what_stays_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = Numbers(made_up(tmp_path, [5] * 12), 60, lru_size=3)
    for _ in range(3):
        list(dataset)
    told = [
        r.getMessage()
        for r in caplog.records
        if "spreads over 12 shards, but lru_size is 3" in r.getMessage()
    ]
    assert len(told) == 1 and "Raise lru_size, or lower shuffle_size" in told[0]
    caplog.clear()
    list(Numbers(str(tmp_path), 60, lru_size=12))
    assert not caplog.records


def test_two_iterations_at_a_time(root: str) -> None:
    dataset = Numbers(root)
    one, two = iter(dataset), iter(dataset)
    first = next(two)
    with pytest.raises(RuntimeError, match="left for a newer one"):
        [next(one) for _ in range(2)]
    assert [first, *two] == list(Numbers(root))
    assert list(zip(dataset, copy.copy(dataset), strict=True)) == [(n, n) for n in Numbers(root)]


# -- who reads what


def test_modes(tmp_path: Path) -> None:
    many, few = made_up(tmp_path / "many", [3] * 20), made_up(tmp_path / "few", [3] * 19)

    def shards(root: str, **keywords: Any) -> list[set[str]]:
        datasets = [Numbers(root, rank=r, world_size=2, ret_samples=True, **keywords) for r in range(2)]
        return [{sample.url_index[0] for sample in dataset} for dataset in datasets]

    for root, keywords, apart in (
        (many, {}, True),
        (few, {}, False),
        (many, {"sharding": "sample"}, False),
        (few, {"sharding": "url"}, True),
        (many, {"shuffle": False}, False),
    ):
        one, two = shards(root, **keywords)
        assert len(one | two) == (20 if root == many else 19)
        # An odd number of shards leaves one over, which both read; one sample is there twice.
        assert (len(one & two) <= 2) is apart, (root, keywords)


def test_world_of_now_not_of_then(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Numbers(root)
    assert (dataset.rank, dataset.world_size, len(dataset)) == (0, 1, 30)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (dataset.rank, dataset.world_size, len(dataset)) == (1, 3, 10)
    assert len(list(dataset)) == 10
    by_hand = Numbers(root, rank=0, world_size=2)
    assert len(by_hand) == len(list(by_hand)) == 15
    with pytest.raises(ValueError, match="give both, or neither"):
        list(Numbers(root, rank=0))
    with pytest.raises(ValueError, match="rank is 2 of world size 2"):
        list(Numbers(root, rank=2, world_size=2))


def test_a_copy_by_pickle_keeps_the_rank_for_workers(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    data = pickle.dumps(Numbers(root))
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    worker = pickle.loads(data)
    with as_worker(1, 2, worker):
        assert (worker.rank, worker.world_size, worker.worker_id, worker.num_workers) == (2, 3, 1, 2)
    assert worker.world_size == 1  # no worker: what the environment says
    # Pickled further up, by what spawned the ranks, whose workers are forked: they know better.
    worker._inherited = (0, 1, 2**30)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with as_worker(0, 2, worker):
        assert (worker.rank, worker.world_size) == (1, 2)


# -- bad samples


def test_too_many_in_a_row(tmp_path: Path) -> None:
    root = made_up(tmp_path, [50])
    bad = range(10, 20)
    assert len(list(Numbers(root, shuffle=False, bad=bad, max_bad_in_row=11))) == 50
    with pytest.raises(TooManyBad, match=r"10 bad samples in a row, at last: .*00000.tar: sample 19: no 19"):
        list(Numbers(root, shuffle=False, bad=bad, max_bad_in_row=10))
    # What is left out on purpose is no fault.
    assert len(list(Numbers(root, shuffle=False, unwanted=bad, max_bad_in_row=2))) == 50


def test_too_large_a_share(tmp_path: Path) -> None:
    root = made_up(tmp_path, [1000])
    bad = range(0, 1000, 5)
    assert len(list(Numbers(root, bad=bad, max_bad_fraction=0.35))) == 1000
    with pytest.raises(TooManyBad, match=r"\d+ of 1\d\d samples were bad, more than max_bad_fraction=0.1"):
        list(Numbers(root, bad=bad))
    assert len(list(Numbers(root, bad=range(0, 20, 2)))) == 1000  # ten percent of the first few mean nothing


@pytest.mark.parametrize("on_bad", ["skip", "substitute"])
def test_nothing_to_read_at_all(tmp_path: Path, on_bad: Any) -> None:
    root = made_up(tmp_path, [20])
    with pytest.raises(TooManyBad, match="finds no sample to yield"):
        list(Numbers(root, bad=range(20), on_bad=on_bad))
    with pytest.raises(TooManyBad, match='say tail="keep"'):
        list(Numbers(root, unwanted=range(20), on_bad=on_bad))
    assert list(Numbers(root, bad=range(20), tail="keep")) == []


def test_exceptions_are_kept_as_text(root: str) -> None:
    class Failing(Numbers):
        def data_generator(self) -> Iterator[RetSample]:
            for index in self.index_generator():
                try:
                    if index == 4:
                        raise KeyError("a lambda can't be pickled", lambda: None)
                except KeyError as error:
                    self.skip_sample(index, error)
                    continue
                yield RetSample("", "", *self.success_sample(), index, ("", 0), index, 0, 1)

    (told,) = [sample for sample in Failing(root, ret_samples=True, shuffle=False) if sample.missing_indices]
    assert told.missing_samples[0].startswith('KeyError: ("a lambda')
    pickle.dumps(told)
    with pytest.raises(BadSample, match=r"00000.tar: sample 4: KeyError"):
        list(Failing(root, on_bad="raise"))


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.frozensets(st.integers(0, 50), max_size=30),
    st.frozensets(st.integers(0, 50), max_size=10),
    st.sampled_from(["skip", "substitute"]),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_what_is_left_out_is_told_exactly_once(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    bad: frozenset[int],
    unwanted: frozenset[int],
    on_bad: Any,
    world_size: int,
    workers: int,
) -> None:
    """But for what comes after a worker's last sample, with a tail that is not filled up."""
    root = made_up(tmp_path_factory.mktemp("told"), counts)
    missing: Counter[int] = Counter()
    trailing = 0
    for rank in range(world_size):
        dataset = Numbers(
            root, 6, bad=bad, unwanted=unwanted, on_bad=on_bad, ret_samples=True, rank=rank, world_size=world_size,
            tail="keep", max_bad_in_row=10**6, max_bad_fraction=1.0,
        )  # fmt: skip
        if on_bad == "substitute" and not set(range(sum(counts))) - bad - unwanted:
            return
        last: dict[int, RetSample] = {}
        for batch in PlainSimulatedLoader(dataset, 4, num_workers=workers, collate_fn=list):
            for sample in batch:
                places = [dataset.index2indices(index) for index in sample.missing_indices]
                assert places == sample.missing_urls_indices
                assert sample.missing_samples == [f"no {index}" for index in sample.missing_indices]
                missing.update(sample.missing_indices)
                last[sample.worker_id] = sample
        trailing += max(1, workers)
    out = {index for index in bad | unwanted if index < sum(counts)}
    if on_bad == "skip":
        assert set(missing) <= out
        assert max(missing.values(), default=1) == 1
    else:
        assert set(missing) == out  # each has a substitute, before which it is told


# -- a plain DataLoader and a DataStatus


@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.frozensets(st.integers(0, 60), max_size=25),
    st.sampled_from(["skip", "substitute"]),
    st.sampled_from(["even", "pad", "drop", "keep"]),
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 3)),
    st.booleans(),
    st.lists(st.integers(0, 8), max_size=3),
    st.integers(0, 2),
)
def test_a_data_status_resumes(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    bad: frozenset[int],
    on_bad: Any,
    tail: Any,
    world: tuple[int, int, int],
    told: bool,
    stops: list[int],
    epoch: int,
) -> None:
    """With a plain DataLoader, which the dataset knows the batch size of, or not."""
    world_size, batch_size, workers = world
    root = made_up(tmp_path_factory.mktemp("status"), counts)
    if not set(range(sum(counts))) - bad:
        return

    def loader(rank: int) -> tuple[Numbers, Any]:
        dataset = Numbers(
            root, 6, bad=bad, on_bad=on_bad, tail=tail, ret_samples=True, rank=rank, world_size=world_size,
            batch_size=batch_size if told else 1, max_bad_in_row=10**6, max_bad_fraction=1.0,
        )  # fmt: skip
        return dataset, PlainSimulatedLoader(dataset, batch_size, num_workers=workers, collate_fn=list)

    for rank in range(world_size):
        dataset, batches = loader(rank)
        dataset.set_epoch(epoch)
        promised = len(dataset)
        wanted = [[sample.index for sample in batch] for batch in batches]
        if tail != "keep":
            assert promised == sum(map(len, wanted))
        dataset.set_epoch(epoch + 1)
        following = [[sample.index for sample in batch] for batch in batches]
        status, got = DataStatus(epoch, max(1, workers)), []
        for stop in (*stops, None):
            dataset, batches = loader(rank)
            dataset.set_data_status(pickle.loads(pickle.dumps(status)))
            if tail != "keep":
                assert len(dataset) == promised - sum(map(len, got))
            iterator = iter(batches)
            while stop is None or stop > 0:
                batch = next(iterator, None)
                if batch is None:
                    break
                for sample in batch:
                    status.update(sample)
                got.append([sample.index for sample in batch])
                stop = None if stop is None else stop - 1
        if tail == "keep" and bad and on_bad == "skip":
            # Workers end unevenly; whose turn it was is not told by counts.
            assert sorted(map(sorted, got)) == sorted(map(sorted, wanted))
        else:
            assert got == wanted
        dataset.set_epoch(epoch + 1)
        assert [[sample.index for sample in batch] for batch in batches] == following


def test_a_data_status_with_batches_that_the_dataset_is_not_told_of(tmp_path: Path) -> None:
    """One worker has then yielded four samples, the other none, where the dataset would have expected two of each."""
    root = made_up(tmp_path, [10, 9, 8])

    def loader() -> tuple[Numbers, Any]:
        dataset = Numbers(root, 6, ret_samples=True)
        return dataset, PlainSimulatedLoader(dataset, 4, num_workers=2, collate_fn=list)

    _, batches = loader()
    wanted = [[sample.index for sample in batch] for batch in batches]
    for stop in range(len(wanted)):
        status = DataStatus(num_workers=2)
        _, batches = loader()
        for batch in islice(batches, stop):
            for sample in batch:
                status.update(sample)
        dataset, batches = loader()
        dataset.set_data_status(status)
        assert len(dataset) == 27 - sum(map(len, wanted[:stop]))
        assert [[sample.index for sample in batch] for batch in batches] == wanted[stop:]


# -- copies, pickles, processes


def test_copies_have_an_epoch_of_their_own(root: str) -> None:
    dataset = Numbers(root)
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert list(other) == list(dataset)
        other.set_epoch(3)
        assert dataset.epoch == 0
        dataset.set_epoch(1)
        assert other.epoch == 3
        dataset.set_epoch(0)
        assert other._shared._tensor.is_shared()


def _rank(dataset: Numbers, number: int, pipe: Any) -> None:
    pipe.send(dataset.epoch)
    dataset.set_epoch(10 + number)
    pipe.recv()
    pipe.send((dataset.epoch, dataset.state_dict()["epoch"], len(list(dataset))))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_ranks_do_not_set_each_other_s_epoch(root: str, method: str) -> None:
    """A dataset that was built beforehand, given to processes that each go their way."""
    context = multiprocessing.get_context(method)
    dataset = Numbers(root)
    dataset.set_epoch(5)
    ranks = []
    for number in range(2):
        here, there = context.Pipe()
        process = context.Process(target=_rank, args=(dataset, number, there))
        process.start()
        ranks.append((process, here))
    assert [here.recv() for _, here in ranks] == [5, 5]
    for _, here in ranks:
        here.send("go")
    assert [here.recv() for _, here in ranks] == [(10, 10, 30), (11, 11, 30)]
    for process, _ in ranks:
        process.join()
    assert dataset.epoch == 5


# -- batches


def test_ret_samples_collate_although_something_is_missing(root: str) -> None:
    dataset = Numbers(root, bad=[3, 4], shuffle=False, ret_samples=True)
    batch = next(iter(ShardedDataLoader(dataset, 5)))
    assert isinstance(batch, RetSample)
    assert batch.sample.tolist() == batch.index.tolist() == [0, 1, 2, 5, 6]  # type: ignore[attr-defined]
    assert batch.missing_indices == [[], [], [], [3, 4], []]
    assert batch.url_index[0] == (f"{root}/00000.tar", 0)
    assert collate([1, 2]).tolist() == [1, 2]


# -- misuse


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"data_info": {"data_type": "x"}}, ValueError, r"keys \['data_type'\]: 'name' is missing"),
        ({"data_info": "no such"}, UnknownDataset, "no such"),
        ({"on_bad": "ignore"}, ValueError, "on_bad is 'ignore': one of raise, skip, substitute"),
        ({"sharding": "shard"}, ValueError, "sharding is 'shard': one of auto, sample, url"),
        ({"tail": None}, ValueError, "tail is None: one of drop, pad, even, keep"),
        ({"shuffle_size": 0}, ValueError, "shuffle_size is 0"),
        ({"lru_size": 0}, ValueError, "lru_size is 0"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"seed": 1.5}, ValueError, "seed is 1.5"),
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
    ],
)
def test_what_it_refuses(root: str, arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Numbers(**{"data_info": root, **arguments})


def test_numpy_integers_are_integers(root: str) -> None:
    state = Numbers(root, np.int64(8), seed=np.int64(3)).state_dict()
    assert json.loads(json.dumps(state)) == state


# -- the same everywhere, always


GOLDEN_CODE = """
import json, sys
from made_up import Numbers
from simulated import SimulatedLoader
loaders = [
    SimulatedLoader(
        Numbers(sys.argv[1], 16, seed=7, bad={5, 40, 41}, rank=rank, world_size=2),
        4, num_workers=2, tail="pad", collate_fn=list,
    )
    for rank in range(2)
]
epochs = [[list(loader) for _ in range(2)] for loader in loaders]
batches = iter(loaders[1])
for _ in range(3):
    next(batches)
print(json.dumps({"epochs": epochs, "state": loaders[1].state_dict()}))
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_golden_sequence_and_state(tmp_path: Path, hash_seed: str) -> None:
    """To be written anew only with another ORDER_VERSION or STATE_VERSION: who resumes a run relies on it."""
    root = made_up(tmp_path, [7, 0, 12, 9, 1, 20, 5, 5])
    done = subprocess.run(
        [sys.executable, "-c", GOLDEN_CODE, root],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(done.stdout) == json.loads(GOLDEN.read_text())


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
