"""Which columns a sidecar has beside the fixed ones: a field of the samples' JSON each, with the type of all its values.

A kind is the narrowest that holds every value seen; kinds of many shards are joined, in any order, so that all their
sidecars have one schema. What types don't agree on is JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from loader.sample_facts import UNREADABLE

# Columns by name, with (kind, how many samples have it). Kinds: bool, int (all float64 can hold), long, float, text, json.
Columns: TypeAlias = dict[str, tuple[str, int]]

FIXED = (
    "image_id", "tar_file", "member_name", "original_path", "width", "height", "format", "bytes", "caption", "sha256",
    "metadata", "caption_all", "other", "outcome", "source", "source_row", "num_images", "other_images",
)  # fmt: skip
MOST = 200  # columns; of more, those that the most samples have
_MOST_SEEN = 5 * MOST  # that are remembered of one shard
_EXACT = 1 << 53  # whole numbers up to here are exact as float64
_LONG = 1 << 63
_JOINED = {frozenset(("int", "float")): "float", frozenset(("int", "long")): "long"}


def parts(document: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A sample's JSON → (its metadata, what else stands there beside the captions)."""
    if not isinstance(document, dict):
        return {}, {}
    metadata = document.get("metadata")
    known = {"metadata"} if isinstance(metadata, dict) else set()
    if isinstance(document.get("caption"), str):
        known.add("caption")
    if isinstance(document.get("caption_all"), dict):
        known.add("caption_all")
    others = {name: value for name, value in document.items() if name not in known}
    return (metadata if isinstance(metadata, dict) else {}), others


def named(document: Any) -> Iterator[tuple[str, Any]]:
    """(column, value) of each field that a sample's JSON has a value for."""
    if document is UNREADABLE:
        return
    metadata, others = parts(document)
    for name, value in metadata.items():
        if value is not None:
            yield column_of("metadata." + name), value
    for name, value in others.items():
        if value is not None:
            yield column_of(name, top=True), value


def column_of(path: str, top: bool = False) -> str:
    """The column of a field: of ``metadata.score`` it is ``score``; no two fields have one column."""
    if top:
        return "json." + path
    name = path.removeprefix("metadata.")
    return path if name in FIXED or name.startswith(("metadata.", "json.")) else name


def field_of(column: str) -> tuple[str, bool]:
    """The other way: (name of the field, whether it stands at the top and not in the metadata)."""
    if column.startswith("json."):
        return column.removeprefix("json."), True
    return column.removeprefix("metadata."), False


def kind_of(value: Any) -> str:
    """The kind of one value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if abs(value) <= _EXACT else "long" if -_LONG <= value < _LONG else "json"
    if isinstance(value, float):
        return "float"
    return "text" if isinstance(value, str) else "json"


def joined(first: str, second: str) -> str:
    """The kind that holds the values of both."""
    return first if first == second else _JOINED.get(frozenset((first, second)), "json")


def columns_of(documents: Iterable[Any]) -> Columns:
    """The columns that samples ask for, given their JSON."""
    found: dict[str, list[Any]] = {}
    for document in documents:
        for column, value in named(document):
            kind = kind_of(value)
            entry = found.get(column)
            if entry is None:
                found[column] = [kind, 1]
            else:
                entry[1] += 1
                if entry[0] != kind:
                    entry[0] = joined(entry[0], kind)
    return _most({name: (kind, count) for name, (kind, count) in found.items()}, _MOST_SEEN)


def union(many: Iterable[Mapping[str, Any]]) -> Columns:
    """The columns of all shards."""
    found: Columns = {}
    for columns in many:
        for name, (kind, count) in columns.items():
            before = found.get(name)
            found[name] = (kind, count) if before is None else (joined(before[0], kind), before[1] + count)
    return _most(found, MOST)


def _most(columns: Columns, most: int) -> Columns:
    ranked = sorted(columns.items(), key=lambda item: (-item[1][1], item[0]))
    return dict(sorted(ranked[:most]))


def kinds(columns: Mapping[str, Any]) -> dict[str, str]:
    """What a file's schema follows from: columns and kinds, by name."""
    return {name: columns[name][0] for name in sorted(columns)}


def text(value: Any) -> str:
    """A value as JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_kind(value: Any, kind: str) -> Any:
    """A value as its column holds it; `kind` holds its own."""
    if value is None or kind in ("bool", "int", "long"):
        return value
    if kind == "float":
        return float(value)
    return value if kind == "text" else text(value)


def plain(value: str | None) -> str | None:
    """A text that UTF-8 can hold: half a surrogate pair, or a byte of a name that is no UTF-8, becomes an escape."""
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "backslashreplace").decode()
