"""A Python function that gives records, one after the other: ``module:function``. It may wait as long as it likes.

What it gives is written down, a file for each slot (`tasks.sources.spool`), so that a slot can be read by any worker,
and once more. A function that takes ``start`` is told how many of its records are safe there, and goes on behind
them: so a queue loses nothing. Any other is asked from its beginning.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from loader import storage
from loader.errors import BadConfig
from tasks import manifest, recipes
from tasks.config import PackConfig
from tasks.sources import base, spool
from tasks.sources.base import Found, Place, Segment, Slot, SourceFile, StreamReader, described

# A part is, for each row: a line of JSON, [number of the row, record without its bytes, where these belong, their
# sizes, error], and the bytes.
Path = list[Any]


def resumable(config: PackConfig) -> bool:
    """Whether the function takes ``start``."""
    function = recipes.resolve(config.source, config.recipe_folder, "source")
    try:
        return "start" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def slots(config: PackConfig, most: int, first_slot: int, first_row: int) -> Iterator[Slot]:
    """The function's records as slots of at most `most` rows, each as soon as it is full and written down."""
    index, row = first_slot, first_row
    goes_on = resumable(config)
    while goes_on and (slot := _known(config, index, row, first_slot)):
        yield slot
        index, row = index + 1, row + slot.rows
    records = _checked(config, row - first_row if goes_on else None)
    for first in records:  # which it may wait for: a file is begun when there is something to write
        part = _Part(chain([first], islice(records, most - 1)), row - first_row + 1)
        place = _part(config, index - first_slot)
        spool.write(place, part, config)
        yield _slot(_described(place, config), index, row, first_row, part.rows)
        index, row = index + 1, row + part.rows


def release(config: PackConfig, packed: Iterable[Slot]) -> None:
    """Remove what was written down of slots that are packed."""
    for slot in packed:
        for segment in slot.segments:
            storage.remove(segment.file.address, config.storage_options)


def _known(config: PackConfig, index: int, row: int, first_slot: int) -> Slot | None:
    """A slot whose records are safe: written down, or packed already."""
    place = _part(config, index - first_slot)
    if storage.exists(place, config.storage_options):
        file = _described(place, config)
        with FunctionReader(file, config) as reader:
            places = list(reader.places())
        return _slot(file, index, row, row - (places[0].row - 1), len(places))
    found = manifest.load(config.output, index, config.storage_options)
    return Slot(index, row, found.rows, (), sealed=True) if found else None


def _slot(file: SourceFile, index: int, row: int, first_row: int, rows: int) -> Slot:
    return Slot(index, row, rows, (Segment(file, 0, file.size, row - first_row + 1, rows),))


def _part(config: PackConfig, number: int) -> str:
    return spool.address(config, f"{config.source} {config.recipe_folder} {number}", ".python")


def _described(part: str, config: PackConfig) -> SourceFile:
    folder = config.recipe_folder or storage.normalise(".")  # relative addresses are seen from the config's
    return described(part, config, "python", config.source, folder)


def _checked(config: PackConfig, start: int | None) -> Iterator[Any]:
    """What the function gives; BadConfig for whatever it raises."""
    function: Any = recipes.resolve(config.source, config.recipe_folder, "source")
    count = start or 0
    try:
        records: Iterable[Any] = function() if start is None else function(start=start)
        for record in records:
            yield record
            count += 1
    except Exception as error:
        raise BadConfig(
            f"source {config.source} raised {type(error).__name__} after {count:,} records: {error}"
        ) from error


class _Part:
    """Records as they are written down, one at a time in memory; `rows` so far."""

    def __init__(self, records: Iterable[Any], first: int) -> None:
        self._records, self._first, self.rows = records, first, 0

    def __iter__(self) -> Iterator[bytes]:
        for record in self._records:
            yield from _pieces(self._first + self.rows, record)
            self.rows += 1


def _pieces(row: int, record: Any) -> list[bytes]:
    """One row as it is written down."""
    error = ""
    blobs: list[bytes] = []
    places: list[Path] = []
    if not isinstance(record, Mapping):
        error = f"a dict was expected, found {type(record).__name__}"
    else:
        record = _without_bytes(dict(record), [], places, blobs)
    try:
        line = json.dumps([row, None if error else record, places, list(map(len, blobs)), error])
    except (TypeError, ValueError, RecursionError) as reason:
        line, blobs = json.dumps([row, None, [], [], f"it can't be written down as JSON: {reason}"]), []
    return [line.encode(), b"\n", *blobs]


def _without_bytes(value: Any, path: Path, places: list[Path], blobs: list[bytes]) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        places.append(path)
        blobs.append(bytes(value))
        return None
    if isinstance(value, Mapping):
        return {name: _without_bytes(inner, [*path, name], places, blobs) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_bytes(inner, [*path, at], places, blobs) for at, inner in enumerate(value)]
    return value


class FunctionReader(StreamReader):
    """One part."""

    def __init__(self, file: SourceFile, config: PackConfig) -> None:
        super().__init__(file, config)
        self._stream = storage.open_read(file.address, self.options)

    def places(self) -> Iterator[Place]:
        """Row by row, past the bytes."""
        at = 0
        while at < self.file.size:
            self._stream.seek(at)
            line = self._stream.readline()
            row, _, _, sizes, _ = json.loads(line)
            end = at + len(line) + sum(sizes)
            yield Place(at, end, row)
            at = end

    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """From the range alone."""
        self._stream.seek(segment.start)
        for _ in range(segment.rows):
            line = self._stream.readline()
            row, record, places, sizes, error = json.loads(line)
            blobs = [self._stream.read(size) for size in sizes]
            for path, blob in zip(places, blobs, strict=True):
                _put(record, path, blob)
            data = b"".join((line, *blobs))
            if len(line) > base.MAX_ROW:
                record, error = None, error or f"longer than {base.MAX_ROW:,} bytes"
            yield Found(row, data, record, error)


def _put(record: Any, path: Path, blob: bytes) -> None:
    for step in path[:-1]:
        record = record[step]
    record[path[-1]] = blob
