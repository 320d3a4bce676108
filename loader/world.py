"""Which of how many processes this one is: rank and DataLoader worker.

Ask when iterating, never when a dataset is built: it may be built before the process group exists, and is
pickled into workers that know less than their parent. This is the one place that reads the environment.
torch is never imported here: a process that has not imported it is in no process group and is no worker of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

# What launchers set, most specific first: torchrun and most others, then Open MPI's mpirun. Slurm is last: within
# its batch script both of the others may be started, and its own variables then say rank 0 to all of them.
_LAUNCHERS = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))


@dataclass(frozen=True)
class World:
    """Rank of `world_size`, worker of `num_workers`. The main process counts as worker 0 of 1."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        _check("rank", self.rank, "world size", self.world_size)
        _check("worker", self.worker, "number of workers", self.num_workers)


def current_world(
    rank: int | None = None, world_size: int | None = None, inherited: tuple[int, int] | None = None
) -> World:
    """This process, now.

    `rank` and `world_size`, given together, override what is found: data-parallel rank and size where
    several processes share a model. `inherited` is `process_rank()` of the parent at the time when it pickled
    the dataset; it counts within a DataLoader worker only, because a spawned worker has no process group.
    """
    worker, num_workers = _worker()
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size {world_size}: give both, or neither")
    if rank is not None and world_size is not None:
        return World(rank, world_size, worker or 0, num_workers)
    if inherited is not None and worker is not None:
        return World(*inherited, worker, num_workers)
    return World(*process_rank(), worker or 0, num_workers)


def cache_folder() -> str:
    """Where copies of remote shards are kept, unless it is told otherwise."""
    return os.environ.get("SHARDFLOW_CACHE_DIR") or "~/.cache/shardflow/shards"


def process_rank() -> tuple[int, int]:
    """Rank and world size: of torch.distributed once initialised, else by the environment, else (0, 1).

    ValueError for an environment that contradicts itself.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    environment = os.environ
    for rank, size in _LAUNCHERS:
        if environment.get(rank) or environment.get(size):
            return _pair(environment, rank, size)
    # A batch script or an allocated shell has SLURM_PROCID=0 and the job's SLURM_NTASKS, but only srun starts that
    # many processes: it sets SLURM_STEP_ID. Its step may be smaller than the job.
    if environment.get("SLURM_PROCID") and (
        environment.get("SLURM_STEP_ID") or not environment.get("SLURM_JOB_ID")
    ):
        step = "SLURM_STEP_NUM_TASKS"
        return _pair(environment, "SLURM_PROCID", step if environment.get(step) else "SLURM_NTASKS")
    return 0, 1


def _worker() -> tuple[int | None, int]:
    """Number of this DataLoader worker, None in the main process, and how many there are."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return (None, 1) if info is None else (int(info.id), int(info.num_workers))


def _pair(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int]:
    numbers = []
    for name, other in ((rank, size), (size, rank)):
        text = environment.get(name)
        if not text:
            raise ValueError(
                f"{other} is {environment.get(other)!r} but {name} is not set: set both, or neither"
            )
        try:
            numbers.append(int(text))
        except ValueError:
            raise ValueError(f"{name} is {text!r}: a number was expected") from None
    _check(rank, numbers[0], size, numbers[1])
    return numbers[0], numbers[1]


def _check(number_name: str, number: int, size_name: str, size: int) -> None:
    for name, value in ((number_name, number), (size_name, size)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}: an integer was expected")
    if size < 1:
        raise ValueError(f"{size_name} is {size}: 1 or more was expected")
    if not 0 <= number < size:
        raise ValueError(f"{number_name} is {number} of {size_name} {size}: 0 … {size - 1} was expected")
