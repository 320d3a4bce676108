"""kill -9 at any moment of `prepare`; a rerun ends with the same bytes as an undisturbed run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import digests, finish, make_corpus, session_members, start

from flows import server

# Events of a run, in their order; the run is killed as soon as one is seen.
MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the output is there": lambda out: out.exists(),
    "a tar is being written": lambda out: any(out.glob(".*.tar.*.part")),
    "a tar is done": lambda out: any(out.glob("*.tar")),
    "an index is done": lambda out: any(out.glob("*.index")),
    "a slot is done": lambda out: any((out / ".shardflow").glob("slot-*")),
    "half the tars are done": lambda out: len(list(out.glob("*.tar"))) >= 12,
    "meta.json is there": lambda out: (out / "meta.json").exists(),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 slots, a bad row among them."""
    folder = make_corpus(tmp_path_factory.mktemp("kill"), 60, bad=17, side=300)
    records = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(records * 4)
    return folder


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert finish(prepare(corpus, out, {}, direct=True)).returncode == 0
    return digests(out)


def prepare(corpus: Path, out: Path, env: dict[str, str], direct: bool) -> subprocess.Popen[str]:
    arguments = ["prepare", str(corpus / "job.yaml"), "--output", str(out), *(["--direct"] if direct else [])]
    return start(*arguments, env={**os.environ, **env})


def kill_at(moment: Callable[[Path], bool], process: subprocess.Popen[str], out: Path) -> bool:
    """kill -9 as soon as the moment is seen; whether the process was still at it."""
    deadline = time.monotonic() + 60
    while not moment(out) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    finish(process)
    deadline = time.monotonic() + 60
    while members := session_members(process.pid):
        assert time.monotonic() < deadline, members
        time.sleep(0.01)
    return process.returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_directly(
    moment: str,
    corpus: Path,
    tmp_path: Path,
    undisturbed: dict[str, str],
    record_property: Callable[..., None],
) -> None:
    out = tmp_path / "out"
    assert kill_at(MOMENTS[moment], prepare(corpus, out, {}, direct=True), out), (
        "it was too quick to be killed"
    )
    record_property("files at the kill", len(digests(out)))
    assert digests(out) != undisturbed or moment == "meta.json is there"
    assert finish(prepare(corpus, out, {}, direct=True)).returncode == 0
    assert digests(out) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["a tar is being written", "a slot is done", "meta.json is there"])
def test_killed_with_prefect(
    moment: str, corpus: Path, tmp_path: Path, undisturbed: dict[str, str], api: server.Api
) -> None:
    out = tmp_path / "out"
    env = {"PREFECT_API_URL": api.url}
    assert kill_at(MOMENTS[moment], prepare(corpus, out, env, direct=False), out), (
        "it was too quick to be killed"
    )
    assert finish(prepare(corpus, out, env, direct=False)).returncode == 0
    assert digests(out) == undisturbed


@pytest.mark.slow
def test_killed_again_and_again(corpus: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """Each run is killed after one more slot than it found."""
    out = tmp_path / "out"

    def slots() -> int:
        return len(list((out / ".shardflow").glob("slot-*")))

    kills = 0
    while kills < 4:
        before = slots()
        if not kill_at(lambda _: slots() > before, prepare(corpus, out, {}, direct=True), out):  # noqa: B023
            break
        kills += 1
    assert kills >= 2
    assert finish(prepare(corpus, out, {}, direct=True)).returncode == 0
    assert digests(out) == undisturbed
