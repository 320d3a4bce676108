"""deployments/: what is registered with a real server, and runs."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, digests

from flows import server

FLOWS = ("gen-meta", "pack", "prepare", "warmup")
ENTRYPOINTS = {name: f"flows.{name.replace('-', '_')}.{name.replace('-', '_')}" for name in FLOWS}


@pytest.fixture
def client(api: server.Api) -> Iterator[Any]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as found:
        yield found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working folder from which nothing of ours can be seen."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def environment(api: server.Api) -> dict[str, str]:
    # Found as when installed: by Python, wherever it is started.
    return {
        **os.environ,
        "PREFECT_API_URL": api.url,
        "PYTHONPATH": str(ROOT),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }


def registered(client: Any, name: str) -> dict[str, Any]:
    """The deployments of that name, by their flows."""
    flows = {flow.id: flow.name for flow in client.read_flows()}
    return {flows[one.flow_id]: one for one in client.read_deployments() if one.name == name}


def check(found: dict[str, Any]) -> None:
    """All four, to be loaded by name from anywhere; the heavy ones one at a time."""
    assert {flow: one.entrypoint for flow, one in found.items()} == ENTRYPOINTS
    for flow, one in found.items():
        if flow in ("pack", "prepare"):
            assert one.global_concurrency_limit.limit == 1
            assert one.concurrency_options.collision_strategy.value == "ENQUEUE"
        else:
            assert one.global_concurrency_limit is None


@pytest.mark.slow
def test_the_file_for_a_work_pool_registers_four(api: server.Api, client: Any, elsewhere: Path) -> None:
    def prefect(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=elsewhere, env=environment(api), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    prefect("work-pool", "create", "local", "--type", "process")
    prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(ROOT / "deployments/prefect.yaml"))
    found = registered(client, "local")
    check(found)
    for one in found.values():
        assert one.work_pool_name == "local" and not one.schedules and not one.paused
        assert one.pull_steps == [
            {"prefect.deployments.steps.set_working_directory": {"directory": str(elsewhere)}}
        ]


def test_the_schedule_that_is_commented_out_is_a_good_one() -> None:
    import yaml
    from prefect.server.schemas.schedules import CronSchedule

    text = (ROOT / "deployments/prefect.yaml").read_text()
    head, _, example = text.partition("    # schedules:\n")
    lines = ["    schedules:", *(line.replace("    # ", "    ", 1) for line in example.splitlines())]
    (schedule,) = yaml.safe_load(head + "\n".join(lines))["deployments"][-1]["schedules"]
    assert CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
    assert schedule["slug"] and set(schedule["parameters"]) == {"patterns"}


def test_what_is_served() -> None:
    spec = importlib.util.spec_from_file_location("serve", ROOT / "deployments/serve.py")
    assert spec is not None and spec.loader is not None
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    for nightly, count in (("", 0), ("a/*,b/*", 1)):
        found = {one.flow_name: one for one in serve.deployments(nightly)}
        assert {flow: one.entrypoint for flow, one in found.items()} == ENTRYPOINTS
        assert {flow: len(one.schedules) for flow, one in found.items() if one.schedules} == (
            {"warmup": 1} if count else {}
        )
        assert found["warmup"].parameters == ({"patterns": nightly} if nightly else {})


@pytest.mark.slow
def test_what_is_served_runs(
    api: server.Api, client: Any, corpus: Path, tmp_path: Path, elsewhere: Path
) -> None:
    out = tmp_path / "out"
    log = tmp_path / "log"
    job = {"config": str(corpus / "job.yaml"), "output": str(out)}
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "deployments/serve.py")],
            cwd=elsewhere, env=environment(api), stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: "prefect deployment run" in log.read_text(), process, log)
        found = registered(client, "served")
        check(found)
        run(client, found["prepare"], job, process, log)
        assert json.loads((out / "meta_stats.json").read_text())["total_samples"] == 59
        before = digests(out)
        run(client, found["pack"], job, process, log)
        run(client, found["gen-meta"], {"dataset": str(out)}, process, log)
        run(client, found["warmup"], {"patterns": str(out)}, process, log)
        assert digests(out) == before
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(condition: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def run(
    client: Any, deployment: Any, parameters: dict[str, Any], process: subprocess.Popen[bytes], log: Path
) -> None:
    """One run of a deployment, to its good end."""
    flow_run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    state = None

    def final() -> bool:
        nonlocal state
        state = client.read_flow_run(flow_run.id).state
        return state is not None and state.is_final()

    wait_for(final, process, log)
    assert state is not None and state.is_completed(), log.read_text()
