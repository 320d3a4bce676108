"""Sources of any kind → slots of rows; and the rows of a slot, read from their ranges alone.

What the kinds differ in lies in `tasks.sources`: a reader for each, behind one interface (`tasks.sources.base`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from itertools import islice

from loader import storage
from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.source_options import is_callable, renames
from tasks.sources import arrange, function_rows
from tasks.sources.base import (
    Found,
    Reader,
    Row,
    Segment,
    Slot,
    SourceFile,
    changed,
    check_unchanged,
)
from tasks.sources.kinds import find_sources

__all__ = ["Row", "Segment", "Slot", "SourceFile", "find_sources", "open_source", "plan_slots", "rows"]

MAX_ROWS = 1_000_000_000  # a key has nine digits
_ROWS_OF_A_SLOT = 10_000  # where the shards are limited by bytes alone
_TOGETHER = 64  # rows that a shuffled slot asks its readers for at a time
_OPEN = 64  # files that a shuffled slot keeps open

# Kind of a file → its reader; imported when the first is opened, since some need libraries of their own.
_READERS = {
    "json": ("json_rows", "ListReader"),
    "jsonl": ("json_rows", "LinesReader"),
    "csv": ("csv_rows", "TextReader"),
    "tsv": ("csv_rows", "TextReader"),
    "parquet": ("parquet_rows", "ParquetReader"),
    "tar": ("tar_rows", "TarReader"),
    "datasets": ("saved_rows", "SavedReader"),
    "captions": ("folder_rows", "CaptionsReader"),
    "python": ("function_rows", "FunctionReader"),
}


def open_source(file: SourceFile, config: PackConfig) -> Reader:
    """A reader of the file's rows; a context manager."""
    module, name = _READERS[file.kind]
    reader: type[Reader] = getattr(import_module(f"tasks.sources.{module}"), name)
    return reader(file, config)


def plan_slots(config: PackConfig, first_slot: int = 0, first_row: int = 0) -> list[Slot]:
    """All rows of all sources, `max_samples` a slot, slots across files where these are short, numbered from
    `first_slot` and `first_row` on.

    Reads the sources once. BadConfig names the file, line and column of JSON that is none; a malformed line of
    a JSONL file is found by the worker that reads it.
    """
    most = config.max_samples or _ROWS_OF_A_SLOT
    if is_stream(config):
        return list(stream(config, first_slot, first_row))
    files = _of_a_function(config, most) if is_function(config) else find_sources(config)
    if config.order == "shuffled" or config.split or config.split_column:
        slots = arrange.plan(files, config, most, open_source, first_slot, first_row)
    else:
        slots = list(_in_order(files, config, most, first_slot, first_row))
    total = first_row + sum(slot.rows for slot in slots)
    if total > MAX_ROWS:
        raise BadConfig(f"source has {total:,} rows: at most {MAX_ROWS:,} can be numbered; pack it in parts")
    if first_slot + len(slots) > 1_000_000:
        raise BadConfig(f"max_samples is {most}: that makes {len(slots):,} shards, more than 1,000,000")
    return slots


def is_function(config: PackConfig) -> bool:
    """Whether rows come from a Python function."""
    return config.source_kind == "python" or is_callable(config.source)


def is_stream(config: PackConfig) -> bool:
    """Whether slots can be packed while later rows aren't known yet (`stream`)."""
    return is_function(config) and not (config.order == "shuffled" or config.split or config.split_column)


def stream(config: PackConfig, first_slot: int = 0, first_row: int = 0) -> Iterator[Slot]:
    """The slots of a function, each as soon as there are rows for it; numbered as by `plan_slots`."""
    return function_rows.slots(config, config.max_samples or _ROWS_OF_A_SLOT, first_slot, first_row)


def _of_a_function(config: PackConfig, most: int) -> list[SourceFile]:
    """All that a function gives, before any of it is packed."""
    if function_rows.resumable(config):
        raise BadConfig(
            f"source {config.source} takes start: so its rows are packed as they come, and can be neither shuffled nor "
            "split"
        )
    slots = function_rows.slots(config, most, 0, 0)
    return [segment.file for slot in slots for segment in slot.segments]


def _in_order(
    files: list[SourceFile], config: PackConfig, most: int, index: int, first: int
) -> Iterator[Slot]:
    segments: list[Segment] = []
    rows = 0  # of the slot in the making
    for file in files:
        with open_source(file, config) as reader:
            for segment in reader.segments(most - rows, most):
                segments.append(segment)
                rows += segment.rows
                if rows == most:
                    yield Slot(index, first, rows, tuple(segments))
                    segments, index, first, rows = [], index + 1, first + rows, 0
    if segments:
        yield Slot(index, first, rows, tuple(segments))


def rows(slot: Slot, config: PackConfig, light: bool = False) -> Iterator[Row]:
    """The rows of a slot in order. BadConfig if a source has changed since it was planned.

    `light`: of samples that are ready nothing but what tells whether they have changed.
    """
    names = renames(config.columns)
    found = _from_table(slot, config, light) if slot.table else _from_segments(slot, config, light)
    last, base = None, ""
    for number, file, row in found:
        if file is not last:
            last, base = file, file.base or storage.parent(file.name)
        record = row.record
        if names and record is not None:
            record = {names.get(name, name): value for name, value in record.items()}
        yield Row(number, file.name, row.row, row.data, record, row.error, row.members, row.key, base)


def _from_segments(slot: Slot, config: PackConfig, light: bool) -> Iterator[tuple[int, SourceFile, Found]]:
    number = slot.first_row
    for segment in slot.segments:
        check_unchanged(segment.file, config)
        count = 0
        with open_source(segment.file, config) as reader:
            for found in reader.read(segment, light):
                yield number, segment.file, found
                number += 1
                count += 1
        if count != segment.rows:
            changed(segment.file)


def _from_table(slot: Slot, config: PackConfig, light: bool) -> Iterator[tuple[int, SourceFile, Found]]:
    with contextlib.ExitStack() as stack:
        readers: dict[SourceFile, Reader] = {}
        entries = arrange.entries(slot, config)
        while batch := list(islice(entries, _TOGETHER)):
            found: dict[int, Found] = {}
            for file in dict.fromkeys(segment.file for _, segment in batch):
                if file not in readers:
                    if len(readers) >= _OPEN:
                        readers.pop(next(iter(readers))).close()
                    check_unchanged(file, config)
                    readers[file] = stack.enter_context(open_source(file, config))
                mine = [(number, segment) for number, segment in batch if segment.file is file]
                picked = list(readers[file].pick([segment for _, segment in mine], light))
                if len(picked) != len(mine):
                    changed(file)
                found |= {number: row for (number, _), row in zip(mine, picked, strict=True)}
            for number, segment in batch:
                yield number, segment.file, found.pop(number)
