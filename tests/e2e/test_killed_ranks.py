"""Real ranks over gloo, killed in mid-epoch after checkpoints were written, resumed on as many or on others."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up import Numbers, packed
from made_up import numbers as number_of

from loader.data_loader import ShardedDataLoader, gather_state
from loader.datasets import SampleDataset
from loader.indexed_tar_dataset import IndexedTarDataset

ROOT = Path(__file__).parents[2]
FORK = multiprocessing.get_context("fork")
EVERY = 4  # steps between checkpoints
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@dataclass
class Job:
    """One start of a training job: what it was given, where it writes."""

    folder: Path
    dataset: IndexedTarDataset
    world_size: int
    batch_size: int
    workers: int
    epochs: int
    resume: Path | None = None
    pause: float = 0.0

    def steps(self) -> list[tuple[int, int, list[int]]]:
        """(epoch, step, samples) of all ranks, as far as they were written whole."""
        found = []
        for log in sorted(self.folder.glob("rank-*.log")):
            for line in log.read_text().splitlines():
                if line.endswith("]]"):
                    epoch, step, samples = json.loads(line)
                    found.append((epoch, step, samples))
        return found


def train(job: Job, rank: int) -> None:
    """What each rank does: read, work together, log, save."""
    import torch.distributed as dist

    os.setsid()  # with its workers, one group to kill
    torch.set_num_threads(1)
    # The dataset was built before there was any process group: it finds out by itself.
    dist.init_process_group(
        "gloo", init_method=f"file://{job.folder}/rendezvous", rank=rank, world_size=job.world_size
    )
    loader = ShardedDataLoader(job.dataset, job.batch_size, num_workers=job.workers, collate_fn=list)
    if job.resume is not None:
        loader.load_state_dict(json.loads(job.resume.read_text())["state"])
    step = 0
    with open(job.folder / f"rank-{rank}.log", "w") as log:
        while loader.epoch < job.epochs:
            epoch, promised = loader.epoch, len(loader)
            for batch in loader:
                step, promised = step + 1, promised - 1
                log.write(json.dumps([epoch, step, batch]) + "\n")
                log.flush()
                together = torch.tensor([len(batch), epoch])
                dist.all_reduce(together)  # hangs, or differs, unless ranks go in step
                assert together.tolist() == [len(batch) * job.world_size, epoch * job.world_size]
                if step % EVERY == 0:
                    state = gather_state(loader)
                    if rank == 0:
                        save(job.folder / "checkpoint.json", {"step": step, "epoch": epoch, "state": state})
                time.sleep(job.pause)
            assert promised == 0
    dist.barrier()
    (job.folder / f"rank-{rank}.done").touch()
    dist.destroy_process_group()


def save(path: Path, document: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document))
    part.replace(path)


@contextmanager
def started(job: Job) -> Iterator[list[Any]]:
    job.folder.mkdir()
    ranks = [FORK.Process(target=train, args=(job, rank)) for rank in range(job.world_size)]
    for rank in ranks:
        rank.start()
    try:
        yield ranks
    finally:
        for rank in ranks:
            kill(rank)


def kill(rank: Any) -> None:
    """With SIGKILL, and its workers: as when a machine goes down."""
    try:
        os.killpg(rank.pid, signal.SIGKILL)
    except ProcessLookupError:
        if rank.is_alive():
            os.kill(rank.pid, signal.SIGKILL)
    rank.join()


def run(job: Job) -> None:
    with started(job) as ranks:
        for rank in ranks:
            rank.join(120)
        assert [rank.exitcode for rank in ranks] == [0] * job.world_size


def run_until_killed(job: Job, at_step: int) -> dict[str, Any]:
    """The last checkpoint of a job that is killed once it has written one after so many steps."""
    path = job.folder / "checkpoint.json"
    with started(job) as ranks:
        deadline = time.monotonic() + 120
        while not (path.exists() and json.loads(path.read_text())["step"] >= at_step):
            assert time.monotonic() < deadline and all(rank.exitcode is None for rank in ranks)
            time.sleep(0.005)
    assert not list(job.folder.glob("*.done")), "it ended before it was killed"
    checkpoint: dict[str, Any] = json.loads(path.read_text())
    return checkpoint


COUNTS = [
    40,
    0,
    61,
    17,
    33,
    52,
    8,
    90,
    1,
    1,
    44,
    23,
    5,
    30,
    60,
    55,
    20,
    31,
    9,
    70,
    50,
]  # 700 samples, 21 shards


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed(tmp_path_factory.mktemp("packed"), COUNTS)


World = tuple[int, int, int]


@pytest.mark.parametrize(
    ("worlds", "bad"),
    [
        (((2, 4, 0), (2, 4, 0)), ()),
        (((2, 3, 2), (3, 4, 1)), ()),
        pytest.param(((3, 2, 1), (2, 5, 0), (4, 2, 2)), range(0, 700, 9), marks=pytest.mark.slow),
        pytest.param(((4, 2, 0), (2, 4, 3)), (), marks=pytest.mark.slow),
        pytest.param(((2, 4, 2), (2, 4, 2)), range(0, 700, 11), marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(tmp_path: Path, root: str, worlds: Sequence[World], bad: Sequence[int]) -> None:
    """What was trained on up to the checkpoints, and after the last of them: each sample once in each epoch."""
    dataset = Numbers(root, 100, bad=bad, max_bad_fraction=1.0) if bad else SampleDataset(
        root, 100, transform=number_of
    )  # fmt: skip
    resume, times = None, [Counter[int](), Counter[int]()]
    for number, world in enumerate(worlds):
        last = number == len(worlds) - 1
        job = Job(
            tmp_path / str(number), dataset, *world, epochs=2, resume=resume, pause=0 if last else 0.004
        )
        until = 10**9
        if last:
            run(job)
        else:
            # In the first epoch; and, where there are three worlds, in the second one.
            until = run_until_killed(job, at_step=EVERY * (5 if number == 0 else 20))["step"]
            resume = job.folder / "checkpoint.json"
        for epoch, step, samples in job.steps():
            if step <= until:
                times[epoch].update(samples)
    good = set(range(sum(COUNTS))) - set(bad)
    for counted in times:
        assert set(counted) == good
        # Repeated: what makes ranks end together, and once more for what was left out.
        assert counted.total() <= sum(COUNTS) + sum(world[0] - 1 for world in worlds)
        if not bad:
            assert sum(count > 1 for count in counted.values()) <= sum(world[0] - 1 for world in worlds)
    if len(set(worlds)) == 1:
        job = Job(tmp_path / "whole", dataset, *worlds[0], epochs=2)
        run(job)
        whole = sorted(job.steps())
        kept: list[Any] = []
        shift = 0
        for number in range(len(worlds)):
            steps = Job(tmp_path / str(number), dataset, *worlds[0], epochs=2).steps()
            checkpoint = tmp_path / str(number) / "checkpoint.json"
            until = 10**9 if number == len(worlds) - 1 else json.loads(checkpoint.read_text())["step"]
            kept += [(epoch, step + shift, samples) for epoch, step, samples in steps if step <= until]
            shift += until
        assert sorted(kept) == whole  # the same batches, on the same steps


def test_one_rank_alone_is_killed(tmp_path: Path, root: str) -> None:
    """Its workers see that it is gone, and go, too."""
    job = Job(tmp_path / "0", SampleDataset(root, 100, transform=number_of), 2, 4, 2, epochs=50)
    with started(job) as ranks:
        while not (job.folder / "checkpoint.json").exists():
            time.sleep(0.01)
        workers = children(ranks[1].pid)
        assert len(workers) == 2
        os.kill(ranks[1].pid, signal.SIGKILL)
        ranks[1].join()
        deadline = time.monotonic() + 30
        while any(alive(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


DDP = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from loader import ShardedDataLoader
from made_up import Numbers


def train(rank, dataset, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = ShardedDataLoader(dataset, batch_size=8, num_workers=1, multiprocessing_context="fork")
    steps, samples = 0, []
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = model(batch.float()[:, None]).square().mean()
            optimizer.zero_grad()
            loss.backward()  # waits for the other rank
            optimizer.step()
            steps, samples = steps + 1, samples + batch.tolist()
    gathered = [None, None]
    dist.all_gather_object(gathered, (steps, samples, model.module.weight.item()))
    if rank == 0:
        (one, ours, weight), (two, theirs, other) = gathered
        assert one == two and weight == other
        print(one, len(ours), len(theirs), len({*ours, *theirs}), len({*ours} & {*theirs}))
    dist.destroy_process_group()


if __name__ == "__main__":
    dataset = Numbers(sys.argv[1], 100, bad=range(0, 300, 7), max_bad_fraction=1.0)  # all of them in some shards
    mp.spawn(train, (dataset, sys.argv[2]), nprocs=2)
"""


@pytest.mark.slow
def test_plain_ddp_ends_together(tmp_path: Path, root: str) -> None:
    """A dataset built before the ranks are spawned, with bad samples for one of them more than for the other."""
    script = tmp_path / "train.py"
    script.write_text(DDP)
    done = subprocess.run(
        [sys.executable, script, root, tmp_path / "rendezvous"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    steps, ours, theirs, distinct, _both = map(int, done.stdout.split())
    assert steps == 2 * -(-350 // 8)
    assert ours == theirs == 700
    assert distinct == 700 - len(range(0, 300, 7))
