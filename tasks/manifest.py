"""What a slot has become: a small document, published after its shards, which says that they are done.

It lies in a hidden folder of the output (``.shardflow/slot-000000.json``), where no listing of data finds it,
and keeps what a later step needs: what meta.json says of each shard, and every row that was left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from loader import storage
from loader.storage import StorageOptions
from loader.writer import ShardInfo

VERSION = 1
FOLDER = ".shardflow"
_NAME = re.compile(r"slot-(\d{6})\.json")


@dataclass(frozen=True)
class BadRow:
    """A row that was left out: where it is, which key it would have had, at which stage it failed, and why.

    `number` counts over all sources from 0, `row` in `source` from 1. Stages: parse, split, recipe, read, picture, write.
    """

    number: int
    source: str
    row: int
    key: str
    stage: str
    reason: str
    inputs: str = ""  # a digest of what the row is made from

    def __str__(self) -> str:
        return f"{self.source}, row {self.row} ({self.stage}): {self.reason}"


@dataclass(frozen=True)
class PackedShard(ShardInfo):
    """What meta.json and meta_stats.json say of a shard; `extensions` counts its members, `bytes` theirs.

    `contents`: what its samples hold, as `loader.contents` counts it, and `outcomes` of its pictures. `columns` of its
    sidecar, None where it has none.
    """

    extensions: dict[str, int]
    bytes: dict[str, int] = field(default_factory=dict)
    contents: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, list[Any]] | None = None


@dataclass(frozen=True)
class Seen:
    """A good sample, where duplicates matter: which row it is, and the `digest` of its pictures."""

    number: int
    source: str
    row: int
    key: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """`inputs` is a digest of all that the shards were made from. `shards` may be empty, where no row was good.

    `filtered` rows were left out by the recipe, `dropped` ones (by number) because they are in another place already.
    `outcomes`: what was done to pictures, with the rows (first, last) that it was done to, where they weren't stored as
    they are.
    """

    slot: int
    inputs: str
    rows: int
    shards: tuple[PackedShard, ...]
    bad: tuple[BadRow, ...]
    filtered: int = 0
    seen: tuple[Seen, ...] = ()
    dropped: tuple[int, ...] = ()
    outcomes: dict[str, list[list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        left_out = len(self.bad) + self.filtered + len(self.dropped)
        if self.rows != left_out + sum(shard.num_samples for shard in self.shards):
            raise ValueError(f"slot {self.slot}: samples and bad rows don't add up to {self.rows} rows")


def address(output: str, slot: int) -> str:
    """Where the manifest of a slot lies."""
    return storage.join(output, FOLDER, f"slot-{slot:06d}.json")


def store(manifest: Manifest, output: str, storage_options: StorageOptions | None = None) -> None:
    """Publish it: from here on the slot is done."""
    value = {"version": VERSION, **asdict(manifest)}
    for name in ("filtered", "seen", "dropped", "outcomes"):
        if not value[name]:
            del value[name]
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    storage.write_bytes(address(output, manifest.slot), text.encode() + b"\n", storage_options)


def load(output: str, slot: int, storage_options: StorageOptions | None = None) -> Manifest | None:
    """The manifest of a slot; None where there is none that this version could use, so the slot isn't done."""
    try:
        value = json.loads(storage.read_bytes(address(output, slot), storage_options))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    try:
        return _manifest(value, slot)
    except (TypeError, KeyError, ValueError, AttributeError):  # not as `store` writes it
        return None


def _manifest(value: dict[str, Any], slot: int) -> Manifest | None:
    if value.pop("version") != VERSION or value["slot"] != slot:
        return None
    shards = tuple(PackedShard(**shard) for shard in value.pop("shards"))
    bad = tuple(BadRow(**row) for row in value.pop("bad"))
    seen = tuple(Seen(**row) for row in value.pop("seen", ()))
    return Manifest(shards=shards, bad=bad, seen=seen, dropped=tuple(value.pop("dropped", ())), **value)


def slots(output: str, storage_options: StorageOptions | None = None) -> list[int]:
    """The numbers of all manifests there."""
    folder = storage.join(output, FOLDER)
    names = (storage.name(file) for file in storage.list_files(folder, ".json", storage_options))
    return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]
