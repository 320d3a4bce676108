"""What an earlier run has left of a slot: whether today's inputs would give the same, and what can be taken over.

Only rows that were left out, or whose pictures have changed, cost reading and encoding again: where all good rows are
as they were, their samples come out of the tars that they are in already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from loader import indexing, storage
from loader.checksums import crc32
from loader.errors import BadSample, ShardflowError
from loader.index import Index
from loader.sidecar import About, is_about
from loader.tar import Buffer
from loader.writer import Members
from tasks import fetch, recipes, source
from tasks.config import PackConfig
from tasks.drafts import Draft, Inputs, drafts
from tasks.images import AS_IS
from tasks.manifest import Manifest, PackedShard
from tasks.notes import SEPARATOR, Note
from tasks.pictures import identify


class State(NamedTuple):
    """`current`: all is there as it should be. `reusable`: the tars hold what the good rows would give."""

    current: bool
    reusable: bool


def compare(done: Manifest, slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> State:
    """What an earlier run has made, beside what the inputs of today would give.

    Looks at sizes, headers, rows, and the size and time of each local picture. Remote pictures are taken to be
    as they were, but for those of rows that could not be read then, which are tried again.
    """
    if not all(_is_there(shard, config) for shard in done.shards):
        return State(False, False)
    current = slot.drop is None or slot.drop == set(done.dropped)
    if slot.sealed:  # its rows are gone
        return State(current, False)
    if config.sidecar:
        current = current and all(_has_sidecar(shard, config) for shard in done.shards)
    if config.retry_errors and done.bad:
        current = False
    left_out = {bad.number: bad for bad in done.bad}
    inputs = Inputs(slot, config, recipe)
    for draft in drafts(slot, config, recipe, light=True):
        inputs.row(draft.row)
        for place in draft.places:
            inputs.picture(fetch.stamp_of(place))
        bad = left_out.get(draft.row.number)
        if bad is not None and (
            inputs.leave_out(bad.inputs) != bad.inputs or _can_be_read(draft, bad.stage, config)
        ):
            current = False
    same = inputs.digest() == done.inputs
    return State(current and same, same)


def _is_there(shard: PackedShard, config: PackConfig) -> bool:
    try:
        index, _ = indexing.find_fresh(storage.join(config.output, shard.path), config.storage_options)
    except (FileNotFoundError, ShardflowError):
        return False
    return index is not None and (index.tar_size, index.checksum) == (shard.size, shard.checksum)


def _has_sidecar(shard: PackedShard, config: PackConfig) -> bool:
    about = About(shard.size, shard.checksum)
    return is_about(storage.join(config.output, shard.path), about, config.storage_options)


def _can_be_read(draft: Draft, stage: str, config: PackConfig) -> bool:
    """Whether remote pictures that could not be read then can be now."""
    places = remote([draft]) if stage == "read" else []
    return bool(places) and not any(
        isinstance(outcome, BadSample) for outcome in fetch.read_remote(places, config.options_for).values()
    )


def remote(of: Iterable[Draft]) -> list[str]:
    """The remote pictures of some rows."""
    return [place for draft in of for place in draft.places if fetch.is_remote(place)]


class Earlier:
    """The samples of a slot as they were packed from rows that are the same today.

    Its tars stay open, so that they can be replaced meanwhile. A context manager.
    """

    def __init__(self, done: Manifest, config: PackConfig) -> None:
        self._stack = contextlib.ExitStack()
        self._left_out = {bad.number for bad in done.bad}
        self._outcomes = {
            number: outcome
            for outcome, ranges in done.outcomes.items()
            for first, last in ranges
            for number in range(first, last + 1)
        }
        self._places: dict[str, tuple[Index, Buffer, int]] = {}
        twice: set[str] = set()  # keys of different rows, in different tars of the slot
        for shard in done.shards:
            address = storage.join(config.output, shard.path)
            index, _ = indexing.obtain_index(address, config.storage_options)
            buffer = self._stack.enter_context(indexing.tar_buffer(address, config.storage_options))
            for sample, key in enumerate(index.keys()):
                if key in self._places:
                    twice.add(key)
                self._places[key] = index, buffer, sample
        for key in twice:
            del self._places[key]

    def has(self, draft: Draft) -> bool:
        """Whether a row's sample is there."""
        return (
            draft.record is not None and draft.row.number not in self._left_out and draft.key in self._places
        )

    def take(self, draft: Draft) -> tuple[Members, Note] | None:
        """The sample, and what was noted of it; None if it isn't there, or its bytes have changed."""
        if draft.record is None or not self.has(draft):
            return None
        index, buffer, sample = self._places[draft.key]
        members = []
        for member in sorted(index.members(sample), key=lambda member: index.offset[member]):
            start, end = index.span(member)
            data = bytes(buffer[start:end])
            if index.crc32 is None or crc32(data) != index.crc32[member]:
                return None
            members.append((index.member_name(member)[len(draft.key) :], data))
        pictures = [data for _, data in members[1:]]
        outcome = self._outcomes.get(draft.row.number)
        note = Note(
            draft.record.caption,
            [identify(data, whole=False).seen for data in pictures],
            draft.places,
            outcome.split(SEPARATOR) if outcome else [AS_IS] * len(pictures),
            source=draft.row.source,
            row=draft.row.row,
        )
        return members, note

    def __enter__(self) -> Earlier:
        return self

    def __exit__(self, *_: object) -> None:
        self._places.clear()
        self._stack.close()
