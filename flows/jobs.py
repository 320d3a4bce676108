"""The five jobs by name: parameters in, a report out, whoever does the work. No Prefect in here.

This is where a flow, `--direct` and a test meet, so that they can't differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flows import steps
from flows.parameters import UNSET, command_line, resolve
from flows.report import Report, StepReport, refuse_credentials
from flows.report_file import check_address, save
from loader.errors import BadConfig, ShardflowError
from tasks import workforce
from tasks.config import PackConfig, override
from tasks.group import Run
from tasks.workforce import Crew

Steps = tuple[StepReport, ...]
Options = Mapping[str, Any] | None
Find = Callable[[str], Options]

# Who does the work, with which keys, and where it is told: not for the steps.
RUNNING = ("runner", "dask_address", "storage_block", "report")


def no_blocks(name: str) -> Options:
    """The options of no block; BadConfig for the name of one: blocks are Prefect's."""
    if name:
        raise BadConfig(
            f"storage_block is {name!r}, a block of Prefect's: without Prefect, say keys and endpoint by the environment "
            "or as storage_options in the config file"
        )
    return None


def _own(job: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the job itself; a packing job's config may say who does the work."""
    configured = UNSET if job in ("prepare", "pack") else ()
    return {name: value for name, value in parameters.items() if name not in RUNNING or name in configured}


def _runner(job: str, parameters: Mapping[str, Any]) -> tuple[str, str]:
    """The runner, and the address of its cluster."""
    if job in ("prepare", "pack"):
        config = _config(_own(job, parameters), None)
        return config.runner, config.dask_address
    return parameters.get("runner", "local"), parameters.get("dask_address", "")


def check(job: str, parameters: Mapping[str, Any]) -> None:
    """BadConfig for parameters that can't be meant; looks at nothing but the parameters and the config file."""
    workforce.check(*_runner(job, parameters))
    check_address(parameters.get("report", ""))
    refuse_credentials(report=parameters.get("report", ""))
    values = _own(job, parameters)
    if job in ("prepare", "pack"):
        resolve(values.pop("config", ""), values)
    else:
        refuse_credentials(**{name: value for name, value in values.items() if isinstance(value, str)})


def perform(
    job: str,
    parameters: Mapping[str, Any],
    make_run: Callable[[Crew], Run],
    find_options: Find = no_blocks,
) -> Report:
    """Do a job to its end, or to the first step that fails. What is wrong with an input is told by the report.

    `make_run` says how the job's workers are put to work: `flows.direct.Direct`, `flows.grouped.Groups`. `find_options` gives the storage options of the block that the parameters name: for every store that no config
    or registry says anything of.
    """
    try:
        check(job, parameters)
        options = find_options(parameters.get("storage_block", ""))
        with Crew(*_runner(job, parameters)) as crew:
            done = _JOBS[job](_own(job, parameters), make_run(crew), options)
    except (ShardflowError, OSError) as error:
        done = (StepReport(job, problem=str(error) or type(error).__name__),)
        return Report(job, done, command_line(job, parameters))
    report = Report(job, done, command_line(job, parameters))
    if address := parameters.get("report", ""):
        return save(report, address, _store_options(job, parameters, options, address))
    return report


def _store_options(job: str, parameters: Mapping[str, Any], options: Options, address: str) -> Options:
    """The storage options for a file beside the dataset."""
    if job in ("prepare", "pack"):
        return _config(_own(job, parameters), options).options_for(address)
    return options


def _config(values: dict[str, Any], options: Options) -> PackConfig:
    config = resolve(values.pop("config", ""), values)
    return override(config, storage_options=options) if options and config.storage_options is None else config


def _prepare(values: dict[str, Any], run: Run, options: Options) -> Steps:
    return steps.prepare(_config(values, options), run)


def _pack(values: dict[str, Any], run: Run, options: Options) -> Steps:
    return steps.pack(_config(values, options), run)


def _gen_meta(values: dict[str, Any], run: Run, options: Options) -> Steps:
    require_end = not values.pop("no_end_ok", False)
    return steps.gen_meta(
        values.pop("dataset"), run, require_end=require_end, storage_options=options, **values
    )


def _warmup(values: dict[str, Any], run: Run, options: Options) -> Steps:
    require_end = not values.pop("no_end_ok", False)
    return steps.warmup(
        values.pop("patterns"), run, require_end=require_end, storage_options=options, **values
    )


def _verify(values: dict[str, Any], run: Run, options: Options) -> Steps:
    require_end = not values.pop("no_end_ok", False)
    return steps.verify(
        values.pop("dataset"), run, require_end=require_end, storage_options=options, **values
    )


_JOBS: dict[str, Callable[[dict[str, Any], Run, Options], Steps]] = {
    "prepare": _prepare,
    "pack": _pack,
    "gen-meta": _gen_meta,
    "warmup": _warmup,
    "verify": _verify,
}
