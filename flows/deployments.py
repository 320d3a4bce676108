"""The deployments: each flow with its form, and what `flows.schedules` says runs by itself; and registering them.

A switch that somebody has set in the UI stays as it is when they are registered again.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.schedules import Cron
from prefect.utilities.schema_tools import ValidationError as SchemaError
from prefect.utilities.schema_tools import validate
from pydantic import ValidationError

from flows.schedules import FLOWS, Schedule
from loader.errors import BadConfig

# A run of these uses all cores: the next one waits.
_HEAVY = ("prepare", "pack")
_WAIT = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
_SKIP = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
TAG = "shardflow"
_SCHEDULED = "scheduled"


def flow(name: str) -> Flow[..., Any]:
    """A flow by its name."""
    module = name.replace("-", "_")
    found: Flow[..., Any] = getattr(importlib.import_module(f"flows.{module}"), module)
    return found


def deployments(schedules: Sequence[Schedule] = ()) -> list[RunnerDeployment]:
    """All flows as ``prepare/prepare``, …, and each schedule as ``FLOW/ITS-NAME``. BadConfig for a bad schedule."""
    return [*map(_form, FLOWS), *map(_scheduled, schedules)]


def _form(name: str) -> RunnerDeployment:
    return _deployment(flow(name), name, concurrency_limit=_WAIT if name in _HEAVY else None)


def _scheduled(schedule: Schedule) -> RunnerDeployment:
    target = flow(schedule.flow)
    _check_parameters(schedule, target)
    when: dict[str, Any]
    if schedule.after:
        when = {"triggers": [_trigger(schedule)]}
    else:
        try:
            CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
        except ValidationError as error:
            raise BadConfig(
                f"schedule {schedule.name}: cron is {schedule.cron!r}: five fields such as '0 3 * * *' were expected"
            ) from error
        cron = Cron(schedule.cron, timezone=schedule.timezone, active=schedule.active, slug=schedule.name)
        when = {"schedules": [cron], "parameters": dict(schedule.parameters)}
    return _deployment(
        target, schedule.name, _SCHEDULED, concurrency_limit=_WAIT if schedule.wait else _SKIP, **when
    )


def _deployment(target: Flow[..., Any], name: str, *tags: str, **options: Any) -> RunnerDeployment:
    # By module: flows are found wherever they are started from.
    made: RunnerDeployment = target.to_deployment(
        name,
        entrypoint_type=EntrypointType.MODULE_PATH,
        description=(target.description or "").partition("\nArgs:")[0].strip(),
        tags=[TAG, *tags],
        **options,
    )
    return made


def _check_parameters(schedule: Schedule, target: Flow[..., Any]) -> None:
    shapes = target.parameters
    for name in schedule.parameters:
        if name not in shapes.properties:
            raise BadConfig(
                f"schedule {schedule.name}: {schedule.flow} has no parameter {name!r}: it has "
                f"{', '.join(shapes.properties)}"
            )
    for name in shapes.required:
        if name not in schedule.parameters:
            raise BadConfig(f"schedule {schedule.name}: {schedule.flow} needs the parameter {name!r}")
    try:
        validate(dict(schedule.parameters), shapes.model_dump(), raise_on_error=True)
    except SchemaError as error:
        raise BadConfig(f"schedule {schedule.name}: {error}") from error


def _trigger(schedule: Schedule) -> DeploymentEventTrigger:
    """The automation that starts it when a run of the flow `after` has come to its good end."""
    return DeploymentEventTrigger(
        name=f"{schedule.name}: {schedule.flow} after {schedule.after}",
        enabled=schedule.active,
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.name": schedule.after, "prefect.resource.role": "flow"},
        expect={"prefect.flow-run.Completed"},
        parameters=dict(schedule.parameters),
    )


def keep_switches(wanted: Sequence[RunnerDeployment], client: SyncPrefectClient) -> None:
    """Give schedules and automations the switches that they have on the server, if they are there."""
    for one in wanted:
        try:
            there = client.read_deployment_by_name(f"{one.flow_name}/{one.name}")
        except ObjectNotFound:
            continue
        active = {schedule.slug: schedule.active for schedule in there.schedules}
        for schedule in one.schedules or ():
            schedule.active = active.get(schedule.slug, schedule.active)
        for trigger in one.triggers:
            for automation in client.read_automations_by_name(str(trigger.name)):
                trigger.enabled = automation.enabled


def remove_others(wanted: Sequence[RunnerDeployment], client: SyncPrefectClient) -> list[str]:
    """Delete scheduled deployments that are not wanted any more: nobody would serve them. Returns their names."""
    names = {one.name for one in wanted}
    mine = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG, _SCHEDULED]))
    gone = [one for one in client.read_deployments(deployment_filter=mine) if one.name not in names]
    for one in gone:
        client.delete_resource_owned_automations(f"prefect.deployment.{one.id}")
        client.delete_deployment(one.id)
    return [one.name for one in gone]
