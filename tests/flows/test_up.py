"""`shardflow up` as a process: what it starts, what it leaves, and what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from running import ROOT, SECRET, session_members
from upping import Up, started, up_options, wait_for

from flows import server

pytestmark = pytest.mark.slow


def test_it_says_where_what_is(up: Up, place: Path) -> None:
    said = up.said()
    for text in (
        f"starting Prefect's server, some 5 seconds, 10 for the first time; its records are in {place}/home",
        f"PREFECT_API_URL={up.address}/api",
        "nightly-warmup: warmup, 0 3 * * * Europe/Berlin (off at first)",
        "warmup-after-gen-meta: warmup, after gen-meta\n",
    ):
        assert text in "\n".join(line.rstrip() for line in said.splitlines()) + "\n", said
    assert up.address.startswith("http://127.0.0.1:")
    assert "Traceback" not in said and "ERROR" not in said
    assert up.ask("block_types/slug/storage-options")["name"] == "Storage options"


def test_a_second_one_is_told_of_the_first(up: Up, place: Path) -> None:
    second = Up(*up_options(place))
    assert second.process.wait(60) == 1
    assert second.said() == (
        f"shardflow up: it runs already on {place}/home as process {up.process.pid}, with its pages at {up.address}: "
        "stop that one with Ctrl-C, or take another folder with --home and another port with --port\n"
    )


def test_commands_on_the_same_home_are_recorded_there(up: Up, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "gen-meta", str(tmp_path / "empty")],
        cwd=ROOT, env={**os.environ, "PREFECT_HOME": str(place / "home")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "embedded" not in done.stderr
    assert [run["name"] for run in up.ask("flow_runs/filter", limit=9)] == ["gen-meta empty"]


def test_what_runs_after_gen_meta_is_told_its_dataset(up: Up, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    subprocess.run(
        [sys.executable, "-m", "flows.cli", "pack", str(corpus / "job.yaml"), "--output", str(out), "--direct"],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    assert up.finish(up.start("gen-meta/gen-meta", dataset=str(out)))["state"]["type"] == "COMPLETED", (
        up.said()
    )
    mine = {"deployments": {"id": {"any_": [up.deployment("warmup/warmup-after-gen-meta")["id"]]}}}
    (run,) = wait_for(lambda: up.ask("flow_runs/filter", **mine), up.said)
    ended = up.finish(run["id"])
    assert ended["state"]["type"] == "COMPLETED", up.said()
    assert ended["parameters"]["patterns"] == str(out) and ended["name"] == f"warmup {out}"


def test_a_run_that_overlaps_is_left_out_or_waits(up: Up) -> None:
    for name, expected in (
        ("nightly-warmup", "Cancelled"),
        ("warmup-after-gen-meta", "AwaitingConcurrencySlot"),
    ):
        limit = up.deployment(f"warmup/{name}")["global_concurrency_limit"]["name"]
        slot = {"names": [limit], "slots": 1, "mode": "concurrency"}
        up.ask("v2/concurrency_limits/increment", **slot)  # as its last run does, which is at work still
        run = up.start(f"warmup/{name}", patterns="/nowhere/*")

        def state(run: str = run) -> str:
            return str(up.ask(f"flow_runs/{run}")["state"]["name"])

        wait_for(lambda expected=expected, state=state: state() == expected, state)
        up.ask("v2/concurrency_limits/decrement", **slot)


def test_killed_it_leaves_nothing_and_its_next_life_goes_on(
    up: Up, place: Path, large: Path, tmp_path: Path
) -> None:
    nightly = up.deployment("warmup/nightly-warmup")
    (schedule,) = nightly["schedules"]
    assert not schedule["active"] and schedule["schedule"]["timezone"] == "Europe/Berlin"
    patch(up, f"deployments/{nightly['id']}/schedules/{schedule['id']}", active=True)
    out = tmp_path / "out"
    job = {"config": str(large / "job.yaml"), "output": str(out)}
    first = up.start("prepare/prepare", **job)
    wait_for(lambda: list(out.glob("*.tar")), up.said)
    up.process.kill()
    up.wait_until_alone()

    schedules = place / "schedules.yaml"
    schedules.write_text(schedules.read_text().partition("warmup-after")[0])
    with started(*up_options(place), "--host", "0.0.0.0") as again:
        assert f"from elsewhere  http://{socket.gethostname()}:" in again.said()
        with urllib.request.urlopen(f"{again.address}/ui-settings", timeout=30) as answer:
            assert json.loads(answer.read())["api_url"] == "/api", "from wherever the page is looked at"
        assert "the schedule warmup-after-gen-meta is not in the file any more: removed" in again.said()
        assert "prepare out ended with an earlier shardflow up: marked as crashed" in again.said()
        assert again.state(first) == "CRASHED"
        assert again.deployment("warmup/nightly-warmup")["schedules"][0]["active"], (
            "as somebody had switched it"
        )
        second = again.start("prepare/prepare", **job)
        wait_for(lambda: again.state(second) == "RUNNING", again.said)
        before = len(list(out.glob("*.tar")))
        wait_for(lambda: len(list(out.glob("*.tar"))) > before, again.said)
        assert again.stop() == 0, again.said()
        assert "Traceback" not in again.said()
        assert "ending: what is at work is cancelled, what is finished stays" in again.said()
    assert not list(out.rglob("*.part")), "workers removed what was half-written"
    with sqlite3.connect(place / "home" / "prefect.db") as database:
        states = dict(database.execute("select id, state_type from flow_run").fetchall())
    database.close()
    assert states[second] == "CANCELLED"
    for file in (place / "home").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), (
            "what a config says stays there"
        )


def patch(up: Up, path: str, **body: object) -> None:
    request = urllib.request.Request(
        f"{up.address}/api/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    urllib.request.urlopen(request, timeout=30).close()


def test_a_server_elsewhere_is_used(api: server.Api, place: Path, tmp_path: Path) -> None:
    with started(tmp_path / "home", tmp_path / "folder", PREFECT_API_URL=api.url) as up:
        assert not any("embedded.py" in line for line in session_members(up.process.pid))
        (tmp_path / "empty").mkdir()
        run = up.finish(up.start("warmup/warmup", patterns=str(tmp_path / "empty")))
        assert run["state"]["type"] == "FAILED" and "end in .tar" in run["state"]["message"], run
        assert up.stop(signal.SIGTERM) == 0, up.said()
    assert up.deployment("warmup/warmup")["paused"], "nobody serves it now"


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    up = Up(tmp_path / "home", tmp_path / "folder", PREFECT_API_URL="http://me:hush@127.0.0.1:9/api")
    assert up.process.wait(60) == 1
    assert "no Prefect API answers at http://127.0.0.1:9/api" in up.said() and "or unset it" in up.said()
    assert len(up.said().splitlines()) == 1 and "hush" not in up.said()


@pytest.mark.parametrize(
    ("text", "option", "reason"),
    [
        ("nightly: {flow: dance}", (), "nightly: flow is 'dance'"),
        ("nightly: {flow: warmup, cron: '0 3 * * *'}", (), "nightly: timezone is missing"),
        ("", ("--host", "198.51.100.1"), "nothing can listen at http://198.51.100.1:"),
    ],
)
def test_wrong_input_is_one_line(text: str, option: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text(text)
    up = Up(*up_options(tmp_path), *option)
    assert up.process.wait(60) == 1
    assert reason in up.said() and len(up.said().splitlines()) == 1, up.said()
