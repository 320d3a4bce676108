"""The distributed base class: which samples this worker of this rank reads, in which order, and how far it got."""

from __future__ import annotations

import copy
import logging
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from torch.utils.data import get_worker_info

from loader.addresses import is_local
from loader.ahead import Ahead, how_far
from loader.data_handler import Handler
from loader.errors import BadConfig, BadMeta, ShardflowError
from loader.indexed_tar import check_backend
from loader.indexed_tar_samples import IndexedTarSamples
from loader.open_shards import OpenShards
from loader.order import Order
from loader.registry import DatasetEntry
from loader.remote import PART, remote_for
from loader.resumable import Ints, Resumable, Sharding
from loader.ret_sample import DataStatus, RetSample
from loader.schedule import Schedule, Tail
from loader.selection import Selection
from loader.shards import find_shards
from loader.state import fingerprint
from loader.storage import StorageOptions
from loader.stream import OnBad, Stream
from loader.traffic import Traffic
from loader.world import World, process_rank

__all__ = ["DataStatus", "IndexedTarDataset", "RetSample"]

logger = logging.getLogger(__name__)

_URLS_KEPT = 4096
_LARGE = 16 << 10  # bytes of a sample


class IndexedTarDataset(Resumable):
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

    `handlers`, `extensions`, `decode`, `allow_pickle`, `backend`: see `IndexedTarSamples`. `cache_dir`, `max_cache_size`
    (bytes), `prefetch`: how shards in a store are read, see docs/remote.md; `traffic` tells what that took. Not
    thread-safe. Pickles to workers hold no connections, and the list of shards as shared memory.
    """

    views = False  # a subclass's samples are views into maps

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
        backend: str = "auto",
        cache_dir: str | None = None,
        max_cache_size: int | None = None,
        prefetch: int | None = None,
    ) -> None:
        super().__init__(rank, world_size)
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
        check_backend(backend)
        if prefetch is not None and prefetch < 0:
            raise BadConfig(f"prefetch is {prefetch}: 0 (nothing is fetched ahead) or more was expected")
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
        self.backend, self.prefetch = backend, prefetch
        self._lru_size = lru_size
        self._shards = OpenShards(lru_size, self._open)
        self._urls: dict[int, str] = {}
        self._numbers: dict[str, int] | None = None
        self.remote = remote_for(self.table, backend, cache_dir, max_cache_size)
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

    @property
    def iteration(self) -> object:
        """What is the same object as long as one iteration in this process goes on."""
        return self._started()

    def place(self) -> tuple[int, int, tuple[int, int, int]]:
        """(stream, entries of it done, (rank, world size, epoch)) of the iteration that runs in this process."""
        stream = self._started()
        world = stream.world
        return world.worker, stream.consumed, (world.rank, world.world_size, stream.order.epoch)

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
        self._shards = OpenShards(self._lru_size, self._open)
        self._copies = weakref.WeakSet()

    def __copy__(self) -> IndexedTarDataset:
        """Another dataset over the same shards, with an epoch and a state of its own."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._stream, other._urls, other.remote = None, {}, copy.copy(self.remote)
        other._shards = OpenShards(self._lru_size, other._open)
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
        """Open one shard, for the `lru_size` that stay open. Of a store's, threads open those that come next."""
        return self._opened(shard, self._backend_of(shard))

    def open_bridge(self, shard: int) -> IndexedTarSamples:
        """Open a shard to be read by ranges while it is downloaded; LookupError if its index would have to be made for that."""
        url, options = self.table.url(shard), self.table.storage_options(shard)
        if self.remote is not None:
            self.remote.fetch_index(url, options)
        return self._opened(shard, "range")

    def lacking(self, shards: list[int]) -> dict[int, int]:
        """Those that have to be downloaded, by more than a request, with the number of their samples."""
        table, remote = self.table, self.remote
        large = [shard for shard in shards if table.sizes[shard] > PART and not is_local(table.url(shard))]
        if remote is None or self.backend not in ("auto", "cache") or self.index_root is not None:
            return {}
        here = remote.are_cached([(table.url(shard), table.storage_options(shard)) for shard in large])
        return {
            shard: int(table.counts[shard]) for shard, is_here in zip(large, here, strict=True) if not is_here
        }

    def _opened(self, shard: int, backend: str) -> IndexedTarSamples:
        opened = IndexedTarSamples(
            self.table.url(shard),
            backend=backend,
            remote=self.remote,
            storage_options=self.table.storage_options(shard),
            index_root=self.index_root,
            **self._arguments,
        )
        if self.remote is not None and opened.tar.size != self.table.sizes[shard]:
            raise BadMeta(
                f"{opened.path} has {opened.tar.size:,} bytes, where meta.json says {self.table.sizes[shard]:,}: run gen_meta "
                "again"
            )
        return opened

    def _backend_of(self, shard: int) -> str:
        """Of large samples, copying is all the cost: then the map is spared, whose pages would count as our memory."""
        large = self.table.sizes[shard] >= _LARGE * self.table.counts[shard]
        if self.backend == "auto" and large and not self.views and is_local(self.table.url(shard)):
            return "read"
        return self.backend

    @property
    def traffic(self) -> Traffic:
        """What reading from stores took so far, workers included."""
        return Traffic() if self.remote is None else self.remote.traffic

    def _ahead(self, stream: Stream) -> Ahead | None:
        """What fetches the samples of a stream before it gets there, and ends the threads when it ends."""
        if self.remote is None:
            return None
        self.remote.traffic.of_worker(getattr(get_worker_info(), "id", None))
        shards, batches = how_far(self.backend, self.prefetch, self._lru_size)
        return Ahead(self, stream, self._shards, self.remote, shards, batches, self.table.sample_size)

    def _open(self, shard: int) -> IndexedTarSamples:
        ahead = None if self._stream is None else self._stream.ahead
        return self.open_shard(shard) if ahead is None else ahead.take(shard)

    def _started(self) -> Stream:
        if self._stream is None:
            self._stream = self._begin()
        return self._stream

    def _begin(self) -> Stream:
        world, order = self._world(), self.order()
        schedule, progress = self.plan(world.num_workers)
        world = World(world.rank, world.world_size, progress.stream(world.worker), world.num_workers)
        planned = schedule.worker_samples(world.rank, world.worker)
        emitted = min(self._emitted(schedule, progress)[world.worker], planned)
        stream = Stream(
            self, world, order, schedule, planned, progress.turn, progress.consumed[world.worker], emitted
        )
        stream.ahead = self._ahead(stream)
        if self._loaded is not None and self._loaded.number == -1:
            self._loaded = None
        if self.shuffle and order.largest_window > self._lru_size and self._shared.first_warning():
            logger.warning(
                "%r: a window of %d samples spreads over %d shards, but lru_size is %d: shards are opened again and "
                "again. Raise lru_size, or lower shuffle_size",
                self, self.shuffle_size, order.largest_window, self._lru_size,
            )  # fmt: skip
        return stream

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
