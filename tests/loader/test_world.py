"""Which process this is: by torch.distributed, by launchers, in workers."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from loader.world import World, current_world, process_rank

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE") or name.startswith(("SLURM_", "OMPI_")):
            monkeypatch.delenv(name)


def test_alone() -> None:
    assert current_world() == World(0, 1, 0, 1)


SLURM_BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}
SLURM_STEP = {**SLURM_BATCH, "SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("environment", "pair"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, (1, 3)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (5, 8)),
        (SLURM_STEP, (3, 4)),  # srun of a part of the job
        (SLURM_BATCH, (0, 1)),  # the batch script itself, or an allocated shell: alone
        ({**SLURM_BATCH, "RANK": "6", "WORLD_SIZE": "16"}, (6, 16)),  # torchrun within it
        ({**SLURM_STEP, "RANK": "6", "WORLD_SIZE": "16"}, (6, 16)),  # torchrun under srun, one a node
        ({**SLURM_BATCH, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"RANK": "", "WORLD_SIZE": ""}, (0, 1)),
    ],
)
def test_launchers(
    environment: dict[str, str], pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert process_rank() == pair
    assert current_world() == World(*pair)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "2"}, "RANK is '2' but WORLD_SIZE is not set: set both, or neither"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is '4' but RANK is not set"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK is 'x': a number was expected"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4 of WORLD_SIZE 4: 0 … 3 was expected"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is 0: 1 or more"),
        ({"SLURM_PROCID": "1"}, "SLURM_PROCID is '1' but SLURM_NTASKS is not set"),
    ],
)
def test_environments_that_contradict_themselves(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        current_world()
    assert current_world(1, 2) == World(1, 2)  # what is given needs no environment


def test_given_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert current_world(rank=1, world_size=2) == World(1, 2)
    assert current_world(rank=0, world_size=1) == World(0, 1)
    with pytest.raises(ValueError, match="rank is 1 and world_size None: give both, or neither"):
        current_world(rank=1)
    assert current_world(inherited=(1, 2)) == World(3, 8)  # no worker: what the parent was doesn't count


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((2, 2), "rank is 2 of world size 2: 0 … 1 was expected"),
        ((-1, 2), "rank is -1"),
        ((0, 0), "world size is 0"),
        ((0, 1, 3, 3), "worker is 3 of number of workers 3"),
        (("0", 1), "rank is '0': an integer was expected"),
    ],
)
def test_what_cannot_be_is_refused(numbers: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        World(*numbers)


def test_it_asks_without_importing_torch() -> None:
    script = (
        "import sys; from loader.world import current_world; print(current_world(), 'torch' in sys.modules)"
    )
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "World(rank=1, world_size=2, worker=0, num_workers=1) False\n"


def test_torch_distributed_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert process_rank() == (3, 8)  # imported, not initialised
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert process_rank() == (0, 1)
        assert current_world(1, 2) == World(1, 2)
    finally:
        distributed.destroy_process_group()
    assert process_rank() == (3, 8)


@pytest.mark.parametrize(
    ("start", "inherited", "pair"),
    [("fork", None, (3, 8)), ("fork", (1, 2), (1, 2)), ("spawn", (1, 2), (1, 2))],
)
def test_in_workers(
    start: str, inherited: tuple[int, int] | None, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pytest.importorskip("torch.utils.data")
    from worlds import Worlds

    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with warnings.catch_warnings():  # Python minds a fork of a process with threads
        warnings.simplefilter("ignore")
        seen = list(
            data.DataLoader(Worlds(inherited), batch_size=None, num_workers=2, multiprocessing_context=start)
        )
    assert seen == [World(*pair, 0, 2), World(*pair, 1, 2)]
