"""The same work by other workers: the same bytes, whoever is killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import DaskCluster, dask_cluster
from running import SECRET, digests, finish, make_corpus, start

from flows import server
from flows.direct import Direct
from flows.jobs import perform
from flows.report import Report


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty slots, so that a run can be met in the middle."""
    folder = make_corpus(tmp_path_factory.mktemp("runners"), 60, bad=17, side=200)
    records = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(records * 5)
    return folder / "job.yaml"


def directly(job: str, **parameters: Any) -> Report:
    return perform(job, parameters, Direct)


@pytest.fixture(scope="module")
def undisturbed(job: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert directly("prepare", config=str(job), output=str(out), n_jobs=1).ok
    return digests(out)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as started:
        yield started


@pytest.mark.slow
def test_a_flow_on_dask_survives_a_killed_worker(
    job: Path, tmp_path: Path, undisturbed: dict[str, str], cluster: DaskCluster, api: server.Api
) -> None:
    from flows.prepare import prepare

    out = tmp_path / "out"
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while len(list((out / ".shardflow").glob("slot-*"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.002)
        killed.append(len(list(out.glob("*.tar"))))
        os.kill(cluster.workers[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    state = prepare(
        config=str(job), output=str(out), runner="dask", dask_address=cluster.address, return_state=True
    )
    killer.join()
    assert state.is_completed(), state.message
    assert killed[0] < 30, "it came too late"
    assert digests(out) == undisturbed
    assert "runner dask" in state.result().rerun.replace("=", " ")
    assert SECRET not in cluster.log()


@pytest.mark.slow
def test_the_command_on_dask(
    job: Path, tmp_path: Path, undisturbed: dict[str, str], cluster: DaskCluster
) -> None:
    """As its config says."""
    cluster.add_worker()
    (job.parent / "dask.yaml").write_text(f"{job.read_text()}runner: dask\ndask_address: {cluster.address}\n")
    command = ("prepare", str(job.parent / "dask.yaml"), "--output", str(tmp_path / "out"), "--direct")
    told = finish(start(*command, "--report", str(tmp_path / "report.html")))
    assert told.returncode == 0, told.stderr
    assert digests(tmp_path / "out") == undisturbed
    assert "prepare: done" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="there is no Ray for every Python")
def test_the_command_on_ray(job: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    command = ("prepare", str(job), "--output", str(tmp_path / "out"), "--direct", "--runner", "ray")
    told = finish(start(*command, "--n-jobs", "2"))
    assert told.returncode == 0, told.stderr
    assert digests(tmp_path / "out") == undisturbed


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"runner": "dask", "dask_address": "tcp://127.0.0.1:9"},
            "no Dask cluster is ready at tcp://127.0.0.1:9",
        ),
        ({"dask_address": "tcp://127.0.0.1:9"}, "but the runner is local: choose runner dask"),
        ({"runner": "slurm"}, "runner is 'slurm'"),
        ({"report": "report.pdf"}, "a file that ends in .html or .md was expected"),
        ({"report": "s3://key:pass@bucket/report.md"}, "report has a password in its address"),
    ],
)
def test_what_cannot_be_meant_is_a_problem_that_says_so(
    job: Path, tmp_path: Path, more: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.on_dask._PATIENCE", 0.5)
    report = directly("prepare", config=str(job), output=str(tmp_path / "out"), **more)
    assert not report.ok and reason in report.message()
    assert not list(tmp_path.rglob("*.tar"))


@pytest.mark.slow
def test_ctrl_c_ends_a_cluster_of_its_own(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("prepare", str(job), "--output", str(out), "--direct", "--runner", "dask")
    process = start(*command)
    deadline = time.monotonic() + 60
    while not list(out.glob("*.tar")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    told = finish(process)
    assert told.returncode == 130 and "interrupted; what is finished stays" in told.stderr, told
    assert not list(out.rglob("*.part"))
    deadline = time.monotonic() + 20  # a process that is ending takes a moment to be gone
    while (mine := _alive(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not mine


def _alive(session: int) -> list[str]:
    """The processes of a session, but those that have ended and are not yet waited for."""
    shown = subprocess.run(["ps", "-eo", "sid,stat,args"], capture_output=True, text=True, check=True).stdout
    lines = [line for line in shown.splitlines() if line.split()[0] == str(session)]
    return [line for line in lines if line.split()[1][0] != "Z"]
