"""The loader with torch's own workers: started in every way, living on or not, prefetching, failing."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from design_example import Mine
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from made_up import Numbers, made_up, numbers, packed
from torch.utils.data import DataLoader

from loader.data_loader import ShardedDataLoader
from loader.datasets import SampleDataset
from loader.errors import BadSample, TooManyBad
from loader.indexed_tar_dataset import DataStatus
from loader.meta import ShardMeta, write_meta
from loader.state import State, merge_states
from loader.writer import write_shard

METHODS = ["fork", "spawn", "forkserver"]
pytestmark = [
    # torch minds more workers than cores; Python minds a fork of a process with threads.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed(tmp_path_factory.mktemp("packed"), [10, 0, 12, 8])


def collated(samples: list[Any]) -> list[Any]:
    """By name, so that it can be pickled to spawned workers."""
    return list(samples)


def loader_of(root: str, workers: int, **keywords: Any) -> ShardedDataLoader:
    dataset = keywords.pop("dataset", None) or Numbers(root, 8, bad=keywords.pop("bad", ()))
    return ShardedDataLoader(dataset, 4, num_workers=workers, collate_fn=collated, **keywords)


@pytest.mark.parametrize(
    ("method", "persistent"),
    [("fork", False), ("fork", True), pytest.param("spawn", True, marks=pytest.mark.slow)],
)
def test_started_in_any_way_it_is_the_same(root: str, method: str, persistent: bool) -> None:
    """Epochs counted, set, resumed; with bad samples; as without workers but for who fills up what is short."""
    wanted = [list(loader) for loader in [loader_of(root, 0)] for _ in range(4)]
    loader = loader_of(root, 2, multiprocessing_context=method, persistent_workers=persistent)
    assert [list(loader) for _ in range(2)] == wanted[:2]
    loader.set_epoch(0)
    assert list(loader) == wanted[0]
    loader.set_epoch(3)
    head = list(islice(loader, 3))
    state = loader.state_dict()
    assert list(loader) == wanted[3]  # one that was left is begun again
    loader.load_state_dict(state)
    assert head + list(loader) == wanted[3]
    assert loader.epoch == 4


@pytest.mark.slow
def test_spawned_workers_know_the_rank_of_their_parent(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where they would find another: of a process group that they are not in."""
    import torch.distributed as dist

    dataset = SampleDataset(root, 8, transform=numbers)
    wanted = [
        list(loader_of(root, 2, dataset=SampleDataset(root, 8, transform=numbers, rank=0, world_size=1)))
    ]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setenv("RANK", "2")  # which spawned workers would believe
        monkeypatch.setenv("WORLD_SIZE", "3")
        for method in METHODS:
            got = list(loader_of(root, 2, dataset=dataset, multiprocessing_context=method))
            assert [got] == wanted
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("prefetch", [1, 5])
def test_what_is_prefetched_is_in_no_state(root: str, prefetch: int) -> None:
    wanted = list(loader_of(root, 2))
    for stop in range(len(wanted) + 1):
        loader = loader_of(root, 2, prefetch_factor=prefetch)
        batches = iter(loader)
        head = list(islice(batches, stop))
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
        other = loader_of(root, 2, prefetch_factor=prefetch)
        other.load_state_dict(state)
        assert head + list(other) == wanted


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)),
    st.frozensets(st.integers(0, 40), max_size=10),
    st.integers(0, 6),
    st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(0, 2)),
)
def test_with_real_workers_onto_another_world(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    world: tuple[int, int, int],
    bad: frozenset[int],
    stop: int,
    other: tuple[int, int, int],
) -> None:
    root = made_up(tmp_path_factory.mktemp("made-up"), counts)

    def loaders(world: tuple[int, int, int]) -> list[ShardedDataLoader]:
        return [
            ShardedDataLoader(
                Numbers(root, 8, bad=bad, rank=rank, world_size=world[0], max_bad_fraction=1.0),
                world[1], num_workers=world[2], tail="keep", collate_fn=collated,
            )
            for rank in range(world[0])
        ]  # fmt: skip

    seen: list[int] = []
    states = []
    for loader in loaders(world):
        batches = iter(loader)
        for batch in islice(batches, min(stop, len(loader))):
            seen += batch
        # With "keep" a rank whose last samples are bad ends before others know: there is no step to save at.
        assume(loader.epoch == 0)
        states.append(State.from_dict(loader.state_dict()))
    state = merge_states(states).to_dict()
    for loader in loaders(other):
        loader.load_state_dict(state)
        for batch in loader:
            seen += batch
    assert sorted(seen) == [n for n in range(sum(counts)) if n not in bad]


def test_a_loader_in_a_pickle(root: str) -> None:
    """Given to a process that is spawned, with all that was loaded into it; not what belongs to its workers."""
    wanted = [list(each) for each in [loader_of(root, 2)] for _ in range(2)]
    for workers in (0, 2):
        loader = loader_of(root, workers, persistent_workers=workers > 0)
        batches = iter(loader)
        head = list(islice(batches, 2))
        state = loader.state_dict()
        loader.load_state_dict(state)
        other = pickle.loads(pickle.dumps(loader))
        assert head + list(other) == wanted[0]
        assert list(other) == wanted[1]
        assert loader.epoch == 0
        assert head + list(loader) == wanted[0]


def in_another_world(_worker: int) -> None:
    torch.utils.data.get_worker_info().dataset._given = (3, 7)  # type: ignore[union-attr]


def test_a_worker_that_believes_in_another_world(root: str) -> None:
    """Whatever made it: an error, rather than every rank training on the same samples."""
    with pytest.raises(
        RuntimeError, match=r"read for \(rank, world size, epoch\) \(3, 7, 0\), .* at \(0, 1, 0\)"
    ):
        list(loader_of(root, 2, worker_init_fn=in_another_world))


# -- what fails


def fails(sample: dict[str, Any]) -> int:
    if sample[".txt"] == "13":
        raise OSError("this transform reads a file of its own")
    return int(sample[".txt"])


@pytest.mark.parametrize("workers", [0, 2])
def test_raise_in_the_middle(root: str, workers: int) -> None:
    dataset = SampleDataset(root, 8, transform=fails, on_bad="raise")
    loader = loader_of(root, workers, dataset=dataset)
    wanted = list(loader_of(root, workers))
    at = next(number for number, batch in enumerate(wanted) if 13 in batch)
    batches, got = iter(loader), []
    with pytest.raises(BadSample, match=r"00002.tar: sample '0000013'.*OSError: this transform"):
        for batch in batches:
            got.append(batch)  # noqa: PERF402
    assert got == wanted[:at]
    assert next(batches, None) is None
    assert loader.epoch == 0
    resumed = loader_of(root, workers)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == wanted[at:]


@pytest.mark.parametrize("workers", [0, 2])
def test_one_bad_sample_ends_nothing(root: str, workers: int) -> None:
    for on_bad in ("skip", "substitute"):
        loader = loader_of(root, workers, dataset=SampleDataset(root, 8, transform=fails, on_bad=on_bad))
        for _ in range(2):
            samples = [n for batch in loader for n in batch]
            assert len(samples) == 30 and set(samples) == set(range(30)) - {13}


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_bad_ones(root: str, workers: int) -> None:
    dataset = SampleDataset(root, transform=int, max_bad_in_row=5)
    with pytest.raises(TooManyBad, match="5 bad samples in a row"):
        list(loader_of(root, workers, dataset=dataset))


def odd(sample: dict[str, Any]) -> int | None:
    number = int(sample[".txt"])
    return number if number % 2 else None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_leaves_samples_out(root: str, workers: int) -> None:
    for on_bad, tail in (("skip", "even"), ("skip", "keep"), ("substitute", "even")):
        loader = loader_of(
            root, workers, dataset=SampleDataset(root, 8, transform=odd, on_bad=on_bad), tail=tail
        )
        samples = [n for batch in loader for n in batch]
        assert set(samples) == set(range(1, 30, 2))
        assert len(samples) == (15 if tail == "keep" else 30)


def test_a_worker_that_is_killed(root: str) -> None:
    """Torch says so; what was delivered until then is counted, and the rest follows from it."""
    wanted = list(loader_of(root, 2))
    loader = loader_of(root, 2, prefetch_factor=1)
    before = set(multiprocessing.active_children())
    batches = iter(loader)
    got = list(islice(batches, 2))
    for child in set(multiprocessing.active_children()) - before:
        os.kill(child.pid or 0, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for batch in batches:
            got.append(batch)  # noqa: PERF402
    resumed = loader_of(root, 2)
    resumed.load_state_dict(loader.state_dict())
    assert got + list(resumed) == wanted


# -- a plain DataLoader


def test_a_plain_data_loader_and_a_data_status(root: str) -> None:
    def plain(dataset: Mine) -> Any:
        return DataLoader(dataset, 4, num_workers=2, collate_fn=collated, persistent_workers=True)

    def indices(batch: Any) -> list[int]:
        return [sample.index for sample in batch]

    dataset = Mine(root, 8, batch_size=4)
    loader = plain(dataset)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append([indices(batch) for batch in loader])
    assert epochs == [list(each) for each in [loader_of(root, 2)] for _ in range(2)]
    status = DataStatus(epoch=1, num_workers=2)
    dataset.set_epoch(1)
    head = list(islice(loader, 3))
    for batch in head:
        for sample in batch:
            status.update(sample)
    other = Mine(root, 8, batch_size=4)
    other.set_data_status(status)
    assert len(plain(other)) == len(epochs[1]) - 3
    assert [indices(batch) for batch in (*head, *plain(other))] == epochs[1]


def test_persistent_workers_and_a_state_that_comes_too_late(root: str) -> None:
    dataset = Numbers(root, 8, batch_size=4)
    loader = DataLoader(dataset, 4, num_workers=2, persistent_workers=True)
    list(loader)
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(RuntimeError, match="load states before the DataLoader starts its persistent workers"):
        list(loader)


# -- torch's own interface


def pinned(value: Any) -> Any:
    """What torch's `pin_memory` made of containers in older versions: lists of plain tuples. This needs no GPU."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(pinned, value))
    return list(map(pinned, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("workers", [0, 2])
def test_what_pinning_memory_makes_of_batches(root: str, workers: int) -> None:
    class Pinned(ShardedDataLoader):
        def _get_iterator(self) -> Any:
            return map(pinned, super()._get_iterator())

    dataset = SampleDataset(root, 8, decode=False)
    wanted = list(ShardedDataLoader(dataset, 4, num_workers=workers, collate_fn=collated))
    loader = Pinned(dataset, 4, num_workers=workers, collate_fn=collated)
    got = list(islice(loader, 3))
    loader.load_state_dict(loader.state_dict())
    assert got + list(loader) == wanted


def seen_by(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.bad = frozenset({worker})  # type: ignore[union-attr]


def test_torch_s_arguments_keep_their_meaning(root: str) -> None:
    dataset = SampleDataset(root, 8, transform=numbers)
    unbatched = ShardedDataLoader(dataset, None, num_workers=2)
    assert len(unbatched) == 30
    assert sorted(unbatched) == list(range(30))
    tensors = ShardedDataLoader(
        dataset, 4, num_workers=2, timeout=60, generator=torch.Generator().manual_seed(1)
    )
    assert all(isinstance(batch, torch.Tensor) for batch in tensors)
    assert torch.cat(list(tensors)).sort().values.tolist() == list(range(30))
    dropped = ShardedDataLoader(dataset, 4, drop_last=True)
    assert [len(batch) for batch in dropped] == [4] * 7 == [4] * len(dropped)
    changed = loader_of(root, 2, worker_init_fn=seen_by)
    assert {n for batch in changed for n in batch} <= set(range(30))
    own = ShardedDataLoader(dataset, 4, collate_fn=collated)
    assert own.collate_fn is collated
    # Whoever makes another loader from its parts gets plain batches.
    again = DataLoader(own.dataset, own.batch_size, collate_fn=own.collate_fn)
    assert [len(batch) for batch in again] == [4] * 7 + [2]


# -- memory and files


def memory_of(pid: int) -> int:
    """Bytes of a process that no file holds: what it shares with forked children, and with others, included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def private_bytes() -> int:
    gc.collect()
    return memory_of(os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_and_files_over_epochs(tmp_path: Path, workers: int) -> None:
    """Flat from the second epoch on; never more files than `lru_size` says."""
    shards = {}
    payload = np.random.default_rng(0).bytes(4000)
    for shard in range(24):
        samples = [(f"{n:04d}", [(".bin", payload), (".txt", b"1")]) for n in range(150)]
        info = write_shard(f"{tmp_path}/{shard:02d}.tar", samples)
        shards[f"{shard:02d}.tar"] = ShardMeta(info.num_samples, info.size, info.checksum, {})
    write_meta(str(tmp_path), shards)
    dataset = SampleDataset(str(tmp_path), 900, lru_size=8)
    loader = ShardedDataLoader(
        dataset, 50, num_workers=workers, persistent_workers=workers > 0, collate_fn=collated
    )
    others = {child.pid for child in multiprocessing.active_children()}
    memory, files = [], []
    for _ in range(6):
        for _batch in loader:
            workers_now = {child.pid for child in multiprocessing.active_children()} - others
            for pid in (os.getpid(), *workers_now):
                assert Path(f"/proc/{pid}/maps").read_text().count(str(tmp_path)) <= 2 * 8
        gc.collect()
        memory.append(sum(memory_of(pid) for pid in (os.getpid(), *workers_now)))
        files.append(len(os.listdir("/proc/self/fd")))
    assert len(workers_now) == workers
    assert memory[-1] - memory[1] < 2 << 20, [each >> 10 for each in memory]
    assert max(files[1:]) - min(files[1:]) <= 2


@pytest.mark.slow
def test_a_hundred_thousand_shards(tmp_path: Path) -> None:
    """Made-up meta.json of 10⁸ samples: no Python object a shard, little memory, restore as cheap as a start."""
    root = made_up(tmp_path, [1000] * 100_000)
    Numbers(made_up(tmp_path / "warm", [1000]), world_size=8, rank=3)  # imports
    next(iter(Numbers(str(tmp_path / "warm"))))
    gc.collect()
    before, objects = private_bytes(), len(gc.get_objects())
    dataset = Numbers(root, rank=3, world_size=8, batch_size=64)
    first = next(iter(dataset))
    assert 0 <= first < 10**8
    assert private_bytes() - before < 60 << 20
    assert len(gc.get_objects()) - objects < 1000
    loader = ShardedDataLoader(dataset, 64, collate_fn=collated)
    state = loader.state_dict()
    middle = {**state, "done": [[0, 50_000_000]]}
    loader.load_state_dict(middle)
    assert len(loader) == 50_000_000 // 8 // 64 + 1
    assert len(next(iter(loader))) == 64
    assert private_bytes() - before < 60 << 20


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("loader.indexed_tar_dataset")
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(logging.NOTSET)
