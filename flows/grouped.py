"""The work of a step as Prefect task runs, and the end of a flow: artifacts and the final state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.states import Failed

from flows import lifeline
from flows.blocks import storage_options
from flows.flow_log import leave_out_good_ends, leave_out_traceback
from flows.jobs import perform
from flows.progress_artifact import ProgressArtifact
from loader.errors import ShardflowError
from loader.workers import Workers
from tasks.group import Group, Results, Work
from tasks.grouping import next_group
from tasks.groups import TASKS, Shift, reading_limit
from tasks.workforce import Crew

_MOST_RUNS = 1000  # task runs for each step, or the server's own work begins to show
_LOST = "Prefect's server does not answer any more: start it again, and run this again. What is done is kept"
_BLIND = 64  # items that a group may have on the strength of a rate that may not last


class ServerLost(ShardflowError, ConnectionError):
    """The server that keeps the records of the run is gone."""


class Groups:
    """Runs work group by group, one after another; `task_runs` counts them. See `tasks.group.Run`.

    The workers know no groups: the first items of the next one are begun while the last of this one are under way.
    """

    def __init__(self, crew: Crew) -> None:
        self.task_runs = 0
        self._crew = crew
        self._limit: int | None = None  # not asked for yet
        self._shown: dict[str, ProgressArtifact] = {}

    def __call__(
        self, work: Work[Any, Any], n_jobs: int, check: Callable[[list[Any]], None] | None = None
    ) -> Results:
        total, begin, size, made, took = len(work.items), 0, 0, 0, 0.0
        results: list[Any] = []
        failures: list[tuple[Any, Exception]] = []
        if not total:
            return results, failures
        workers, limited = self._workers(n_jobs, total)
        with self._shown.setdefault(work.kind, ProgressArtifact(work)).expect(total) as shown:
            while begin < total:
                size = group_size(total - begin, total, size, made, took, workers.n_jobs)
                end = begin + size
                group = Group(work, begin, work.items[begin:end])
                shift = Shift(workers, shown.on_done, work.items[end : end + workers.n_jobs], limited)
                began = time.monotonic()
                self.task_runs += 1
                try:
                    _end_if_fatal(_run(group, shift), group)
                    took = time.monotonic() - began
                    made = len(group.items) - sum(map(work.kept, group.results))
                    results += group.results
                    failures += group.failures
                    shown.failed(len(group.failures))
                    if check is not None:
                        check(results)
                except BaseException:
                    workers.terminate()  # what was begun for the next group
                    raise
                begin = end
        return results, failures

    def _workers(self, n_jobs: int, items: int) -> tuple[Workers, bool]:
        """The workers, as many as a global limit allows, and whether there is one."""
        if self._limit is None:
            try:
                self._limit = reading_limit()
            except httpx.HTTPError as error:
                raise ServerLost(_LOST) from error
        if self._limit:
            n_jobs = min(n_jobs or self._limit, self._limit)
        return self._crew.get(n_jobs, items), bool(self._limit)


def group_size(left: int, total: int, last: int, made: int, took: float, jobs: int) -> int:
    """Items for the next group, of `left` ones, after the `last` ones took so many seconds.

    About as much work as `next_group` says. Items that were done before go by in no time and say nothing of those
    to come: unless most of the last ones were `made` now, there is an upper bound. The lower one keeps the number
    of task runs bearable.
    """
    size = next_group(left, last, took, jobs, last)
    if 2 * made < last:
        size = min(size, max(_BLIND, jobs, -(-4 * total // _MOST_RUNS)))
    return min(left, max(size, -(-total // _MOST_RUNS)))


def _run(group: Group[Any, Any], shift: Shift) -> State[Any]:
    """The final state of a group's task run; ServerLost if the server can't be told of it.

    Without tags, those of the flow run included: for each group, Prefect would ask the server for a place within their
    limits, and a group needs no server that answers just now.
    """
    try:
        with TagsContext(current_tags=set()):
            state = TASKS[group.work.kind](group, shift, return_state=True)
    except httpx.TransportError as error:
        raise ServerLost(_LOST) from error
    if not state.is_final():
        raise ServerLost(_LOST)
    return state


def _end_if_fatal(state: State[Any], group: Group[Any, Any]) -> None:
    """Raise what ends all of the work; a group that has failures, and is at its end, is none of that."""
    if state.is_completed():
        return
    outcome = state.result(raise_on_failure=False)
    if outcome is group:
        return
    if isinstance(outcome, BaseException):
        raise outcome
    raise RuntimeError(f"{group.name} ended {state.name}: {state.message}")


def conclude(job: str, parameters: Mapping[str, Any]) -> Any:
    """The whole of a flow: the job, its report as artifacts, and the final state, which has it as its data."""
    lifeline.hold()
    leave_out_good_ends()
    made: list[Groups] = []

    def groups(crew: Crew) -> Groups:
        made.append(Groups(crew))
        return made[-1]

    report = perform(job, parameters, groups, storage_options)
    report = replace(report, task_runs=sum(each.task_runs for each in made))
    try:
        create_table_artifact(report.rows(), key=f"{job}-table", description=report.message())
        create_markdown_artifact(
            report.markdown(report.samples()), key=f"{job}-report", description=report.message()
        )
    except Exception as error:  # noqa: BLE001 - the work is done; a report that can't be stored undoes none of it
        get_run_logger().warning("the report could not be stored with Prefect: %s", error)
    if report.ok:
        return report
    leave_out_traceback()
    return Failed(message=report.message(), data=report)
