"""The parameters of flows, as forms and command lines give them: flat, typed, described, no secrets. No Prefect in here.

A form can't leave a field out, so each field of a packing job has one value that means "as in the config file,
else the usual": an empty text, -1, or "as configured". The forms of `pack` and `prepare` are made from the
fields of `PackConfig` (`packing_form`), so that they can't differ.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING
from typing import Annotated, Any, Final, Literal, TypeVar

from flows.report import refuse_credentials
from loader import storage
from loader.errors import BadConfig
from tasks import config as packing
from tasks.config import PackConfig

Function = TypeVar("Function", bound=Callable[..., Any])

CONFIGURED: Final = "as configured"
_UNSET_BY_TYPE = {"str": "", "int": -1, "float": -1.0, "bool": False}
# The value of a field that leaves it as it is. Options of file systems, which may hold secrets, are no fields here.
UNSET: dict[str, Any] = {
    field.name: CONFIGURED if field.choices else _UNSET_BY_TYPE[field.type]
    for field in packing.fields()
    if field.type in _UNSET_BY_TYPE
}
_FIRST = ("source", "output", "image_root", "max_samples", "n_jobs", "on_error", "max_bad_fraction", "mode")
_USUAL = {
    "n_jobs": 0,
    "grouping": "auto",
    "no_end_ok": False,
    "save_bytes": False,
    "deep": False,
    "repair": False,
}
_RUN = {"runner": "local"}  # of jobs without a config file
_POSITIONAL = ("config", "dataset", "patterns")
_MADE_UP = re.compile("[a-z]+-[a-z]+")
_KINDS = {"str": str, "int": int, "float": float, "bool": bool}
_LIMITS = {"max_bad_fraction": {"le": 1}}
CONFIG = "YAML file of a packing job, a path or URL; the fields below override what it says. Empty: no file."

Runner = Literal["local", "dask", "ray"]
# The last fields of every form, where the job's config has no such field: (type, default, description)
RUN_OPTIONS: dict[str, tuple[Any, str, str]] = {
    "runner": (
        Runner,
        "local",
        "Who does the work: processes of the machine that the flow runs on (local), or a Dask or Ray cluster.",
    ),
    "dask_address": (
        str,
        "",
        "Scheduler of the Dask cluster, such as tcp://10.0.0.1:8786. Empty: a cluster on this machine, if the runner is dask.",
    ),
    "report": (
        str,
        "",
        "Write the report to this file as well, a path or URL: .html with samples to look at, or .md. Empty: no file.",
    ),
    "storage_block": (
        str,
        "",
        "Name of a block 'Storage options' (Blocks, in these pages) with endpoint and keys of the object store. Empty: those of the environment, or of the config file.",
    ),
}


def packing_fields() -> list[packing.Field]:
    """The fields of a packing job that a form may hold: all but the storage options, which may hold secrets.

    What most people fill in comes first.
    """
    fields = [field for field in packing.fields() if field.name in UNSET]
    return sorted(fields, key=lambda field: _FIRST.index(field.name) if field.name in _FIRST else len(_FIRST))


def packing_form(function: Function) -> Function:
    """Give a flow's function, which takes any keywords, the parameters of a packing job and their ``Args:``."""
    from pydantic import Field

    def parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    parameters = [parameter("config", str, "")]
    for field in packing_fields():
        unset = UNSET[field.name]
        choices = (CONFIGURED, *field.choices)
        kind: Any = Literal[choices] if field.choices else _KINDS[field.type]
        if field.type in ("int", "float"):
            kind = Annotated[kind, Field(ge=unset, **_LIMITS.get(field.name, {}))]
        parameters.append(parameter(field.name, kind, unset))
    parameters += [
        parameter(name, kind, default)
        for name, (kind, default, _) in RUN_OPTIONS.items()
        if name not in UNSET
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    fields = [f"    {field.name}: {_text(field)}" for field in packing_fields()]
    lines = [inspect.getdoc(function) or "", "", "Args:", f"    config: {CONFIG}", *fields]
    function.__doc__ = "\n".join(lines)
    return described(function, but=UNSET)


def described(function: Function, but: Collection[str] = ()) -> Function:
    """Add the run options to the ``Args:`` of a flow's function, which Prefect shows beside its form."""
    lines = [f"    {name}: {text}" for name, (_, _, text) in RUN_OPTIONS.items() if name not in but]
    function.__doc__ = "\n".join([(inspect.getdoc(function) or "").rstrip(), *lines])
    return function


def _text(field: packing.Field) -> str:
    """The field's description, and what the form's own default means."""
    text, unset = field.description, UNSET[field.name]
    if field.default is MISSING:
        return f"{text} Empty: as in the config file."
    if field.default == "":
        text = text if "Empty: " in text else f"{text} Empty: none."
        return text.replace("Empty: ", "Empty: as in the config file, or else ")
    if field.type == "bool":
        return f"{text} Not ticked: as in the config file, or else {'yes' if field.default else 'no'}."
    usual = field.default if isinstance(field.default, str) else f"{field.default:,}"
    how = "Empty" if unset == "" else unset.capitalize() if isinstance(unset, str) else f"{unset:g}"
    return f"{text} {how}: as in the config file, or else {usual}."


def resolve(config: str, fields: Mapping[str, Any]) -> PackConfig:
    """The packing job that a form or a command line means; BadConfig names the wrong field."""
    given = {name: value for name, value in fields.items() if value != UNSET.get(name)}
    refuse_credentials(
        config=config, **{name: value for name, value in given.items() if isinstance(value, str)}
    )
    if config:
        return packing.load(config, **given)
    for name in ("source", "output"):
        if name not in given:
            raise BadConfig(f"{name} is missing: give it, or a config file that says it")
    return packing.from_values(given)


def command_line(job: str, parameters: Mapping[str, Any]) -> str:
    """The command that does the same from a terminal."""
    words = ["shardflow", job]
    usual = UNSET if job in ("pack", "prepare") else {**_RUN, **_USUAL}
    for name, value in parameters.items():
        if value == usual.get(name, "") or (
            job == "verify" and name in RUN_OPTIONS
        ):  # a terminal's needs none
            continue
        option = f"--{name.replace('_', '-')}"
        if name in _POSITIONAL:
            words.append(str(value))
        else:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)


def named(given: str | None, ours: str) -> str:
    """The name of a flow run: what somebody has typed, or `ours` in place of what Prefect makes up: two words in
    lower case, ``wise-otter``."""
    return ours if not given or _MADE_UP.fullmatch(given) else given


def run_name(job: str, *addresses: str) -> str:
    """What a flow run is called: ``prepare photos``."""
    last = next((storage.name(address) for address in addresses if address), "")
    return f"{job} {last}".strip()
