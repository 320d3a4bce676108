"""What has to be made of a source before rows can be read from its middle, in the hidden folder of the output.

A compressed file is unpacked, a folder of pictures listed, a generator written down; an index is built for a tar that
has none. Each is published whole under a name that follows from its source, and all are removed when the job is done
(`clear`), since they can be made again.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from loader import storage
from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.sources.base import SourceFile, described, options_of

FOLDER = ".shardflow/sources"
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
_CHUNK = 1 << 20


def address(config: PackConfig, key: str, suffix: str) -> str:
    """Where what is made of `key` lies."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return storage.join(config.output, FOLDER, digest + suffix)


def unpacked(file: SourceFile, compression: str, config: PackConfig) -> SourceFile:
    """The file with its compression taken off."""
    place = address(config, f"{file.address} {file.size} {file.version}", ".unpacked")
    if not storage.exists(place, config.storage_options):
        with storage.open_read(file.address, options_of(config, file.address)) as stream:
            try:
                write(place, _opened(stream, compression, file), config)
            except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
                if isinstance(error, BadConfig) or (isinstance(error, OSError) and error.errno is not None):
                    raise  # of the disk or the network; bad data has no number
                raise BadConfig(
                    f"source {file.name} cannot be unpacked ({compression}): {error}: repair it"
                ) from error
    return described(place, config, file.kind, file.name)


def written(kind: str, lines: Iterable[bytes], config: PackConfig, folder: str) -> SourceFile:
    """A listing of a folder, a line of JSON for each entry, as a source of that kind."""
    place = address(config, f"{kind} {folder}", f".{kind}")
    write(place, lines, config)
    return described(place, config, kind, folder, folder)


def kept(key: str, suffix: str, pieces: Iterable[bytes], config: PackConfig) -> str:
    """Pieces of bytes as a file, unless it is there already; its address."""
    place = address(config, key, suffix)
    if not storage.exists(place, config.storage_options):
        write(place, pieces, config)
    return place


def clear(config: PackConfig) -> None:
    """Remove all of it."""
    for file in storage.list_files(storage.join(config.output, FOLDER), "", config.storage_options):
        storage.remove(file, config.storage_options)


def write(place: str, pieces: Iterable[bytes], config: PackConfig) -> None:
    """Pieces of bytes as a file, which appears when the last of them has come."""
    pending: list[bytes] = []
    size = 0
    with storage.publish(place, config.storage_options) as target:
        for piece in pieces:
            pending.append(piece)
            size += len(piece)
            if size >= _CHUNK:
                target.write(b"".join(pending))
                pending, size = [], 0
        target.write(b"".join(pending))


def _opened(stream: BinaryIO, compression: str, file: SourceFile) -> Iterator[bytes]:
    """What comes out, piece by piece; EOFError where the end is missing."""
    if compression == "zstd":
        return _zstd(stream, file)
    opened: Any = {"gzip": gzip.GzipFile, "bzip2": bz2.BZ2File, "xz": lzma.LZMAFile}[compression]
    unpacked = opened(fileobj=stream) if compression == "gzip" else opened(stream)
    return iter(lambda: unpacked.read(_CHUNK), b"")


def _zstd(stream: BinaryIO, file: SourceFile) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise BadConfig(
            f"source {file.name} needs zstandard, which is not installed: pip install 'shardflow[zstd]'"
        ) from error
    frame: Any = None
    while data := stream.read(_CHUNK):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from error
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("it ends before its last frame does")
