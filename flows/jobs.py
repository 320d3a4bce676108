"""The four jobs by name: parameters in, a report out, whoever does the work. No Prefect in here.

This is where a flow, `--direct` and a test meet, so that they can't differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flows import steps
from flows.parameters import command_line, resolve
from flows.report import Report, StepReport, refuse_credentials
from flows.steps import Run
from loader.errors import ShardflowError

Steps = tuple[StepReport, ...]


def check(job: str, parameters: Mapping[str, Any]) -> None:
    """BadConfig for parameters that can't be meant; looks at nothing but the parameters and the config file."""
    values = dict(parameters)
    if job in ("prepare", "pack"):
        resolve(values.pop("config", ""), values)
    else:
        refuse_credentials(**{name: value for name, value in values.items() if isinstance(value, str)})


def perform(job: str, parameters: Mapping[str, Any], run: Run) -> Report:
    """Do a job to its end, or to the first step that fails. What is wrong with an input is told by the report."""
    try:
        check(job, parameters)
        done = _JOBS[job](dict(parameters), run)
    except (ShardflowError, OSError) as error:
        done = (StepReport(job, problem=str(error) or type(error).__name__),)
    return Report(job, done, command_line(job, parameters))


def _prepare(values: dict[str, Any], run: Run) -> Steps:
    return steps.prepare(resolve(values.pop("config", ""), values), run)


def _pack(values: dict[str, Any], run: Run) -> Steps:
    return steps.pack(resolve(values.pop("config", ""), values), run)


def _gen_meta(values: dict[str, Any], run: Run) -> Steps:
    require_end = not values.pop("no_end_ok", False)
    return steps.gen_meta(values.pop("dataset"), run, require_end=require_end, **values)


def _warmup(values: dict[str, Any], run: Run) -> Steps:
    require_end = not values.pop("no_end_ok", False)
    return steps.warmup(values.pop("patterns"), run, require_end=require_end, **values)


_JOBS: dict[str, Callable[[dict[str, Any], Run], Steps]] = {
    "prepare": _prepare,
    "pack": _pack,
    "gen-meta": _gen_meta,
    "warmup": _warmup,
}
