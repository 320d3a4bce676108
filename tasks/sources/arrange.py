"""Rows in another order than that of their sources: shuffled, or split into parts. A table says which row comes when.

The table lies in the hidden folder of the output, a few numbers a row; a slot is a range of it, so that neither the plan
nor a worker ever holds more than a slot's rows. The order follows from the seed and the rows' numbers alone: the
permutation is the one that training uses (`loader.order`), and none of a library's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from loader import order, storage
from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.source_options import fractions
from tasks.sources import spool
from tasks.sources.base import Reader, Segment, Slot, SourceFile, Table

_ENTRY = np.dtype([("file", "<u4"), ("start", "<i8"), ("end", "<i8"), ("row", "<i8"), ("number", "<i8")])
_SHUFFLE, _SPLIT = 2, 3  # third word of a key, as `loader.order` counts them: what is permuted
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_MOST_SPLITS = 100

Int64s = npt.NDArray[np.int64]
Open = Callable[[SourceFile, PackConfig], Reader]


def plan(
    files: list[SourceFile],
    config: PackConfig,
    most: int,
    open_source: Open,
    first_slot: int = 0,
    first_row: int = 0,
) -> list[Slot]:
    """All rows as slots of at most `most`, split by split; each split's rows in the order that is asked for."""
    entries, block, values = _read(files, config, open_source)
    entries["number"] += first_row
    slots: list[Slot] = []
    first = 0
    tables = []
    for name, members in _splits(config, entries, values):
        if config.order == "shuffled":
            members = members[_shuffled(block[members], config.seed)]
        tables.append(entries[members])
        for number, start in enumerate(range(0, len(members), most)):
            rows = min(most, len(members) - start)
            table = Table("", first + start, first + start + rows)
            index = first_slot + len(slots)
            slots.append(Slot(index, first_row + first + start, rows, (), table, name, first_slot + number))
        first += len(members)
    ordered = np.concatenate(tables) if tables else entries
    address = _publish(ordered, config)
    return [_with_files(slot, address, ordered, files) for slot in slots]


def _with_files(slot: Slot, address: str, ordered: npt.NDArray[Any], files: list[SourceFile]) -> Slot:
    """The slot, with the files that its rows lie in as empty segments, in the order of their numbers."""
    assert slot.table is not None
    used = np.unique(ordered["file"][slot.table.start : slot.table.end])
    segments = tuple(Segment(files[number], int(number), 0, 0, 0) for number in used.tolist())
    table = slot.table._replace(address=address)
    return Slot(slot.index, slot.first_row, slot.rows, segments, table, slot.split, slot.number)


def entries(slot: Slot, config: PackConfig) -> Iterator[tuple[int, Segment]]:
    """(global number, segment of one row) of each row of a slot, in order."""
    assert slot.table is not None
    address, start, end = slot.table
    size = _ENTRY.itemsize
    data = storage.read_bytes(address, config.storage_options, start * size, end * size)
    files = {segment.start: segment.file for segment in slot.segments}
    for file, begin, stop, row, number in np.frombuffer(data, _ENTRY).tolist():
        yield number, Segment(files[file], begin, stop, row, 1)


def _read(
    files: list[SourceFile], config: PackConfig, open_source: Open
) -> tuple[npt.NDArray[Any], Int64s, list[Any]]:
    """A table entry and a block for each row in the order of the sources, and the values of the split's column."""
    parts: list[npt.NDArray[Any]] = []
    blocks: list[Int64s] = []
    values: list[Any] = []
    rows = block = 0
    for number, file in enumerate(files):
        with open_source(file, config) as reader:
            places = np.fromiter(
                (value for place in reader.places() for value in place), np.int64
            ).reshape(-1, 3)  # fmt: skip
            if config.split_column:
                values += reader.column(config.split_column)
            together = reader.block() if config.order == "shuffled" else 1
        part = np.empty(len(places), _ENTRY)
        part["file"], part["number"] = number, rows + np.arange(len(places))
        part["start"], part["end"], part["row"] = places.T
        parts.append(part)
        blocks.append(block + np.arange(len(places), dtype=np.int64) // together)
        rows += len(places)
        block = int(blocks[-1][-1]) + 1 if len(places) else block
    if not parts:
        return np.empty(0, _ENTRY), np.empty(0, np.int64), values
    return np.concatenate(parts), np.concatenate(blocks), values


def _permutation(count: int, seed: int, what: int, block: int = 0) -> Int64s:
    if not count:
        return np.empty(0, np.int64)
    places = np.arange(count, dtype=np.uint64)
    key = np.full(count, order.key_of(seed, 0, what, block), np.uint64)
    return order.permute(places, np.full(count, count, np.uint64), key).astype(np.int64)


def _shuffled(block: Int64s, seed: int) -> Int64s:
    """Places of the rows in their new order: blocks permuted, and the rows in each."""
    known, inverse = np.unique(block, return_inverse=True)
    where = _permutation(len(known), seed, _SHUFFLE)[inverse]
    within = _permutation(len(block), seed, _SHUFFLE, 1)
    return np.lexsort((within, where)).astype(np.int64)


def _splits(config: PackConfig, entries: npt.NDArray[Any], values: list[Any]) -> Iterator[tuple[str, Int64s]]:
    """(name, places of its rows in the order of the sources) of each split that has rows."""
    rows = len(entries)
    if config.split_column:
        yield from _by_column(config, values)
    elif config.split:
        ranks = _permutation(rows, config.seed, _SPLIT)
        begin = 0
        shares = fractions(config.split)
        total = 0.0
        for name, share in shares.items():
            total += share
            end = rows if name == list(shares)[-1] else round(total * rows)
            if end > begin:
                yield name, np.flatnonzero((ranks >= begin) & (ranks < end)).astype(np.int64)
            begin = end
    else:
        yield "", np.arange(rows, dtype=np.int64)


def split_name(value: object) -> str:
    """The split that a column's value names; "" if it can't be one."""
    return value if isinstance(value, str) and _SPLIT_NAME.fullmatch(value) else ""


def _by_column(config: PackConfig, values: list[Any]) -> Iterator[tuple[str, Int64s]]:
    names = sorted({split_name(value) for value in values} - {""})
    if len(names) > _MOST_SPLITS or not names:
        raise BadConfig(
            f"split_column is {config.split_column!r}, which has {len(names):,} values that could name a split: 1 to "
            f"{_MOST_SPLITS} were expected, of letters, digits, '_' and '-'"
        )
    # A row without one goes to the first, where it will be found to be bad.
    codes = {name: number for number, name in enumerate(names)}
    which = np.fromiter((codes.get(split_name(value), 0) for value in values), np.int64, len(values))
    for number, name in enumerate(names):
        yield name, np.flatnonzero(which == number).astype(np.int64)


def _publish(ordered: npt.NDArray[Any], config: PackConfig) -> str:
    data = ordered.tobytes()
    address = spool.address(config, hashlib.sha256(data).hexdigest(), ".rows")
    if not storage.exists(address, config.storage_options):
        storage.write_bytes(address, data, config.storage_options)
    return address
