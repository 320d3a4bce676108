"""What runs of a served deployment, and their server, survive: cancelling, real kills, and each other."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import digests, finish, make_corpus, start
from upping import Up, started, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty slots that take a moment each, as large pictures do."""
    folder = make_corpus(tmp_path_factory.mktemp("steady"), 30, bad=17, side=600)
    records = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(records * 20)
    (folder / "job.yaml").write_text(
        "source: records.jsonl\noutput: out\nmax_samples: 30\nn_jobs: 2\nrecipe: steady:steady\n"
    )
    (folder / "steady.py").write_text(
        "import time\nfrom tasks.recipes import default\n\n\ndef steady(record):\n    time.sleep(0.01)\n"
        "    return default(record)\n"
    )
    return folder / "job.yaml"


@pytest.fixture(scope="module")
def undisturbed(job: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert finish(start("prepare", str(job), "--output", str(out), "--direct")).returncode == 0
    return digests(out)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recovery")


def begin(place: Path) -> Iterator[Up]:
    with started(place / "home", place / "folder", "--port", "0") as one:
        yield one


up = pytest.fixture(scope="module")(begin)


def done(out: Path) -> dict[Path, int]:
    """The shards of the slots that are done, with their times of change."""
    slots = [path.name[5:11] for path in (out / ".shardflow").glob("slot-*.json")]
    return {path: path.stat().st_mtime_ns for slot in slots for path in out.glob(f"shard-{slot}*")}


def processes(up: Up) -> list[tuple[int, int, str]]:
    """(pid, parent, command line) of each living process of its session."""
    listing = subprocess.run(
        ["ps", "-eo", "pid,ppid,sid,stat,args", "-ww"], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 4) for line in listing.stdout.splitlines()[1:]]
    return [
        (int(pid), int(parent), arguments)
        for pid, parent, session, state, arguments in rows
        if session == str(up.process.pid) and state[0] != "Z"
    ]


def workers(up: Up) -> list[tuple[int, int, str]]:
    return [one for one in processes(up) if "spawn_main" in one[2]]


def test_cancelled_it_stops_within_seconds_and_leaves_nothing_half_written(
    up: Up, job: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = up.start("prepare/prepare", config=str(job), output=str(out))
    wait_for(lambda: list(out.glob(".*.part")) and workers(up), up.said, pause=0.005)
    answer = up.ask(f"flow_runs/{run}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    assert answer["status"] == "ACCEPT", answer
    wait_for(lambda: not workers(up), lambda: processes(up), 20)
    assert up.finish(run)["state"]["type"] == "CANCELLED", up.said()
    assert not list(out.rglob("*.part")) and not (out / "meta.json").exists()


def test_a_killed_run_is_seen_and_a_new_one_does_the_rest(
    up: Up, job: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "out"
    parameters = {"config": str(job), "output": str(out)}
    run = up.start("prepare/prepare", **parameters)
    wait_for(lambda: len(list((out / ".shardflow").glob("slot-*"))) >= 4, up.said, pause=0.005)
    (flow,) = {parent for _, parent, command in workers(up) if "from multiprocessing.spawn" in command}
    os.kill(flow, signal.SIGKILL)
    wait_for(lambda: not workers(up), lambda: processes(up), 20)
    assert up.finish(run)["state"]["type"] == "CRASHED", up.said()
    before = done(out)
    assert before and not (out / "meta.json").exists()

    assert up.finish(up.start("prepare/prepare", **parameters))["state"]["type"] == "COMPLETED", up.said()
    assert digests(out) == undisturbed
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was done is not done again"


def test_two_runs_at_once_that_cannot_see_each_other(
    job: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """On two machines, say: there a lock is no help. What one of them takes from the other is no more than time."""
    out = tmp_path / "out"
    command = ("prepare", str(job), "--output", str(out), "--direct")
    homes = [tmp_path / "one", tmp_path / "two"]
    both = []
    for home in homes:
        home.mkdir()
        both.append(start(*command, env={**os.environ, "HOME": str(home)}))
        wait_for(lambda: list(out.glob("*.tar")), lambda: "no tar", pause=0.005)
    for one in both:
        told = finish(one)
        assert told.returncode == 0 or "failed" in told.stderr, told.stderr
    assert finish(start(*command)).returncode == 0
    assert digests(out) == undisturbed


def test_a_server_that_is_killed_and_started_again(
    up: Up, place: Path, job: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "out"
    environment = {**os.environ, "PREFECT_API_URL": f"{up.address}/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    mine = start("prepare", str(job), "--output", str(out), env=environment)
    wait_for(lambda: len(list((out / ".shardflow").glob("slot-*"))) >= 4, up.said, pause=0.005)
    (server,) = [pid for pid, _, command in processes(up) if "embedded.py" in command]
    os.kill(server, signal.SIGKILL)
    told = finish(mine)
    assert told.returncode == 1
    assert "shardflow prepare: Prefect's server does not answer any more" in told.stderr
    assert digests(out) == undisturbed, "the work itself needs no server"
    assert up.process.wait(30) == 1
    assert "Prefect's server is gone" in up.said()
    up.wait_until_alone()
    before = done(out)

    for again in begin(place):
        environment["PREFECT_API_URL"] = f"{again.address}/api"
        told = finish(start("prepare", str(job), "--output", str(out), env=environment))
        assert told.returncode == 0, told.stderr
    assert digests(out) == undisturbed
    assert {path: path.stat().st_mtime_ns for path in before} == before
