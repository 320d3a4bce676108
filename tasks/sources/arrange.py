"""Rows in another order than that of their sources: shuffled, or split into parts. A table says which row comes when.

The table lies in the hidden folder of the output, a few numbers a row; a slot is a range of it, so that neither the plan
nor a worker ever holds more than a slot's rows. The order follows from the seed and the rows' numbers alone: the
permutation is the one that training uses (`loader.order`), and none of a library's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loader import order, storage
from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.source_options import SPLIT_NAME, fractions
from tasks.sources import spool
from tasks.sources.base import Reader, Segment, Slot, SourceFile, Table

_ENTRY = np.dtype([("file", "<u4"), ("start", "<i8"), ("end", "<i8"), ("row", "<i8"), ("number", "<i8")])
_SHUFFLE, _SPLIT = 2, 3  # third word of a key, as `loader.order` counts them: what is permuted
_MOST_SPLITS = 100
_CHUNK = 1 << 16  # rows at a time

Int64s = npt.NDArray[np.int64]
Open = Callable[[SourceFile, PackConfig], Reader]


class _Rows(NamedTuple):
    """All rows in the order of the sources: where each lies, what it is shuffled with, and which split it names."""

    entries: npt.NDArray[Any]
    block: Int64s | None  # None: each row by itself
    code: Int64s | None
    splits: list[str]


def plan(
    files: list[SourceFile],
    config: PackConfig,
    most: int,
    open_source: Open,
    first_slot: int = 0,
    first_row: int = 0,
) -> list[Slot]:
    """All rows as slots of at most `most`, split by split; each split's rows in the order that is asked for."""
    rows = _read(files, config, open_source)
    slots: list[Slot] = []
    order_of_all: list[Int64s] = []
    first = 0
    for name, members in _splits(config, rows):
        if config.order == "shuffled":
            block = None if rows.block is None else rows.block[members]
            members = members[_shuffled(len(members), block, config.seed)]
        for number, start in enumerate(range(0, len(members), most)):
            count = min(most, len(members) - start)
            used = np.unique(rows.entries["file"][members[start : start + count]])
            # The files that the rows lie in, as empty segments.
            named = tuple(Segment(files[place], int(place), 0, 0, 0) for place in used.tolist())
            table = Table("", first + start, first + start + count)
            index = first_slot + len(slots)
            slots.append(
                Slot(index, first_row + first + start, count, named, table, name, first_slot + number)
            )
        first += len(members)
        order_of_all.append(members)
    address = _publish(rows.entries, order_of_all, config, first_row)
    return [
        replace(slot, table=slot.table._replace(address=address)) for slot in slots if slot.table is not None
    ]


def entries(slot: Slot, config: PackConfig) -> Iterator[tuple[int, Segment]]:
    """(global number, segment of one row) of each row of a slot, in order."""
    if slot.table is None:
        raise ValueError(f"slot {slot.index} has no table")
    address, start, end = slot.table
    size = _ENTRY.itemsize
    data = storage.read_bytes(address, config.storage_options, start * size, end * size)
    files = {segment.start: segment.file for segment in slot.segments}
    for file, begin, stop, row, number in np.frombuffer(data, _ENTRY).tolist():
        yield number, Segment(files[file], begin, stop, row, 1)


def _read(files: list[SourceFile], config: PackConfig, open_source: Open) -> _Rows:
    parts, blocks, codes = [np.empty(0, _ENTRY)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    known: dict[str, int] = {"": 0}
    rows = block = 0
    for number, file in enumerate(files):
        with open_source(file, config) as reader:
            part = np.fromiter(((number, *place, 0) for place in reader.places()), _ENTRY)
            if config.split_column:
                values = map(split_name, reader.column(config.split_column))
                codes.append(
                    np.fromiter((known.setdefault(name, len(known)) for name in values), np.int64, len(part))
                )
            together = reader.block() if config.order == "shuffled" else 1
        part["number"] = np.arange(rows, rows + len(part))
        parts.append(part)
        if together > 1 or len(blocks) > 1:
            while len(blocks) < len(parts) - 1:  # of the files before, each row by itself
                blocks.append(block + np.arange(len(parts[len(blocks)])))
                block += len(blocks[-1])
            blocks.append(block + np.arange(len(part)) // together)
            block += -(-len(part) // together)
        rows += len(part)
    return _Rows(
        np.concatenate(parts) if len(parts) > 2 else parts[-1],
        np.concatenate(blocks) if len(blocks) > 1 else None,
        np.concatenate(codes) if config.split_column else None,
        list(known),
    )


def _permutation(count: int, seed: int, what: int, block: int = 0) -> Int64s:
    permuted = np.empty(count, np.int64)
    key = np.uint64(order.key_of(seed, 0, what, block))
    for start in range(0, count, _CHUNK):
        places = np.arange(start, min(start + _CHUNK, count), dtype=np.uint64)
        sizes, keys = np.full(len(places), count, np.uint64), np.full(len(places), key)
        permuted[start : start + _CHUNK] = order.permute(places, sizes, keys)
    return permuted


def _shuffled(count: int, block: Int64s | None, seed: int) -> Int64s:
    """Places of the rows in their new order: blocks permuted, and the rows in each."""
    within = _permutation(count, seed, _SHUFFLE)
    if block is None:
        return within
    known, inverse = np.unique(block, return_inverse=True)
    where = _permutation(len(known), seed, _SHUFFLE, 1)[inverse]
    return np.lexsort((within, where)).astype(np.int64)


def _splits(config: PackConfig, rows: _Rows) -> Iterator[tuple[str, Int64s]]:
    """(name, places of its rows in the order of the sources) of each split that has rows."""
    count = len(rows.entries)
    if rows.code is not None:
        yield from _by_column(config, rows.code, rows.splits)
    elif config.split:
        ranks = _permutation(count, config.seed, _SPLIT)
        begin, total = 0, 0.0
        shares = fractions(config.split)
        for name, share in shares.items():
            total += share
            end = count if name == list(shares)[-1] else round(total * count)
            if end > begin:
                yield name, np.flatnonzero((ranks >= begin) & (ranks < end)).astype(np.int64)
            begin = end
    else:
        yield "", np.arange(count, dtype=np.int64)


def split_name(value: object) -> str:
    """The split that a column's value names; "" if it can't be one."""
    return value if isinstance(value, str) and SPLIT_NAME.fullmatch(value) else ""


def _by_column(config: PackConfig, code: Int64s, splits: list[str]) -> Iterator[tuple[str, Int64s]]:
    names = sorted(set(splits) - {""})
    if len(names) > _MOST_SPLITS or not names:
        raise BadConfig(
            f"split_column is {config.split_column!r}, which has {len(names):,} values that could name a split: 1 to "
            f"{_MOST_SPLITS} were expected, of letters, digits, '_' and '-'"
        )
    for name in names:
        mine = code == splits.index(name)
        if name == names[0]:  # a row without one goes here, where it will be found to be bad
            mine |= code == 0
        yield name, np.flatnonzero(mine).astype(np.int64)


def _publish(rows: npt.NDArray[Any], order_of_all: list[Int64s], config: PackConfig, first_row: int) -> str:
    """The table in its order, under a name that follows from it; returns its address."""

    def pieces() -> Iterator[bytes]:
        for members in order_of_all:
            for start in range(0, len(members), _CHUNK):
                piece = rows[members[start : start + _CHUNK]]
                piece["number"] += first_row
                yield piece.tobytes()

    digest = hashlib.sha256()
    for piece in pieces():
        digest.update(piece)
    return spool.kept(digest.hexdigest(), ".rows", pieces(), config)
