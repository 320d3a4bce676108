"""What must hold for any bytes at all that claim to be a tar or an index: for tests, exhibits and fuzzers alike.

A failure is an AssertionError, or any exception that is no ShardflowError.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from loader import tar
from loader.errors import BadSample, ShardflowError
from loader.index import Index
from loader.indexed_tar_samples import IndexedTarSamples
from loader.indexing import build

Found = tuple[list[tuple[str, int, int]], list[tuple[str, str]], int]


class ByOne(tar.Walk):
    """A walk that looks at every header by itself: what reading in bulk must agree with."""

    def _hop(self) -> None:
        return None

    _dense = _hop


class ByBlocks(tar.Walk):
    """A walk that looks at every block in a window from the first on."""

    def _hop(self) -> tar.Batch | None:
        return self._dense()


def walked(data: bytes | mmap.mmap, require_end: bool = True, kind: type[tar.Walk] = tar.Walk) -> Found:
    """((name, offset, size) of each member, (reason, name) of what is none, the end of the archive)."""
    walk = kind(data, "x.tar", require_end)
    members, skipped = [], []
    for batch in walk:
        names = [name.decode("utf-8", "surrogateescape") for name in batch.names]
        members += list(zip(names, batch.offsets.tolist(), batch.sizes.tolist(), strict=True))
        skipped += [(why, name.decode("utf-8", "surrogateescape")) for why, name in batch.skipped]
        assert [at + tar.BLOCK for at in batch.headers.tolist()] == batch.offsets.tolist()
    walk.release()
    return members, skipped, walk.at


@contextlib.contextmanager
def mapped(data: bytes) -> Iterator[tar.TarMap]:
    """The bytes as a mapped file, whose headers are read through its descriptor."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        with tar.TarMap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            buffer.file = file.fileno()
            yield buffer


def _outcome(data: bytes | mmap.mmap, require_end: bool, kind: type[tar.Walk]) -> Found | tuple[type, str]:
    try:
        return walked(data, require_end, kind)
    except ShardflowError as error:
        assert len(str(error)) < 3000
        return type(error), str(error)


def check_tar(data: bytes, require_end: bool = True) -> bool:
    """One clear error (False), or members that lie inside; the same however many headers are read together."""
    first, *others = (_outcome(data, require_end, kind) for kind in (tar.Walk, ByOne, ByBlocks))
    assert all(other == first for other in others)
    if data:
        with mapped(data) as buffer:
            assert _outcome(buffer, require_end, tar.Walk) == first
    if isinstance(first[0], type):
        return False
    end = 0
    for _, at, size in first[0]:
        assert end + tar.BLOCK <= at <= at + size <= len(data)
        end = at + size
    try:
        index = build(data, "x.tar", require_end=require_end)
    except ShardflowError:
        return False
    explore(Index(index, "x.index"))
    Index(index, "x.index").verify()
    with IndexedTarSamples(
        io.BytesIO(data), backend="memory", decode=False, require_end=require_end
    ) as samples:
        for number, sample in enumerate(samples):
            assert sample["__key__"] == samples.key(number)
    return True


def _found(find: Callable[[str], int], name: str) -> int | None:
    try:
        return find(name)
    except KeyError:
        return None


def explore(index: Index) -> list[Any]:
    """Everything that an index can be asked; BadIndex where it lies."""
    seen: list[Any] = [index.extensions, index.tar_size, index.checksum, index.grouping, index.skipped]
    for sample in range(index.num_samples):
        seen += [index.key(sample), list(index.members(sample))[:1000]]
    for number in range(index.num_members):
        start, end = index.span(number)
        assert 0 <= start <= end <= index.tar_size
        seen += [(start, end), index.member_extension(number), index.member_name(number)]
    names, keys = index.names(), index.keys()
    seen += [_found(index.find_name, name) for name in (*names[:50], "0.jpg", "caf\udce9.txt", "none.jpg")]
    seen += [_found(index.find_key, key) for key in (*keys[:50], "0", "3", "caf\udce9", "none")]
    return [*seen, names, keys]


def check_index(data: bytes, tar_data: bytes | None = None) -> bool:
    """One clear error (False), or an index that answers everything; then its members are read from `tar_data`."""
    try:
        explore(Index(data, "x.index"))
    except ShardflowError:
        return False
    if tar_data is not None:
        try:
            with IndexedTarSamples(
                io.BytesIO(tar_data), backend="memory", index=Index(data, "x.index"), decode=False
            ) as samples:
                for number in range(len(samples)):
                    samples[number]
        except (ShardflowError, BadSample):
            return False
    return True
