"""Whose output is it: a packing job writes into a folder of its own, and never over what another has packed.

What tells one job from another lies in ``.shardflow/pack.json``. A rerun may change all else: how much is done at a
time, what is tolerated, what the sources hold. A run that never came to its end may also be put right, as long as
it reads the same source: a recipe or an ``image_root`` that was forgotten, say.
"""

from __future__ import annotations

import json
from typing import Any

from loader import meta, storage
from loader.errors import BadConfig
from tasks import manifest
from tasks.config import PackConfig

_FORMAT = "shardflow pack"
_VERSION = 1
_JOB = ("source", "recipe", "image_root", "key_prefix")  # fields of a config: which samples, under which keys


def address(output: str) -> str:
    """Where it is written down whose output this is."""
    return storage.join(output, manifest.FOLDER, "pack.json")


def claim(config: PackConfig) -> None:
    """Make the output this job's. BadConfig if there are shards in it that another job, or somebody else, wrote.

    Whoever means to have them replaced removes the file at `address`: then what is left of the job before is taken
    for this one's. Call it with the output held (`tasks.lock.exclusive`).
    """
    job = {name: getattr(config, name) for name in _JOB}
    try:
        before = _read(storage.read_bytes(address(config.output), config.storage_options))
    except FileNotFoundError:
        if not manifest.slots(config.output, config.storage_options):
            _refuse_foreign(config)
    else:
        if before == job:
            return
        _refuse_other(config, before)
    document = {"format": _FORMAT, "version": _VERSION, "job": job}
    # A path that is no UTF-8 is written as the escapes that JSON has for what Python makes of its bytes.
    data = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    storage.write_bytes(address(config.output), data, config.storage_options)


def _read(data: bytes) -> dict[str, Any]:
    """The job that is written there; empty where nothing is that can be understood."""
    try:
        found = json.loads(data)
        return dict(found["job"]) if (found["format"], found["version"]) == (_FORMAT, _VERSION) else {}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def _tars(config: PackConfig) -> list[str]:
    return storage.list_files(config.output, ".tar", config.storage_options)


def _refuse_foreign(config: PackConfig) -> None:
    described = meta.meta_address(config.output)
    theirs = [described] if storage.exists(described, config.storage_options) else _tars(config)
    if theirs:
        raise BadConfig(
            f"output is {config.output}, where {storage.relative(theirs[0], config.output)} was not written by "
            "this command: choose another folder, or empty it"
        )


def _refuse_other(config: PackConfig, before: dict[str, Any]) -> None:
    finished = storage.exists(meta.meta_address(config.output), config.storage_options)
    if before.get("source") == config.source and not finished:
        return
    if not _tars(config):  # nothing to lose
        return
    changed = [
        f"{name} was {before[name] or 'not set'}, and is now {getattr(config, name) or 'not set'}"
        for name in _JOB
        if name in before and before[name] != getattr(config, name)
    ]
    raise BadConfig(
        f"output is {config.output}, where another job has packed{' (' + '; '.join(changed) + ')' if changed else ''}. "
        "Choose another folder, or empty it; to have this job replace what is there, remove "
        f"{address(config.output)}, and run again"
    )
