"""What is noted of samples as they are packed: for the statistics of a shard, and for its sidecar."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from loader import storage
from loader.addresses import shareable
from loader.contents import Contents, Histogram, caption_length
from loader.sample_facts import SampleFacts, contents_of, facts_of
from loader.sidecar import About, rows_of, write_sidecar
from loader.sidecar_columns import columns_of
from loader.storage import StorageOptions
from loader.writer import Members
from tasks.images import AS_IS

SEPARATOR = ", "  # between what was done to each picture of a sample
_NUMBER = re.compile(r"-(\d+)\.")


class Note(NamedTuple):
    """Of one sample: its caption, and for each picture the size as seen, where it was, and what was done to it.

    `ready`: a sample that came as it is, into which nobody has looked. `source`, `row`: what it was packed from.
    """

    caption: str = ""
    sizes: Sequence[tuple[int, int]] = ()  # width, height
    places: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    ready: bool = False
    source: str = ""
    row: int = 0

    @property
    def outcome(self) -> str:
        """What was done to the sample's pictures, each thing once."""
        return SEPARATOR.join(dict.fromkeys(self.outcomes)) or AS_IS


READY = Note(ready=True)


class ShardNotes:
    """Of all samples of a shard in the making."""

    def __init__(self, sidecar: bool) -> None:
        self._sidecar = sidecar
        self._members: dict[str, list[int]] = {}  # by what follows a key: how many, and their bytes
        self._widths: list[int] = []
        self._heights: list[int] = []
        self._captions: list[int] = []
        self._outcomes: dict[str, int] = {}
        self._looked_into: list[SampleFacts] = []  # of ready samples, or all where there is to be a sidecar
        self._unseen: list[SampleFacts] = []  # those of them that the lists above know nothing of

    def add(self, key: str, members: Members, note: Note) -> None:
        """One more sample, which has been written."""
        known = self._members
        for suffix, data in members:
            entry = known.get(suffix)
            if entry is None:
                entry = known[suffix] = [0, 0]
            entry[0] += 1
            entry[1] += len(data)
        if self._sidecar or note.ready:
            facts = _facts(key, members, note, self._sidecar)
            if self._sidecar:
                self._looked_into.append(facts)
            if note.ready:
                self._unseen.append(facts)
        if not note.ready:
            self._captions.append(caption_length(note.caption))
            for width, height in note.sizes:
                self._widths.append(width)
                self._heights.append(height)
        outcomes = self._outcomes
        for outcome in note.outcomes:
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def extensions(self) -> tuple[dict[str, int], dict[str, int]]:
        """Members by extension, and their bytes."""
        counts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for suffix, (count, size) in self._members.items():
            extension = suffix[suffix.find(".") :].lower()
            counts[extension] = counts.get(extension, 0) + count
            sizes[extension] = sizes.get(extension, 0) + size
        return dict(sorted(counts.items())), dict(sorted(sizes.items()))

    def contents(self) -> dict[str, Any]:
        """What the shard holds, as its manifest says it."""
        found = contents_of(self._unseen)
        found.add(
            Contents(Histogram.of(self._widths), Histogram.of(self._heights), Histogram.of(self._captions))
        )
        return {**found.value(), "outcomes": dict(sorted(self._outcomes.items()))}

    def columns(self) -> dict[str, list[Any]] | None:
        """The columns that the sidecar needs, as the manifest says it; None where there is to be none."""
        if not self._sidecar:
            return None
        return {
            name: [*entry]
            for name, entry in columns_of(facts.document for facts in self._looked_into).items()
        }

    def write(self, tar: str, about: About, storage_options: StorageOptions | None) -> None:
        """Publish the sidecar of the shard, under the columns that it needs itself."""
        rows = rows_of(self._looked_into, storage.name(tar))
        write_sidecar(tar, rows, self.columns() or {}, about, storage_options)


def _facts(key: str, members: Members, note: Note, digests: bool) -> SampleFacts:
    ordered: Iterable[tuple[str, bytes]] = sorted(members, key=lambda member: _number(member[0]))
    named = [(key + suffix, suffix[suffix.find(".") :].lower(), data) for suffix, data in ordered]
    facts = facts_of(key, named, digests)
    pictures = facts.pictures
    if len(note.places) == len(pictures):
        pictures = tuple(
            picture._replace(path=shareable(place) or None)
            for picture, place in zip(pictures, note.places, strict=True)
        )
    outcome = note.outcome if pictures else None
    if not note.source:
        return facts._replace(pictures=pictures, outcome=outcome)
    return facts._replace(pictures=pictures, outcome=outcome, source=shareable(note.source), row=note.row)


def _number(suffix: str) -> int:
    """As a reader orders the members of a sample: numbered ones by their numbers, behind all others."""
    numbered = _NUMBER.match(suffix)
    return int(numbered[1]) if numbered else -1
