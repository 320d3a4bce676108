"""Tars that lie in a store: their copies in the cache, their indexes, or a reader of ranges.

Cached copies are named after address, endpoint, size and version of the tar, so that a new version is a new entry, and an
index that is found under that name has been compared with that very tar.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader import addresses, storage, stores
from loader.checksums import adler32, combined_adler32
from loader.errors import (
    BadConfig,
    BadIndex,
    BadTar,
    FileChanged,
    NoRoom,
    StaleIndex,
    TruncatedTar,
)
from loader.in_flight import AT_ONCE, InFlight
from loader.index import Index, index_path
from loader.indexing import ensure_index
from loader.range_reader import RangeReader
from loader.shard_cache import Partial, ShardCache
from loader.storage import Stat, StorageOptions
from loader.tar import BLOCK, Buffer, TarMap
from loader.world import cache_folder

if TYPE_CHECKING:
    from loader.shards import ShardTable

logger = logging.getLogger(__name__)

PART = 4 << 20  # bytes of a request while a shard is downloaded: AT_ONCE times that is the memory it takes
_ENDPOINT = ("endpoint_url", "endpoint", "account_name", "account_host")


@dataclass(frozen=True)
class How:
    """What an index is built by, where it has to be: see `loader.indexing`."""

    index_root: str | None = None
    grouping: str = "auto"
    require_end: bool = True


class Remote(InFlight):
    """Reads tars of stores; one serves many, and should: threads, limits and counts are for all together.

    `cache_dir`, `max_cache_size`: see `loader.shard_cache`. Threads may share one.
    """

    def __init__(
        self, cache_dir: str | None = None, max_cache_size: int | None = None, at_once: int = AT_ONCE
    ) -> None:
        super().__init__(at_once)
        if max_cache_size is not None and max_cache_size < 1:
            raise BadConfig(
                f"max_cache_size is {max_cache_size}: bytes, at least those of one shard, were expected"
            )
        self.cache = ShardCache(cache_dir or cache_folder(), max_cache_size)
        self.overflowing = False  # whether the cache has had no room
        self._stats: dict[str, Stat] = {}  # a tar's version is asked for once: that is the one that is read

    # -- tars

    def open_range(self, address: str, options: StorageOptions | None, how: How) -> tuple[RangeReader, Index]:
        """A tar to be read member by member."""
        stat = self._stat(address, options)
        reader = RangeReader(address, options, stat.version, _key(address, options, stat), self)
        return reader, self._index(address, options, how, stat)

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
                candidate = self._cached_index(name)
                if candidate is None:
                    candidate = self._stored_index(address, options, how)
                try:
                    descriptor = self._download(address, options, stat, candidate)
                except FileChanged:
                    self._stats.pop(_place(address, options), None)
                    if last:
                        raise
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

    def look_up(self, tars: Sequence[tuple[str, StorageOptions | None]]) -> None:
        """Ask for the versions of tars that will be opened, side by side; a copy, and so a worker, knows them then.

        What can't be looked up is left to whoever opens it. No thread is left: processes may be forked now.
        """
        for future in [self.background(self._stat, *tar) for tar in tars]:
            with contextlib.suppress(OSError, ValueError):
                future.result()
        self.close(wait=True)

    def are_cached(self, tars: Sequence[tuple[str, StorageOptions | None]]) -> list[bool]:
        """Which of these tars the cache holds; of those that can't be asked for, it doesn't."""
        held = []
        for asked in [self.background(self._is_cached, *tar) for tar in tars]:
            held.append(False)
            with contextlib.suppress(OSError, ValueError):  # told by whoever opens it
                held[-1] = asked.result()
        return held

    def _is_cached(self, address: str, options: StorageOptions | None) -> bool:
        return self.cache.holds(_key(address, options, self._stat(address, options)) + ".tar")

    def fetch_index(self, address: str, options: StorageOptions | None) -> None:
        """Have a tar's index in the cache; LookupError if it would have to be made."""
        self._index(address, options, How(), self._stat(address, options), build=False)

    def _stat(self, address: str, options: StorageOptions | None) -> Stat:
        place = _place(address, options)
        stat = self._stats.get(place)
        if stat is None:
            self.traffic.add(requests=1)
            stat = storage.stat(address, options)
            if not stat.size:
                raise TruncatedTar(f"{address}: a file of zero bytes is no tar: write it again")
            self._stats[place] = stat
        return stat

    # -- downloads

    def _download(
        self, address: str, options: StorageOptions | None, stat: Stat, candidate: Index | None
    ) -> int:
        closed = self._own.closed

        def fill(partial: Partial) -> None:
            partial.reserve(stat.size)
            for last in (False, True):
                checksum = self._fetch_parts(address, options, stat, partial, closed)
                self.traffic.add(downloads=1)
                # S3 was asked for that version's bytes, and no other's.
                if addresses.protocol(address) not in stores.S3 and storage.stat(address, options) != stat:
                    raise FileChanged(f"{address}: replaced while it was downloaded")
                if checksum == _expected(partial.descriptor, candidate, checksum):
                    return
                if last:
                    raise BadTar(
                        f"{address}: its bytes don't have the checksum that its index holds, downloaded twice: write it "
                        "again, or run gen_meta if it is as it should be"
                    )
                self.traffic.add(repeated=1)

        return self.cache.open(_key(address, options, stat) + ".tar", fill, closed.is_set)

    def _fetch_parts(
        self,
        address: str,
        options: StorageOptions | None,
        stat: Stat,
        partial: Partial,
        closed: threading.Event,
    ) -> int:
        """Write the whole tar, in parts; returns its adler32."""

        def part(start: int) -> tuple[int, int]:
            if closed.is_set():
                raise InterruptedError(f"{address}: no longer wanted")
            asked = start, min(start + PART, stat.size)
            data = self.fetch_part(address, options, asked, stat.version)
            partial.write(data, start)
            return adler32(data), len(data)

        parts: list[Future[tuple[int, int]]] = []
        total = 1
        try:
            parts.extend(self.submit(part, start) for start in range(0, stat.size, PART))
            for future in parts:
                total = combined_adler32(total, *future.result())
        except BaseException:
            running = [future for future in parts if not future.cancel()]
            wait(running)  # none writes to a descriptor that is closed, and may be another file's by then
            raise
        return total

    # -- indexes

    def _index(
        self,
        address: str,
        options: StorageOptions | None,
        how: How,
        stat: Stat,
        buffer: Buffer | None = None,
        candidate: Index | None = None,
        build: bool = True,
    ) -> Index:
        """The fresh index of a tar; without `buffer`, that is not on this machine.

        It is made once a machine, as the tar is downloaded once; where it can't be kept, it stays in memory.
        """
        made: list[Index] = []
        name = _key(address, options, stat) + ".index"

        def make() -> Index:
            index = candidate or self._stored_index(address, options, how)
            if index is None or not self._fresh(index, address, options, stat, buffer):
                if not build:
                    raise LookupError(f"{address} has no fresh index beside it")
                index, _ = ensure_index(
                    address,
                    options,
                    index_root=how.index_root,
                    checksum=False,
                    grouping=how.grouping,
                    require_end=how.require_end,
                    buffer=buffer,
                )
                index.verify()
            made.append(index)
            return index

        def fill(partial: Partial) -> None:
            data = make().buffer
            partial.reserve(len(data))
            partial.write(data, 0)

        if how.index_root is not None:
            return make()
        try:
            self.cache.prepare()
            for _ in range(2):
                descriptor = self.cache.open(name, fill, self._own.closed.is_set)
                with contextlib.suppress(BadIndex):
                    index = self._mapped_index(descriptor, name)
                    if how.grouping in ("auto", index.grouping):
                        return index
                self.cache.remove(name)  # damaged, or grouped otherwise
        except (NoRoom, BadConfig) as error:
            logger.debug("the index of %s is kept in memory: %s", address, error)
        return made[-1] if made else make()

    def _cached_index(self, name: str) -> Index | None:
        """The index that the cache holds of the tar whose entries have that name."""
        descriptor = self.cache.find(name + ".index")
        if descriptor is not None:
            with contextlib.suppress(BadIndex):
                return self._mapped_index(descriptor, name + ".index")
        return None

    def _mapped_index(self, descriptor: int, name: str) -> Index:
        return Index(_mapped(descriptor, mmap.mmap), os.path.join(self.cache.folder, name))

    def _stored_index(self, address: str, options: StorageOptions | None, how: How) -> Index | None:
        """The index beside a tar, whether it fits or not; None if there is none of ours, or it is to be kept elsewhere."""
        if how.index_root is not None:
            return None
        where = index_path(address)
        for last in (False, True):
            data = self._whole(where, options)
            if data is None:
                return None
            with contextlib.suppress(BadIndex):
                index = Index(data, where)
                index.verify()  # a flipped byte would be kept; fetched again, it comes right
                return index if how.grouping in ("auto", index.grouping) else None
            if last:
                logger.info("%s is damaged, or of another kind", where)
        return None

    def _whole(self, address: str, options: StorageOptions | None) -> bytes | None:
        """A small file; None if it isn't there."""
        try:
            data = storage.read_small(address, options)
        except FileNotFoundError:
            return None
        self.traffic.add(requests=1, fetched=len(data))
        return data

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
                    return self.fetch(address, options, [(start, end)], stat.version)[0]

                index.check_fresh(stat.size, read(0, BLOCK), read)
        except (StaleIndex, BadIndex):
            return False
        return True


def remote_for(
    table: ShardTable, backend: str, cache_dir: str | None, max_cache_size: int | None
) -> Remote | None:
    """What reads a dataset's shards; None if that is done in place. BadConfig for a cache that can't hold the largest."""
    if not table.remote and backend not in ("cache", "range"):
        return None
    remote = Remote(cache_dir, max_cache_size)
    remote.traffic.share()
    if backend in ("auto", "cache") and len(table):
        largest = int(table.sizes.argmax())
        remote.check_limit(int(table.sizes[largest]), table.url(largest))
        remote.cache.prepare()
    return remote


def _place(address: str, options: StorageOptions | None) -> str:
    """A tar's address, with what says where that leads to."""
    given = {**(options or {}).get("client_kwargs", {}), **(options or {})}
    return "\0".join([address, *(str(given.get(name, "")) for name in _ENDPOINT)])


def _key(address: str, options: StorageOptions | None, stat: Stat) -> str:
    """The name of a tar's entries, without what kind they are."""
    text = f"{_place(address, options)}\0{stat.version}\0{stat.size}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()


def _mapped(descriptor: int, kind: type[Any]) -> Any:
    """A map, which holds what `descriptor` holds; that one is closed."""
    try:
        return kind(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def _expected(descriptor: int, index: Index | None, otherwise: int) -> int:
    """The checksum of a downloaded tar that an index of its own holds; `otherwise` where there is none."""
    if index is None or index.checksum is None:
        return otherwise

    def read(start: int, end: int) -> bytes:
        return os.pread(descriptor, end - start, start)

    try:
        index.check_fresh(os.fstat(descriptor).st_size, read(0, BLOCK), read)
    except BadIndex:  # it is another tar's
        return otherwise
    return index.checksum
