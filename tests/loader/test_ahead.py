"""What comes next is fetched before it is needed: as far as is said, no further, and the order stays what it is."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import places
import pytest
from fault_proxy import FaultProxy
from s3_server import Place
from stored import PICTURE, pack, packed, sample

from loader import storage
from loader.data_loader import ShardedDataLoader
from loader.datasets import SampleDataset
from loader.errors import BadConfig, BadMeta, StoreError
from loader.map_dataset import IndexedTarMapDataset

BACKENDS = ("cache", "range", "memory")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., SampleDataset]:
    def made(place: Place, **options: Any) -> SampleDataset:
        options = {"cache_dir": str(tmp_path / "cache"), "decode": False, "shuffle_size": 40, **options}
        return SampleDataset(place.root, storage_options=place.storage_options, **options)

    return made


def keys(samples: Any) -> list[str]:
    return [each["__key__"] for each in samples]


def shardflow_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shardflow")]


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return what()


# -- the same samples


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_order_is_that_of_local_shards(
    backend: str, s3: Place, make: Callable[..., SampleDataset], tmp_path: Path
) -> None:
    packed(s3, 6, 10)
    pack(str(tmp_path / "local"), 6, 10)
    local = list(SampleDataset(str(tmp_path / "local"), decode=False, shuffle_size=40))
    assert sorted(local, key=lambda each: str(each["__key__"])) == [sample(n) for n in range(60)]
    for options in ({}, {"prefetch": 0}, {"prefetch": 1, "lru_size": 1}):
        dataset = make(s3, backend=backend, **options)
        assert list(dataset) == local
        dataset.set_epoch(1)
        assert keys(dataset) != keys(local) and len(keys(dataset)) == 60


@pytest.mark.parametrize(("backend", "context"), [("cache", "fork"), ("range", "fork"), ("range", "spawn")])
def test_workers(backend: str, context: str, s3: Place, make: Callable[..., SampleDataset]) -> None:
    packed(s3, 6, 10)
    dataset = make(s3, backend=backend)
    first = next(iter(dataset))  # the parent has used its threads and its client before
    assert first["__key__"]
    loader = ShardedDataLoader(
        dataset, batch_size=5, num_workers=2, collate_fn=list, multiprocessing_context=context
    )
    before = dataset.traffic.as_dict()
    for epoch in range(2):
        loader.set_epoch(epoch)
        found = [each for batch in loader for each in batch]
        assert sorted(found, key=lambda each: str(each["__key__"])) == [sample(n) for n in range(60)]
    after = dataset.traffic.as_dict()
    if backend == "range":
        assert after["wanted"] - before["wanted"] == 2 * sum(
            len(sample(n)[".jpg"]) + len(sample(n)[".txt"]) for n in range(60)
        )
    else:
        assert after["downloads"] <= 6 < after["cached"]


def test_resumed_in_the_middle(s3: Place, make: Callable[..., SampleDataset]) -> None:
    packed(s3, 4, 10)
    for backend in ("cache", "range"):
        loader = ShardedDataLoader(make(s3, backend=backend), batch_size=4, collate_fn=list)
        whole = list(loader)
        loader.set_epoch(0)
        iterator = iter(loader)
        begun = [next(iterator) for _ in range(3)]
        other = ShardedDataLoader(make(s3, backend=backend), batch_size=4, collate_fn=list)
        other.load_state_dict(loader.state_dict())
        assert begun + list(other) == whole


# -- how far


def test_shards_come_before_they_are_needed_and_no_more_than_said(
    faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset]
) -> None:
    packed(faulty, 10, 4)
    dataset = make(faulty, shuffle=False, prefetch=3)
    samples = iter(dataset)
    assert next(samples)["__key__"] == "000000"
    assert wait_for(lambda: dataset.traffic.downloads >= 3)
    time.sleep(0.1)
    assert dataset.traffic.downloads == 3  # the first is one of them: it came as one that is needed soon
    assert len(keys(samples)) == 39
    assert dataset.traffic.downloads == 10
    none = make(faulty, shuffle=False, prefetch=0, cache_dir=dataset.remote.cache.folder + "-2")  # type: ignore[union-attr]
    next(iter(none))
    assert none.traffic.downloads == 1


@pytest.fixture
def bridged(monkeypatch: pytest.MonkeyPatch) -> None:
    """These shards count as large: those that take more than one request are met in a benchmark alone."""
    monkeypatch.setattr("loader.indexed_tar_dataset.PART", PICTURE)


def local_keys(tmp_path: Path, shards: int, samples: int, **options: Any) -> list[str]:
    pack(str(tmp_path / "local"), shards, samples)
    return keys(SampleDataset(str(tmp_path / "local"), decode=False, shuffle_size=40, **options))


def test_the_first_batch_waits_for_no_download(
    bridged: None, faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset], tmp_path: Path
) -> None:
    packed(faulty, 4, 32)
    order = local_keys(tmp_path, 4, 32)
    dataset = make(faulty, batch_size=16)
    faults.reset(bandwidth=300_000)  # two seconds for a shard
    samples = iter(dataset)
    found = keys(itertools.islice(samples, 16))
    assert dataset.traffic.downloads == 0, "they came by ranges"
    faults.reset()
    assert found + keys(samples) == order
    traffic, size = dataset.traffic, int(dataset.table.sizes.sum())
    assert traffic.downloads == 4
    assert traffic.wanted == sum(
        len(sample(int(key))[".jpg"]) + len(sample(int(key))[".txt"]) for key in found
    )
    assert traffic.fetched <= 1.02 * (size + traffic.wanted), "with the indexes"
    assert dataset.remote is not None and not dataset.remote.bytes_ahead
    assert wait_for(lambda: not shardflow_threads())
    # Once a shard is here, it is read from its copy.
    for _ in range(2):
        wanted = dataset.traffic.wanted
        dataset.set_epoch(dataset.epoch + 1)
        assert len(keys(dataset)) == 128 and dataset.traffic.wanted == wanted


@pytest.mark.parametrize(
    "options", [{"lru_size": 1}, {"lru_size": 2, "prefetch": 4}, {"prefetch": 0}, {"on_bad": "substitute"}]
)
def test_bridges_change_no_order(
    bridged: None, options: dict[str, Any], faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset],
    tmp_path: Path,
) -> None:  # fmt: skip
    packed(faulty, 5, 12)
    faults.reset(bandwidth=1_000_000)
    dataset = make(faulty, batch_size=8, **options)
    assert keys(dataset) == local_keys(tmp_path, 5, 12)
    assert dataset.remote is not None and not dataset.remote.bytes_ahead


def test_an_iteration_that_is_left_on_a_bridge(
    bridged: None, faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset], tmp_path: Path
) -> None:
    packed(faulty, 4, 32)
    dataset = make(faulty, batch_size=16)
    faults.reset(bandwidth=300_000)
    samples = iter(dataset)
    next(samples)
    del samples
    assert wait_for(lambda: not shardflow_threads())
    faults.reset()
    assert keys(dataset) == local_keys(tmp_path, 4, 32)


def test_a_shard_without_an_index_has_no_bridge(
    bridged: None, faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset], tmp_path: Path
) -> None:
    packed(faulty, 2, 12)
    for shard in range(2):
        storage.remove(faulty.address(f"{shard:05d}.tar.index"), faulty.storage_options)
    faults.reset(latency=0.02)
    dataset = make(faulty, batch_size=8)
    assert keys(dataset) == local_keys(tmp_path, 2, 12)
    assert dataset.traffic.wanted == 0 and dataset.traffic.downloads == 2


def test_batches_come_before_they_are_needed_and_no_more_than_said(
    faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset]
) -> None:
    packed(faulty, 4, 50)
    dataset = make(faulty, backend="range", batch_size=16, prefetch=2)
    faults.reset(latency=0.02)
    samples = iter(dataset)
    next(samples)
    remote = dataset.remote
    assert remote is not None
    sizes = (2 * 16 * PICTURE, 3 * 16 * (PICTURE + 200))
    assert remote.bytes_ahead < sizes[0] / 2, "the first batch is asked for alone, and waits for no other"
    next(samples)
    assert sizes[0] * 0.9 < remote.bytes_ahead < sizes[1]
    for _ in itertools.islice(samples, 100):
        assert remote.bytes_ahead < sizes[1]
    assert faults.stats()["most_at_once"] >= 8
    assert len(list(samples)) == 98
    assert remote.bytes_ahead == 0


def test_captions_cost_their_bytes_alone(
    faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset]
) -> None:
    packed(faulty, 4, 25)
    dataset = make(faulty, backend="range", extensions=[".txt"])
    faults.reset()
    assert len(list(dataset)) == 100
    assert faults.stats()["down"] < 0.05 * 100 * PICTURE


# -- ends and errors


@pytest.mark.parametrize("backend", ["cache", "range"])
def test_threads_end_with_the_iteration(backend: str, s3: Place, make: Callable[..., SampleDataset]) -> None:
    packed(s3, 4, 10)
    gc.collect()  # what other tests left
    for count, options in ((3, {}), (40, {}), (7, {"prefetch": 0})):
        dataset = make(s3, backend=backend, **options)
        samples = iter(dataset)
        assert len(list(itertools.islice(samples, count))) == count
        del samples
        assert wait_for(lambda: not shardflow_threads())
        assert dataset.remote is not None and dataset.remote.bytes_ahead == 0


def test_two_iterations_at_a_time(s3: Place, make: Callable[..., SampleDataset]) -> None:
    packed(s3, 4, 10)
    dataset = make(s3, backend="range")
    expected = keys(dataset)
    other = copy.copy(dataset)
    pairs = list(zip(dataset, other, strict=True))
    assert [one["__key__"] for one, _ in pairs] == [two["__key__"] for _, two in pairs] == expected


def test_a_shard_that_is_gone_is_told_where_it_is_read(s3: Place, make: Callable[..., SampleDataset]) -> None:
    packed(s3, 3, 5)
    storage.remove(s3.address("00001.tar"), s3.storage_options)
    for backend in ("cache", "range"):
        samples = iter(make(s3, backend=backend, shuffle=False))
        assert keys(itertools.islice(samples, 5)) == [f"{n:06d}" for n in range(5)]
        with pytest.raises(FileNotFoundError, match=r"00001\.tar"):
            next(samples)


def test_a_shard_of_another_size_than_meta_json_says(
    s3: Place, make: Callable[..., SampleDataset], tmp_path: Path
) -> None:
    packed(s3, 2, 5)
    pack(str(tmp_path / "x"), 1, 6)
    for name in ("00000.tar", "00000.tar.index"):
        storage.write_bytes(s3.address(name), (tmp_path / "x" / name).read_bytes(), s3.storage_options)
    for backend in ("cache", "range"):
        with pytest.raises(BadMeta, match=r"00000\.tar has .* bytes, where meta\.json says"):
            list(make(s3, backend=backend, on_bad="raise"))


def test_a_store_that_fails_ends_the_epoch(
    faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset]
) -> None:
    """Nobody's sample is bad: to leave all of them out would be wrong."""
    packed(faulty, 2, 20)
    place = Place(faulty.root, {**faulty.storage_options, "max_tries": 1})
    dataset = make(place, backend="range", on_bad="skip", prefetch=1)
    samples = iter(dataset)
    next(samples)
    faults.reset(rules=(faults.rule("503"),))
    with pytest.raises(StoreError):
        list(samples)
    with pytest.raises(StoreError):
        IndexedTarMapDataset(dataset, on_bad="substitute")[3]
    faults.reset()
    assert len(list(dataset)) == 40


def test_a_limit_below_the_largest_shard_is_refused_at_start(
    s3: Place, make: Callable[..., SampleDataset]
) -> None:
    packed(s3, 2, 5)
    largest = max(storage.stat(s3.address(f"0000{n}.tar"), s3.storage_options).size for n in range(2))
    with pytest.raises(BadConfig, match=f"{largest:,} is the least that can work"):
        make(s3, max_cache_size=largest - 1)
    assert len(list(make(s3, max_cache_size=largest))) == 10
    make(s3, max_cache_size=1, backend="range")
    for wrong in ({"backend": "rnage"}, {"prefetch": -1}):
        with pytest.raises(BadConfig):
            make(s3, **wrong)


def test_ctrl_c_ends_it(faulty: Place, faults: FaultProxy, tmp_path: Path) -> None:
    packed(faulty, 4, 20)
    faults.reset(rules=(faults.rule("stall", method="GET", path="00003.tar", seconds=2),))
    code = """
import sys
from loader.datasets import SampleDataset
options = {"key": sys.argv[3], "secret": sys.argv[4], "endpoint_url": sys.argv[5]}
dataset = SampleDataset(sys.argv[1], storage_options=options, cache_dir=sys.argv[2], decode=False, shuffle=False)
for number, sample in enumerate(dataset):
    if number == 20:
        print("going", flush=True)
"""
    options = faulty.storage_options
    told = (faulty.root, tmp_path / "c", options["key"], options["secret"], options["endpoint_url"])
    child = places.python(code, *told)
    assert child.stdout is not None and child.stdout.readline() == "going\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode in (1, -signal.SIGINT) and "KeyboardInterrupt" in err
    assert not [name for name in os.listdir(tmp_path / "c") if name.endswith(".part")]


# -- by number


def test_a_batch_by_number_is_fetched_together(
    faulty: Place, faults: FaultProxy, make: Callable[..., SampleDataset]
) -> None:
    packed(faulty, 4, 25)
    for backend in ("cache", "range"):
        dataset = IndexedTarMapDataset(make(faulty, backend=backend))
        faults.reset(latency=0.02)
        wanted = [3, 99, 50, 51, 26, 3, 75, 0]
        assert dataset.__getitems__(wanted) == [sample(n) for n in wanted]
        assert dataset[60] == sample(60) and dataset[10:13] == [sample(n) for n in (10, 11, 12)]
        assert faults.stats()["most_at_once"] >= 4
