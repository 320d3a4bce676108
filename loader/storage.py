"""Local path or URL: stat, list, read, publish whole. What all else reads and writes by.

Every address is a string: a local path (absolute, relative, ``~``, ``file://``) or any fsspec URL. The parts:
`loader.addresses` (text), `loader.stores` (clients and their options), `loader.retrying` (what a store fails),
`loader.range_reads` (many ranges at once), `loader.publishing` (whole, or not at all), `loader.sweeping`. Everything here may be called from
forked and spawned workers alike, and from threads. Listings are never cached: another process may have written in
between.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from stat import S_ISDIR
from typing import Any, BinaryIO, TypeVar

from loader import retrying, stores
from loader.addresses import is_local, join, local_path, name, normalise, parent, protocol, relative
from loader.publishing import publish, takes_conditions, version_of, write_bytes
from loader.range_reads import AHEAD, Range, RemoteFile, read_in_order, read_ranges, read_small, read_whole
from loader.stores import StorageOptions, filesystem
from loader.sweeping import sweep, sweep_uploads

__all__ = [
    "AHEAD", "Range", "Stat", "StorageOptions", "exists", "expand", "filesystem", "is_dir", "is_local", "join", "list_files",
    "local_path", "name", "normalise", "open_read", "parent", "publish", "read_bytes", "read_in_order", "read_ranges",
    "read_small", "relative", "remove", "stat", "sweep", "sweep_uploads", "takes_conditions", "write_bytes",
]  # fmt: skip

T = TypeVar("T")

_READ_AHEAD = 8 << 20


@dataclass(frozen=True)
class Stat:
    """What a store says of one file. `version` changes when the content does (etag, else mtime in ns)."""

    size: int
    version: str


def _ask(what: str, address: str, storage_options: StorageOptions | None, ask: Callable[[Any, str], T]) -> T:
    """What `ask(fs, path)` returns, tried as often as the options allow."""

    def once() -> T:
        return ask(*filesystem(address, storage_options, tries=1))

    return retrying.call(
        what, address, storage_options, once, lambda: stores.renew(address, storage_options, tries=1)
    )


def stat(address: str, storage_options: StorageOptions | None = None) -> Stat:
    """Size and version of one file; FileNotFoundError where there is none."""
    if is_local(address):
        info = os.stat(local_path(address))
        if S_ISDIR(info.st_mode):
            raise IsADirectoryError(f"{address} is a folder, not a file")
        return Stat(info.st_size, str(info.st_mtime_ns))
    details = _ask("looking it up", address, storage_options, lambda fs, path: fs.info(path))
    if details.get("type") == "directory":
        raise IsADirectoryError(f"{address} is a folder, not a file")
    return Stat(int(details["size"]), version_of(details))


def exists(address: str, storage_options: StorageOptions | None = None) -> bool:
    """Whether there is a file or folder at `address`."""
    if is_local(address):
        return os.path.exists(local_path(address))
    return _ask("looking it up", address, storage_options, lambda fs, path: bool(fs.exists(path)))


def is_dir(address: str, storage_options: StorageOptions | None = None) -> bool:
    """Whether `address` names a folder (a prefix with something under it, in an object store)."""
    if is_local(address):
        return os.path.isdir(local_path(address))
    return _ask("looking it up", address, storage_options, lambda fs, path: bool(fs.isdir(path)))


def read_bytes(
    address: str,
    storage_options: StorageOptions | None = None,
    start: int | None = None,
    end: int | None = None,
    *,
    version: str | None = None,
) -> bytes:
    """The bytes of a file, or of its half-open range ``[start, end)``; EOFError if the range comes short.

    `version`: see `read_ranges`.
    """
    if start is not None and end is not None and start == end:
        return b""
    if end is not None:
        return read_ranges(address, [(start or 0, end)], storage_options, version=version)[0]
    if is_local(address):
        with open(local_path(address), "rb") as file:
            file.seek(start or 0)
            return file.read()
    found = stat(address, storage_options)
    first = min(start or 0, found.size)
    return read_whole(address, first, found.size, storage_options, version or found.version or None)


def open_read(address: str, storage_options: StorageOptions | None = None) -> BinaryIO:
    """A binary file object, to read in order, or here and there."""
    if is_local(address):
        return open(local_path(address), "rb")
    found = stat(address, storage_options)
    file = RemoteFile(address, found.size, storage_options, found.version or None)
    return io.BufferedReader(file, _READ_AHEAD)


def list_files(root: str, suffix: str = "", storage_options: StorageOptions | None = None) -> list[str]:
    """Addresses of the files under `root`, sub-folders included, sorted by their path relative to it.

    Hidden files and folders (a leading dot) are left out. A `root` that isn't there gives an empty list.
    """
    root = normalise(root)
    if is_local(root):
        found = []
        for folder, folders, files in os.walk(root):
            folders[:] = [entry for entry in folders if not entry.startswith(".")]
            found += [os.path.join(folder, file) for file in files]
    else:
        base = filesystem(root, storage_options, tries=1)[1].rstrip("/") + "/"
        try:
            entries = _ask("listing", root, storage_options, lambda fs, path: fs.find(path))
        except FileNotFoundError:
            return []
        found = [join(root, entry[len(base) :]) for entry in entries if entry.startswith(base)]
    kept = [address for address in found if address.endswith(suffix) and not _hidden(relative(address, root))]
    return sorted(kept, key=lambda address: relative(address, root))


def _hidden(path: str) -> bool:
    return path.startswith(".") or "/." in path


def expand(pattern: str, suffix: str = "", storage_options: StorageOptions | None = None) -> list[str]:
    """The files that a path, a folder or a glob (``*``, ``?``, ``[…]``, ``**``) names, sorted.

    A folder gives its files that end in `suffix`, sub-folders included. FileNotFoundError if nothing matches.
    """
    address = normalise(pattern)
    if exists(address, storage_options) and not is_dir(address, storage_options):
        return [address]
    found = list_files(address, suffix, storage_options)
    if not found and re.search(r"[*?\[]", address):
        found = _glob(address, suffix, storage_options)
    if not found:
        wanted = f" that end in {suffix}" if suffix else ""
        raise FileNotFoundError(f"{pattern}: no file, folder or glob there matches any files{wanted}")
    return found


def _glob(address: str, suffix: str, storage_options: StorageOptions | None) -> list[str]:
    path = filesystem(address, storage_options, tries=1)[1]
    matches = _ask("listing", address, storage_options, lambda fs, path: fs.glob(path, detail=True))
    fixed = parent(re.split(r"[*?\[]", path, maxsplit=1)[0] + "x")  # the folders that are spelled out
    found: list[str] = []
    for match, info in sorted(matches.items()):
        if _hidden(match[len(fixed) :].lstrip("/")):
            continue
        # What the file system calls its protocol may be another of its names: az, abfs.
        full = match if is_local(address) else normalise(f"{protocol(address)}://{match.lstrip('/')}")
        if info["type"] == "directory":
            found += list_files(full, suffix, storage_options)
        elif match.endswith(suffix):
            found.append(full)
    return sorted(set(found))


def remove(address: str, storage_options: StorageOptions | None = None) -> None:
    """Remove a file; no error if it isn't there."""
    try:
        if is_local(address):
            os.unlink(local_path(address))
        else:
            _ask("removing", address, storage_options, lambda fs, path: fs.rm_file(path))
    except FileNotFoundError:
        pass
