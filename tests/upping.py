"""`shardflow up` as a process, for tests: started, asked through its API, ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from running import ROOT, session_members

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def up_options(place: Path) -> tuple[Path, Path, str, str, str, str]:
    """Of an `Up` that has everything in one folder, on any free port."""
    return place / "home", place / "folder", "--port", "0", "--schedules", str(place / "schedules.yaml")


def wait_for(
    condition: Callable[[], Any], explain: Callable[[], object], seconds: float = 60, pause: float = 0.1
) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, explain()
        time.sleep(pause)
    return found


class Up:
    """One `shardflow up` on a home, in a working folder from which nothing of ours can be seen."""

    def __init__(self, home: Path, folder: Path, *options: str, **environment: str) -> None:
        self.log = home.parent / f"{home.name}-{time.monotonic_ns()}.log"
        folder.mkdir(exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "up", "--home", str(home), *options],
                cwd=folder,
                env={**inherited, "PYTHONPATH": str(ROOT), **environment},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def said(self) -> str:
        """What it has printed so far."""
        return self.log.read_text()

    def wait_ready(self) -> Up:
        """Return when it says that it is."""
        wait_for(lambda: "ready; Ctrl-C" in self.said() or self.process.poll() is not None, self.said, 240)
        assert self.process.poll() is None, self.said()
        found = re.search(r"pages +(\S+)", self.said())
        assert found
        self.address = found[1]
        return self

    def ask(self, path: str, **body: Any) -> Any:
        """The API's answer, to a POST if there is a body."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            f"{self.address}/api/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def deployment(self, name: str) -> dict[str, Any]:
        """Such as ``prepare/prepare``."""
        found: dict[str, Any] = self.ask(f"deployments/name/{name}")
        return found

    def start(self, name: str, **parameters: Any) -> str:
        """Ask for a run of a deployment; its id."""
        made = self.ask(f"deployments/{self.deployment(name)['id']}/create_flow_run", parameters=parameters)
        return str(made["id"])

    def state(self, run: str) -> str:
        """The type of a run's state."""
        return str(self.ask(f"flow_runs/{run}")["state"]["type"])

    def finish(self, run: str, seconds: float = 120) -> dict[str, Any]:
        """A run that has come to its end."""
        wait_for(lambda: self.state(run) in FINAL, self.said, seconds)
        found: dict[str, Any] = self.ask(f"flow_runs/{run}")
        return found

    def stop(self, number: int = signal.SIGINT) -> int:
        """As a terminal does it: to all processes of the group; its status, when nothing of it is left."""
        os.killpg(self.process.pid, number)
        status = self.process.wait(60)
        self.wait_until_alone()
        return status

    def wait_until_alone(self) -> None:
        """Return when no process of its session is left."""
        wait_for(lambda: not session_members(self.process.pid), lambda: session_members(self.process.pid))


@contextlib.contextmanager
def started(home: Path, folder: Path, *options: str, **environment: str) -> Iterator[Up]:
    """A `shardflow up` that is ready, and gone after the block whatever happens in it."""
    up = Up(home, folder, *options, **environment)
    try:
        yield up.wait_ready()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(up.process.pid, signal.SIGKILL)
        up.process.wait()
