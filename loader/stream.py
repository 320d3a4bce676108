"""One iteration of one worker: which samples come, in which place, and what becomes of those that can't be read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from loader.errors import BadSample, TooManyBad
from loader.indexed_tar_samples import IndexedTarSamples
from loader.order import Order
from loader.schedule import Schedule, Tail
from loader.world import World

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
OnBad = Literal["raise", "skip", "substitute"]
Place = tuple[str, int]  # url of a shard, number of the sample in it
Missing = tuple[list[int], list[Place], list[Any]]

_JUDGED_AFTER = 100  # samples that a worker has read before a share of bad ones means anything
_OTHERS_TRIED = 1000  # in the place of one that was left out


class Owner(Protocol):
    """What a stream asks of its dataset."""

    tail: Tail
    on_bad: OnBad
    max_bad_in_row: int
    max_bad_fraction: float

    def places(self, order: Order, positions: Ints) -> tuple[list[int], list[int], list[int]]:
        """Of positions: numbers over the whole dataset, shards, and numbers in them."""
        ...


class Follows(Protocol):
    """What a stream asks of whatever fetches ahead of it (`loader.ahead`)."""

    def follow(self, indices: Iterator[int]) -> Iterator[int]:
        """The same numbers."""
        ...

    def take(self, shard: int) -> IndexedTarSamples:
        """A shard that is needed now, open."""
        ...


@dataclass(eq=False)
class Stream:
    """Where one worker is in its share of an epoch. `consumed` and `emitted` are what a checkpoint knows of it."""

    owner: Owner
    world: World
    order: Order
    schedule: Schedule
    planned: int  # samples to yield in the whole epoch, those before a resume included
    turn: int  # stream that worker 0 makes
    consumed: int = 0  # entries handed out; behind the stream's end, what was repeated to fill it up
    emitted: int = 0  # samples yielded
    iterated: bool = False  # by the dataset, which counts what is yielded; else what was not left out counts
    current: tuple[int, int, int] = (-1, -1, -1)  # index, shard, number in the shard
    left_out: bool = False  # the current one was
    seen: int = 0  # in this iteration, as the three below
    bad: int = 0
    bad_in_row: int = 0
    missing: Missing = field(default_factory=lambda: ([], [], []))
    told: set[str] = field(default_factory=set)  # shards whose bad samples were logged
    ahead: Follows | None = None  # fetches what comes, where it isn't on this machine

    def indices(self) -> Iterator[int]:
        """The numbers of the samples to read, one after the other; `leave_out` speaks of the last one."""
        return self._indices() if self.ahead is None else self.ahead.follow(self._indices())

    def _indices(self) -> Iterator[int]:
        world, schedule, substitute = self.world, self.schedule, self.owner.on_bad == "substitute"
        length = schedule.worker_samples(world.rank, world.worker)
        for positions in schedule.iterate(world.rank, world.worker, min(self.consumed, length)):
            indices, shards, numbers = self.owner.places(self.order, positions)
            for place, current in enumerate(zip(indices, shards, numbers, strict=True)):
                self.consumed += 1
                self.current, self.left_out = current, False
                yield current[0]
                if not self.left_out:
                    self.emitted += not self.iterated
                elif substitute:
                    yield from self._substitutes(int(positions[place]))
        if self.owner.tail != "keep":
            yield from self._fill_up(length)

    def leave_out(self, index: int, place: Place, reason: Any, bad: bool) -> None:
        """The current sample is not yielded. BadSample or TooManyBad where that is too much."""
        if bad and self.owner.on_bad == "raise":
            raise BadSample(_told(place, str(reason)))
        indices, places, reasons = self.missing
        indices.append(index)
        places.append(place)
        reasons.append(reason)
        self.left_out = True
        self.seen += 1
        if bad:
            self._count_bad(place, _told(place, str(reason)))

    def read_one(self) -> Missing:
        """The current sample was read; returns what was left out before it."""
        self.seen += 1
        self.bad_in_row = 0
        missing = self.missing
        if missing[0]:
            self.missing = ([], [], [])
            return missing
        return [], [], []

    def _substitutes(self, position: int) -> Iterator[int]:
        """Other samples in the place of one that was left out, until one is read: half an epoch away, and on."""
        samples = len(self.order)
        for step in range(min(samples, _OTHERS_TRIED)):
            yield self._hand_out((position + samples // 2 + step) % samples)
            if not self.left_out:
                self.emitted += not self.iterated
                return
        raise TooManyBad(self._nothing_left())

    def _fill_up(self, length: int) -> Iterator[int]:
        """Repeat samples where left-out ones made this stream too short: its own, once, then others."""
        if self.emitted >= self.planned:
            return
        world, schedule, samples = self.world, self.schedule, len(self.order)
        first = int(schedule.stream(world.rank, world.worker, 0, 1)[0])
        failed = 0
        while self.emitted < self.planned:
            place = self.consumed - length
            self.consumed += 1
            before = self.emitted
            if place < length:
                position = int(schedule.stream(world.rank, world.worker, place, place + 1)[0])
            else:
                position = (first + samples // 2 + place - length) % samples
            yield self._hand_out(position)
            self.emitted += not (self.iterated or self.left_out)
            failed = 0 if self.emitted > before else failed + 1
            if failed >= length + min(samples, _OTHERS_TRIED):
                raise TooManyBad(self._nothing_left())

    def _hand_out(self, position: int) -> int:
        indices, shards, numbers = self.owner.places(self.order, np.array([position]))
        self.current, self.left_out = (indices[0], shards[0], numbers[0]), False
        return indices[0]

    def _nothing_left(self) -> str:
        return (
            f"{self.owner!r}: worker {self.world.worker} finds no sample to yield: all that it tried can't be read, or "
            'were left out. Look into one of them, or say tail="keep" to have epochs end without'
        )

    def _count_bad(self, place: Place, told: str) -> None:
        owner = self.owner
        self.bad += 1
        self.bad_in_row += 1
        if place[0] not in self.told:
            self.told.add(place[0])
            logger.warning("left out: %s (told once a shard; RetSample.missing_* tells all)", told)
        if self.bad_in_row >= owner.max_bad_in_row:
            raise TooManyBad(
                f"{owner!r}: {self.bad_in_row} bad samples in a row, at last: {told}. "
                "See what is wrong with them, or raise max_bad_in_row"
            )
        if self.seen >= _JUDGED_AFTER and self.bad > owner.max_bad_fraction * self.seen:
            raise TooManyBad(
                f"{owner!r}: {self.bad} of {self.seen} samples were bad, more than max_bad_fraction="
                f"{owner.max_bad_fraction}; at last: {told}"
            )


def _told(place: Place, what: str) -> str:
    """What happened to a sample, with its place unless that is told already."""
    return what if place[0] in what else f"{place[0]}: sample {place[1]}: {what}"
