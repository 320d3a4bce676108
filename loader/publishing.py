"""Files that appear whole, or not at all.

Local: a temporary name in the same folder, flushed, then renamed. Object stores: an upload in parts that is
completed at the end, or aborted. What a killed writer leaves behind is invisible to readers (`loader.sweeping`).

Where two writers could meet, a write can be made to depend on what is there (`if_absent`, `if_match`): one of them
wins, the other is told (WriteConflict). Such files are small: they are held in memory until they are sent.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from loader import addresses, retrying, stores
from loader.errors import BadAddress, StoreError, WriteConflict
from loader.stores import StorageOptions

_UPLOAD_PART = 16 << 20  # bytes a part: 10,000 parts reach 160 GB, memory stays at about three parts
_OBJECT_STORES = (
    *stores.S3,
    "gs",
    "gcs",
    "az",
    "abfs",
    "abfss",
)  # one request makes a small file appear whole
_memory = threading.Lock()  # memory:// is one dictionary of this process


class _WholeWrites(io.FileIO):
    """An unbuffered file that takes all it is given: a plain one may take less, over 2 GiB or as a disk fills up."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[super().write(rest) :]
        return size


@contextlib.contextmanager
def publish(
    address: str,
    storage_options: StorageOptions | None = None,
    *,
    if_absent: bool = False,
    if_match: str | None = None,
) -> Iterator[BinaryIO]:
    """A binary file to write, which appears under its name whole when the block ends, or not at all.

    Missing folders are made. `if_absent`: only if there is no such file; `if_match`: only if it still is the one
    whose version `storage.stat` told; else WriteConflict when the block ends. StoreError where a store keeps failing.
    """
    if if_absent and if_match is not None:
        raise ValueError("if_absent and if_match can't be both")
    if addresses.is_local(address):
        with _local(addresses.local_path(address), if_absent, if_match) as file:
            yield file
        return
    with _Upload(address, storage_options, whole=if_absent or if_match is not None) as upload:
        yield cast(BinaryIO, upload)
        upload.complete(if_absent, if_match)


def write_bytes(
    address: str,
    data: bytes,
    storage_options: StorageOptions | None = None,
    *,
    if_absent: bool = False,
    if_match: str | None = None,
) -> None:
    """Write a small file whole or not at all (see `publish`)."""
    with publish(address, storage_options, if_absent=if_absent, if_match=if_match) as file:
        file.write(data)


def takes_conditions(address: str) -> bool:
    """Whether what is written there can be made to depend on what is there, in a store."""
    return addresses.protocol(address) in _OBJECT_STORES


# -- local


@contextlib.contextmanager
def _local(final: str, if_absent: bool, if_match: str | None) -> Iterator[BinaryIO]:
    folder = os.path.dirname(final)
    os.makedirs(folder, exist_ok=True)
    # A folder takes 255 bytes, of which the final name may use all.
    visible = os.fsdecode(os.fsencode(os.path.basename(final))[:200])
    temporary = os.path.join(folder, f".{visible}.{secrets.token_hex(4)}.part")
    try:
        with _WholeWrites(temporary, "w") as file:
            yield cast(BinaryIO, file)
            os.fsync(file.fileno())
        if if_absent:
            _link(temporary, final)
        elif if_match is not None:
            with _alone(folder):
                _compare(final, _local_version(final), if_match)
                os.replace(temporary, final)
        else:
            os.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            os.unlink(temporary)
        raise
    _flush_folder(folder)


def _link(temporary: str, final: str) -> None:
    """Rename, but never over another file: the one call that does so on every Unix file system makes a link."""
    try:
        os.link(temporary, final)
    except FileExistsError:
        raise _exists(final) from None
    os.unlink(temporary)


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """One conditional writer at a time, of all processes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _local_version(path: str) -> str | None:
    try:
        return str(os.stat(path).st_mtime_ns)
    except FileNotFoundError:
        return None


def _flush_folder(folder: str) -> None:
    """Make a rename durable. Some network file systems refuse fsync on a folder: the file itself is safe."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# -- stores


class _Upload(io.RawIOBase):
    """A file for a store: in memory while it is small, or `whole`, and so sent by one request; else in parts.

    Leaving it as a context without `complete` leaves nothing.
    """

    def __init__(self, address: str, storage_options: StorageOptions | None, whole: bool) -> None:
        self._address, self._options = address, storage_options
        self._collected, self._size = io.BytesIO(), 0
        protocol = addresses.protocol(address)
        # memory:// shows a file when it is opened; what is no object store shows one while it is sent.
        at_once = whole or protocol == "memory"
        self._most = math.inf if at_once else _UPLOAD_PART if protocol in _OBJECT_STORES else -1
        self._parts: Any = None  # fsspec's file, once there is one
        self._process, self._began = os.getpid(), time.monotonic()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self._parts is None and self._size + size > self._most:
            self._send(self._begin)
        self._size += size
        if self._parts is None:
            self._collected.write(data)
        else:
            self._send(self._parts.write, data)
        return size

    def _begin(self) -> None:
        fs, path = stores.filesystem(self._address, self._options)
        self._parts = fs.open(path, "wb", block_size=_UPLOAD_PART, autocommit=False)
        # While the interpreter shuts down, nothing can be sent any more: who tries waits for ever.
        atexit.register(self._abort)
        with contextlib.suppress(ValueError):  # fsspec keeps each for a transaction that nobody has begun
            fs.transaction.files.remove(self._parts)
        self._parts.write(self._collected.getvalue())
        self._collected = io.BytesIO()

    def complete(self, if_absent: bool, if_match: str | None) -> None:
        """Make the file appear."""
        if self._parts is None and self._most < 0:  # nothing was written
            self._send(self._begin)
        if self._parts is None:
            _put(self._address, self._options, self._collected.getvalue(), if_absent, if_match)
            return
        self._send(self._parts.close)  # the last part; nothing is visible yet
        self._send(self._parts.commit)
        self._done()

    def _send(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            # The client has tried each request as often as it may.
            tries = stores.policy(self._options).max_tries
            told = retrying.failure("writing", self._address, error, tries, time.monotonic() - self._began)
            if told is error:
                raise
            raise told from error

    def __exit__(self, *error: object) -> None:
        self._abort()

    def _abort(self) -> None:
        """Leave nothing of what isn't complete, where this is the process that began it."""
        if self._parts is None or os.getpid() != self._process:
            return
        try:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                self._parts.discard()
        finally:
            self._done()

    def _done(self) -> None:
        atexit.unregister(self._abort)
        parts, self._parts = self._parts, None
        parts.closed = True  # so that neither __exit__ nor __del__ commits what is not whole


def _put(
    address: str, storage_options: StorageOptions | None, data: bytes, if_absent: bool, if_match: str | None
) -> None:
    """Send a small file in one request, under the condition if there is one."""
    protocol = addresses.protocol(address)
    if protocol == "memory":
        _put_in_memory(address, data, if_absent, if_match)
        return
    if not takes_conditions(address) or (if_match is not None and protocol not in stores.S3):
        raise BadAddress(f"{address}: {protocol}:// can't be written under a condition")

    def put() -> None:
        fs, path = stores.filesystem(address, storage_options, tries=1)
        if protocol in stores.S3:
            condition = {"IfNoneMatch": "*"} if if_absent else {"IfMatch": if_match} if if_match else {}
            fs.pipe_file(path, data, chunksize=len(data) + 1, **condition)
        else:
            fs.pipe_file(path, data, **({"mode": "create"} if if_absent else {}))

    try:
        retrying.call(
            "writing", address, storage_options, put, lambda: stores.renew(address, storage_options, tries=1)
        )
    except (OSError, StoreError) as error:
        if not retrying.refused(error):
            raise
        # A reply may have been lost, and the request sent again: it then met its own work.
        fs, path = stores.filesystem(address, storage_options)
        if _content(fs, path) != data:
            raise (_exists(address) if if_absent else _changed(address)) from error


def _put_in_memory(address: str, data: bytes, if_absent: bool, if_match: str | None) -> None:
    fs, path = stores.filesystem(address)
    with _memory:
        if if_absent and fs.exists(path):
            raise _exists(address)
        if if_match is not None:
            _compare(address, version_of(fs.info(path)) if fs.exists(path) else None, if_match)
        fs.pipe_file(path, data)


def _content(fs: Any, path: str) -> bytes | None:
    try:
        return cast(bytes, fs.cat_file(path))
    except FileNotFoundError:
        return None


def version_of(details: Any) -> str:
    """The version in what fsspec says of a file: it changes when the content does."""
    found = next(
        (str(details[key]) for key in ("ETag", "etag", "LastModified", "mtime", "created") if key in details),
        "",
    )
    return found.strip('"')


def _compare(address: str, version: str | None, wanted: str) -> None:
    if version != wanted:
        raise _changed(address)


def _exists(address: str) -> WriteConflict:
    return WriteConflict(f"{address}: there already: another writer was first")


def _changed(address: str) -> WriteConflict:
    return WriteConflict(f"{address}: changed since it was read: read it again, and decide anew")
