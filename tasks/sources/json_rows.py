"""JSON and JSONL: rows as byte ranges. Blank lines are no rows; one that cannot be parsed is one, so that repairing
it moves no other."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from json.decoder import JSONDecodeError
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
import numpy.typing as npt

from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.sources import base
from tasks.sources.base import Found, Place, Segment, SourceFile, StreamReader, open_text

_CHUNK = 4 << 20
_BLOCK = 1 << 20  # bytes in which lines are looked for at a time
_AT_ONCE = 1000  # lines that are objects at a time
_NEWLINE = ord("\n")
_INK = np.array([not bytes((byte,)).isspace() for byte in range(256)])
_SPACE = re.compile(r"[ \t\r\n]*")
# For finding ends only: lenient, and blind to how large a number is. Text is latin-1, a character for each byte,
# so that places in it are byte offsets; no byte of a multi-byte UTF-8 character looks like structure.
_END_FINDER = json.JSONDecoder(strict=False, parse_int=len, parse_float=len)


class _Twice(ValueError):
    """A name that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return found


_DECODE = json.JSONDecoder(object_pairs_hook=_object).decode


def parse(data: bytes) -> tuple[dict[str, Any] | None, str]:
    """The record that a row holds, or why it is none."""
    if len(data) > base.MAX_ROW:
        return None, f"longer than {base.MAX_ROW:,} bytes"
    try:
        value = _DECODE(data.decode().rstrip())
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: {error.reason} at byte {error.start + 1} of the row"
    except JSONDecodeError as error:
        return None, f"not JSON: {error.msg} at character {error.pos + 1} of the row"
    except RecursionError:
        return None, "nested too deeply"
    except _Twice as error:
        return None, f"the field {str(error)[:60]!a} is there twice: which one is meant?"
    except ValueError as error:  # a number of thousands of digits
        return None, f"not usable: {error}"
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        return None, f"a JSON object was expected, found {kind}"
    return value, ""


class LinesReader(StreamReader):
    """An object a line."""

    def __init__(self, file: SourceFile, config: PackConfig) -> None:
        super().__init__(file, config)
        self._stream, self._start = open_text(file, self.options)

    def places(self) -> Iterator[Place]:
        """Lines that aren't blank."""
        for lines in self._tables():
            for at in range(0, lines.shape[1], _AT_ONCE):
                yield from map(Place._make, lines[:, at : at + _AT_ONCE].T.tolist())

    def segments(self, first: int, most: int) -> Iterator[Segment]:
        """All rows in segments, cut as `places` would be, without a look at each."""
        start = end = first_row = count = 0
        room = first
        for lines in self._tables():
            at = 0
            while at < lines.shape[1]:
                taken = lines[:, at : at + room - count]
                if not count:
                    start, first_row = int(taken[0, 0]), int(taken[2, 0])
                end = int(taken[1, -1])
                count += taken.shape[1]
                at += taken.shape[1]
                if count == room:
                    yield Segment(self.file, start, end, first_row, count)
                    count, room = 0, most
        if count:
            yield Segment(self.file, start, end, first_row, count)

    def _tables(self) -> Iterator[npt.NDArray[np.int64]]:
        """Begins, ends and numbers of lines that aren't blank, many at a time."""
        self._stream.seek(self._start)
        return _line_table(self._stream, self._start, self.file.size)

    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """From the range alone."""
        self._stream.seek(segment.start)
        lines = _lines(self._stream, segment.start, segment.end)
        for row, line in enumerate(lines, segment.first_row):
            if not line.isspace():
                yield Found(row, line, *parse(line))


class ListReader(LinesReader):
    """A list of objects, or one object."""

    def places(self) -> Iterator[Place]:
        """Elements; BadConfig names line and column of JSON that is none."""
        self._stream.seek(self._start)
        elements = _Elements(self._stream, self._start, self.file.size, self.file.name)
        for row, (begin, text) in enumerate(elements.document(), 1):
            yield Place(begin, begin + len(text), row)

    def segments(self, first: int, most: int) -> Iterator[Segment]:
        """By its places."""
        return base.cut(self.places(), self.file, first, most)

    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """From the range alone."""
        self._stream.seek(segment.start)
        elements = _Elements(self._stream, segment.start, segment.end, self.file.name)
        for row, (_, text) in enumerate(elements.listed(0), segment.first_row):
            data = text.encode("latin-1")
            yield Found(row, data, *parse(data))


def _line_table(stream: BinaryIO, at: int, end: int) -> Iterator[npt.NDArray[np.int64]]:
    """Three rows: first byte, byte after the last, and number from 1, of each line that isn't blank; many at a time."""
    begin, inked, row = at, False, 1  # of the line that a chunk before has begun
    while at < end and (chunk := stream.read(min(_BLOCK, end - at))):
        text = np.frombuffer(chunk, np.uint8)
        ends = np.flatnonzero(text == _NEWLINE) + 1
        at += len(chunk)
        begins = np.concatenate(([0], ends))
        ink = np.logical_or.reduceat(_INK[text], begins[: len(ends) + (begins[-1] < len(text))])
        ink[:1] |= inked
        whole = len(ends)
        lines = np.stack(
            (begins[:whole] + at - len(chunk), ends + at - len(chunk), np.arange(row, row + whole))
        )
        if whole:
            lines[0, 0] = begin
            begin, inked = int(lines[1, -1]), False
            yield lines[:, ink[:whole]]
        row += whole
        inked |= bool(ink[whole:].any())
    if inked:
        yield np.array([[begin], [at], [row]])


def _lines(stream: BinaryIO, at: int, end: int) -> Iterator[bytes]:
    """The bytes of each line; of a line over base.MAX_ROW only so much that it shows."""
    while at < end:
        line = stream.readline(min(base.MAX_ROW + 1, end - at))
        if not line:
            return
        at += len(line)
        if len(line) > base.MAX_ROW:
            while at < end and not line.endswith(b"\n") and (rest := stream.readline(min(_CHUNK, end - at))):
                at += len(rest)
                line = line[:-1] + rest[-1:]
        yield line


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
            if len(self._text) - at > base.MAX_ROW:
                self._refuse(at, f"an element of more than {base.MAX_ROW:,} bytes")
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
