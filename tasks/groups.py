"""Prefect tasks: one task run does a group of shards (`tasks.group`). The only file of this folder with Prefect.

Call them from the thread that made the pool, one after another. Nothing is cached: what is on disk says what is
done. A group with failures ends Failed, with itself as the state's data, after its retries.
"""

from __future__ import annotations

import time
from logging import INFO, WARNING
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Failed
from prefect.tasks import Task

from loader.pool import Pool
from tasks.group import BACKOFF, JITTER, RETRIES, Group, may_pass

AnyGroup = Group[Any, Any]


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


@task(name="pack", tags=["shardflow", "pack"], **_POLICY)
def pack_group(group: AnyGroup, pool: Pool) -> AnyGroup | State[AnyGroup]:
    """Pack a group of slots: JSON records and pictures → shards and indexes."""
    return _attempt(group, pool)


@task(name="gen_meta", tags=["shardflow", "gen_meta"], **_POLICY)
def gen_meta_group(group: AnyGroup, pool: Pool) -> AnyGroup | State[AnyGroup]:
    """Index a group of tars, checksums included."""
    return _attempt(group, pool)


@task(name="warmup", tags=["shardflow", "warmup"], **_POLICY)
def warmup_group(group: AnyGroup, pool: Pool) -> AnyGroup | State[AnyGroup]:
    """See to the indexes of a group of tars."""
    return _attempt(group, pool)


TASKS = {"pack": pack_group, "gen_meta": gen_meta_group, "warmup": warmup_group}


def _attempt(group: AnyGroup, pool: Pool) -> AnyGroup | State[AnyGroup]:
    began = time.monotonic()
    try:
        group.attempt(pool)
    except group.work.fatal as error:
        return Failed(message="the run ends here, see its own message", data=error)
    get_run_logger().log(WARNING if group.failures else INFO, group.line(time.monotonic() - began))
    if group.failures:
        return Failed(message=group.complaint(), data=group)
    return group
