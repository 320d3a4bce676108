"""JSON and JSONL → slots of rows, as byte ranges; and the rows of a slot, read from their range alone.

A plan costs one pass over the sources and a few numbers for each slot, never the records themselves: the work of
a worker is told by addresses and offsets. Rows are numbered twice: in their file, from 1 (the line in a JSONL
file, the element in a JSON list), for a person to find; and over all files, from 0, files in sorted order, for
the key. Blank lines are no rows; a row that cannot be parsed is one, so that repairing it moves no other.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from json.decoder import JSONDecodeError
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

from loader import storage
from loader.errors import BadConfig
from tasks.config import PackConfig

MAX_ROW = 64 << 20  # bytes of one record; a longer line costs itself, not the memory of a worker
MAX_ROWS = 1_000_000_000  # a key has nine digits
_CHUNK = 4 << 20
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_SUFFIXES = (".json", ".jsonl", ".ndjson")
_SPACE = re.compile(r"[ \t\r\n]*")
# For finding ends only: lenient, and blind to how large a number is. Text is latin-1, a character for each byte,
# so that places in it are byte offsets; no byte of a multi-byte UTF-8 character looks like structure.
_END_FINDER = json.JSONDecoder(strict=False, parse_int=len, parse_float=len)


class SourceFile(NamedTuple):
    """A source as it was when planned."""

    address: str
    size: int
    version: str


class Segment(NamedTuple):
    """`rows` consecutive rows: bytes ``[start, end)`` of `file`, the first of them row `first_row` there."""

    file: SourceFile
    start: int
    end: int
    first_row: int
    rows: int


@dataclass(frozen=True)
class Slot:
    """The rows that one shard is made of: `rows` of them, from global row `first_row` on."""

    index: int
    first_row: int
    rows: int
    segments: tuple[Segment, ...]


class Row(NamedTuple):
    """`record` is None where `error` says why; `data` are the bytes as stored."""

    number: int
    source: str
    row: int
    data: bytes
    record: dict[str, Any] | None
    error: str = ""


def find_sources(config: PackConfig) -> list[str]:
    """The source files, sorted. Hidden ones, and the job's own output, are none."""
    pattern = config.source
    options = config.options_for(pattern)
    try:
        found = storage.expand(pattern, storage_options=options)
    except FileNotFoundError as error:
        raise BadConfig(f"source: {error}") from error
    if found == [pattern]:
        if _suffix(pattern) not in _SUFFIXES:
            raise BadConfig(f"source is {pattern}: a name that ends in {', '.join(_SUFFIXES)} was expected")
    else:
        fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        found = [
            file for file in found if _suffix(file) in _SUFFIXES and "/." not in "/" + file[len(fixed) :]
        ]
    inside = config.output.rstrip("/") + "/"
    sources = [file for file in found if not file.startswith(inside)]
    if found and not sources:
        raise BadConfig(
            f"output is {config.output}, which holds the sources themselves: choose another folder"
        )
    if not sources:
        raise BadConfig(f"source is {pattern}: no file there ends in {', '.join(_SUFFIXES)}")
    return sources


def plan_slots(config: PackConfig) -> list[Slot]:
    """All rows of all sources, `max_samples` a slot, slots across files where these are short.

    Reads the sources once. BadConfig names the file, line and column of JSON that is none; a malformed line of
    a JSONL file is found by the worker that reads it.
    """
    most = config.max_samples
    slots: list[Slot] = []
    segments: list[Segment] = []
    first, rows = 0, 0  # of the slot in the making

    def close() -> None:
        nonlocal segments, first, rows
        if segments:
            slots.append(Slot(len(slots), first, rows, tuple(segments)))
        segments, first, rows = [], first + rows, 0

    for address in find_sources(config):
        options = config.options_for(address)
        stat = storage.stat(address, options)
        file = SourceFile(address, stat.size, stat.version)
        for segment in _segments(file, most - rows, most, options):
            segments.append(segment)
            rows += segment.rows
            if rows == most:
                close()
    close()
    if first > MAX_ROWS:
        raise BadConfig(f"source has {first:,} rows: at most {MAX_ROWS:,} can be numbered; pack it in parts")
    if len(slots) > 1_000_000:
        raise BadConfig(f"max_samples is {most}: that makes {len(slots):,} shards, more than 1,000,000")
    return slots


def rows(slot: Slot, config: PackConfig) -> Iterator[Row]:
    """The rows of a slot in order. BadConfig if a source has changed since it was planned."""
    number = slot.first_row
    for segment in slot.segments:
        file = segment.file
        options = config.options_for(file.address)
        stat = storage.stat(file.address, options)
        if (stat.size, stat.version) != file[1:]:
            _changed(file)
        count = 0
        with _open(file.address, options) as stream:
            stream.seek(segment.start)
            read = _read_elements if _suffix(file.address) == ".json" else _read_lines
            for row, data in read(stream, segment):
                yield Row(number, file.address, row, data, *_parse(data))
                number += 1
                count += 1
        if count != segment.rows:
            _changed(file)


def _changed(file: SourceFile) -> None:
    raise BadConfig(f"source {file.address} has changed since this run began: run it again")


def _suffix(address: str) -> str:
    name = storage.name(address).lower()
    return name[name.rfind(".") :] if "." in name else ""


def _open(address: str, options: storage.StorageOptions | None) -> BinaryIO:
    stream = storage.open_read(address, options)
    if storage.is_local(address):
        return stream
    # fsspec's own readline goes block by block in Python
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20))


def _parse(data: bytes) -> tuple[dict[str, Any] | None, str]:
    if len(data) > MAX_ROW:
        return None, f"longer than {MAX_ROW:,} bytes"
    try:
        value = json.loads(data.decode().rstrip())
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: {error.reason} at byte {error.start + 1} of the row"
    except JSONDecodeError as error:
        return None, f"not JSON: {error.msg} at character {error.pos + 1} of the row"
    except RecursionError:
        return None, "nested too deeply"
    except ValueError as error:  # a number of thousands of digits
        return None, f"not usable: {error}"
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        return None, f"a JSON object was expected, found {kind}"
    return value, ""


def _segments(
    file: SourceFile, first: int, most: int, options: storage.StorageOptions | None
) -> Iterator[Segment]:
    """The file's rows in segments: the first of up to `first` rows, the others of up to `most`."""
    room = first
    start = end = first_row = count = 0
    for begin, stop, row in _ranges(file, options):
        if not count:
            start, first_row = begin, row
        end = stop
        count += 1
        if count == room:
            yield Segment(file, start, end, first_row, count)
            count, room = 0, most
    if count:
        yield Segment(file, start, end, first_row, count)


def _ranges(file: SourceFile, options: storage.StorageOptions | None) -> Iterator[tuple[int, int, int]]:
    """(first byte, byte after the last, number in the file) of each row."""
    with _open(file.address, options) as stream:
        head = stream.read(len(_BOM))
        if head.startswith(_UTF16):
            raise BadConfig(f"source {file.address} is UTF-16: UTF-8 was expected; convert it")
        start = len(_BOM) if head == _BOM else 0
        stream.seek(start)
        if _suffix(file.address) == ".json":
            elements = _Elements(stream, start, file.size, file.address)
            for row, (begin, data) in enumerate(elements.document(), 1):
                yield begin, begin + len(data), row
        else:
            for row, (begin, end, line) in enumerate(_lines(stream, start, file.size), 1):
                if not line.isspace():
                    yield begin, end, row


def _read_lines(stream: BinaryIO, segment: Segment) -> Iterator[tuple[int, bytes]]:
    for row, (_, _, line) in enumerate(_lines(stream, segment.start, segment.end), segment.first_row):
        if not line.isspace():
            yield row, line


def _read_elements(stream: BinaryIO, segment: Segment) -> Iterator[tuple[int, bytes]]:
    elements = _Elements(stream, segment.start, segment.end, segment.file.address)
    for row, (_, text) in enumerate(elements.listed(0), segment.first_row):
        yield row, text.encode("latin-1")


def _lines(stream: BinaryIO, at: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """(first byte, byte after the last, bytes) of each line; of a line over MAX_ROW only so much that it shows."""
    while at < end:
        begin = at
        line = stream.readline(min(MAX_ROW + 1, end - at))
        if not line:
            return
        at += len(line)
        if len(line) > MAX_ROW:
            while at < end and not line.endswith(b"\n") and (rest := stream.readline(min(_CHUNK, end - at))):
                at += len(rest)
                line = line[:-1] + rest[-1:]
        yield begin, at, line


class _Elements:
    """The elements of a JSON list, found in a stream of any length with a window on it."""

    def __init__(self, stream: BinaryIO, at: int, end: int, address: str) -> None:
        self._stream, self._address = stream, address
        self._text = ""
        self._base = at  # byte offset of the window's first character
        self._unread = end - at
        self._line, self._column = 1, 1  # of the window's first character

    def document(self) -> Iterator[tuple[int, str]]:
        """(first byte, text) of each element of the file's list, or of its one object."""
        at, first = self._skip(0)
        if first == "{":
            element, at = self._next(at)
            yield element
        elif first == "[":
            at, closing = self._skip(at + 1)
            if closing != "]":
                at = yield from self.listed(at)
                at, closing = self._skip(at)
            if closing != "]":
                self._refuse(at, "Expecting ',' or ']'")
            at += 1
        else:
            self._refuse(at, "a list of objects, or one object, was expected")
        at, more = self._skip(at)
        if more:
            self._refuse(at, "more data after the end (one object a line? then name it .jsonl)")

    def listed(self, at: int) -> Generator[tuple[int, str], None, int]:
        """Elements with commas between, from place `at` of the window on; returns the place after the last."""
        while True:
            at, _ = self._skip(at)
            element, at = self._next(at)
            yield element
            at, comma = self._skip(at)
            if comma != ",":
                return at
            at += 1

    def _next(self, at: int) -> tuple[tuple[int, str], int]:
        """((first byte, text), place after it) of the value at place `at`."""
        while True:
            try:
                _, end = _END_FINDER.raw_decode(self._text, at)
            except RecursionError:
                self._refuse(at, "nested too deeply")
            except JSONDecodeError as error:
                # Cut off by the window, or wrong? An unfinished string is reported where it begins, all else
                # within the longest token (-Infinity, or an escape) before the end.
                near = error.pos >= len(self._text) - 16 or error.msg.startswith("Unterminated string")
                if not (self._unread and near):
                    self._refuse(error.pos, error.msg)
            else:
                # What looks like the number 12 may go on as 123, 12.5 or 12e-3.
                rest = self._text[end : end + 3]
                if not self._unread or (rest and (len(rest) > 2 or rest[0] not in ".eE")):
                    return (self._base + at, self._text[at:end]), end
            if len(self._text) - at > MAX_ROW:
                self._refuse(at, f"an element of more than {MAX_ROW:,} bytes")
            at = self._fill(at)

    def _skip(self, at: int) -> tuple[int, str]:
        """The next character that is no white space, after its place; empty at the end."""
        while (at := cast("re.Match[str]", _SPACE.match(self._text, at)).end()) == len(self._text):
            if not self._unread:
                return at, ""
            at = self._fill(at)
        return at, self._text[at]

    def _fill(self, keep: int) -> int:
        """Drop the window's text before `keep`, read on; returns the new place of `keep`.

        As much again as is kept, so that a long element costs no more than twice its length.
        """
        dropped, kept = self._text[:keep], self._text[keep:]
        data = self._stream.read(min(max(_CHUNK, len(kept)), self._unread))
        if not data:
            raise BadConfig(f"source {self._address} has changed since this run began: run it again")
        self._line, self._column = _advance(self._line, self._column, dropped)
        self._base += keep
        self._unread -= len(data)
        self._text = kept + data.decode("latin-1")
        return 0

    def _refuse(self, at: int, reason: str) -> NoReturn:
        line, column = _advance(self._line, self._column, self._text[:at])
        raise BadConfig(
            f"source {self._address} is no JSON: {reason}: line {line}, column {column} "
            f"(byte {self._base + at:,}); repair it, or write one object a line as .jsonl, where a bad line costs "
            "only itself"
        )


def _advance(line: int, column: int, text: str) -> tuple[int, int]:
    """The line and column (in characters, from 1) after `text`, which is UTF-8 read as latin-1."""
    if newlines := text.count("\n"):
        line += newlines
        column = 1
        text = text[text.rindex("\n") + 1 :]
    return line, column + len(text.encode("latin-1").decode(errors="ignore"))
