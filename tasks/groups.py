"""Prefect tasks: one task run does a group of shards (`tasks.group`). The only file of this folder with Prefect.

Call them from the thread that made the pool, one after another. Nothing is cached: what is on disk says what is
done. A group with failures ends Failed, with itself as the state's data, after its retries.

A global concurrency limit named `LIMIT`, where there is one, bounds the workers of all runs together, and so the
reads from a store: each group holds as many of its slots as it has workers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from logging import INFO, WARNING
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.states import Failed
from prefect.tasks import Task

from loader.workers import Workers
from tasks.group import BACKOFF, JITTER, RETRIES, Group, may_pass

AnyGroup = Group[Any, Any]

LIMIT = "shardflow-reads"
_LEASE = 60.0  # seconds after which a killed run's slots are free again


class Shift:
    """What a group needs beside itself: workers, who is told of each result, the items that come next, a limit.

    No dataclass, for the same reason as the group.
    """

    def __init__(
        self,
        workers: Workers,
        on_done: Callable[[Any], None] = lambda result: None,
        then: Sequence[Any] = (),
        limited: bool = False,
    ) -> None:
        self.workers, self.on_done, self.limited = workers, on_done, limited
        # Who holds no slot of the limit begins nothing.
        self.then = () if limited else then


def reading_limit() -> int:
    """Slots of the limit; 0 if there is none, or it isn't active."""
    with get_client(sync_client=True) as client:
        try:
            limit = client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            return 0
    return limit.limit if limit.active else 0


def _worth_retrying(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    if run.run_count > RETRIES:
        return False
    found: object = state.data
    if isinstance(found, Group):
        return found.worth_retrying
    return isinstance(found, Exception) and may_pass(found)


_POLICY: dict[str, Any] = {
    # One more than `_worth_retrying` grants: Prefect logs an empty traceback when it runs out of them.
    "retries": RETRIES + 1,
    "retry_delay_seconds": [BACKOFF * 2**retry for retry in range(RETRIES)],
    "retry_jitter_factor": JITTER,
    "retry_condition_fn": _worth_retrying,
    "cache_policy": NO_CACHE,
    "persist_result": False,
    "task_run_name": "{group.name}",
}


@task(name="pack", **_POLICY)
def pack_group(group: AnyGroup, shift: Shift) -> AnyGroup | State[AnyGroup]:
    """Pack a group of slots: Records and pictures → shards and indexes."""
    return _attempt(group, shift)


@task(name="gen_meta", **_POLICY)
def gen_meta_group(group: AnyGroup, shift: Shift) -> AnyGroup | State[AnyGroup]:
    """Index a group of tars, checksums included."""
    return _attempt(group, shift)


@task(name="warmup", **_POLICY)
def warmup_group(group: AnyGroup, shift: Shift) -> AnyGroup | State[AnyGroup]:
    """See to the indexes of a group of tars."""
    return _attempt(group, shift)


@task(name="verify", **_POLICY)
def verify_group(group: AnyGroup, shift: Shift) -> AnyGroup | State[AnyGroup]:
    """Compare a group of tars with what stands beside them."""
    return _attempt(group, shift)


TASKS = {"pack": pack_group, "gen_meta": gen_meta_group, "warmup": warmup_group, "verify": verify_group}


def _attempt(group: AnyGroup, shift: Shift) -> AnyGroup | State[AnyGroup]:
    began = time.monotonic()
    held = (
        concurrency(LIMIT, shift.workers.n_jobs, lease_duration=_LEASE, raise_on_lease_renewal_failure=False)
        if shift.limited
        else contextlib.nullcontext()
    )
    try:
        with held:
            group.attempt(shift.workers, shift.on_done, shift.then)
    except group.work.fatal as error:
        return Failed(message="the run ends here, see its own message", data=error)
    line = f"{group.name}: {group.line(time.monotonic() - began)}"  # the log of a flow run doesn't say whose it is
    get_run_logger().log(WARNING if group.failures else INFO, line)
    if group.failures:
        return Failed(message=group.complaint(), data=group)
    return group
