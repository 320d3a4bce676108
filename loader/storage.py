"""Local path or URL: stat, list, read, publish whole.

Every address is a string: a local path (absolute, relative, ``~``, ``file://``) or any fsspec URL. A
filesystem object belongs to the process that made it: fsspec rebuilds its instances after a fork, and this
module keeps none of its own, so everything here may be called from forked and spawned workers alike.
Listings are never cached: another process may have written in between.

Nothing half-written ever carries a final name (`publish`). What a killed local writer leaves behind has a
name that `sweep` recognises.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from stat import S_ISDIR
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs

from loader.errors import BadAddress

StorageOptions = Mapping[str, Any]

_LOCAL_PROTOCOLS = ("file", "local")
_UPLOAD_PART = 16 << 20  # bytes a part: 10,000 parts reach 160 GB, memory stays at about three parts
# .<final name>.<8 hex digits>.part: hidden, so no listing of shards or images takes it for data.
_TEMPORARY = re.compile(r"(?s)\..+\.[0-9a-f]{8}\.part\Z")
_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*\Z")


@dataclass(frozen=True)
class Stat:
    """What a store says of one file. `version` changes when the content does (etag, else mtime in ns)."""

    size: int
    version: str


def _protocol(address: str) -> str:
    protocol, separator, _ = address.partition("://")
    return protocol if separator and _PROTOCOL.match(protocol) else "file"


def normalise(address: str | os.PathLike[str]) -> str:
    """The one spelling of an address: absolute local path, or URL, without a trailing slash."""
    text = os.fspath(address)
    if not text:
        raise BadAddress("an empty address: give a local path or a URL such as s3://bucket/folder")
    if "::" in text:
        raise BadAddress(
            f"{text!r} is an fsspec chain, which can serve corrupt files after a failed download: "
            "give the last address alone"
        )
    if is_local(text):
        return os.path.abspath(os.path.expanduser(_strip_local(text)))
    protocol, _, rest = text.partition("://")
    # fsspec's memory files have two spellings, memory://a and memory:///a.
    return f"{protocol}://{rest.strip('/') if protocol == 'memory' else rest.rstrip('/')}"


def _strip_local(address: str) -> str:
    protocol, separator, rest = address.partition("://")
    return rest if separator and protocol in _LOCAL_PROTOCOLS else address


def is_local(address: str) -> bool:
    """Whether the address names a file of this machine (network drives that are mounted included)."""
    return _protocol(address) in _LOCAL_PROTOCOLS


def local_path(address: str) -> str:
    """The path of a local address, for `open` and `mmap`."""
    if not is_local(address):
        raise BadAddress(f"{address} is not on this machine: a local path was expected here")
    return normalise(address)


def join(root: str, *parts: str) -> str:
    """`root` and `parts` with ``/`` between; what stands before an absolute path or a URL is dropped."""
    for number, part in reversed(list(enumerate(parts))):
        if part.startswith("/") or not is_local(part):
            return posixpath.join(part, *parts[number + 1 :])
    return posixpath.join(root, *parts)


def name(address: str) -> str:
    """The last component of an address."""
    return posixpath.basename(address.rstrip("/"))


def parent(address: str) -> str:
    """The address of the folder that holds `address`."""
    protocol, separator, rest = address.rpartition("://")
    return protocol + separator + posixpath.dirname(rest.rstrip("/"))


def relative(address: str, root: str) -> str:
    """`address` as seen from `root`, with ``/``; BadAddress if it lies elsewhere."""
    prefix = root if root.endswith("/") else root + "/"
    if not address.startswith(prefix):
        raise BadAddress(f"{address} does not lie under {root}")
    return address[len(prefix) :]


def filesystem(
    address: str, storage_options: StorageOptions | None = None
) -> tuple[fsspec.AbstractFileSystem, str]:
    """The fsspec filesystem of this process for `address`, and the path in it."""
    options = dict(storage_options or {})
    protocol = _protocol(address)
    if protocol not in (*_LOCAL_PROTOCOLS, "memory"):
        options.setdefault("use_listings_cache", False)
    try:
        fs, path = url_to_fs(address, **options)
    except (ValueError, ImportError) as error:
        raise BadAddress(f"{address}: no way to open {protocol}:// ({error})") from error
    return fs, cast(str, path)


def stat(address: str, storage_options: StorageOptions | None = None) -> Stat:
    """Size and version of one file; FileNotFoundError where there is none."""
    if is_local(address):
        info = os.stat(local_path(address))
        if S_ISDIR(info.st_mode):
            raise IsADirectoryError(f"{address} is a folder, not a file")
        return Stat(info.st_size, str(info.st_mtime_ns))
    fs, path = filesystem(address, storage_options)
    details = fs.info(path)
    if details.get("type") == "directory":
        raise IsADirectoryError(f"{address} is a folder, not a file")
    version = next(
        (str(details[key]) for key in ("ETag", "etag", "LastModified", "mtime", "created") if key in details),
        "",
    )
    return Stat(int(details["size"]), version.strip('"'))


def exists(address: str, storage_options: StorageOptions | None = None) -> bool:
    """Whether there is a file or folder at `address`."""
    if is_local(address):
        return os.path.exists(local_path(address))
    fs, path = filesystem(address, storage_options)
    return bool(fs.exists(path))


def is_dir(address: str, storage_options: StorageOptions | None = None) -> bool:
    """Whether `address` names a folder (a prefix with something under it, in an object store)."""
    if is_local(address):
        return os.path.isdir(local_path(address))
    fs, path = filesystem(address, storage_options)
    return bool(fs.isdir(path))


def read_bytes(
    address: str,
    storage_options: StorageOptions | None = None,
    start: int | None = None,
    end: int | None = None,
) -> bytes:
    """The bytes of a file, or of its half-open range ``[start, end)``; EOFError if the range comes short."""
    if start is not None and end is not None and start == end:
        return b""
    if is_local(address):
        with open(local_path(address), "rb") as file:
            if start:
                file.seek(start)
            data = file.read() if end is None else file.read(end - (start or 0))
    else:
        fs, path = filesystem(address, storage_options)
        # s3fs has another order of positional arguments than fsspec: name them.
        data = cast(bytes, fs.cat_file(path, start=start, end=end))
    if end is not None and len(data) != end - (start or 0):
        raise EOFError(f"{address}: asked for bytes {start or 0} to {end}, got {len(data)} of them")
    return data


def open_read(address: str, storage_options: StorageOptions | None = None) -> BinaryIO:
    """A binary file object, to read in order."""
    if is_local(address):
        return open(local_path(address), "rb")
    fs, path = filesystem(address, storage_options)
    return cast(BinaryIO, fs.open(path, "rb", block_size=8 << 20))


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
        fs, path = filesystem(root, storage_options)
        base = path.rstrip("/") + "/"
        try:
            found = [join(root, entry[len(base) :]) for entry in fs.find(path) if entry.startswith(base)]
        except FileNotFoundError:
            return []
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
    fs, path = filesystem(address, storage_options)
    fixed = parent(re.split(r"[*?\[]", path, maxsplit=1)[0] + "x")  # the folders that are spelled out
    found: list[str] = []
    for match, info in sorted(fs.glob(path, detail=True).items()):
        if _hidden(match[len(fixed) :].lstrip("/")):
            continue
        full = match if is_local(address) else normalise(fs.unstrip_protocol(match))
        if info["type"] == "directory":
            found += list_files(full, suffix, storage_options)
        elif match.endswith(suffix):
            found.append(full)
    return sorted(set(found))


class _WholeWrites(io.FileIO):
    """An unbuffered file that takes all it is given: a plain one may take less, over 2 GiB or as a disk fills up."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[super().write(rest) :]
        return size


@contextlib.contextmanager
def publish(address: str, storage_options: StorageOptions | None = None) -> Iterator[BinaryIO]:
    """A binary file to write, which appears under its name whole when the block ends, or not at all.

    Local: a temporary name in the same folder, flushed to disk, then renamed over the final one. Object
    stores: the upload is completed at the end, or aborted. Missing folders are made.
    """
    if is_local(address):
        final = local_path(address)
        folder = os.path.dirname(final)
        os.makedirs(folder, exist_ok=True)
        # A folder takes 255 bytes, of which the final name may use all.
        visible = os.fsdecode(os.fsencode(os.path.basename(final))[:200])
        temporary = os.path.join(folder, f".{visible}.{secrets.token_hex(4)}.part")
        try:
            with _WholeWrites(temporary, "w") as file:
                yield cast(BinaryIO, file)
                os.fsync(file.fileno())
            os.replace(temporary, final)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                os.unlink(temporary)
            raise
        _flush_folder(folder)
        return
    fs, path = filesystem(address, storage_options)
    if fs.protocol == "memory":  # whose files appear when they are opened
        collected = io.BytesIO()
        yield collected
        fs.pipe_file(path, collected.getvalue())
        return
    upload = fs.open(path, "wb", block_size=_UPLOAD_PART, autocommit=False)
    with contextlib.suppress(
        ValueError
    ):  # fsspec keeps each for a transaction that nobody has begun, for ever
        fs.transaction.files.remove(upload)
    try:
        yield cast(BinaryIO, upload)
        upload.close()  # sends the last part; nothing is visible yet
    except BaseException:
        try:
            upload.discard()
        finally:
            upload.closed = True  # so that neither __exit__ nor __del__ commits what is not whole
        raise
    try:
        upload.commit()
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            upload.discard()
        raise


def _flush_folder(folder: str) -> None:
    """Make a rename durable. Some network file systems refuse fsync on a folder: the file itself is safe."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_bytes(address: str, data: bytes, storage_options: StorageOptions | None = None) -> None:
    """Write a small file whole or not at all."""
    with publish(address, storage_options) as file:
        file.write(data)


def remove(address: str, storage_options: StorageOptions | None = None) -> None:
    """Remove a file; no error if it isn't there."""
    if is_local(address):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(local_path(address))
        return
    fs, path = filesystem(address, storage_options)
    with contextlib.suppress(FileNotFoundError):
        fs.rm_file(path)


def sweep(root: str, older_than: float = 0.0) -> list[str]:
    """Remove what killed writers left under a local `root`; returns the removed paths.

    Only call it while no other writer can be at work there (see `tasks.pack`, which holds a lock), or leave what
    was written to in the last `older_than` seconds alone.
    """
    if not is_local(root):
        return []
    removed = []
    for folder, _, files in os.walk(local_path(root)):
        for file in files:
            path = os.path.join(folder, file)
            if _TEMPORARY.match(file) and (not older_than or time.time() - _changed(path) > older_than):
                remove(path)
                removed.append(path)
    return removed


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:  # its writer has just finished
        return time.time()
