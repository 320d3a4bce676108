"""What a stream is about to read from a store, fetched before it gets there.

Which samples come is known for the whole epoch, so nothing is guessed: the next shards are opened (and so downloaded, where
they go through the cache) in the order in which they are first needed, and of shards that are read by ranges the next
samples' members are asked for together. All of it in threads of the process that reads, from its first sample on.

A first batch draws from a whole window of shards: it would have to wait until all of them are downloaded. So its samples,
and some more, are read by ranges meanwhile (a bridge): each of them once more than needed, and the trainer starts at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Protocol

import numpy as np

from loader.errors import ShardflowError
from loader.in_flight import BYTES_AHEAD
from loader.indexed_tar_samples import IndexedTarSamples
from loader.open_shards import OpenShards
from loader.order import Order
from loader.remote import Remote
from loader.schedule import Schedule
from loader.shards import ShardTable
from loader.state import RankProgress
from loader.stream import Ints, Stream

_BATCHES = 4
_SMALLEST = 16  # samples that count as a batch, where it is smaller
_LOOKED_UP = 64  # shards, before workers start
_LOOK = 8192  # places of the stream that are looked through for new shards at a time
_BRIDGED = 16  # of so many samples that are being downloaded, one is read by a range before they are here


class Opener(Protocol):
    """What is asked of a dataset."""

    batch_size: int

    def places(self, order: Order, positions: Ints) -> tuple[list[int], list[int], list[int]]:
        """Of positions: numbers over the whole dataset, shards, and numbers in them."""
        ...

    def open_shard(self, shard: int) -> IndexedTarSamples:
        """Open one shard."""
        ...

    def open_bridge(self, shard: int) -> IndexedTarSamples:
        """Open one shard to be read by ranges; an error where it has no index yet."""
        ...

    def lacking(self, shards: list[int]) -> dict[int, int]:
        """Those that have to be downloaded, and are large, with the number of their samples."""
        ...


class Dataset(Protocol):
    """What `look_up` asks of a dataset."""

    batch_size: int
    remote: Remote | None
    table: ShardTable

    def plan(self) -> tuple[Schedule, RankProgress]:
        """How the epoch is dealt out, and where this rank goes on."""
        ...

    def order(self) -> Order:
        """The order of the epoch that comes next."""
        ...


class _Opening:
    """A shard that is being opened, and the samples that are to be fetched of it as soon as it is."""

    def __init__(self) -> None:
        self.future: Future[IndexedTarSamples]
        self._lock, self._numbers = threading.Lock(), list[int]()
        self._opened: IndexedTarSamples | None = None

    def open(self, open_shard: Callable[[int], IndexedTarSamples], shard: int) -> IndexedTarSamples:
        opened = open_shard(shard)
        with self._lock:
            self._opened = opened
        _prefetch(opened, self._numbers)
        return opened

    def plan(self, numbers: list[int]) -> None:
        with self._lock:
            if self._opened is None:
                self._numbers += numbers
                return
        _prefetch(self._opened, numbers)


class _Bridge(_Opening):
    """One that is opened to be read by ranges, until `samples` of it have been read."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples, self.taken = samples, False


class Ahead:
    """Goes before one iteration of one worker. `shards`: as many are opened before they are needed; `batches`: as
    many are on their way where they are read by ranges, until they come to half of BYTES_AHEAD. `sample_size`: bytes of
    a sample, about.
    """

    def __init__(
        self,
        owner: Opener,
        stream: Stream,
        opened: OpenShards,
        remote: Remote,
        shards: int,
        batches: int,
        sample_size: int,
    ) -> None:
        self.owner, self.stream, self.opened, self.remote = owner, stream, opened, remote
        self._shards = shards
        batch = max(owner.batch_size, _SMALLEST)
        self._samples = batches * batch
        self._most_ahead = BYTES_AHEAD // 2 // max(1, sample_size)
        self._unit = max(1, min(batch, BYTES_AHEAD // 4 // max(1, sample_size)))  # planned at a time
        self._next_look = self._planned = stream.consumed  # entries of the stream
        self._opening: dict[int, _Opening] = {}
        self._bridges: dict[int, _Bridge] = {}  # beside those that are being opened
        self._begun = False
        self._first_needed = self._first_touches()

    def follow(self, indices: Iterator[int]) -> Iterator[int]:
        """The stream's indices, while what comes behind them is fetched."""
        try:
            for index in indices:
                if self.stream.consumed > self._next_look:
                    self._advance(self.stream.consumed - 1)
                if self._bridges:
                    self._cross(self.stream.current[1])
                yield index
        finally:
            self.close()

    def take(self, shard: int) -> IndexedTarSamples:
        """A shard that is needed now."""
        bridge, opening = self._bridges.get(shard), self._opening.get(shard)
        if bridge is not None and opening is not None:
            wait([bridge.future, opening.future], return_when=FIRST_COMPLETED)
            if not bridge.taken and bridge.future.done() and bridge.future.exception() is None:
                bridge.taken = True
                return bridge.future.result()
            self._leave(shard)
        self._opening.pop(shard, None)
        return self.owner.open_shard(shard) if opening is None else opening.future.result()

    def close(self) -> None:
        """Give up what is on its way."""
        self.remote.close()
        for shard in list(self._bridges):
            self._leave(shard)
        while self._opening:
            self._opening.popitem()[1].future.add_done_callback(_close)

    def _advance(self, place: int) -> None:
        """The stream is at `place`: have what comes next under way."""
        first, self._begun = not self._begun, True
        self._next_look = place if first else place + self._unit
        wanted: list[int] = []
        while (
            len(self._opening) + len(wanted) < self._shards
            and (shard := next(self._first_needed, None)) is not None
        ):
            if shard not in self.opened:
                wanted.append(shard)
        if first:
            self._build(place, wanted)
        for shard in wanted:
            self._open(shard)
        if not (self._samples and (self._shards == 0 or self.remote.overflowing)):
            return
        self._planned = max(self._planned, place)
        samples = min(self._unit, self._samples) if first else self._samples  # no more than is waited for
        while self._planned < place + samples and 2 * self.remote.bytes_ahead < BYTES_AHEAD:
            positions = self._positions(self._planned, self._unit)
            if not len(positions):
                return
            self._planned += len(positions)
            self._plan(positions)

    def _positions(self, start: int, count: int) -> Ints:
        world = self.stream.world
        return self.stream.schedule.stream(world.rank, world.worker, start, start + count)

    def _plan(self, positions: Ints) -> None:
        for shard, of_it in self._of_shards(positions).items():
            if shard in self.opened:
                _prefetch(self.opened.get(shard), of_it)
            else:
                (self._opening.get(shard) or self._open(shard)).plan(of_it)

    def _of_shards(self, positions: Ints) -> dict[int, list[int]]:
        """Numbers in their shards of the samples at these positions."""
        found: dict[int, list[int]] = defaultdict(list)
        _, shards, numbers = self.owner.places(self.stream.order, positions)
        for shard, number in zip(shards, numbers, strict=True):
            found[shard].append(number)
        return found

    def _open(self, shard: int) -> _Opening:
        opening = self._opening[shard] = _Opening()
        function = (
            self._open_after(list(self._bridges.values()))
            if shard in self._bridges
            else self.owner.open_shard
        )
        opening.future = self.remote.background(opening.open, function, shard)
        return opening

    def _open_after(self, bridges: list[_Bridge]) -> Callable[[int], IndexedTarSamples]:
        """As the owner opens a shard, but not before the samples that come first are here: they are wanted now."""

        def open_shard(shard: int) -> IndexedTarSamples:
            for bridge in bridges:  # whose threads were begun before this one
                with contextlib.suppress(CancelledError):
                    bridge.future.exception()
            self.remote.settle()
            return self.owner.open_shard(shard)

        return open_shard

    def _build(self, place: int, shards: list[int]) -> None:
        """Have the samples that come first fetched by ranges, of those shards that have to be downloaded."""
        lacking = self.owner.lacking(shards)
        if not lacking:
            return
        samples = sum(lacking.values()) // _BRIDGED // self.stream.world.num_workers
        samples = max(self._unit, min(samples, self._most_ahead))
        for shard, numbers in self._of_shards(self._positions(place, samples)).items():
            if shard in lacking:
                bridge = self._bridges[shard] = _Bridge(len(numbers))
                bridge.plan(numbers)
                bridge.future = self.remote.background(bridge.open, self.owner.open_bridge, shard)

    def _cross(self, shard: int) -> None:
        """The next sample is of that shard: once all that was fetched by ranges has been read, it is read like any other."""
        bridge = self._bridges.get(shard)
        if bridge is not None:
            if not bridge.samples:
                self._leave(shard)
            bridge.samples -= 1

    def _leave(self, shard: int) -> None:
        self.opened.drop(shard)
        self._bridges.pop(shard).future.add_done_callback(_close)

    def _first_touches(self) -> Iterator[int]:
        """The shards of the rest of the stream, each once, in the order in which they are first needed."""
        place, seen = self.stream.consumed, set()
        while len(positions := self._positions(place, _LOOK)):
            shards, first = np.unique(self.stream.order.at(positions)[0], return_index=True)
            for shard in shards[np.argsort(first)].tolist():
                if shard not in seen:
                    seen.add(shard)
                    yield shard
            place += len(positions)


def how_far(backend: str, prefetch: int | None, lru_size: int) -> tuple[int, int]:
    """(shards to open, batches to fetch) ahead of what is read; `prefetch` None: as suits most."""
    if backend == "range":
        return 0, _BATCHES if prefetch is None else prefetch
    if prefetch is None:
        prefetch = 1 if backend == "memory" else lru_size
    return prefetch, _BATCHES if prefetch else 0  # of those that the cache has no room for


def look_up(dataset: Dataset) -> None:
    """Ask for the versions of the shards that workers will open first, once for all of them, before they start."""
    if dataset.remote is None:
        return
    schedule, progress = dataset.plan()
    streams = enumerate(progress.consumed)
    places = [schedule.stream(progress.rank, worker, at, at + dataset.batch_size) for worker, at in streams]
    shards = dataset.order().shards_for(np.concatenate(places))[:_LOOKED_UP].tolist()
    table = dataset.table
    dataset.remote.look_up([(table.url(shard), table.storage_options(shard)) for shard in shards])


def _prefetch(opened: IndexedTarSamples, numbers: list[int]) -> None:
    with contextlib.suppress(ShardflowError, IndexError):  # told when the sample is read
        opened.prefetch(numbers)


def _close(done: Future[IndexedTarSamples]) -> None:
    if not done.cancelled() and done.exception() is None:
        done.result().close()
