"""Rows on their way to samples: through the recipe, no picture touched; and a digest of what a slot is made from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from loader.errors import BadSample, ShardflowError
from loader.writer import Members, encode
from tasks import fetch, recipes, source
from tasks.config import PackConfig
from tasks.recipes import Record
from tasks.sources.base import field_of

# Raise it whenever equal inputs give other bytes than before: shards made before are then redone.
PACK_VERSION = 2
# What else decides about bytes, where it is set: with the usual values, shards of before stay as they are.
_ALSO = ("image_names", "columns", "keys", "duplicates", "split_column")


class Draft(NamedTuple):
    """A row on its way to a sample: its record and where its pictures are, or why there is none.

    `members`: a sample that is ready. `left_out`: the recipe wants none of this row.
    """

    row: source.Row
    key: str
    record: Record | None
    places: tuple[str, ...]  # addresses; empty for a picture that the recipe gave as bytes
    stage: str = ""
    reason: str = ""
    members: Members | None = None
    left_out: bool = False


def drafts(
    slot: source.Slot, config: PackConfig, recipe: recipes.Recipe, light: bool = False
) -> Iterator[Draft]:
    """The rows through the recipe. `light`: only what `Inputs` needs, so that ready samples aren't read."""
    keeps = recipe is recipes.default
    for row in source.rows(slot, config, light and keeps):
        key = _key(row, config)
        if row.record is None:
            yield Draft(row, key, None, (), "parse", row.error)
        elif row.members is not None and keeps and light:
            yield Draft(row, key, None, (), members=())
        else:
            yield _made(row, key, slot, config, recipe)


def _key(row: source.Row, config: PackConfig) -> str:
    if row.key and config.keys != "number":
        return config.key_prefix + row.key
    return f"{config.key_prefix}{row.number:09d}"


def _made(row: source.Row, key: str, slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> Draft:
    stage, members = "split", row.members
    try:
        assert row.record is not None
        if config.split_column:
            _check_split(row, slot, config.split_column)
        stage = "recipe"
        made: Any = row.record if members is not None and recipe is recipes.default else recipe(row.record)
        if made is None:
            return Draft(row, key, None, (), left_out=True)
        if members is not None and isinstance(made, Mapping):
            return Draft(row, key, None, (), members=_as_members(made, row))
        recipes.check(made)
        record: Record = made
        base = config.image_root or row.base
        places = tuple(fetch.locate(image, base) if isinstance(image, str) else "" for image in record.images)
    except Exception as error:  # noqa: BLE001 - a user's recipe may raise anything; it costs this row
        reason = str(error) if isinstance(error, ShardflowError) else f"{type(error).__name__}: {error}"
        return Draft(row, key, None, (), stage, reason)
    return Draft(row, key, record, places)


def _check_split(row: source.Row, slot: source.Slot, column: str) -> None:
    value = field_of(row.record, column, row.members is not None)
    if value != slot.split:
        raise BadSample(
            f"{column} is {str(value)[:60]!a}: a name of letters, digits, '_' and '-' was expected"
        )


def _as_members(made: Mapping[str, Any], row: source.Row) -> Members:
    """The members of a sample that a recipe gave back: those that it left alone byte for byte, the others encoded."""
    stored = dict(row.members or ())
    if made is row.record:
        return row.members or ()
    members = []
    for suffix, value in made.items():
        if suffix.startswith("__"):
            continue
        untouched = suffix in stored and row.record is not None and value is row.record.get(suffix)
        members.append((suffix, stored[suffix] if untouched else encode(suffix, value)))
    return members


class Inputs:
    """A digest of all that a slot's bytes follow from, fed in one order by whoever packs or checks."""

    def __init__(self, slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        settings = [
            PACK_VERSION,
            slot.index,
            slot.first_row,
            config.key_prefix,
            config.max_bytes,
            config.image_root,
            hashlib.blake2b(recipes.source_bytes(recipe), digest_size=16).hexdigest(),
            *_also(config),
            *(["sidecar"] if config.sidecar else []),
        ]
        self._hash.update(json.dumps(settings).encode())
        self._source = ""
        self._parts: list[bytes] = []  # of the row that came last
        self._numbers = slot.table is not None

    def row(self, row: source.Row) -> None:
        """The next row."""
        self._settle()
        if row.source != self._source:
            self._source = row.source
            self._hash.update(json.dumps(row.source).encode())
        number = b"#%d" % row.number if self._numbers else b""
        self._parts.append(b"\n%b%d %d " % (number, row.row, len(row.data)) + row.data)

    def picture(self, stamp: bytes) -> None:
        """The state of the next picture of that row."""
        self._parts.append(b";" + stamp)

    def leave_out(self, as_then: str = "") -> str:
        """The row that came last is left out; returns what it is made from, as 32 hex digits.

        Such rows are told apart from the good ones, which can be the same while these are not. `as_then`: what it was made
        from when it was left out before: then the whole is what it was then, if all others are.
        """
        own = hashlib.blake2b(b"".join(self._parts), digest_size=16).hexdigest()
        self._parts = [b"\n!" + (as_then or own).encode()]
        return own

    def _settle(self) -> None:
        self._hash.update(b"".join(self._parts))
        self._parts.clear()

    def digest(self) -> str:
        """32 hex digits."""
        self._settle()
        return self._hash.hexdigest()


def _also(config: PackConfig) -> list[Any]:
    """Settings that matter where they aren't the usual ones."""
    found: list[Any] = []
    for name in _ALSO:
        value = getattr(config, name)
        if value != PackConfig.__dataclass_fields__[name].default:
            found.append(value if name == "image_names" else [name, value])
    if images := config.images().signature():
        found.append(["images", images])
    return found


def name_digest(slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> str:
    """Twelve hex digits for a shard's name: rows, keys and settings, wherever the sources lie."""
    digest = hashlib.blake2b(digest_size=6)
    settings = [PACK_VERSION, config.max_bytes, recipes.source_bytes(recipe).hex(), *_also(config)]
    digest.update(json.dumps(settings).encode())
    for row in source.rows(slot, config):
        stored = row.data  # of a ready sample that says when its tar was written; its members don't
        if row.members is not None:
            stored = b"".join(b"%b %d " % (_bytes(suffix), len(data)) + data for suffix, data in row.members)
        key = _bytes(_key(row, config))
        digest.update(b"\n%d %b %d " % (len(key), key, len(stored)) + stored)
    return digest.hexdigest()


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
