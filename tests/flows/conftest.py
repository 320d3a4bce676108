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
from upping import Up, started, up_options

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
        server.flush()  # what is still to be sent can't be later


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks go into a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`records.jsonl` of 60 rows with their pictures, and `job.yaml`: six slots of ten, one row of them bad."""
    return make_corpus(tmp_path_factory.mktemp("corpus"), 60, bad=17)


SCHEDULES = """
nightly-warmup:
  flow: warmup
  parameters: {patterns: "/nowhere/*"}
  cron: "0 3 * * *"
  timezone: Europe/Berlin
warmup-after-gen-meta:
  flow: warmup
  after: gen-meta
  parameters: {patterns: "{{ flow_run.parameters.dataset }}"}
  overlap: wait
  active: true
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `up` has its home, its working folder and its file of schedules."""
    folder = tmp_path_factory.mktemp("up")
    (folder / "schedules.yaml").write_text(SCHEDULES)
    return folder


@pytest.fixture(scope="module")
def up(place: Path) -> Iterator[Up]:
    """A real `shardflow up` on a fresh home, for a file's tests: the last one of test_up.py kills it."""
    # A schedule that is switched on gets its runs within seconds, not within a minute.
    with started(*up_options(place), PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS="3") as one:
        yield one


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough work to be interrupted: many seconds for two processes."""
    folder = make_corpus(tmp_path_factory.mktemp("large"), 60, side=900)
    records = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(records * 100)
    return folder


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shardflow() -> Command:
    """Run the command to its end: `shardflow("prepare", "job.yaml", env={...})`; environment variables are added."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return finish(start(*arguments, env={**os.environ, **(env or {})}))

    return run
