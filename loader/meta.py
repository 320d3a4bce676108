"""meta.json and meta_stats.json: what a dataset holds, in two small files that training trusts.

``meta.json`` is ``{relative tar path: {num_samples, size, checksum, ...}}``, one line a shard, sorted by
path: `size` in bytes, `checksum` the adler32 of the whole file as an integer, or null where nobody has read it. Keys beyond these three are
kept (`ShardMeta.extra`) and written back. ``meta_stats.json`` holds the totals. The bytes follow from the
content alone, so equal tars give equal files, wherever the dataset lies.

What is read may come from anywhere: a path that leaves the dataset's folder, a number that can't be meant
or a key given twice is refused with one `BadMeta`, never repaired.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from loader import storage
from loader.errors import BadMeta
from loader.storage import StorageOptions

META_NAME = "meta.json"
# What meta_stats.json says in any case.
TOTALS = ("total_samples", "total_files", "total_size", "dataset_path")
MAX_BYTES = 512 << 20  # of a meta.json: some three million shards
_LIMITS = {"num_samples": 1 << 63, "size": 1 << 63, "checksum": 1 << 32}  # exclusive
_SHOWN = 80  # characters of a wrong value in a message


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """One tar: samples, bytes, adler32 of the whole file where it is known; `extra` is what other tools add, as JSON values."""

    num_samples: int
    size: int
    checksum: int | None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


def meta_address(root: str) -> str:
    """Address of the meta.json: of the dataset folder `root`, or `root` itself if it ends in ``.json``."""
    root = storage.normalise(root)
    return root if root.endswith(".json") else storage.join(root, META_NAME)


def stats_address(root: str) -> str:
    """Address of the meta_stats.json beside the meta.json that `meta_address` names."""
    return meta_address(root).removesuffix(".json") + "_stats.json"


def read_meta(address: str, storage_options: StorageOptions | None = None) -> dict[str, ShardMeta]:
    """The shards by relative path, sorted; `address` is the dataset's folder, or a file ending in ``.json``.

    BadMeta if the file is missing, malformed, or claims what cannot be.
    """
    file = meta_address(address)
    document = parse_json(_read(file, storage_options), file)
    if not isinstance(document, dict):
        _refuse(
            file, f"holds {_shown(document)}", "one object {relative tar path: {num_samples, size, checksum}}"
        )
    shards: dict[str, ShardMeta] = {}
    for path, entry in document.items():
        clean = path.removeprefix("./")
        _check_path(clean, file)
        if clean in shards:
            _refuse(file, f"lists {_shown(clean)} twice, under two spellings", "each tar once")
        shards[clean] = _entry(entry, clean, file)
    _check_total(shards, file)
    return dict(sorted(shards.items()))


def read_stats(address: str, storage_options: StorageOptions | None = None) -> dict[str, Any]:
    """The totals in the meta_stats.json of a dataset's folder, or beside the given meta.json."""
    file = stats_address(address)
    document = parse_json(_read(file, storage_options), file)
    if not isinstance(document, dict):
        _refuse(file, f"holds {_shown(document)}", "one object {total_samples, total_files, ...}")
    return document


def write_meta(
    root: str,
    shards: Mapping[str, ShardMeta],
    storage_options: StorageOptions | None = None,
    address: str | None = None,
    stats: Mapping[str, Any] | None = None,
) -> None:
    """Write meta.json, then meta_stats.json, each whole or not at all; a file that is right is left alone.

    `root` is the folder that the shards' paths are relative to; `address` puts the files elsewhere (a folder,
    or a file that ends in ``.json``). `stats` adds keys to the totals. BadMeta if a reader would refuse it.
    """
    file = meta_address(address or root)
    for path, shard in shards.items():
        _check_path(path, file)
        if clash := _LIMITS.keys() & shard.extra.keys():
            _refuse(file, f"{_shown(path)}: extra repeats {sorted(clash)}", "other names there")
        _entry({**_known(shard), **shard.extra}, path, file)
    _check_total(shards, file)
    lines = ",\n".join(
        f"{_dump(path, file)}: {_dump({**_known(shard), **dict(sorted(shard.extra.items()))}, file)}"
        for path, shard in sorted(shards.items())
    )
    totals: dict[str, Any] = {
        "total_samples": sum(shard.num_samples for shard in shards.values()),
        "total_files": len(shards),
        "total_size": sum(shard.size for shard in shards.values()),
        # Seen from this file: a dataset that is moved, or made twice, keeps its bytes.
        "dataset_path": "." if storage.parent(file) == storage.normalise(root) else storage.normalise(root),
    }
    if clash := totals.keys() & (stats or {}).keys():
        _refuse(file, f"the statistics repeat {sorted(clash)}", "other names there")
    totals |= dict(sorted((stats or {}).items()))
    statistics = _dump(totals, file, indent=2) + "\n"
    _publish(file, f"{{\n{lines}\n}}\n" if lines else "{}\n", storage_options)
    _publish(stats_address(file), statistics, storage_options)


def parse_json(data: bytes, file: str) -> Any:
    """JSON as the standard means it: UTF-8, no key twice in an object, no NaN, no infinity; else BadMeta.

    The message never quotes a value, which may be a secret.
    """
    doubled: list[tuple[str, dict[str, Any]]] = []

    def one_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            doubled.append((Counter(key for key, _ in pairs).most_common(1)[0][0], found))
        return found

    try:
        document = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=one_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError:
        _refuse(file, "is nested too deeply", "objects and lists a few levels deep")
    except ValueError as error:  # not UTF-8, not JSON, or a number that is none
        # str() of the first kind quotes the bytes
        reason = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else str(error)
        _refuse(file, f"is no JSON ({reason})", "UTF-8 text that is one JSON object")
    if doubled:
        key, place = doubled[0]
        entries = document.items() if isinstance(document, dict) else ()
        entry = next((f"{_shown(name)}: " for name, value in entries if value is place), "")
        _refuse(file, f"{entry}gives the key {_shown(key)} more than once in one object", "each key once")
    return document


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number too large for a float")
    return value


def _read(file: str, storage_options: StorageOptions | None) -> bytes:
    try:
        size = storage.stat(file, storage_options).size
        if size > MAX_BYTES:
            _refuse(file, f"has {size:,} bytes", f"at most {MAX_BYTES:,}")
        return storage.read_bytes(file, storage_options)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadMeta(
            f"{file} is not there: expected the file that gen_meta writes. "
            f"Run `gen_meta {storage.parent(file)}`, or correct the path"
        ) from error
    except IsADirectoryError as error:
        raise BadMeta(
            f"{file} is a folder: expected a file. Give the dataset's folder or its meta.json"
        ) from error


def _entry(entry: Any, path: str, file: str) -> ShardMeta:
    """One shard's checked values. Called for each of 100,000 shards: the way of a good entry is short."""
    if type(entry) is not dict:
        _refuse(file, f"{_shown(path)} is {_shown(entry)}", "an object {num_samples, size, checksum}")
    for key, limit in _LIMITS.items():
        value = entry.get(key)
        if type(value) is not int or not 0 <= value < limit:  # bool is an int, but no number here
            if value is None and key == "checksum" and key in entry:
                continue
            found = f"is {_shown(value)}" if key in entry else "is missing"
            _refuse(file, f"{_shown(path)}: {key} {found}", f"a whole number from 0 to {limit - 1}")
    extra = {} if len(entry) == len(_LIMITS) else {k: v for k, v in entry.items() if k not in _LIMITS}
    return ShardMeta(entry["num_samples"], entry["size"], entry["checksum"], extra)


def _check_path(path: str, file: str) -> None:
    parts = path.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in path or "://" in path or "::" in path:
        _refuse(
            file,
            f"the tar path {_shown(path)} could lead out of the dataset's folder",
            "a path relative to it such as 'part-0/shard-000000.tar', without '..', '//' or '://'",
        )


def _check_total(shards: Mapping[str, ShardMeta], file: str) -> None:
    total = sum(shard.num_samples for shard in shards.values())
    if total >= _LIMITS["num_samples"]:
        _refuse(file, f"claims {total} samples in all", "fewer than 2**63")


def _known(shard: ShardMeta) -> dict[str, Any]:
    return {"num_samples": shard.num_samples, "size": shard.size, "checksum": shard.checksum}


def _dump(value: Any, file: str, indent: int | None = None) -> str:
    try:
        # ASCII escapes: a name that is no UTF-8 (surrogates) survives the way to disk and back.
        return json.dumps(value, allow_nan=False, indent=indent)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadMeta(f"{file}: {error}; expected values that JSON can hold. Nothing was written") from error


def _publish(file: str, text: str, storage_options: StorageOptions | None) -> None:
    data = text.encode("ascii")
    try:
        if storage.stat(file, storage_options).size == len(data) and (
            storage.read_bytes(file, storage_options) == data
        ):
            return
    except FileNotFoundError:
        pass
    storage.write_bytes(file, data, storage_options)


def _shown(value: Any) -> str:
    """A value as a message may show it: one line, short, nothing a terminal would obey."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = ascii(value) if not isinstance(value, int) or abs(value) < 1 << 70 else "a number of many digits"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _refuse(file: str, found: str, expected: str) -> NoReturn:
    raise BadMeta(f"{file}: {found}; expected {expected}. Correct the file, or write it anew with gen_meta")
