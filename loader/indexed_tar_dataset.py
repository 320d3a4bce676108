"""The distributed base class: which samples this worker of this rank reads, in which order, and how far it got."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from loader.cache import OpenShards
from loader.data_handler import Handler
from loader.errors import ShardflowError
from loader.indexed_tar import IndexedTarSamples
from loader.order import Order, choose_lanes
from loader.registry import DatasetEntry
from loader.ret_sample import DataStatus, RetSample
from loader.schedule import Schedule, Tail
from loader.selection import Selection
from loader.shards import find_shards
from loader.shared import Shared
from loader.state import RankProgress, Run, State, fingerprint
from loader.storage import StorageOptions
from loader.stream import OnBad, Stream
from loader.world import World, current_world, process_rank

__all__ = ["DataStatus", "IndexedTarDataset", "RetSample"]

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
Sharding = Literal["auto", "sample", "url"]

_URLS_KEPT = 4096


@dataclass(frozen=True)
class _Loaded:
    """A state to go on from."""

    number: int  # see Shared.loaded; -1 in a worker that was given one of its own, for its next iteration
    state: State
    emitted: tuple[int, ...] | None = None  # samples that each stream yielded, where batches don't tell


class IndexedTarDataset(IterableDataset[Any]):
    """Abstract: a subclass has a `data_generator` that reads the samples of `index_generator`.

    Iterating yields the RetSamples of this worker of this rank. Every sample comes once an epoch over all ranks
    and workers, in an order that depends on seed and epoch, lanes and global batch alone (docs/order.md).

    `data_info`: a dict with `name` and `data_type`, or the name alone. A name is a pattern in the registry, or an
    address: of a dataset's folder, of a tar, a glob of tars, a list of them. `shuffle_size`: samples of a window.
    `lru_size`: shards that each worker holds open (two files each). `batch_size`: what the DataLoader collects;
    tell it (`ShardedDataLoader` does), so that batches don't depend on the number of workers. `tail`: what
    happens where the epoch doesn't come out even (see `loader.schedule`). `sharding`: "url" reads each shard on
    one rank, "sample" each on all, "auto" takes "url" from ten shards a rank on. `rank` and `world_size`: the
    data-parallel ones, where they are not those of torch.distributed or the environment.

    `on_bad`: what to do with a sample that can't be read: "skip" it (a later one moves up; a worker that falls
    short repeats as many of its own at the end, so that ranks end together), "substitute" another one in its
    place, or "raise". TooManyBad after `max_bad_in_row`, or above the share `max_bad_fraction` of a worker's.

    `handlers`, `extensions`, `decode`, `allow_pickle`: see `IndexedTarSamples`. Not thread-safe. Pickles to
    workers hold no connections, and the list of shards as shared memory.
    """

    def __init__(
        self,
        data_info: Mapping[str, Any] | str | os.PathLike[str] | Sequence[str],
        shuffle_size: int = 50_000,
        lru_size: int = 32,
        seed: int = 42,
        *,
        registry: str | Mapping[str, DatasetEntry] | None = None,
        shuffle: bool = True,
        batch_size: int = 1,
        tail: Tail = "even",
        sharding: Sharding = "auto",
        rank: int | None = None,
        world_size: int | None = None,
        on_bad: OnBad = "skip",
        max_bad_in_row: int = 100,
        max_bad_fraction: float = 0.1,
        handlers: Mapping[str, Handler] | None = None,
        extensions: Sequence[str] | None = None,
        decode: bool = True,
        allow_pickle: bool = False,
        storage_options: StorageOptions | None = None,
        index_root: str | None = None,
    ) -> None:
        super().__init__()
        info = dict(data_info) if isinstance(data_info, Mapping) else {"name": data_info}
        if "name" not in info:
            raise ValueError(f"data_info has the keys {sorted(info)}: 'name' is missing")
        for what, value, allowed in (
            ("on_bad", on_bad, get_args(OnBad)),
            ("sharding", sharding, get_args(Sharding)),
            ("tail", tail, get_args(Tail)),
        ):
            if value not in allowed:
                raise ValueError(f"{what} is {value!r}: one of {', '.join(allowed)} was expected")
        self.name = info["name"] if isinstance(info["name"], str) else str(info["name"])
        self.data_type = str(info.get("data_type", ""))
        self.table = find_shards(info["name"], registry, storage_options, index_root)
        self.shuffle_size, self.seed, self.shuffle = shuffle_size, seed, shuffle
        self.batch_size, self.tail, self.sharding = batch_size, tail, sharding
        self.on_bad, self.max_bad_in_row, self.max_bad_fraction = on_bad, max_bad_in_row, max_bad_fraction
        self.index_root = index_root
        self._arguments: dict[str, Any] = {
            "handlers": handlers,
            "extensions": extensions,
            "decode": decode,
            "allow_pickle": allow_pickle,
        }
        self._given = (rank, world_size)
        # Rank and world size of the process that pickled this, and its pid.
        self._inherited: tuple[int, int, int] | None = None
        self._lru_size = lru_size
        self._shards = OpenShards(lru_size, self.open_shard)
        self._stream: Stream | None = None
        self._urls: dict[int, str] = {}
        self._numbers: dict[str, int] | None = None
        self._shared = Shared()
        self._loaded: _Loaded | None = None
        self._lanes: int | None = None
        self._workers: int | None = None  # of the loader that this copy belongs to
        self._copies: weakref.WeakSet[IndexedTarDataset] = weakref.WeakSet()  # of loaders
        self.selection: Selection | None = None  # None: all take part
        self.counts: Ints = self.table.counts  # samples of each shard that take part
        self.fingerprint = self.table.fingerprint
        # Both refuse what can't be meant.
        checked = Order(self.table.counts[:0], seed, 0, shuffle_size, 1, shuffle)
        self.seed, self.shuffle_size = checked.seed, checked.shuffle_size
        Schedule(0, 1, batch_size, 1, tail)

    # -- what a subclass writes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}: {self.table.num_samples} samples in {len(self.table)} shards)"

    def data_generator(self) -> Iterator[RetSample]:
        """Yield a RetSample for each index of `index_generator` that can be read; `skip_sample` the others."""
        raise NotImplementedError(f"{type(self).__name__} has no data_generator: see IndexedTarDataset")

    # -- what it uses

    def index_generator(self) -> Iterator[int]:
        """The numbers (order on disk, over the whole dataset) of the samples that this worker shall read."""
        return self._started().indices()

    def next_index(self) -> int:
        """The next number of `index_generator`, one at a time; StopIteration at the end of the epoch."""
        if self._stream is None or getattr(self, "_indices_of", None) is not self._stream:
            self._indices_of = self._started()
            self._indices = self.index_generator()
        return next(self._indices)

    def index2indices(self, index: int) -> tuple[str, int]:
        """The number of a sample over the whole dataset → (url of its shard, number in that shard)."""
        stream = self._stream
        if stream is not None and stream.current[0] == index:
            _, shard, number = stream.current
        else:
            shard, number = self._locate(index)
        return self._url(shard), number

    def read(self, url: str, i: int) -> dict[str, Any]:
        """Sample `i` of a shard, decoded (bytes where the dataset was made with ``decode=False``)."""
        return self.shard_of(url)[i]

    def shard_of(self, url: str) -> IndexedTarSamples:
        """The open shard of that url; at most `lru_size` stay open."""
        stream = self._stream
        if stream is not None and stream.current[1] >= 0 and self._url(stream.current[1]) == url:
            return self._shards.get(stream.current[1])
        if self._numbers is None:
            self._numbers = {address: shard for shard, address in enumerate(self.table.urls())}
        if url not in self._numbers:
            raise LookupError(f"{url} is none of the shards of {self!r}: index2indices tells their urls")
        return self._shards.get(self._numbers[url])

    def skip_sample(self, index: int, reason: Any = None, bad: bool = True) -> None:
        """Leave a sample out: it counts as done, and is told by the next RetSample's `missing_*`.

        `bad`: it could not be read; that is logged once a shard, TooManyBad if there are too many, BadSample if
        `on_bad` is "raise". ``bad=False``: it was not wanted. `reason`: by default the exception that is being
        handled; of an exception, its text is kept.
        """
        place = self.index2indices(index)
        reason = sys.exc_info()[1] if reason is None else reason
        if isinstance(reason, BaseException):  # neither its traceback's frames nor what may not pickle
            known = isinstance(reason, ShardflowError)
            reason = str(reason) if known else f"{type(reason).__name__}: {reason}"
        self._started().leave_out(index, place, reason, bad)

    def success_sample(self) -> tuple[list[int], list[tuple[str, int]], list[Any]]:
        """Count the current sample as read; returns what was left out before it, for its RetSample."""
        return self._started().read_one()

    @property
    def rank(self) -> int:
        """The data-parallel rank of this process."""
        return self._world().rank

    @property
    def world_size(self) -> int:
        """The number of data-parallel ranks."""
        return self._world().world_size

    @property
    def worker_id(self) -> int:
        """Which of its rank's streams this worker reads."""
        return self._stream.world.worker if self._stream is not None else self._world().worker

    @property
    def num_workers(self) -> int:
        """The number of this rank's streams."""
        return self._stream.world.num_workers if self._stream is not None else self._world().num_workers

    @property
    def lru_size(self) -> int:
        """The number of shards that a worker holds open."""
        return self._lru_size

    # -- iterating

    def __iter__(self) -> Iterator[Any]:
        stream: Stream | Exception
        try:
            stream = self._stream = self._begin()  # the epoch of now, not that of the first sample
            stream.iterated = True
        except Exception as error:  # noqa: BLE001 - raised by the first sample: a persistent worker of torch's dies here
            stream = error
        return self._iterate(stream)

    def _iterate(self, stream: Stream | Exception) -> Iterator[Any]:
        if isinstance(stream, Exception):
            raise stream
        for sample in self.data_generator():
            stream.emitted += 1
            yield self.present(sample)
            if self._stream is not stream:
                raise RuntimeError(
                    f"{self!r}: this iteration was left for a newer one. To iterate twice at a time, take copy.copy of "
                    "the dataset"
                )

    def present(self, sample: RetSample) -> Any:
        """What iterating yields for a RetSample: itself."""
        return sample

    def __len__(self) -> int:
        """Samples that this rank yields in the iteration that comes next (all its workers together).

        Exact, but with ``tail="keep"``, where those that are left out are missing.
        """
        state = self.resumed()
        workers = self._workers
        if workers is None and state is not None and state.run is not None:
            workers = state.run.num_workers  # not told: the same as before, then
        schedule, progress = self.plan(workers)
        lengths = [schedule.worker_samples(progress.rank, worker) for worker in range(schedule.num_workers)]
        before = progress.consumed if self.tail == "keep" else self._emitted(schedule, progress)
        return sum(max(0, length - done) for length, done in zip(lengths, before, strict=True))

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the iterations that come: set it before each, on every rank, to the same number."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}: 0 or more was expected")
        self._shared.epoch = epoch
        for other in self._copies:
            other.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that comes next."""
        return self._shared.epoch

    def order(self, epoch: int | None = None) -> Order:
        """The order of an epoch (by default of the one that comes next)."""
        lanes = self._lanes_for(self._world().world_size)
        number = self.epoch if epoch is None else epoch
        return Order(self.counts, self.seed, number, self.shuffle_size, lanes, self.shuffle)

    # -- state

    def load_state_dict(self, state: Mapping[str, Any] | State) -> None:
        """Go on where a state was taken: the next iteration is the rest of its epoch.

        StateMismatch, with one sentence for each reason, if it doesn't fit this dataset.
        """
        self._load(state if isinstance(state, State) else State.from_dict(state))

    def forget_state(self) -> None:
        """Start epochs from their beginning again, whatever was loaded (its lanes stay: they are the run's)."""
        self._shared.forget()
        self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        """How far the iteration in this very process got: exact with ``num_workers=0``.

        In a DataLoader's worker, it is about this worker alone: what torchdata's StatefulDataLoader collects, and
        gives back to the same worker of as many. A process with workers knows nothing of them: take
        `ShardedDataLoader`, or a DataStatus.
        """
        stream = self._stream
        if stream is None or stream.order.epoch != self.epoch:
            return self.state_of(None).to_dict()
        schedule, world = stream.schedule, stream.world
        made = -(-stream.emitted // self.batch_size) * world.num_workers  # the others are taken to be as far
        batches = min(made, schedule.rank_batches(world.rank))
        consumed = [0] * world.num_workers
        consumed[world.worker] = stream.consumed
        progress = RankProgress(world.rank, batches, tuple(consumed), stream.turn)
        return self._state(schedule, progress).to_dict()

    def set_data_status(self, status: DataStatus) -> None:
        """Resume from what a DataStatus counted on this rank, with the same number of ranks and workers."""
        world, workers = self._world(), range(status.num_workers)
        emitted = tuple(status.emitted.get(worker, 0) for worker in workers)
        consumed = tuple(status.consumed.get(worker, 0) for worker in workers)
        progress = RankProgress(
            world.rank,
            sum(-(-count // self.batch_size) for count in emitted),
            # Substitutes stand in the place of what is told as missing.
            emitted if self.on_bad == "substitute" else consumed,
            int(np.argmin(emitted)),  # DataLoader asks them in turn
        )
        run = Run(world.world_size, self.batch_size, status.num_workers, (progress,))
        self._load(replace(self._fresh(), epoch=status.epoch, run=run), emitted)

    @property
    def iteration(self) -> object:
        """What is the same object as long as one iteration in this process goes on."""
        return self._started()

    def place(self) -> tuple[int, int, tuple[int, int, int]]:
        """(stream, entries of it done, (rank, world size, epoch)) of the iteration that runs in this process."""
        stream = self._started()
        world = stream.world
        return world.worker, stream.consumed, (world.rank, world.world_size, stream.order.epoch)

    def state_of(self, progress: RankProgress | None) -> State:
        """The state of the epoch at hand, given how far this rank's workers got in it (None: not begun)."""
        if progress is None:
            return self.resumed() or self._fresh()
        schedule, _ = self.plan(len(progress.consumed))
        return self._state(schedule, progress)

    def plan(self, num_workers: int | None = None) -> tuple[Schedule, RankProgress]:
        """How the epoch at hand is dealt out, and where this rank goes on in it.

        A loaded state from the same world is continued in place, stream by stream; after one from another world,
        what remains is dealt out anew.
        """
        world = self._world()
        workers = world.num_workers if num_workers is None else num_workers
        state = self.resumed() or self._fresh()
        schedule = state.schedule(world.world_size, self.batch_size, workers, self.tail)
        return schedule, state.start(schedule, world.rank)

    def resumed(self) -> State | None:
        """The loaded state, as long as its epoch is the one at hand."""
        loaded, number = self._loaded, self._shared.loaded
        if number and (loaded is None or loaded.number not in (number, -1)):
            raise RuntimeError(
                f"{self!r}: a state was loaded while this worker was running, and is not known to it: load states "
                "before the DataLoader starts its persistent workers, or use ShardedDataLoader"
            )
        if loaded is None or loaded.number not in (number, -1) or loaded.state.epoch != self.epoch:
            return None
        return loaded.state

    # -- inside

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_inherited"] = (*process_rank(), os.getpid()) if self._given[0] is None else None
        for name in ("_indices", "_indices_of", "_copies", "_shards", "counts"):
            state.pop(name, None)
        state.update(_stream=None, _numbers=None, _urls={})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.counts = (self.selection or self.table).counts
        self._shards = OpenShards(self._lru_size, self.open_shard)
        self._copies = weakref.WeakSet()

    def __copy__(self) -> IndexedTarDataset:
        """Another dataset over the same shards, with an epoch and a state of its own."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._stream, other._urls = None, {}
        other._shards = OpenShards(self._lru_size, other.open_shard)
        other._shared = self._shared.copy()
        other._copies = weakref.WeakSet()
        return other

    def for_loader(self, batch_size: int, tail: Tail, num_workers: int) -> IndexedTarDataset:
        """A copy that knows what its DataLoader does; `set_epoch` on this one reaches it."""
        Schedule(0, 1, batch_size, num_workers, tail)
        other = copy.copy(self)
        other.batch_size, other.tail, other._workers = batch_size, tail, max(1, num_workers)
        self._copies.add(other)
        return other

    def select(self, kept: Sequence[Ints] | Selection) -> None:
        """Let only these samples of each shard take part: ascending numbers, one array for each shard."""
        selection = kept if isinstance(kept, Selection) else Selection.of(kept, self.table.counts)
        self.selection, self.counts = selection, selection.counts
        parts = [self.table.fingerprint, selection.digest]
        self.fingerprint = fingerprint(parts, [len(selection), len(self.table)])

    def open_shard(self, shard: int) -> IndexedTarSamples:
        """Open one shard, for the `lru_size` that stay open."""
        return IndexedTarSamples(
            self.table.url(shard),
            storage_options=self.table.storage_options(shard),
            index_root=self.index_root,
            **self._arguments,
        )

    def _world(self) -> World:
        world = current_world(*self._given, inherited=self._of_parent())
        if self._workers is not None and world.num_workers != self._workers:
            # The main process, asking on behalf of its loader's workers.
            return World(world.rank, world.world_size, 0, self._workers)
        return world

    def _of_parent(self) -> tuple[int, int] | None:
        """Rank and world size of the process that pickled this for its worker.

        Not of one further up: it may have spawned ranks, which then forked their workers.
        """
        if self._inherited is None:
            return None
        rank, world_size, pid = self._inherited
        parent = multiprocessing.parent_process()
        return (rank, world_size) if pid in (os.getpid(), parent and parent.pid) else None

    def _started(self) -> Stream:
        if self._stream is None:
            self._stream = self._begin()
        return self._stream

    def _lanes_for(self, world_size: int) -> int:
        if self._lanes is not None:  # a loaded state's: part of the order
            return self._lanes
        if self.sharding == "auto":
            return choose_lanes(len(self.table), world_size, self.shuffle)
        return world_size if self.sharding == "url" else 1

    def _begin(self) -> Stream:
        world, order = self._world(), self.order()
        schedule, progress = self.plan(world.num_workers)
        world = World(world.rank, world.world_size, progress.stream(world.worker), world.num_workers)
        planned = schedule.worker_samples(world.rank, world.worker)
        emitted = min(self._emitted(schedule, progress)[world.worker], planned)
        stream = Stream(
            self, world, order, schedule, planned, progress.turn, progress.consumed[world.worker], emitted
        )
        if self._loaded is not None and self._loaded.number == -1:
            self._loaded = None
        if self.shuffle and order.largest_window > self._lru_size and self._shared.first_warning():
            logger.warning(
                "%r: a window of %d samples spreads over %d shards, but lru_size is %d: shards are opened again and "
                "again. Raise lru_size, or lower shuffle_size",
                self, self.shuffle_size, order.largest_window, self._lru_size,
            )  # fmt: skip
        return stream

    def _emitted(self, schedule: Schedule, progress: RankProgress) -> tuple[int, ...]:
        """How many samples each stream of this rank has yielded where it goes on."""
        loaded = self._loaded
        if loaded is not None and loaded.emitted is not None and self.resumed() is loaded.state:
            run = loaded.state.run
            if run is not None and any(progress is each for each in run.ranks):
                return loaded.emitted
        return schedule.streams_after(progress.rank, progress.batches)

    def _fresh(self) -> State:
        """The state of the epoch at hand before it has begun."""
        lanes = self._lanes_for(self._world().world_size)
        samples = int(self.counts.sum())
        return State(self.seed, self.epoch, self.shuffle, self.shuffle_size, lanes, samples, self.fingerprint)

    def _state(self, schedule: Schedule, progress: RankProgress) -> State:
        run = Run(schedule.world_size, schedule.batch_size, schedule.num_workers, (progress,))
        return replace(self._fresh(), done=schedule.done, run=run)

    def _load(self, state: State, emitted: tuple[int, ...] | None = None) -> None:
        samples = int(self.counts.sum())
        state.check(self.fingerprint, samples, self.seed, self.shuffle, self.shuffle_size)
        self._stream = None
        self._lanes = state.lanes
        self._shared.epoch = state.epoch
        number = self._shared.load() if get_worker_info() is None else -1
        self._loaded = _Loaded(number, state, emitted)

    def places(self, order: Order, positions: Ints) -> tuple[list[int], list[int], list[int]]:
        """Of positions of an epoch: numbers over the whole dataset, shards, and numbers in them."""
        shards, numbers = order.at(positions)
        if self.selection is not None:  # the n-th samples that take part
            numbers = self.selection.at(shards, numbers)
        indices = self.table.begins[shards] + numbers
        return indices.tolist(), shards.tolist(), numbers.tolist()

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.table.num_samples:
            raise IndexError(f"{self!r}: there is no sample {index}")
        return self.table.locate(index)

    def _url(self, shard: int) -> str:
        url = self._urls.get(shard)
        if url is None:
            if len(self._urls) >= _URLS_KEPT:
                self._urls.clear()
            url = self._urls[shard] = self.table.url(shard)
        return url
