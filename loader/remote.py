"""How a process reads tars that lie in a store: threads, what is on its way, and the cache on disk.

Threads are made when they are first needed, in the process that needs them: a fork, or a pickle, starts without. A
tar's cached copies are named after address, endpoint, size and version, so that a new version is a new entry, and an index
that is found under that name has been compared with that very tar.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from loader import storage
from loader.checksums import adler32
from loader.errors import BadConfig, BadIndex, BadTar, NoRoom, StaleIndex, TruncatedTar, UnknownIndexVersion
from loader.index import Index, index_path
from loader.indexing import ensure_index
from loader.range_reader import Awaited, RangeReader, Span
from loader.range_reads import read_ranges
from loader.shard_cache import ShardCache
from loader.storage import Stat, StorageOptions
from loader.tar import BLOCK, Buffer, TarMap
from loader.traffic import Traffic
from loader.world import cache_folder

logger = logging.getLogger(__name__)

PART = 4 << 20  # bytes of a request while a shard is downloaded
AT_ONCE = 32  # requests in flight: with PART, the memory that downloads take
BYTES_AHEAD = 256 << 20  # of members that were announced and not read yet
_OPENING = 8  # shards that are opened, and so downloaded, at a time ahead of their use
_ENDPOINT = ("endpoint_url", "endpoint", "account_name", "account_host")

T = TypeVar("T")


@dataclass(frozen=True)
class How:
    """What an index is built by, where it has to be: see `loader.indexing`."""

    index_root: str | None = None
    grouping: str = "auto"
    require_end: bool = True


class _Process:
    """What belongs to one process."""

    def __init__(self, at_once: int) -> None:
        self.pid = os.getpid()
        self.requests = ThreadPoolExecutor(at_once, "shardflow-request")
        self.opening = ThreadPoolExecutor(_OPENING, "shardflow-open")
        self.coming: dict[tuple[str, int], Awaited] = {}
        self.expected = 0
        self.lock = threading.Lock()
        self.closed = threading.Event()


class Remote:
    """Reads tars of stores; one serves many, and should: threads, limits and counts are for all together.

    `cache_dir`, `max_cache_size`: see `loader.shard_cache`. Threads may share one.
    """

    def __init__(
        self, cache_dir: str | None = None, max_cache_size: int | None = None, at_once: int = AT_ONCE
    ) -> None:
        if max_cache_size is not None and max_cache_size < 1:
            raise BadConfig(
                f"max_cache_size is {max_cache_size}: bytes, at least those of one shard, were expected"
            )
        self.cache = ShardCache(cache_dir or cache_folder(), max_cache_size)
        self.traffic = Traffic()
        self.at_once = at_once
        self._process: _Process | None = None
        self.overflowing = False  # whether the cache has had no room

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}

    def __copy__(self) -> Remote:
        """Another one with the same cache and counts, and threads of its own."""
        other = Remote.__new__(Remote)
        other.__dict__.update(self.__getstate__())
        return other

    # -- threads

    @property
    def _own(self) -> _Process:
        if self._process is None or self._process.pid != os.getpid():
            self._process = _Process(self.at_once)
        return self._process

    def get(
        self, address: str, options: StorageOptions | None, ranges: Sequence[Span]
    ) -> Future[list[bytes]]:
        """Byte ranges of a file, on their way: a request each."""
        return self._own.requests.submit(self.fetch, address, options, ranges)

    def fetch(self, address: str, options: StorageOptions | None, ranges: Sequence[Span]) -> list[bytes]:
        """Byte ranges of a file, as soon as all are here: a request each."""
        self.traffic.add(requests=len(ranges), fetched=sum(end - start for start, end in ranges))
        return read_ranges(address, ranges, options, in_flight=self.at_once)

    def background(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function that opens shards, on one of few threads."""
        return self._own.opening.submit(function, *arguments)

    def await_(self, address: str, start: int, awaited: Awaited) -> None:
        """Note what is on its way. What was announced first, and was never read, is forgotten where it gets too much."""
        own = self._own
        with own.lock:
            before = own.coming.get((address, start))
            own.coming[address, start] = awaited
            own.expected += awaited.size - (before.size if before is not None else 0)
            while own.expected > BYTES_AHEAD and len(own.coming) > 1:
                own.expected -= own.coming.pop(next(iter(own.coming))).size

    def awaits(self, address: str, start: int) -> bool:
        """Whether the span that starts there is on its way, or here and not read yet."""
        return (address, start) in self._own.coming

    def take(self, address: str, start: int) -> Awaited | None:
        """What was noted, once."""
        own = self._own
        with own.lock:
            found = own.coming.pop((address, start), None)
            own.expected -= found.size if found is not None else 0
        return found

    @property
    def bytes_ahead(self) -> int:
        """Bytes that are on their way, or here and not read yet."""
        return self._own.expected

    def close(self) -> None:
        """Give up what is on its way, and end the threads as soon as their requests do."""
        own, self._process = self._process, None
        if own is not None and own.pid == os.getpid():
            own.closed.set()
            own.opening.shutdown(wait=False, cancel_futures=True)
            own.requests.shutdown(wait=False, cancel_futures=True)

    # -- tars

    def open_range(self, address: str, options: StorageOptions | None, how: How) -> tuple[RangeReader, Index]:
        """A tar to be read member by member."""
        stat = self._stat(address, options)
        return RangeReader(address, options, self), self._index(address, options, how, stat)

    def open_cached(self, address: str, options: StorageOptions | None, how: How) -> tuple[TarMap, Index]:
        """A tar as a map of its copy in the cache. NoRoom where the cache can't take it now."""
        for last in (False, True):
            stat = self._stat(address, options)
            self.check_limit(stat.size, address)
            name = _key(address, options, stat)
            candidate = None
            descriptor = self.cache.find(name + ".tar")
            if descriptor is None:
                self.cache.prepare()
                candidate = self._stored_index(address, options, how)
                try:
                    descriptor = self._download(address, options, stat, candidate)
                except _Changed:
                    if last:
                        raise BadTar(f"{address}: changes again and again while it is read") from None
                    continue
            else:
                self.traffic.add(cached=1)
            buffer = _mapped(descriptor, TarMap)
            return buffer, self._index(address, options, how, stat, buffer, candidate)
        raise AssertionError("not reached")

    def check_limit(self, size: int, what: str) -> None:
        """BadConfig if a tar of that size can never be cached."""
        limit = self.cache.limit
        if limit is not None and size > limit:
            raise BadConfig(
                f"max_cache_size is {limit:,} bytes, and {what} has {size:,}: {size:,} is the least that can work here; "
                'several times that lets shards stay. Or read without a cache: backend="range"'
            )

    def full(self, address: str, error: NoRoom) -> None:
        """Tell once that a shard is read by ranges, since the cache has no room for it."""
        if not self.overflowing:
            self.overflowing = True
            logger.warning(
                "%s is read by ranges, and others may be: the cache has no room (%s)", address, error
            )

    def _stat(self, address: str, options: StorageOptions | None) -> Stat:
        self.traffic.add(requests=1)
        stat = storage.stat(address, options)
        if not stat.size:
            raise TruncatedTar(f"{address}: a file of zero bytes is no tar: write it again")
        return stat

    # -- downloads

    def _download(
        self, address: str, options: StorageOptions | None, stat: Stat, candidate: Index | None
    ) -> int:
        closed = self._own.closed

        def fill(descriptor: int) -> None:
            for last in (False, True):
                self._fetch_parts(address, options, stat.size, descriptor, closed)
                self.traffic.add(requests=1, downloads=1)
                if storage.stat(address, options) != stat:
                    raise _Changed
                if _as_written(descriptor, candidate):
                    return
                if last:
                    raise BadTar(
                        f"{address}: its bytes don't have the checksum that its index holds, downloaded twice: write it "
                        "again, or run gen_meta if it is as it should be"
                    )
                self.traffic.add(repeated=1)

        return self.cache.open(_key(address, options, stat) + ".tar", stat.size, fill, closed.is_set)

    def _fetch_parts(
        self,
        address: str,
        options: StorageOptions | None,
        size: int,
        descriptor: int,
        closed: threading.Event,
    ) -> None:
        def part(start: int) -> None:
            if closed.is_set():
                raise InterruptedError(f"{address}: no longer wanted")
            end = min(start + PART, size)
            data = memoryview(storage.read_bytes(address, options, start, end))
            while data:
                written = os.pwrite(descriptor, data, start)
                data, start = data[written:], start + written

        starts = range(0, size, PART)
        self.traffic.add(requests=len(starts), fetched=size)
        own = self._own
        parts = [own.requests.submit(part, start) for start in starts]
        try:
            for future in parts:
                future.result()
        except BaseException:
            for future in parts:
                future.cancel()
            wait(parts)  # none writes to a descriptor that is closed, and may be another file's by then
            raise

    # -- indexes

    def _index(
        self,
        address: str,
        options: StorageOptions | None,
        how: How,
        stat: Stat,
        buffer: Buffer | None = None,
        candidate: Index | None = None,
    ) -> Index:
        """The fresh index of a tar; without `buffer`, it is not on this machine."""
        name = _key(address, options, stat) + ".index"
        index = self._cached_index(name, how)
        if index is not None:
            return index
        index = candidate or self._stored_index(address, options, how)
        if index is None or not self._fresh(index, address, options, stat, buffer):
            index, _ = ensure_index(
                address,
                options,
                index_root=how.index_root,
                checksum=False,
                grouping=how.grouping,
                require_end=how.require_end,
                buffer=buffer,
            )
        return index if how.index_root is not None else self._keep(name, index)

    def _cached_index(self, name: str, how: How) -> Index | None:
        descriptor = None if how.index_root is not None else self.cache.find(name)
        if descriptor is None:
            return None
        try:
            index = Index(_mapped(descriptor, mmap.mmap), os.path.join(self.cache.folder, name))
        except BadIndex:
            self.cache.remove(name)
            return None
        return index if how.grouping in ("auto", index.grouping) else None

    def _stored_index(self, address: str, options: StorageOptions | None, how: How) -> Index | None:
        """The index beside a tar, whether it fits or not; None if there is none of ours, or it is to be kept elsewhere."""
        if how.index_root is not None:
            return None
        where = index_path(address)
        try:
            data = storage.read_bytes(where, options)
            self.traffic.add(requests=1, fetched=len(data))
            index = Index(data, where)
        except UnknownIndexVersion:
            raise
        except (FileNotFoundError, BadIndex):
            return None
        return index if how.grouping in ("auto", index.grouping) else None

    def _fresh(
        self, index: Index, address: str, options: StorageOptions | None, stat: Stat, buffer: Buffer | None
    ) -> bool:
        try:
            if buffer is not None:
                index.check_fresh(len(buffer), buffer[:BLOCK], lambda start, end: buffer[start:end])
            elif stat.size != index.tar_size or stat.size < BLOCK:
                return False
            else:

                def read(start: int, end: int) -> bytes:
                    return self.fetch(address, options, [(start, end)])[0]

                index.check_fresh(stat.size, read(0, BLOCK), read)
        except (StaleIndex, BadIndex):
            return False
        return True

    def _keep(self, name: str, index: Index) -> Index:
        """Have an index in the cache, and use it from there; where it can't be kept, it stays in memory."""
        try:
            self.cache.prepare()
            data = index.buffer
            descriptor = self.cache.open(name, len(data), lambda file: _write(file, data), lambda: False)
        except (NoRoom, BadConfig) as error:
            logger.debug("%s is kept in memory: %s", index.where, error)
            return index
        return Index(_mapped(descriptor, mmap.mmap), os.path.join(self.cache.folder, name))


class _Changed(Exception):
    """The tar has another version than when its download began."""


def _key(address: str, options: StorageOptions | None, stat: Stat) -> str:
    """The name of a tar's entries, without what kind they are."""
    given = {**(options or {}).get("client_kwargs", {}), **(options or {})}
    places = [str(given.get(name, "")) for name in _ENDPOINT]
    text = "\0".join([address, *places, stat.version, str(stat.size)])
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()


def _mapped(descriptor: int, kind: type[Any]) -> Any:
    """A map, which holds what `descriptor` holds; that one is closed."""
    try:
        return kind(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def _as_written(descriptor: int, index: Index | None) -> bool:
    """Whether a downloaded tar has the checksum of an index that is its own, where there is one."""
    if index is None or index.checksum is None:
        return True
    size = os.fstat(descriptor).st_size

    def read(start: int, end: int) -> bytes:
        return os.pread(descriptor, end - start, start)

    try:
        index.check_fresh(size, read(0, BLOCK), read)
    except BadIndex:
        return True  # it is another tar's
    total = 1
    for start in range(0, size, PART):
        total = adler32(read(start, start + PART), total)
    return total == index.checksum


def _write(descriptor: int, data: Any) -> None:
    rest, at = memoryview(data), 0
    while at < len(rest):
        at += os.pwrite(descriptor, rest[at:], at)
