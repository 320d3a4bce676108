"""One slot → its shards: rows read, made into samples, written, and the manifest that says so.

Everything here runs in a worker and is a function of the sources, the pictures and the config alone: who runs it,
how often and beside whom makes no difference to any byte.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import NamedTuple, TypeVar

from loader import indexing, meta, storage
from loader.errors import BadConfig, BadSample, ShardflowError
from loader.tar import BLOCK
from loader.writer import Members, Shard
from tasks import fetch, manifest, recipes, source
from tasks.config import PackConfig
from tasks.manifest import BadRow, Manifest, PackedShard
from tasks.pictures import identify

# Raise it whenever equal inputs give other bytes than before: shards made before are then redone.
PACK_VERSION = 1
_AT_ONCE = 32  # rows whose remote pictures are read together
_MOST_PARTS = 1000

Item = TypeVar("Item")


class SlotReport(NamedTuple):
    """What a worker sends home of a slot; all rows that were left out are in its manifest."""

    slot: int
    rows: int
    samples: int
    bad: int
    size: int  # bytes of its tars
    shards: tuple[str, ...]
    kept: bool  # done by an earlier run
    first_bad: tuple[BadRow, ...]  # up to three


def shard_name(slot: int, part: int) -> str:
    """``shard-000007.tar``; where `max_bytes` cuts it, the rest follows in ``shard-000007_001.tar``, ..."""
    return f"shard-{slot:06d}{f'_{part:03d}' if part else ''}.tar"


def pack_slot(slot: source.Slot, config: PackConfig) -> SlotReport:
    """Make the shards of a slot, unless they are there already, as these inputs would make them.

    Publishes tars and indexes, then the manifest. BadSample for the first bad row if ``on_error`` is "raise";
    BadConfig if a source has changed under the run.
    """
    recipe = config.find_recipe()
    done = manifest.load(config.output, slot.index, config.storage_options)
    kept = done is not None and _is_current(done, slot, config, recipe)
    if done is None or not kept:
        _withdraw(slot.index, config)
        done = _make(slot, config, recipe)
        manifest.store(done, config.output, config.storage_options)
    elif done.bad and config.on_error == "raise":
        raise BadSample(str(done.bad[0]))
    return SlotReport(
        slot.index,
        done.rows,
        sum(shard.num_samples for shard in done.shards),
        len(done.bad),
        sum(shard.size for shard in done.shards),
        tuple(shard.path for shard in done.shards),
        kept,
        done.bad[:3],
    )


def _withdraw(slot: int, config: PackConfig) -> None:
    """Before a finished shard is replaced: nothing may go on to say that it is done, or what it holds.

    A reader then meets the old dataset or the new one, or a clear error, but never a mixture.
    """
    options = config.storage_options
    if storage.exists(storage.join(config.output, shard_name(slot, 0)), options):
        storage.remove(meta.meta_address(config.output), options)
        storage.remove(meta.stats_address(config.output), options)
    storage.remove(manifest.address(config.output, slot), options)


def _make(slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> Manifest:
    builder = _Builder(slot, config, recipe)
    samples = builder.samples()
    shards: list[PackedShard] = []
    sample = next(samples, None)
    while sample is not None:
        if len(shards) == _MOST_PARTS:
            raise BadConfig(
                f"max_bytes is {config.max_bytes:,}: the {slot.rows:,} rows of a shard need more than "
                f"{_MOST_PARTS:,} files of that size; raise it, or lower max_samples"
            )
        address = storage.join(config.output, shard_name(slot.index, len(shards)))
        kinds: Counter[tuple[str, ...]] = Counter()  # of samples, by their suffixes
        with Shard(address, config.storage_options) as shard:
            while sample is not None and (
                not shard.num_samples or shard.size + _tar_size(sample[1]) + 2 * BLOCK <= config.max_bytes
            ):
                shard.add(*sample)
                kinds[tuple([suffix for suffix, _ in sample[1]])] += 1
                sample = next(samples, None)
        if shard.info is None:
            raise RuntimeError(f"{address} was left without being finished")
        shards.append(PackedShard(**asdict(shard.info), extensions=_extensions(kinds)))
    return Manifest(slot.index, builder.inputs.digest(), slot.rows, tuple(shards), tuple(builder.bad))


def _extensions(kinds: Counter[tuple[str, ...]]) -> dict[str, int]:
    """How many members have which extension."""
    found: Counter[str] = Counter()
    for suffixes, samples in kinds.items():
        for suffix in suffixes:
            found[suffix[suffix.find(".") :]] += samples
    return dict(sorted(found.items()))


def _tar_size(members: Members) -> int:
    return sum([BLOCK + len(data) + -len(data) % BLOCK for _, data in members])


class _Inputs:
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
        ]
        if config.image_names != "numbered":
            settings.append(config.image_names)
        self._hash.update(json.dumps(settings).encode())
        self._source = ""

    def row(self, row: source.Row) -> None:
        if row.source != self._source:
            self._source = row.source
            self._hash.update(json.dumps(row.source).encode())
        self._hash.update(b"\n%d %d " % (row.row, len(row.data)) + row.data)

    def picture(self, stamp: bytes) -> None:
        self._hash.update(b";" + stamp)

    def digest(self) -> str:
        return self._hash.hexdigest()


class _Draft(NamedTuple):
    """A row on its way to a sample: its record and where its pictures are, or why there is none."""

    row: source.Row
    key: str
    record: recipes.Record | None
    places: tuple[str, ...]  # addresses; empty for a picture that the recipe gave as bytes
    stage: str = ""
    reason: str = ""


def _drafts(slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> Iterator[_Draft]:
    """The rows through the recipe, no picture touched."""
    for row in source.rows(slot, config):
        key = f"{config.key_prefix}{row.number:09d}"
        if row.record is None:
            yield _Draft(row, key, None, (), "parse", row.error)
            continue
        try:
            record = recipe(row.record)
            recipes.check(record)
            base = config.image_root or storage.parent(row.source)
            places = tuple(
                fetch.locate(image, base) if isinstance(image, str) else "" for image in record.images
            )
        except Exception as error:  # noqa: BLE001 - a user's recipe may raise anything; it costs this row
            reason = str(error) if isinstance(error, ShardflowError) else f"{type(error).__name__}: {error}"
            yield _Draft(row, key, None, (), "recipe", reason)
        else:
            yield _Draft(row, key, record, places)


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _remote(drafts: Iterable[_Draft]) -> list[str]:
    return [place for draft in drafts for place in draft.places if fetch.is_remote(place)]


class _Builder:
    """Makes the samples of a slot in row order; notes on the way what they were made from and what was bad."""

    def __init__(self, slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> None:
        self.bad: list[BadRow] = []
        self.inputs = _Inputs(slot, config, recipe)
        self._config = config
        self._drafts = _drafts(slot, config, recipe)

    def samples(self) -> Iterator[tuple[str, Members]]:
        """(key, members) of each good row."""
        for drafts in _batches(self._drafts, _AT_ONCE):
            remote = _remote(drafts)
            ready = fetch.read_remote(remote, self._config.options_for) if remote else {}
            for draft in drafts:
                self.inputs.row(draft.row)
                if draft.record is None:
                    self._note(draft, draft.stage, draft.reason)
                elif members := self._members(draft, draft.record, ready):
                    yield draft.key, members

    def _members(
        self, draft: _Draft, record: recipes.Record, ready: dict[str, bytes | BadSample]
    ) -> Members | None:
        """The sample's members, caption first; None, and a note, if any of it is bad."""
        stage, seen = "recipe", 0
        try:
            members = [(".json", recipes.document(record))]
            for number, (image, place) in enumerate(zip(record.images, draft.places, strict=True)):
                stage = "read"
                data, stamp = _read(image, place, ready)
                self.inputs.picture(stamp)
                seen += 1
                stage = "picture"
                extension = identify(data).extension
                members.append(
                    (_number(number, len(record.images), self._config.image_names) + extension, data)
                )
            return members
        except BadSample as error:
            for place in draft.places[seen:]:
                self.inputs.picture(_stamp(place))
            reason = str(error)
            if stage == "picture" and draft.places[seen - 1]:
                reason = f"{draft.places[seen - 1]}: {reason}"
            self._note(draft, stage, reason)
            return None

    def _note(self, draft: _Draft, stage: str, reason: str) -> None:
        row = draft.row
        bad = BadRow(row.number, row.source, row.row, draft.key, stage, reason)
        if self._config.on_error == "raise":
            raise BadSample(str(bad))
        self.bad.append(bad)


def _number(number: int, images: int, image_names: str) -> str:
    """What stands between key and extension of image `number` of so many."""
    if image_names == "numbered":
        return f"-{number}"
    return f".{number}" if images > 1 else ""


def _read(image: str | bytes, place: str, ready: dict[str, bytes | BadSample]) -> tuple[bytes, bytes]:
    """A picture's bytes, and its stamp as `_stamp` would give it."""
    if isinstance(image, bytes):
        return image, fetch.NO_STAMP
    if not fetch.is_remote(place):
        return fetch.read_local(place)
    outcome = ready[place]
    if isinstance(outcome, BadSample):
        raise outcome
    return outcome, fetch.NO_STAMP


def _stamp(place: str) -> bytes:
    """Remote pictures have none: asking for each would cost a request."""
    return fetch.NO_STAMP if not place or fetch.is_remote(place) else fetch.stamp(place)


def _is_current(done: Manifest, slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> bool:
    """Whether the shards are there, and are what the inputs of today would give.

    Looks at sizes, headers, rows, and the size and time of each local picture. Remote pictures are taken to be
    as they were, but for those of rows that could not be read then, which are tried again.
    """
    for shard in done.shards:
        address = storage.join(config.output, shard.path)
        try:
            index, _ = indexing.find_fresh(address, config.storage_options)
        except (FileNotFoundError, ShardflowError):
            return False
        if index is None or (index.tar_size, index.checksum) != (shard.size, shard.checksum):
            return False
    unread = {bad.number for bad in done.bad if bad.stage == "read"}
    inputs = _Inputs(slot, config, recipe)
    for draft in _drafts(slot, config, recipe):
        inputs.row(draft.row)
        for place in draft.places:
            inputs.picture(_stamp(place))
        if draft.row.number in unread and (remote := _remote([draft])):
            outcomes = fetch.read_remote(remote, config.options_for).values()
            if all(isinstance(outcome, bytes) for outcome in outcomes):
                return False
    return inputs.digest() == done.inputs
