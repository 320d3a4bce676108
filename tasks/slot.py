"""One slot → its shards: rows read, made into samples, written, and the manifest that says so.

Everything here runs in a worker and is a function of the sources, the pictures and the config alone: who runs it,
how often and beside whom makes no difference to any byte.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from itertools import islice
from typing import NamedTuple, TypeVar

from loader import meta, storage
from loader.addresses import shareable
from loader.errors import BadConfig, BadMeta, BadSample
from loader.registry import redactor
from loader.sample_facts import is_picture
from loader.sidecar import About, sidecar_path
from loader.tar import BLOCK
from loader.writer import Members, Shard, ShardInfo
from tasks import ahead, fetch, manifest, recipes, source, source_options
from tasks.config import PackConfig
from tasks.drafts import Draft, Inputs, drafts, name_digest
from tasks.duplicates import digest_of
from tasks.earlier import Earlier, State, compare, remote
from tasks.images import AS_IS, store
from tasks.manifest import BadRow, Manifest, PackedShard, Seen
from tasks.notes import READY, SEPARATOR, Note, ShardNotes

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
    filtered: int = 0
    dropped: int = 0


def shard_name(slot: source.Slot, config: PackConfig, digest: str = "*", part: int = 0) -> str:
    """Path of a shard in the output: ``shard-000007.tar``, ``train/images-0123456789ab-000007_001.tar``."""
    name = source_options.shard_name(config.shard_names, slot.shard, digest, part)
    return f"{slot.split}/{name}" if slot.split else name


def pack_slot(slot: source.Slot, config: PackConfig) -> SlotReport:
    """Make the shards of a slot, unless they are there already, as these inputs would make them.

    Publishes tars and indexes, then the manifest. BadSample for the first bad row if ``on_error`` is "raise";
    BadConfig if a source has changed under the run.
    """
    recipe = config.find_recipe()
    done = manifest.load(config.output, slot.index, config.storage_options)
    state = compare(done, slot, config, recipe) if done is not None else State(False, False)
    kept = state.current
    if slot.sealed and not kept:
        raise BadConfig(
            f"{shard_name(slot, config)} is damaged or gone, and so are the rows that {config.source} gave for it: they "
            "can't be packed again"
        )
    if done is None or not kept:
        with contextlib.ExitStack() as stack:
            earlier = stack.enter_context(Earlier(done, config)) if done and state.reusable else None
            _withdraw(slot, config, done)
            done = _make(slot, config, recipe, earlier)
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
        done.filtered,
        len(done.dropped),
    )


def _withdraw(slot: source.Slot, config: PackConfig, done: Manifest | None) -> None:
    """Before a finished shard is replaced: nothing may go on to say that it is done, or what it holds.

    A reader then meets the old dataset or the new one, or a clear error, but never a mixture.
    """
    options = config.storage_options
    names = {shard_name(slot, config), *(shard.path for shard in (done.shards if done else ()))}
    root = storage.join(config.output, slot.split) if slot.split else config.output
    there = any(storage.exists(storage.join(config.output, name), options) for name in names)
    if there and _is_named(root, names, config):
        storage.remove(meta.meta_address(root), options)
        storage.remove(meta.stats_address(root), options)
    for name in names if done else ():
        storage.remove(storage.join(config.output, sidecar_path(name)), options)
    storage.remove(manifest.address(config.output, slot.index), options)


def _is_named(root: str, names: set[str], config: PackConfig) -> bool:
    """Whether meta.json speaks of one of these shards; if it can't be read, too. It doesn't of what a killed run left."""
    try:
        known = meta.read_meta(root, config.storage_options)
    except BadMeta:
        return True
    return any(storage.name(name) in known for name in names)


def _make(slot: source.Slot, config: PackConfig, recipe: recipes.Recipe, earlier: Earlier | None) -> Manifest:
    builder = _Builder(slot, config, recipe, earlier)
    samples = builder.samples()
    shards: list[PackedShard] = []
    digest = _digest(slot, config, recipe)
    behind = ahead.idle(config, slot.together)
    sample = next(samples, None)
    while sample is not None:
        if len(shards) == _MOST_PARTS:
            raise BadConfig(
                f"max_bytes is {config.max_bytes:,}: the {slot.rows:,} rows of a shard need more than "
                f"{_MOST_PARTS:,} files of that size; raise it, or lower max_samples"
            )
        path = shard_name(slot, config, digest, len(shards))
        notes = ShardNotes(config.sidecar)
        shard = Shard(storage.join(config.output, path), config.storage_options, behind)
        with contextlib.suppress(_Empty), shard:
            while sample is not None and _fits(shard, sample[1], config.max_bytes):
                try:
                    shard.add(*sample)
                except ValueError as error:  # a key that is there already, or can't be read back
                    builder.refuse(str(error))
                else:
                    notes.add(*sample, builder.note)
                sample = next(samples, None)
            if not shard.num_samples:
                raise _Empty
        if shard.info is not None:
            if config.sidecar:
                notes.write(
                    shard.address, About(shard.info.size, shard.info.checksum), config.storage_options
                )
            shards.append(_packed(replace(shard.info, path=path), notes))
    return builder.manifest(shards)


def _packed(info: ShardInfo, notes: ShardNotes) -> PackedShard:
    extensions, sizes = notes.extensions()
    return PackedShard(
        **asdict(info),
        extensions=extensions,
        bytes=sizes,
        contents=notes.contents(),
        columns=notes.columns(),
    )


class _Empty(Exception):
    """No sample was good: there is to be no shard."""


def _digest(slot: source.Slot, config: PackConfig, recipe: recipes.Recipe) -> str:
    """What stands for ``{hash}``."""
    if "{hash" not in config.shard_names:
        return ""
    return name_digest(slot, config, recipe) if config.deterministic_name == "true" else secrets.token_hex(6)


def _fits(shard: Shard, members: Members, max_bytes: int) -> bool:
    """Whether the sample belongs into this shard. One that is larger than the limit has a shard of its own."""
    if not max_bytes:
        return True
    size = shard.size + 2 * BLOCK
    for _, data in members:
        size += BLOCK + len(data) + -len(data) % BLOCK
    return size <= max_bytes or not shard.num_samples


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class _Builder:
    """Makes the samples of a slot in row order; notes on the way what they were made from and what was bad."""

    def __init__(
        self, slot: source.Slot, config: PackConfig, recipe: recipes.Recipe, earlier: Earlier | None = None
    ) -> None:
        self.bad: list[BadRow] = []
        self.inputs = Inputs(slot, config, recipe)
        self._slot = slot
        self._config = config
        self._drafts = drafts(slot, config, recipe)
        self._last: Draft | None = None  # the one that is being written
        self._filtered = 0
        self._seen: list[Seen] = []
        self._dropped: list[int] = []
        self._digests: set[str] = set()
        self._images = config.images()
        self._earlier = earlier
        self._redact = redactor(config.storage_options, config.source_storage_options)
        self._outcomes: dict[str, list[list[int]]] = {}
        self.note = READY  # on the sample that came last

    def samples(self) -> Iterator[tuple[str, Members]]:
        """(key, members) of each good row."""
        old = self._earlier
        for batch, ready, begun in self._batches():
            for draft in batch:
                self.inputs.row(draft.row)
                members = draft.members
                made = begun.get(draft.row.number) if begun else None
                self.note = Note(ready=True, source=draft.row.source, row=draft.row.row)
                if old is not None and (taken := old.take(draft)):
                    members, self.note = taken
                    for place in draft.places:
                        self.inputs.picture(fetch.stamp_of(place))
                elif draft.record is not None:
                    members = self._members(draft, draft.record, ready, made)
                elif members and not self._images.keep_all:
                    members = self._restored(draft, members, made)
                elif draft.left_out:
                    self._filtered += 1
                elif draft.stage:
                    self._note(draft, draft.stage, draft.reason)
                if members and self._is_wanted(draft, members):
                    self._last = draft
                    outcomes = self.note.outcomes
                    if outcomes.count(AS_IS) != len(outcomes):
                        self._record(draft.row.number)
                    yield draft.key, members

    def _batches(self) -> Iterator[tuple[list[Draft], ahead.Ready, ahead.Begun]]:
        """Rows, their remote pictures, and what threads have begun to make; of the next batch as well, if there are any."""
        old, waiting = self._earlier, deque[tuple[list[Draft], ahead.Ready, ahead.Begun]]()
        with ahead.crew(self._config, self._slot.together) as pool:
            for batch in _batches(self._drafts, _AT_ONCE):
                new = batch if old is None else [draft for draft in batch if not old.has(draft)]
                places = remote(new)
                ready = fetch.read_remote(places, self._config.options_for) if places else {}
                begun = {} if pool is None else ahead.begin(pool, new, ready, self._config)
                waiting.append((batch, ready, begun))
                if pool is None or len(waiting) > 1:
                    yield waiting.popleft()
            yield from waiting

    def refuse(self, reason: str) -> None:
        """The sample that came last can't be written."""
        if self._last is not None:
            if self._seen and self._seen[-1].number == self._last.row.number:
                self._seen.pop()
            number = self._last.row.number
            for ranges in self._outcomes.values():
                if ranges[-1] == [number, number]:
                    ranges.pop()
                elif ranges[-1][1] == number:
                    ranges[-1][1] -= 1
            self._outcomes = {outcome: ranges for outcome, ranges in self._outcomes.items() if ranges}
            self._note(self._last, "write", reason)

    def _record(self, number: int) -> None:
        """That something was done to the pictures of that row, and what."""
        ranges = self._outcomes.setdefault(SEPARATOR.join(self.note.outcomes), [])
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])

    def manifest(self, shards: list[PackedShard]) -> Manifest:
        """What has become of the slot, after its last sample."""
        return Manifest(
            self._slot.index,
            self.inputs.digest(),
            self._slot.rows,
            tuple(shards),
            tuple(self.bad),
            self._filtered,
            tuple(self._seen),
            tuple(self._dropped),
            dict(sorted(self._outcomes.items())),
        )

    def _is_wanted(self, draft: Draft, members: Members) -> bool:
        """Whether a good sample is stored: not where it is a duplicate that is to be dropped."""
        if self._config.duplicates == "keep":
            return True
        row, digest = draft.row, digest_of(members)
        self._seen.append(Seen(row.number, row.source, row.row, draft.key, digest))
        if self._config.duplicates == "report":
            return True
        known = digest in self._digests if self._slot.drop is None else row.number in self._slot.drop
        self._digests.add(digest)
        if known:
            self._dropped.append(row.number)
        return not known

    def _members(
        self,
        draft: Draft,
        record: recipes.Record,
        ready: ahead.Ready,
        made: Sequence[Future[ahead.Made]] | None,
    ) -> Members | None:
        """The sample's members, caption first; None, and a note, if any of it is bad."""
        stage, seen, kept = "recipe", 0, []
        try:
            members = [(".json", recipes.document(record))]
            for number, (image, place) in enumerate(zip(record.images, draft.places, strict=True)):
                stage = "read"
                if made is None:
                    data, stamp = ahead.read(image, place, ready, self._config.options_for)
                else:
                    stamp = made[number].result().read()
                self.inputs.picture(stamp)
                seen += 1
                stage = "picture"
                stored = store(data, self._images) if made is None else made[number].result().store()
                suffix = _number(number, len(record.images), self._config.image_names) + stored.extension
                members.append((suffix, stored.data))
                kept.append(stored)
            self.note = Note(
                record.caption,
                [(stored.width, stored.height) for stored in kept],
                draft.places,
                [stored.outcome for stored in kept],
                source=draft.row.source,
                row=draft.row.row,
            )
            return members
        except BadSample as error:
            for place in draft.places[seen:]:
                self.inputs.picture(fetch.stamp_of(place))
            reason = str(error)
            if stage == "picture" and draft.places[seen - 1]:
                reason = f"{draft.places[seen - 1]}: {reason}"
            self._note(draft, stage, reason)
            return None

    def _restored(
        self, draft: Draft, members: Members, made: Sequence[Future[ahead.Made]] | None
    ) -> Members | None:
        """The members of a ready sample with their pictures as the options want them; None, and a note, if one is bad."""
        restored: list[tuple[str, bytes]] = []
        outcomes: list[str] = []
        for suffix, data in members:
            if is_picture(suffix[suffix.find(".") :].lower()):
                try:
                    stored = (
                        store(data, self._images) if made is None else made[len(outcomes)].result().store()
                    )
                except BadSample as error:
                    self._note(draft, "picture", f"{suffix}: {error}")
                    return None
                if stored.outcome != AS_IS:
                    suffix = suffix[: suffix.rfind(".")] + stored.extension
                data = stored.data
                outcomes.append(stored.outcome)
            restored.append((suffix, data))
        self.note = self.note._replace(outcomes=outcomes)
        return restored

    def _note(self, draft: Draft, stage: str, reason: str) -> None:
        row = draft.row
        told = shareable(self._redact(reason))
        bad = BadRow(row.number, row.source, row.row, draft.key, stage, told, self.inputs.leave_out())
        if self._config.on_error == "raise":
            raise BadSample(str(bad))
        self.bad.append(bad)


def _number(number: int, images: int, image_names: str) -> str:
    """What stands between key and extension of image `number` of so many."""
    if image_names == "numbered":
        return f"-{number}"
    return f".{number}" if images > 1 else ""
