"""Real ranks and workers that train from a store which is slow and fails, killed and resumed; and many on a small cache."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_proxy import FaultProxy
from s3_server import Place
from stored import packed, sample

from loader import storage
from loader.data_loader import ShardedDataLoader, gather_state
from loader.datasets import SampleDataset
from loader.shard_cache import ShardCache

FORK = multiprocessing.get_context("fork")
SHARDS, SAMPLES = 6, 20
KILLED_AT = 4  # steps
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def number_of(found: dict[str, Any]) -> int:
    """A sample's number, if each of its bytes is what was packed."""
    number = int(found["__key__"])
    if found != sample(number):
        raise RuntimeError(f"sample {number} has other bytes")
    return number


def train(place: Place, folder: Path, rank: int, resume: Path | None, options: dict[str, Any]) -> None:
    import torch.distributed as dist

    os.setsid()  # with its workers, one group to kill
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    dataset = SampleDataset(
        place.root, storage_options=place.storage_options, decode=False, shuffle_size=60, on_bad="raise", **options
    )  # fmt: skip
    loader = ShardedDataLoader(dataset, 4, num_workers=2, collate_fn=_numbers)
    if resume is not None:
        loader.load_state_dict(json.loads(resume.read_text())["state"])
    with open(folder / f"rank-{rank}.log", "w") as log:
        for step, batch in enumerate(loader, start=1):
            log.write(json.dumps([step, batch]) + "\n")
            log.flush()
            state = gather_state(loader)  # ranks go in step
            if rank == 0:
                part = folder / "checkpoint.part"
                part.write_text(json.dumps({"step": step, "state": state}))
                part.replace(folder / "checkpoint.json")
            if resume is None:
                time.sleep(0.05)
    dist.barrier()
    (folder / f"rank-{rank}.done").touch()
    dist.destroy_process_group()


def _numbers(batch: list[Any]) -> list[int]:
    return [number_of(each) for each in batch]


def run(folder: Path, *arguments: Any, until: int | None = None) -> dict[int, list[int]]:
    """Both ranks to their end, or until a checkpoint of that step is there: the samples of each step that counts."""
    folder.mkdir()
    ranks = [
        FORK.Process(target=train, args=(arguments[0], folder, rank, *arguments[1:])) for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    try:
        deadline = time.monotonic() + 100
        while until is not None and _step(folder) < until:
            assert time.monotonic() < deadline and all(rank.exitcode is None for rank in ranks)
            time.sleep(0.005)
        if until is None:
            for rank in ranks:
                rank.join(100)
            assert [rank.exitcode for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid or 0, signal.SIGKILL)
            rank.kill()
            rank.join()
    assert until is None or not list(folder.glob("*.done")), "it ended before it was killed"
    last, steps = _step(folder) if until is not None else 10**9, Counter[int]()
    found: dict[int, list[int]] = {}
    for log in folder.glob("rank-*.log"):
        for line in log.read_text().splitlines():
            if line.endswith("]]") and (step := json.loads(line)[0]) <= last:
                found.setdefault(step, []).extend(json.loads(line)[1])
                steps[step] += 1
    assert all(count == 2 for count in steps.values())
    return found


def _step(folder: Path) -> int:
    checkpoint = folder / "checkpoint.json"
    return int(json.loads(checkpoint.read_text())["step"]) if checkpoint.exists() else 0


@pytest.mark.parametrize("backend", ["cache", "range", "memory"])
def test_killed_and_resumed(backend: str, faulty: Place, faults: FaultProxy, tmp_path: Path) -> None:
    """Each sample once, as it was packed, whatever the store does; nothing half stays in the cache."""
    packed(faulty, SHARDS, SAMPLES)
    rule = faults.rule
    rules = (rule("503", every=13), rule("reset", every=29), rule("cut", method="GET", every=17))
    faults.reset(latency=0.02, rules=rules)
    options = {"backend": backend, "cache_dir": str(tmp_path / "cache")}
    begun = run(tmp_path / "0", faulty, None, options, until=KILLED_AT)
    rest = run(tmp_path / "1", faulty, tmp_path / "0" / "checkpoint.json", options)
    assert faults.stats()["failed"] > 3
    seen = Counter(number for steps in (begun, rest) for batch in steps.values() for number in batch)
    assert seen == Counter(range(SHARDS * SAMPLES))
    left = ShardCache(str(tmp_path / "cache")).stat()
    assert not left.used and left.shards == (SHARDS if backend == "cache" else 0)


def read_epochs(place: Place, seed: int, options: dict[str, Any]) -> None:
    dataset = SampleDataset(
        place.root, storage_options=place.storage_options, decode=False, seed=seed, shuffle_size=30, on_bad="raise",
        transform=number_of, **options,
    )  # fmt: skip
    for epoch in range(5):
        dataset.set_epoch(epoch)
        if sorted(dataset) != list(range(SHARDS * 6)):
            raise RuntimeError("not each sample once")


def test_four_processes_on_a_cache_of_three_shards(s3: Place, tmp_path: Path) -> None:
    """No wrong byte, nobody waits for ever, and at no time more than fits."""
    packed(s3, SHARDS, 6)
    sizes = [storage.stat(s3.address(f"{n:05d}.tar"), s3.storage_options).size for n in range(SHARDS)]
    limit = 3 * max(sizes) + 10_000  # and their indexes
    options = {"cache_dir": str(tmp_path / "cache"), "max_cache_size": limit, "lru_size": 2}
    processes = [FORK.Process(target=read_epochs, args=(s3, seed, options)) for seed in range(4)]
    for process in processes:
        process.start()
    cache, deadline, most = ShardCache(str(tmp_path / "cache")), time.monotonic() + 120, 0
    try:
        while any(process.is_alive() for process in processes):
            assert time.monotonic() < deadline, "nobody gets on"
            stat = cache.stat()
            most = max(most, stat.size + stat.downloading)
            time.sleep(0.02)
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert 2 * min(sizes) < most <= limit
