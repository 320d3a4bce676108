"""A Dask cluster as an operator starts it, for tests: a scheduler and worker processes, by the `dask` command.

It gives up on what two workers died of, for tests to be quick: the usual is four.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


class DaskCluster:
    """`address` of the scheduler; `workers` are processes, of one thread each, that nobody starts again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "scheduler.json"
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
        }
        self._scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show",
            "--scheduler-file", str(self._file),
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError):
                self.address: str = json.loads(self._file.read_text())["address"]
                break
            assert self._scheduler.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        self.workers: list[subprocess.Popen[bytes]] = []

    def add_worker(self) -> subprocess.Popen[bytes]:
        """One more worker process."""
        worker = self._start(
            "worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard",
            "--local-directory", str(self._folder),
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self._folder / f"{arguments[0]}.log").open("ab")
        command = [sys.executable, "-m", "dask", *arguments]
        with log:
            return subprocess.Popen(command, env=self._environment, cwd=self._folder, stdout=log, stderr=log)

    def log(self) -> str:
        """What scheduler and workers have said."""
        return "".join(file.read_text() for file in self._folder.glob("*.log"))

    def close(self) -> None:
        """End it."""
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()


@contextlib.contextmanager
def dask_cluster(folder: Path, workers: int = 2) -> Iterator[DaskCluster]:
    """A cluster with so many workers."""
    cluster = DaskCluster(folder)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.close()
