"""The parameters of flows, as forms and command lines give them: flat, typed, described, no secrets. No Prefect in here.

A form can't leave a field out, so each field of a packing job has one value that means "as in the config file,
else the usual": an empty text, 0, -1, or "as configured".
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any, Final, TypeVar

from flows.report import refuse_credentials
from loader import storage
from loader.errors import BadConfig
from tasks import config as packing
from tasks.config import PackConfig

Function = TypeVar("Function", bound=Callable[..., Any])

CONFIGURED: Final = "as configured"
# The value of a field that leaves it as it is.
UNSET: dict[str, Any] = {
    "source": "",
    "output": "",
    "recipe": "",
    "image_root": "",
    "max_samples": 0,
    "max_bytes": 0,
    "on_error": CONFIGURED,
    "max_bad_fraction": -1.0,
    "key_prefix": "",
    "image_names": CONFIGURED,
    "n_jobs": -1,
    "recipe_folder": "",
}
_USUAL = {"n_jobs": 0, "grouping": "auto", "no_end_ok": False}
_POSITIONAL = ("config", "dataset", "patterns")
CONFIG = "YAML file of a packing job, a path or URL; the fields below override what it says. Empty: no file."


def packing_fields() -> list[packing.Field]:
    """The fields of a packing job that a form may hold: all but the storage options, which may hold secrets."""
    return [field for field in packing.fields() if field.name in UNSET]


def described(function: Function) -> Function:
    """Give a flow's function the ``Args:`` that Prefect shows beside its form."""
    fields = [f"    {field.name}: {_text(field)}" for field in packing_fields()]
    lines = [inspect.getdoc(function) or "", "", "Args:", f"    config: {CONFIG}", *fields]
    function.__doc__ = "\n".join(lines)
    return function


def _text(field: packing.Field) -> str:
    """The field's description, and what the form's own default means."""
    text, unset = field.description, UNSET[field.name]
    if field.default is MISSING:
        return f"{text} Empty: as in the config file."
    if field.default == "":
        text = text if "Empty: " in text else f"{text} Empty: none."
        return text.replace("Empty: ", "Empty: as in the config file, or else ")
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
    usual = UNSET if job in ("pack", "prepare") else _USUAL
    for name, value in parameters.items():
        if value == usual.get(name, ""):
            continue
        option = f"--{name.replace('_', '-')}"
        if name in _POSITIONAL:
            words.append(str(value))
        else:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)


def run_name(job: str, *addresses: str) -> str:
    """What a flow run is called: ``prepare photos``."""
    last = next((storage.name(address) for address in addresses if address), "")
    return f"{job} {last}".strip()
