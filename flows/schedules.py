"""What runs by itself: ``configs/schedules.yaml``, read and checked. No Prefect in here.

::

    nightly-warmup:                     # becomes the deployment warmup/nightly-warmup
      flow: warmup
      parameters: {patterns: "text2image/*"}
      cron: "0 3 * * *"                 # or  after: gen-meta
      timezone: Europe/Berlin
      overlap: skip                     # or wait, if its last run isn't through
      active: false                     # the switch in the UI, as it is at first
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from zoneinfo import available_timezones

import yaml

from flows.report import refuse_credentials
from loader import storage
from loader.errors import BadConfig

FILE = "configs/schedules.yaml"  # where it is looked for, if nobody says another
FLOWS = ("prepare", "pack", "gen-meta", "warmup", "verify")
_FIELDS = ("flow", "parameters", "cron", "timezone", "after", "overlap", "active")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_MOST = 1 << 20  # bytes of a file


@dataclass(frozen=True)
class Schedule:
    """One entry. Either `cron` and `timezone` say when, or `after` names the flow whose good end starts it."""

    name: str
    flow: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cron: str = ""
    timezone: str = ""
    after: str = ""
    wait: bool = False  # a run that comes while the last one is at work: it waits, else it is left out
    active: bool = False

    def __str__(self) -> str:
        return f"after {self.after}" if self.after else f"{self.cron} {self.timezone}"


def load(path: str) -> list[Schedule]:
    """The entries of a file, in order; BadConfig names the wrong one."""
    address = storage.normalise(path)
    try:
        if storage.stat(address).size > _MOST:
            raise BadConfig(f"{address} is too large for a file of schedules: at most {_MOST:,} bytes")
        found = yaml.safe_load(storage.read_bytes(address))
    except FileNotFoundError as error:
        raise BadConfig(f"{address} is not there: a YAML file of schedules was expected") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadConfig(f"{address} is no YAML: {error}") from error
    if found is None:
        return []
    if not isinstance(found, dict):
        raise BadConfig(f"{address} holds {type(found).__name__}: 'name: {{flow: …}}' entries were expected")
    return [_entry(address, name, values) for name, values in found.items()]


def _entry(address: str, name: Any, values: Any) -> Schedule:
    def refuse(text: str) -> NoReturn:
        raise BadConfig(f"{address}: {name}: {text}")

    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse("a name of small letters, digits and '-' was expected")
    if name in FLOWS:
        refuse("is the name of a flow, whose form has it already: choose another, such as nightly-warmup")
    if not isinstance(values, dict):
        refuse("'flow: …' and other fields were expected below it")
    for key in values:
        if key not in _FIELDS:
            refuse(f"unknown field {key!r}: the fields are {', '.join(_FIELDS)}")
    for key in ("flow", "cron", "timezone", "after", "overlap"):
        if not isinstance(values.get(key, ""), str):
            refuse(f"{key} is {values[key]!r}: a text in quotes was expected")
    if values.get("flow") not in FLOWS:
        refuse(f"flow is {values.get('flow')!r}: one of {', '.join(FLOWS)} was expected")
    if values.get("overlap", "skip") not in ("skip", "wait"):
        refuse(f"overlap is {values['overlap']!r}: 'skip' or 'wait' was expected")
    if not isinstance(values.get("active", False), bool):
        refuse(f"active is {values['active']!r}: true or false was expected")
    parameters = values.get("parameters", {})
    if not isinstance(parameters, dict) or not all(isinstance(key, str) for key in parameters):
        refuse("parameters: 'name: value' lines were expected, as in the flow's form")
    refuse_credentials(**{key: value for key, value in parameters.items() if isinstance(value, str)})
    _check_when(values, refuse)
    return Schedule(
        name,
        values["flow"],
        parameters,
        values.get("cron", ""),
        values.get("timezone", ""),
        values.get("after", ""),
        values.get("overlap") == "wait",
        values.get("active", False),
    )


def _check_when(values: Mapping[str, Any], refuse: Any) -> None:
    if bool(values.get("cron")) == bool(values.get("after")):
        refuse("either 'cron', or 'after' and the name of a flow, was expected")
    if values.get("after"):
        if values["after"] not in FLOWS:
            refuse(f"after is {values['after']!r}: one of {', '.join(FLOWS)} was expected")
        return
    if not values.get("timezone"):
        refuse("timezone is missing: say where the clock hangs, such as Europe/Berlin or UTC")
    if values["timezone"] not in available_timezones():
        refuse(f"timezone is {values['timezone']!r}: a name such as Europe/Berlin or UTC was expected")
