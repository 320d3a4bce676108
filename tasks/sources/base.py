"""What every kind of source is to the rest: files, ranges of rows in them, and readers that give the rows of a range.

A plan costs one pass over the sources and a few numbers for each slot, never the records themselves: the work of
a worker is told by addresses and offsets. Rows are numbered twice: in their file, from 1, for a person to find;
and over all files, from 0, files in sorted order, for the key.
"""

from __future__ import annotations

import bisect
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

from loader import storage
from loader.errors import BadConfig
from loader.storage import StorageOptions
from tasks.config import PackConfig

MAX_ROW = 64 << 20  # bytes of one record; a longer one costs itself, not the memory of a worker
_GAP = 64 << 10  # bytes that are read for nothing rather than asked for in two requests
BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")

Members = tuple[
    tuple[str, bytes], ...
]  # as `loader.writer` takes them: what follows the key in a name, and bytes


class SourceFile(NamedTuple):
    """A source as it was when planned. `kind` says who reads it; `origin` is what a report calls it, if that differs;
    `base` is where relative addresses in it are seen from, if that isn't its folder."""

    address: str
    size: int
    version: str
    kind: str = ""
    origin: str = ""
    base: str = ""

    @property
    def name(self) -> str:
        """The address that a person knows it by."""
        return self.origin or self.address


class Segment(NamedTuple):
    """`rows` consecutive rows: places ``[start, end)`` of `file` (bytes, or numbers from 0), from `first_row` on."""

    file: SourceFile
    start: int
    end: int
    first_row: int
    rows: int


class Table(NamedTuple):
    """Entries ``[start, end)`` of a table of single rows, in the order that they are packed in (`tasks.arrange`)."""

    address: str
    start: int
    end: int


@dataclass(frozen=True)
class Slot:
    """The rows that one shard is made of: `rows` of them, from global row `first_row` on, or as `table` lists them.

    `number` is the shard's in its dataset, `split` the dataset's part of the output ("" if there is but one).
    """

    index: int
    first_row: int
    rows: int
    segments: tuple[Segment, ...]
    table: Table | None = None
    split: str = ""
    number: int = -1
    drop: frozenset[int] | None = None  # numbers of the rows that are duplicates; None before that is known
    together: int = 0  # how many slots the plan has; 0 where nobody knows
    sealed: bool = False  # packed by an earlier run, and its rows are nowhere else any more

    @property
    def shard(self) -> int:
        """The number in the shard's name."""
        return self.index if self.number < 0 else self.number


class Row(NamedTuple):
    """`record` is None where `error` says why; `data` are the bytes as stored, or what stands for them.

    `members` and `key` are those of a sample that is one already; `base` is where relative addresses are seen from.
    """

    number: int
    source: str
    row: int
    data: bytes
    record: dict[str, Any] | None
    error: str = ""
    members: Members | None = None
    key: str = ""
    base: str = ""


class Place(NamedTuple):
    """Where one row lies in its file, and its number there."""

    start: int
    end: int
    row: int


class Found(NamedTuple):
    """A row as its reader found it."""

    row: int
    data: bytes
    record: dict[str, Any] | None
    error: str = ""
    members: Members | None = None
    key: str = ""


class Reader(ABC):
    """One source file, open. Use it as a context manager."""

    def __init__(self, file: SourceFile, config: PackConfig) -> None:
        self.file = file
        self.config = config
        self.options = options_of(config, file.address)

    @abstractmethod
    def places(self) -> Iterator[Place]:
        """Where each row lies, in order."""

    @abstractmethod
    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """The rows of a range; `light`: members of ready samples aren't needed."""

    def pick(self, rows: Sequence[Segment], light: bool = False) -> Iterator[Found]:
        """Single rows, in the order that they are asked for."""
        for row in rows:
            yield from self.read(row, light)

    def segments(self, first: int, most: int) -> Iterator[Segment]:
        """All rows in segments: the first of up to `first` rows, the others of up to `most`."""
        return cut(self.places(), self.file, first, most)

    def block(self) -> int:
        """How many rows in a row are to be kept together by a shuffle, since none of them can be read alone."""
        return 1

    def column(self, name: str) -> Iterator[Any]:
        """One field of all rows in order; None where it can't be had."""
        for segment in self.segments(10_000, 10_000):
            for found in self.read(segment, light=True):
                yield None if found.record is None else found.record.get(name)

    def close(self) -> None:  # noqa: B027 - not every reader holds something
        """Let go of what is open."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamReader(Reader):
    """A file whose rows are read from a stream; those of a store that lie here and there, by ranges, many at a time."""

    _stream: BinaryIO

    def pick(self, rows: Sequence[Segment], light: bool = False) -> Iterator[Found]:
        """Single rows, in the order that they are asked for."""
        spans = [] if light else [span for row in rows for span in self._spans(row)]
        if storage.is_local(self.file.address) or not spans:
            yield from super().pick(rows, light)
            return
        found = storage.read_ranges(self.file.address, spans, self.options, max_gap=_GAP)
        whole = self._stream
        self._stream = cast(BinaryIO, _Pieces(spans, found))
        try:
            yield from super().pick(rows, light)
        finally:
            self._stream = whole

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def _spans(self, row: Segment) -> list[tuple[int, int]]:
        """The bytes of a row."""
        return [(row.start, row.end)]


class _Pieces:
    """Some ranges of a stream, in place of all of it."""

    def __init__(self, spans: Sequence[tuple[int, int]], pieces: Sequence[bytes]) -> None:
        known = sorted(zip((start for start, _ in spans), pieces, strict=True))
        self._starts = [start for start, _ in known]
        self._pieces = [piece for _, piece in known]
        self._piece = io.BytesIO()

    def seek(self, offset: int) -> None:
        """To a place in one of the ranges, where reading ends with the range."""
        number = bisect.bisect_right(self._starts, offset) - 1
        self._piece = io.BytesIO(self._pieces[number])
        self._piece.seek(offset - self._starts[number])

    def read(self, size: int) -> bytes:
        """As a stream does."""
        return self._piece.read(size)

    def readline(self, size: int = -1) -> bytes:
        """As a stream does."""
        return self._piece.readline(size)


class NumberedReader(Reader):
    """A file whose rows are found by their number: nothing has to be read to divide them."""

    @abstractmethod
    def __len__(self) -> int: ...

    def places(self) -> Iterator[Place]:
        """Numbers from 0."""
        return (Place(row, row + 1, row + 1) for row in range(len(self)))

    def segments(self, first: int, most: int) -> Iterator[Segment]:
        """By arithmetic."""
        start, room = 0, first
        while start < len(self):
            end = min(start + room, len(self))
            yield Segment(self.file, start, end, start + 1, end - start)
            start, room = end, most


def cut(places: Iterable[Place], file: SourceFile, first: int, most: int) -> Iterator[Segment]:
    """Rows as segments: the first of up to `first` rows, the others of up to `most`."""
    room = first
    start = end = first_row = count = 0
    for begin, stop, row in places:
        if not count:
            start, first_row = begin, row
        end = stop
        count += 1
        if count == room:
            yield Segment(file, start, end, first_row, count)
            count, room = 0, most
    if count:
        yield Segment(file, start, end, first_row, count)


def options_of(config: PackConfig, address: str) -> StorageOptions | None:
    """The storage options for a source, or for what was prepared of it in the output (`tasks.sources.spool`)."""
    if address.startswith(config.output.rstrip("/") + "/"):
        return config.storage_options
    return config.options_for(address)


def described(address: str, config: PackConfig, kind: str, origin: str = "", base: str = "") -> SourceFile:
    """The file as it is now."""
    stat = storage.stat(address, options_of(config, address))
    return SourceFile(address, stat.size, stat.version, kind, origin, base)


def check_unchanged(file: SourceFile, config: PackConfig) -> None:
    """BadConfig if a source isn't what was planned."""
    stat = storage.stat(file.address, options_of(config, file.address))
    if (stat.size, stat.version) != (file.size, file.version):
        changed(file)


def field_of(record: dict[str, Any] | None, name: str, ready: bool) -> Any:
    """A field of a record; of a sample that is `ready`, of its .json or the metadata in there."""
    if not ready:
        return (record or {}).get(name)
    document = (record or {}).get(".json")
    values = document if isinstance(document, dict) else {}
    inner = values.get("metadata")
    return values.get(name, inner.get(name) if isinstance(inner, dict) else None)


def changed(file: SourceFile) -> NoReturn:
    """It is not as it was when it was planned."""
    raise BadConfig(f"source {file.name} has changed since this run began: run it again")


def open_text(file: SourceFile, options: StorageOptions | None) -> tuple[BinaryIO, int]:
    """A stream of UTF-8 text, and where the text begins in it; BadConfig for UTF-16."""
    stream = storage.open_read(file.address, options)
    if not storage.is_local(file.address):  # fsspec's own readline goes block by block in Python
        stream = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20))
    head = stream.read(len(BOM))
    if head.startswith(_UTF16):
        stream.close()
        raise BadConfig(f"source {file.name} is UTF-16: UTF-8 was expected; convert it")
    start = len(BOM) if head == BOM else 0
    stream.seek(start)
    return stream, start
