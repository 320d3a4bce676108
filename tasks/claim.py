"""Whose output is it: a packing job writes into a folder of its own, and never unasked over what another has packed.

What tells one job from another lies in ``.shardflow/pack.json``. A rerun may change all else: how much is done at a
time, what is tolerated, what the sources hold. A run that never came to its end may also be put right, as long as
it reads the same source: a recipe or an ``image_root`` that was forgotten, say. The config's ``mode`` says what else is
allowed: to replace what is there, or to add to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from loader import meta, storage
from loader.errors import BadConfig, BadMeta, WriteConflict
from tasks import manifest
from tasks.config import PackConfig
from tasks.source_options import shard_pattern

_FORMAT = "shardflow pack"
_VERSION, _APPENDED = 1, 2  # the second where there is something before the job
_JOB = ("source", "recipe", "image_root", "key_prefix")  # fields of a config: which samples, under which keys
_JOB_TOO = ("source_kind", "columns", "keys", "order", "seed", "split", "split_column")  # where they are set


@dataclass(frozen=True)
class Claim:
    """Whose output it is. `slots` and `rows` are before the job's own, of jobs that it was appended to; `replaces`:
    what else is there goes when the job is done."""

    job: dict[str, Any]
    slots: int = 0
    rows: int = 0
    replaces: bool = False


def address(output: str) -> str:
    """Where it is written down whose output this is."""
    return storage.join(output, manifest.FOLDER, "pack.json")


def before(config: PackConfig) -> Claim:
    """Whose output it will be, as `claim` will write it down, and what the job's slots come behind; changes nothing.

    BadConfig if there are shards in it that another job, or somebody else, wrote, unless the mode allows for them.
    """
    found, job = _load(config), _job(config)
    known = found is not None and found.job == job
    if config.mode == "overwrite" and (not known or metas(config)):
        return Claim(job, replaces=_holds_something(config, found))
    if found is not None and known:
        return found
    if config.mode == "append" and _holds_something(config, found):
        return _behind(config, found)
    if config.mode == "resume" and found is not None and found.job.get("source") == config.source:
        moved = any(found.job.get(name) != job.get(name) for name in ("split", "split_column"))
        return replace(found, job=job, replaces=found.replaces or moved)
    if found is not None:
        _refuse_other(config, found.job, job)
    elif not manifest.slots(config.output, config.storage_options):
        _refuse_foreign(config)
    return Claim(job)


def claim(config: PackConfig) -> Claim:
    """Make the output this job's, if `before` has nothing against it. Call it with the output held
    (`tasks.lock.exclusive`).
    """
    found, wanted = _load(config), before(config)
    if config.mode == "overwrite" and wanted.replaces and not (found == wanted and not metas(config)):
        _forget(config)
    elif found == wanted:
        return wanted
    if config.mode == "append" and found is None and wanted.slots + wanted.rows:
        _remember(config)
    document: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "job": wanted.job}
    if wanted.slots or wanted.rows:
        document |= {"version": _APPENDED, "before": {"slots": wanted.slots, "rows": wanted.rows}}
    if wanted.replaces:
        document["replaces"] = True
    # A path that is no UTF-8 is written as the escapes that JSON has for what Python makes of its bytes.
    data = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    # On this machine, whoever holds the output is alone with it; into a bucket, another one may be packing as well.
    first = found is None and storage.takes_conditions(config.output)
    try:
        storage.write_bytes(address(config.output), data, config.storage_options, if_absent=first)
    except WriteConflict as error:
        if _load(config) != wanted:
            raise BadConfig(
                f"output is {config.output}, which another job has just taken: choose another folder"
            ) from error
    return wanted


def metas(config: PackConfig) -> list[str]:
    """The meta.json of each dataset in the output: its own, or one for each split."""
    own = meta.meta_address(config.output)
    if storage.exists(own, config.storage_options):
        return [own]
    files = storage.list_files(config.output, meta.META_NAME, config.storage_options)
    return [file for file in files if storage.name(file) == meta.META_NAME]


def claimed_from(config: PackConfig) -> dict[str, list[str]]:
    """The tars that somebody else's meta.json named when a job was appended to it, by the folder that it lay in."""
    try:
        found = json.loads(storage.read_bytes(_foreign_address(config), config.storage_options))
    except FileNotFoundError:
        return {}
    return {str(folder): [str(path) for path in paths] for folder, paths in found.items()}


def _foreign_address(config: PackConfig) -> str:
    return storage.join(config.output, manifest.FOLDER, "before.json")


def _remember(config: PackConfig) -> None:
    """Write down what is there: no manifest of ours tells of it."""
    options = config.storage_options
    found = {
        storage.parent(file)[len(config.output) :].lstrip("/"): list(meta.read_meta(file, options))
        for file in metas(config)
    }
    storage.write_bytes(_foreign_address(config), json.dumps(found).encode() + b"\n", options)


def _holds_something(config: PackConfig, found: Claim | None) -> bool:
    return found is not None or bool(metas(config) or _tars(config))


def _job(config: PackConfig) -> dict[str, Any]:
    defaults = PackConfig.__dataclass_fields__
    also = {name: getattr(config, name) for name in _JOB_TOO}
    return {name: getattr(config, name) for name in _JOB} | {
        name: value for name, value in also.items() if value != defaults[name].default
    }


def _load(config: PackConfig) -> Claim | None:
    """What is written there; an empty claim where nothing is that can be understood."""
    try:
        data = storage.read_bytes(address(config.output), config.storage_options)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
        if found["format"] != _FORMAT or found["version"] not in (_VERSION, _APPENDED):
            return Claim({})
        earlier = found.get("before", {})
        numbers = int(earlier.get("slots", 0)), int(earlier.get("rows", 0))
        return Claim(dict(found["job"]), *numbers, replaces=bool(found.get("replaces")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Claim({})


def _behind(config: PackConfig, found: Claim | None) -> Claim:
    """Behind all that is there, which must be whole."""
    known = metas(config)
    if not known:
        raise BadConfig(
            f"output is {config.output}, which has no meta.json to append to: finish the run that began there, or "
            "describe its tars with gen_meta"
        )
    options = config.storage_options
    earlier = found or Claim({})
    slots, rows = earlier.slots, earlier.rows
    numbers = manifest.slots(config.output, options)
    for number in numbers:
        one = manifest.load(config.output, number, options) if number >= earlier.slots else None
        rows += one.rows if one else 0
    if found is None:  # somebody else's: its samples are counted as rows, so that keys go on behind them
        try:
            rows = sum(
                shard.num_samples for file in known for shard in meta.read_meta(file, options).values()
            )
        except BadMeta as error:
            raise BadConfig(f"output is {config.output}, which can't be appended to: {error}") from error
    pattern = shard_pattern(config)
    named = (pattern.fullmatch(storage.relative(tar, config.output)) for tar in _tars(config))
    slots = max(
        [slots, *(number + 1 for number in numbers), *(int(match["index"]) + 1 for match in named if match)]
    )
    return Claim(_job(config), slots, rows)


def _forget(config: PackConfig) -> None:
    """Nothing that is there counts any more; readers get an error until the new dataset is whole."""
    options = config.storage_options
    for file in metas(config):
        storage.remove(file, options)
        storage.remove(meta.stats_address(file), options)
    storage.remove(_foreign_address(config), options)
    for number in manifest.slots(config.output, options):
        storage.remove(manifest.address(config.output, number), options)


def _tars(config: PackConfig) -> list[str]:
    return storage.list_files(config.output, ".tar", config.storage_options)


def _refuse_foreign(config: PackConfig) -> None:
    described = meta.meta_address(config.output)
    theirs = [described] if storage.exists(described, config.storage_options) else _tars(config)
    if theirs:
        raise BadConfig(
            f"output is {config.output}, where {storage.relative(theirs[0], config.output)} was not written by "
            "this command: choose another folder, or empty it; mode 'overwrite' replaces what is there, 'append' adds to it"
        )


def _refuse_other(config: PackConfig, before: dict[str, Any], now: dict[str, Any]) -> None:
    if before.get("source") == config.source and not metas(config):
        return
    if not _tars(config):  # nothing to lose
        return
    defaults = PackConfig.__dataclass_fields__
    values = [
        (name, before.get(name, defaults[name].default), now.get(name, defaults[name].default))
        for name in (*_JOB, *_JOB_TOO)
    ]
    changed = [
        f"{name} was {old or 'not set'}, and is now {new or 'not set'}"
        for name, old, new in values
        if before and old != new
    ]
    raise BadConfig(
        f"output is {config.output}, where another job has packed{' (' + '; '.join(changed) + ')' if changed else ''}. "
        "Choose another folder, or empty it; to have this job replace what is there, say mode 'overwrite', to add to it "
        "'append'"
    )
