"""Read the pictures that rows name: local ones one by one, remote ones of many rows at once."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from loader import storage
from loader.errors import BadSample

MAX_PICTURE = 256 << 20  # bytes; a larger file costs its row, not the memory of a worker
_TRIES = 3
# Not blocking: opening a named pipe would wait for a writer for ever.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_NO_FAULT_OF_THE_ROW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, ValueError)
NO_STAMP = b"-"

Options = Callable[[str], Mapping[str, Any] | None]


def locate(reference: str, base: str) -> str:
    """The address that a row means: absolute, a URL, or seen from the folder `base`."""
    if "://" in reference:
        return storage.local_path(reference) if storage.is_local(reference) else reference
    return reference if reference.startswith("/") else f"{base}/{reference}"


def is_remote(place: str) -> bool:
    """Of an address that `locate` gave."""
    return "://" in place


def read_local(path: str) -> tuple[bytes, bytes]:
    """A local picture's bytes and its `stamp`; BadSample if it can't be read."""
    try:
        descriptor = os.open(path, _READ)
        try:
            status = os.fstat(descriptor)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise BadSample(
                    f"{path}: {'a folder' if stat.S_ISDIR(status.st_mode) else 'no regular file'}"
                )
            if size > MAX_PICTURE:
                raise BadSample(f"{path}: {size:,} bytes, more than {MAX_PICTURE:,}")
            data = os.read(descriptor, size)
            while len(data) < size and (rest := os.read(descriptor, size - len(data))):
                data += rest
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _NO_FAULT_OF_THE_ROW:
            raise
        raise BadSample(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, BadSample):
            raise
        raise BadSample(f"{path!a}: {error}") from error  # a null byte in the name
    if len(data) != size:
        raise BadSample(f"{path}: {len(data):,} of {size:,} bytes could be read")
    return data, _stamp(status)


def stamp(path: str) -> bytes:
    """What changes when a local file does: size and time of change; `NO_STAMP` if there is none."""
    try:
        return _stamp(os.stat(path))
    except (OSError, ValueError):
        return NO_STAMP


def stamp_of(place: str) -> bytes:
    """The `stamp` of an address, empty for none. Remote pictures have none: asking for each would cost a request."""
    return NO_STAMP if not place or is_remote(place) else stamp(place)


def _stamp(status: os.stat_result) -> bytes:
    return b"%d %d" % (status.st_size, status.st_mtime_ns)


def read_remote(addresses: Iterable[str], options_for: Options) -> dict[str, bytes | BadSample]:
    """Remote pictures, those of one filesystem at the same time; what can't be read has its reason instead.

    Errors other than of the address itself are tried again, twice: a store that says "slow down" is no bad row.
    """
    found: dict[str, bytes | BadSample] = {}
    left = list(dict.fromkeys(addresses))
    for attempt in range(_TRIES):
        failed = []
        for address, outcome in _read_once(left, options_for):
            if isinstance(outcome, bytes):
                found[address] = outcome
                continue
            found[address] = BadSample(f"{address}: {str(outcome) or type(outcome).__name__}")
            if not isinstance(outcome, _FINAL):
                failed.append(address)
        left = failed
        if not left:
            break
        if attempt < _TRIES - 1:
            time.sleep(0.5 * 2**attempt)
    return found


def _read_once(addresses: list[str], options_for: Options) -> Iterator[tuple[str, bytes | Exception]]:
    groups: dict[int, tuple[Any, list[tuple[str, str]]]] = {}  # by filesystem: (address, path in it)
    for address in addresses:
        try:
            fs, path = storage.filesystem(address, options_for(address))
        except Exception as error:  # noqa: BLE001, PERF203 - its reason, whatever it is
            yield address, error
        else:
            groups.setdefault(id(fs), (fs, []))[1].append((address, path))
    for fs, pairs in groups.values():
        everything = [None] * len(pairs)
        try:
            # Not cat(), which takes a name with brackets for a glob.
            outcomes = fs.cat_ranges([path for _, path in pairs], everything, everything, on_error="return")
        except Exception as error:  # noqa: BLE001 - as above
            outcomes = [error] * len(pairs)
        for (address, _), outcome in zip(pairs, outcomes, strict=True):
            if isinstance(outcome, bytes) and len(outcome) > MAX_PICTURE:
                yield address, ValueError(f"{len(outcome):,} bytes, more than {MAX_PICTURE:,}")
            else:
                yield address, outcome
