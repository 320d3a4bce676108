from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import finish, make_corpus, start

# Before anything imports Prefect, which reads its settings once.
_HOME = tempfile.mkdtemp(prefix="shardflow-prefect-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["PREFECT_HOME"] = _HOME
os.environ.pop("PREFECT_API_URL", None)
os.environ["PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED"] = "false"
os.environ["PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED"] = "false"

from flows import server  # noqa: E402

server.set_environment()


@pytest.fixture(scope="session")
def api() -> Iterator[server.Api]:
    """A real Prefect server for all tests, with a database of its own."""
    with server.connected(lambda text: None) as started:
        yield started


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks go into a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`records.jsonl` of 60 rows with their pictures, and `job.yaml`: six slots of ten, one row of them bad."""
    return make_corpus(tmp_path_factory.mktemp("corpus"), 60, bad=17)


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shardflow() -> Command:
    """Run the command to its end: `shardflow("prepare", "job.yaml", env={...})`; environment variables are added."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return finish(start(*arguments, env={**os.environ, **(env or {})}))

    return run
