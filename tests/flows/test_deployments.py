"""What is registered: the deployments of `shardflow up`, and deployments/ for teams, on PostgreSQL with a worker."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from postgres import postgres, why_not
from running import ROOT, digests, finish, start
from upping import wait_for

from flows import server
from flows.deployments import deployments, flow
from flows.schedules import FLOWS, Schedule
from flows.server_process import ServerProcess
from loader.errors import BadConfig

TEAM = yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())
FORMS = [f"{name}-pool" for name in FLOWS]


def test_each_flow_has_a_form_and_the_heavy_ones_run_one_at_a_time() -> None:
    found = {one.name: one for one in deployments()}
    assert set(found) == set(FLOWS)
    for name, one in found.items():
        module = name.replace("-", "_")
        assert (one.flow_name, one.entrypoint) == (name, f"flows.{module}.{module}")
        assert one.tags == ["shardflow"] and not one.schedules and "Args:" not in str(one.description)
        limits = (one.concurrency_limit, one.concurrency_options)
        if name in ("prepare", "pack"):
            assert limits[0] == 1 and limits[1] and limits[1].collision_strategy.value == "ENQUEUE"
        else:
            assert limits == (None, None)


@pytest.mark.parametrize(("wait", "strategy"), [(False, "CANCEL_NEW"), (True, "ENQUEUE")])
def test_a_schedule_is_a_deployment_with_its_own_switch(wait: bool, strategy: str) -> None:
    nightly = Schedule("nightly", "warmup", {"patterns": "a/*"}, "0 3 * * *", "Europe/Berlin", wait=wait)
    one = deployments([nightly])[-1]
    assert (one.flow_name, one.name, one.parameters) == ("warmup", "nightly", {"patterns": "a/*"})
    (schedule,) = one.schedules or ()
    assert (schedule.active, schedule.slug) == (False, "nightly")
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 3 * * *", "Europe/Berlin")  # type: ignore[union-attr]
    assert one.concurrency_limit == 1 and one.concurrency_options
    assert one.concurrency_options.collision_strategy.value == strategy


def test_after_a_flow_is_an_automation() -> None:
    after = Schedule("after", "warmup", {"patterns": "{{ flow_run.parameters.dataset }}"}, after="gen-meta")
    (trigger,) = deployments([after])[-1].triggers
    assert trigger.match_related.root["prefect.resource.name"] == "gen-meta"  # type: ignore[union-attr]
    assert not trigger.enabled and trigger.parameters == after.parameters  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (Schedule("n", "warmup", {"patterns": "a"}, "61 * * * *", "UTC"), "schedule n: cron is '61"),
        (Schedule("n", "warmup", {}, "0 3 * * *", "UTC"), "schedule n: warmup needs the parameter 'patterns'"),
        (Schedule("n", "warmup", {"pattern": "a"}, "0 3 * * *", "UTC"), "no parameter 'pattern': it has patterns"),
        (Schedule("n", "warmup", {"patterns": 5}, after="pack"), "schedule n: Validation failed for field 'patterns'"),
    ],
)  # fmt: skip
def test_a_bad_schedule_is_named(schedule: Schedule, reason: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(reason)):
        deployments([schedule])


def test_switches_that_somebody_has_set_stay(api: server.Api) -> None:
    from prefect.client.orchestration import get_client

    from flows.deployments import keep_switches, remove_others

    def planned(*names: str) -> list[Any]:
        both = [
            Schedule("kept-nightly", "warmup", {"patterns": "a"}, "0 3 * * *", "UTC"),
            Schedule("kept-after", "warmup", {"patterns": "a"}, after="gen-meta"),
        ]
        return deployments([one for one in both if one.name in names])[-len(names) :]

    with get_client(sync_client=True) as client:
        for one in planned("kept-nightly", "kept-after"):
            one.apply()
        nightly = client.read_deployment_by_name("warmup/kept-nightly")
        client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, active=True)
        (automation,) = client.read_automations_by_name("kept-after: warmup after gen-meta")
        client.resume_automation(automation.id)
        again = planned("kept-nightly", "kept-after")
        keep_switches(again, client)
        for one in again:
            one.apply()
        nightly = client.read_deployment_by_name("warmup/kept-nightly")
        assert [schedule.active for schedule in nightly.schedules] == [True]
        (automation,) = client.read_automations_by_name("kept-after: warmup after gen-meta")
        assert automation.enabled
        assert "kept-after" in remove_others(planned("kept-nightly"), client)
        assert client.read_automations_by_name("kept-after: warmup after gen-meta") == []


def test_a_night_has_one_run_when_the_clock_goes_back() -> None:
    """02:30 comes twice on one night of the year, and not at all on another."""
    from prefect.server.schemas.schedules import CronSchedule

    nightly = CronSchedule(cron="30 2 * * *", timezone="Europe/Berlin")
    for first in ("2026-10-24T00:00+00:00", "2026-03-28T00:00+00:00"):
        dates = asyncio.run(nightly.get_dates(4, start=datetime.fromisoformat(first)))
        assert [date.day for date in dates] == [dates[0].day + n for n in range(4)]


def test_the_team_has_the_same_forms() -> None:
    forms = {one["name"]: one for one in TEAM["deployments"] if "scheduled" not in one["tags"]}
    assert {name.removesuffix("-pool"): one["entrypoint"] for name, one in forms.items()} == {
        one.name: one.entrypoint for one in deployments()
    }
    for one in deployments():
        limit = forms[f"{one.name}-pool"].get("concurrency_limit", {})
        assert limit.get("limit") == one.concurrency_limit


def test_what_the_team_has_scheduled_is_off_and_fits_the_forms() -> None:
    scheduled = [one for one in TEAM["deployments"] if "scheduled" in one["tags"]]
    assert len(scheduled) == 2
    for one in scheduled:
        form = flow(one["entrypoint"].split(".")[1].replace("_", "-")).parameters
        given = dict(one.get("parameters", {}))
        for schedule in one.get("schedules", ()):
            assert schedule["timezone"] and schedule["active"] is False and schedule["slug"]
        for trigger in one.get("triggers", ()):
            assert trigger["enabled"] is False
            given |= trigger["parameters"]
        assert set(form.required) <= set(given) <= set(form.properties)


def test_compose_hangs_together() -> None:
    text = (ROOT / "deployments/docker-compose.yaml").read_text()
    compose = yaml.safe_load(text)
    services, volumes = compose["services"], set(compose["volumes"])
    for name, service in services.items():
        for needed in service.get("depends_on", {}):
            assert needed in services, name
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in volumes or source.startswith("${DATA"), name
        assert service.get("image"), name
    folder = ROOT / "deployments" / services["server"]["build"]["context"]
    assert (folder / services["server"]["build"]["dockerfile"]).is_file()
    assert services["server"]["ports"] == ["127.0.0.1:4200:4200"], "there is no password"
    assert "${POSTGRES_PASSWORD:?" in text
    settings = {
        name for service in services.values() for name in service["environment"] if name.startswith("PREFECT")
    }
    assert settings <= prefect_settings()
    kept = services["server"]["environment"]["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"]
    assert __import__(kept, fromlist=["ConcurrencyLeaseStorage"]).ConcurrencyLeaseStorage


def test_the_image_has_what_it_copies() -> None:
    for line in (ROOT / "deployments/Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), line


def test_kubernetes_hangs_together() -> None:
    folder = ROOT / "deployments/kubernetes"
    values = yaml.safe_load((folder / "server-values.yaml").read_text())
    assert {entry["name"] for entry in values["server"]["env"]} <= prefect_settings()
    job, workers = yaml.safe_load_all((folder / "workers.yaml").read_text())
    assert (job["kind"], workers["kind"]) == ("Job", "Deployment")
    template = workers["spec"]["template"]
    assert workers["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    (worker,) = template["spec"]["containers"]
    assert {mount["name"] for mount in worker["volumeMounts"]} == {
        v["name"] for v in template["spec"]["volumes"]
    }
    (pool,) = {one["work_pool"]["name"] for one in TEAM["deployments"]}
    assert worker["command"][:5] == ["prefect", "worker", "start", "--pool", pool]
    assert f"work-pool create {pool} " in job["spec"]["template"]["spec"]["containers"][0]["args"][0]


def prefect_settings() -> set[str]:
    """Every name that Prefect reads from the environment."""
    from prefect.settings.legacy import _get_valid_setting_names
    from prefect.settings.models.root import Settings

    return set(_get_valid_setting_names(Settings))


@pytest.fixture(scope="module")
def team() -> Iterator[str]:
    """The API of a server on a real PostgreSQL."""
    if reason := why_not():
        pytest.skip(reason)
    with postgres() as url:
        environment = {"PREFECT_API_DATABASE_CONNECTION_URL": url, "PREFECT_UI_ENABLED": "0"}
        with ServerProcess(environment, "127.0.0.1", 0, "") as process:
            process.wait_ready(lambda text: None)
            yield process.url


@pytest.mark.slow
def test_a_team_on_postgresql_with_a_worker(team: str, corpus: Path, tmp_path: Path) -> None:
    """As the head of prefect.yaml says, from a folder where nothing of ours can be seen."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {
        **os.environ,
        "PREFECT_API_URL": team,
        "PYTHONPATH": str(ROOT),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }

    def prefect(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=elsewhere, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    prefect("work-pool", "create", "shardflow", "--type", "process")
    prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(ROOT / "deployments/prefect.yaml"))
    worker = subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", "shardflow"],
        cwd=elsewhere, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out = tmp_path / "out"
        run(team, "prepare/prepare-pool", config=str(corpus / "job.yaml"), output=str(out))
        direct = tmp_path / "direct"
        arguments = ("prepare", str(corpus / "job.yaml"), "--output", str(direct), "--direct")
        assert finish(start(*arguments)).returncode == 0
        assert digests(out) == digests(direct)
        os.killpg(worker.pid, signal.SIGINT)
        worker.wait(60)
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()


def run(api: str, name: str, **parameters: Any) -> None:
    """One run of a deployment on the server there, to its good end."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(name)
        assert deployment.work_pool_name == "shardflow"
        asked = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)

        def final() -> Any:
            state = client.read_flow_run(asked.id).state
            return state if state and state.is_final() else None

        ended = wait_for(final, lambda: client.read_flow_run(asked.id), 120)
        assert ended.is_completed(), ended


@pytest.fixture(autouse=True)
def _quiet() -> None:
    server.set_environment()
