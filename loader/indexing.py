"""From a tar to its index: scan, build, publish, keep fresh."""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, Literal, cast

from loader import storage
from loader.arriving import Arriving
from loader.checksums import adler32, crc32
from loader.errors import BadIndex, BadTar, StaleIndex, TruncatedTar, UnknownIndexVersion
from loader.index import Entries, Index, index_path, load_index, pack_entries
from loader.sample import check_name, group
from loader.storage import StorageOptions
from loader.tar import BLOCK, Buffer, TarMap, Walk, block_reader, trailing_bytes

logger = logging.getLogger(__name__)

MISSING = "missing"
_PIECE = 8 << 20  # bytes looked at together
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


class _Sums:
    """The adler32 of a tar, and the CRC-32 of its members, in one pass that never goes back."""

    def __init__(self, view: memoryview, arriving: Arriving | None) -> None:
        self.total, self.done = 1, 0
        self._view, self._arriving = view, arriving

    def crcs(self, offsets: list[int], sizes: list[int]) -> list[int]:
        """Of consecutive members."""
        if self._arriving is None:
            view = self._view
            return [crc32(view[at : at + size]) for at, size in zip(offsets, sizes, strict=True)]
        return [self._crc(self._arriving, at, size) for at, size in zip(offsets, sizes, strict=True)]

    def _crc(self, arriving: Arriving, at: int, size: int) -> int:
        crc = 0
        for start in range(at, at + size, _PIECE):
            stop = min(start + _PIECE, at + size)
            arriving.need(start, stop)
            crc = crc32(self._view[start:stop], crc)
            if size > _PIECE:  # no member is held as a whole
                self.add(stop)
        return crc

    def add(self, end: int) -> None:
        """Take in all up to `end`, which padding that was cut off may put beyond the file's."""
        end = min(end, len(self._view))
        step = _PIECE if self._arriving is not None or end == len(self._view) else end - self.done
        while self.done < end:
            stop = min(self.done + step, end)
            if self._arriving is not None:
                self._arriving.need(self.done, stop)
            self.total = adler32(self._view[self.done : stop], self.total)
            self.done = stop
            if self._arriving is not None:
                self._arriving.release(stop)


def scan(
    buffer: Buffer,
    shard: str,
    checksum: bool = True,
    require_end: bool = True,
    arriving: Arriving | None = None,
) -> Entries:
    """Walk a whole tar; with `checksum`, also its adler32 and each member's CRC-32, in the same pass.

    The bytes are gone through once and in order, a few MiB at a time, so a cold file is read sequentially. `arriving`:
    what fills the buffer meanwhile.
    """
    entries = Entries(crcs=[] if checksum else None, tar_size=len(buffer))
    view = memoryview(buffer)
    sums = _Sums(view, arriving)
    walk = Walk(buffer, shard, require_end, arriving.need if arriving is not None else None)
    try:
        for batch in walk:
            entries.names += batch.names
            entries.skipped += batch.skipped
            offsets, sizes = batch.offsets.tolist(), batch.sizes.tolist()
            entries.offsets += offsets
            entries.sizes += sizes
            _note_headers(entries, buffer, int(batch.headers[-1]) if len(batch.headers) else None)
            if entries.crcs is not None:
                entries.crcs += sums.crcs(offsets, sizes)
                sums.add(batch.end)
            elif arriving is not None:
                arriving.release(batch.end)
        _note_headers(entries, buffer, None)
        entries.trailing = trailing_bytes(
            _rest(buffer, walk.at, arriving, sums if checksum else None), walk.at
        )
        if checksum:
            sums.add(len(buffer))
            entries.checksum = sums.total
    finally:
        walk.release()  # a view that is still held would keep a map from being closed
        view.release()
    return entries


def _note_headers(entries: Entries, buffer: Buffer, last: int | None) -> None:
    """Keep the first header, and the last one so far."""
    if not entries.first_header:
        entries.first_header = entries.last_header = buffer[:BLOCK]
    if last is not None:
        entries.last_header_at, entries.last_header = last, buffer[last : last + BLOCK]


def _rest(
    buffer: Buffer, at: int, arriving: Arriving | None, sums: _Sums | None
) -> Iterator[tuple[int, bytes]]:
    """What follows the archive's end, piece by piece."""
    for start in range(at, len(buffer), 1 << 20):
        stop = min(start + (1 << 20), len(buffer))
        if arriving is not None:
            arriving.need(start, stop)
        yield start, buffer[start:stop]
        if arriving is not None:
            if sums is not None:
                sums.add(stop)
            arriving.release(stop)


def build(
    buffer: Buffer, shard: str, checksum: bool = True, grouping: str = "auto", require_end: bool = True
) -> bytes:
    """The index of a tar that lies in `buffer`, as bytes; TruncatedTar or BadTar if it is none."""
    return _pack(scan(buffer, shard, checksum, require_end), shard, grouping)


def build_remote(
    address: str,
    storage_options: StorageOptions | None = None,
    checksum: bool = True,
    grouping: str = "auto",
    require_end: bool = True,
    save_bytes: bool = False,
) -> bytes:
    """The same of a tar in a store, built while it comes.

    With `checksum`, all of it is read, in large ranges side by side; without, what is the faster way; with
    `save_bytes`, little more than the headers. Memory: some 70 MB, however large the tar, and the index.
    """
    found = storage.stat(address, storage_options)
    if found.size == 0:
        raise TruncatedTar(f"{address}: a file of zero bytes is no tar: write it again")
    with Arriving(address, found, storage_options, every=checksum, save=save_bytes) as arriving:
        entries = scan(arriving.buffer, address, checksum, require_end, arriving)
    return _pack(entries, address, grouping)


def _pack(entries: Entries, shard: str, grouping: str) -> bytes:
    names = [
        check_name(name, shard, at - BLOCK) for name, at in zip(entries.names, entries.offsets, strict=True)
    ]
    try:
        groups = group(names, grouping)
    except ValueError as error:
        raise BadTar(f"{shard}: {error}") from None
    return pack_entries(entries, groups)


@contextlib.contextmanager
def tar_buffer(address: str, storage_options: StorageOptions | None = None) -> Iterator[Buffer]:
    """A whole tar as a buffer: mapped where it is local, else by way of an unnamed temporary file."""
    with contextlib.ExitStack() as stack:
        if storage.is_local(address):
            file = stack.enter_context(storage.open_read(address))
        else:
            file = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile()))
            found = storage.stat(address, storage_options)
            version = found.version or None
            for chunk in storage.read_in_order(address, found.size, storage_options, version=version):
                file.write(chunk)
            file.flush()
        if os.fstat(file.fileno()).st_size == 0:
            raise TruncatedTar(f"{address}: a file of zero bytes is no tar: write it again")
        # Closed when the last reference goes: views may outlive this block in a traceback.
        buffer = TarMap(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer.file = file.fileno()
        try:
            yield buffer
        finally:
            buffer.file = None


def check_fresh(
    index: Index, address: str, storage_options: StorageOptions | None = None, buffer: Buffer | None = None
) -> None:
    """StaleIndex unless `index` describes the tar as it is now, or as `buffer` holds it: size, first and last
    header.
    """
    if buffer is not None:
        block = block_reader(buffer)
        index.check_fresh(len(buffer), block(0), lambda start, _: block(start))
        return
    size = storage.stat(address, storage_options).size
    if size != index.tar_size:  # before any read that could go past the end
        index.check_fresh(size, b"", lambda start, end: b"")
    if size < BLOCK:
        raise StaleIndex(f"{address}: {size} bytes are no tar")
    try:
        index.check_fresh(
            size,
            storage.read_bytes(address, storage_options, 0, BLOCK),
            lambda start, end: storage.read_bytes(address, storage_options, start, end),
        )
    except EOFError:
        raise StaleIndex(f"{address}: became shorter just now") from None


def find_fresh(
    address: str,
    storage_options: StorageOptions | None = None,
    index_root: str | None = None,
    buffer: Buffer | None = None,
) -> tuple[Index | None, str]:
    """(the index of a tar, "fresh"), or (None, why it must be built).

    `buffer`: the tar, where it has been read or mapped already. FileNotFoundError if there is no tar;
    UnknownIndexVersion for an index that must not be overwritten.
    """
    where = index_path(address, index_root)
    options = storage_options if index_root is None else None
    try:
        index = load_index(where, options)
    except FileNotFoundError:
        if buffer is None:
            storage.stat(address, storage_options)
        return None, MISSING
    except UnknownIndexVersion:
        raise
    except BadIndex as error:
        return None, str(error)
    try:
        check_fresh(index, address, storage_options, buffer)
    except BadIndex as error:  # StaleIndex, or damage
        return None, str(error)
    return index, "fresh"


def ensure_index(
    address: str,
    storage_options: StorageOptions | None = None,
    *,
    index_root: str | None = None,
    checksum: bool = True,
    grouping: str = "auto",
    require_end: bool = True,
    save_bytes: bool = False,
    buffer: Buffer | None = None,
) -> tuple[Index, bool]:
    """The fresh index of a tar, and whether it had to be built: `obtain_index`, with a warning if unsaved."""
    index, state = obtain_index(
        address,
        storage_options,
        index_root=index_root,
        checksum=checksum,
        grouping=grouping,
        require_end=require_end,
        save_bytes=save_bytes,
        buffer=buffer,
    )
    if state == "unsaved":
        logger.warning(
            "%s can't be written: built for this process alone; keep it with index_root=…", index.where
        )
    return index, state != "fresh"


def obtain_index(
    address: str,
    storage_options: StorageOptions | None = None,
    *,
    index_root: str | None = None,
    checksum: bool = True,
    grouping: str = "auto",
    require_end: bool = True,
    save_bytes: bool = False,
    buffer: Buffer | None = None,
) -> tuple[Index, Literal["fresh", "built", "unsaved"]]:
    """The fresh index of a tar, and where it comes from.

    A built index is published beside the tar, or under `index_root`. An index that lacks the checksum is built
    again if `checksum` is asked for; so is one that was grouped by another rule than the one asked for. On a
    read-only place an index is built in memory for this process alone ("unsaved"), if there is none or a good one
    that says less; one that is stale or damaged is an error, since others would stumble over it.

    `save_bytes`: of a tar in a store, read little more than the headers (and so no checksums). `buffer`: the tar,
    where it has been read or mapped already.
    """
    checksum = checksum and not (save_bytes and buffer is None and not storage.is_local(address))
    index, reason = find_fresh(address, storage_options, index_root, buffer)
    if index is not None:
        wanted = grouping in ("auto", index.grouping)
        if wanted and (not checksum or (index.checksum is not None and index.crc32 is not None)):
            return index, "fresh"
    if buffer is not None:
        data = build(buffer, address, checksum, grouping, require_end)
    elif not storage.is_local(address):
        data = build_remote(address, storage_options, checksum, grouping, require_end, save_bytes)
    else:
        with tar_buffer(address, storage_options) as opened:
            data = build(opened, address, checksum, grouping, require_end)
    where, options = index_path(address, index_root), storage_options if index_root is None else None
    try:
        storage.write_bytes(where, data, options)
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno not in _READ_ONLY:
            raise
        if index is None and reason != MISSING:
            raise StaleIndex(
                f"{where}: {reason}, and the place is read-only: keep indexes elsewhere with index_root=…"
            ) from error
        return Index(data, where), "unsaved"
    return load_index(where, options) if storage.is_local(where) else Index(data, where), "built"
