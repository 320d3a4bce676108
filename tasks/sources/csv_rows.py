"""CSV and TSV: rows as byte ranges, read as Python's csv module reads them, so a quoted field may hold line breaks.

The first line gives the fields. A cell is text, an empty one an empty text.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.sources import base
from tasks.sources.base import Found, Place, Segment, SourceFile, StreamReader, open_text

_DELIMITERS = ",;|\t"
_NOT_CLOSED = "a quote is never closed, or a field is longer than 131,072 characters"


class TextReader(StreamReader):
    """A file of comma-separated values; ``tsv``: of tab-separated ones."""

    def __init__(self, file: SourceFile, config: PackConfig) -> None:
        super().__init__(file, config)
        self._stream, start = open_text(file, self.options)
        first = self._stream.readline(base.MAX_ROW)
        self._delimiter = "\t" if file.kind == "tsv" else max(_DELIMITERS, key=first.decode("latin-1").count)
        self._stream.seek(start)
        self._header: list[str] = []
        self._start = start
        for place, cells in self._records(start, file.size):
            self._start = place.end
            self._header = [cell.encode("latin-1").decode("utf-8", "replace").strip() for cell in cells]
            break
        if len(set(self._header)) != len(self._header):
            twice = next(name for name in self._header if self._header.count(name) > 1)
            self._stream.close()
            raise BadConfig(f"source {file.name}: its first line names the field {twice[:60]!a} twice")

    def places(self) -> Iterator[Place]:
        """Records after the first; blank lines are none."""
        for place, _ in self._records(self._start, self.file.size):
            yield Place(place.start, place.end, place.row + 1)

    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """From the range alone."""
        for place, cells in self._records(segment.start, segment.end):
            row = segment.first_row + place.row - 1
            yield Found(row, "\0".join(cells).encode("latin-1"), *self._record(cells))

    def _records(self, start: int, end: int) -> Iterator[tuple[Place, list[str]]]:
        """Each record's place, numbered from 1, and its cells, a character for each byte.

        Where a quote is never closed, the line that it stands in is a record with one cell, `_NOT_CLOSED`.
        """
        at, row = start, 0
        while at < end:
            self._stream.seek(at)
            lines = _Lines(self._stream.readline, at, end)
            records = csv.reader(lines, delimiter=self._delimiter)
            begin = at
            try:
                for cells in records:
                    if cells:
                        row += 1
                        yield Place(begin, lines.at, row), cells
                    begin = lines.at
                return
            except csv.Error:
                row += 1
                self._stream.seek(begin)
                at = begin + len(self._stream.readline(end - begin))
                yield Place(begin, at, row), [_NOT_CLOSED]

    def _record(self, cells: list[str]) -> tuple[dict[str, Any] | None, str]:
        if cells == [_NOT_CLOSED]:
            return None, f"not CSV: {_NOT_CLOSED}"
        if len(cells) != len(self._header):
            return (
                None,
                f"{len(cells)} fields, but the first line names {len(self._header)}: is a quote missing?",
            )
        try:
            texts = [cell.encode("latin-1").decode() for cell in cells]
        except UnicodeDecodeError as error:
            return None, f"not UTF-8: {error.reason}"
        return dict(zip(self._header, texts, strict=True)), ""


class _Lines:
    """The lines of a range for a csv reader, which takes no more than it needs: `at` is where it has got to."""

    def __init__(self, readline: Any, at: int, end: int) -> None:
        self._readline, self.at, self._end = readline, at, end

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._readline(self._end - self.at)
        if not line:
            raise StopIteration
        self.at += len(line)
        return str(line, "latin-1")
