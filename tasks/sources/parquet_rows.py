"""Parquet: rows by number, one row group in memory at a time. Needs pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from loader import storage
from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.sources.base import Found, NumberedReader, Segment, SourceFile

_AT_ONCE = 64  # rows that become Python objects together
_KEPT = 256 << 20  # bytes of decoded row groups that are kept
_WHOLE = 256 << 20  # a file of so many bytes, decoded, may be shuffled row by row
_PARTS = 8  # else each row group in so many pieces


class ParquetReader(NumberedReader):
    """One Parquet file."""

    def __init__(self, file: SourceFile, config: PackConfig) -> None:
        super().__init__(file, config)
        parquet = _pyarrow(file, "pyarrow.parquet")
        self._stream = storage.open_read(file.address, self.options)
        try:
            self._table = parquet.ParquetFile(self._stream)
        except (OSError, ValueError) as error:  # pyarrow's errors are both
            self._stream.close()
            raise BadConfig(f"source {file.name} is no Parquet: {error}") from error
        self._meta: Any = self._table.metadata
        sizes = [self._meta.row_group(group).num_rows for group in range(self._meta.num_row_groups)]
        self._begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._groups: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return int(self._begins[-1])

    def block(self) -> int:
        """One row where all groups fit into memory, else an eighth of the largest group."""
        groups = [self._meta.row_group(group) for group in range(self._meta.num_row_groups)]
        if sum(group.total_byte_size for group in groups) <= _WHOLE:
            return 1
        largest = int(max(group.num_rows for group in groups))
        return max(1, -(-largest // _PARTS))

    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """Group by group."""
        at = segment.start
        while at < segment.end:
            group = int(np.searchsorted(self._begins, at, side="right")) - 1
            stop = min(segment.end, int(self._begins[group + 1]))
            try:
                table = self._group(group)
            except (OSError, ValueError) as error:  # a damaged page costs its group, no more
                for row in range(at, stop):
                    yield _unreadable(row + 1, group, error)
            else:
                begin = int(self._begins[group])
                yield from found(table.slice(at - begin, stop - at), at + 1)
            at = stop

    def pick(self, rows: Sequence[Segment], light: bool = False) -> Iterator[Found]:
        """Those of one row group together."""
        ready: dict[int, Found] = {}
        numbers = np.array([row.start for row in rows])
        groups = np.searchsorted(self._begins, numbers, side="right") - 1
        for group in np.unique(groups).tolist():
            mine = numbers[groups == group]
            try:
                table = self._group(group).take(mine - self._begins[group])
            except (OSError, ValueError) as error:
                for number in mine.tolist():
                    ready[number] = _unreadable(number + 1, group, error)
            else:
                for number, one in zip(mine.tolist(), found(table, 0), strict=True):
                    ready[number] = one._replace(row=number + 1)
        return (ready[number] for number in numbers.tolist())

    def column(self, name: str) -> Iterator[Any]:
        """Of this column alone."""
        if name not in self._table.schema_arrow.names:
            yield from (None for _ in range(len(self)))
            return
        for batch in self._table.iter_batches(batch_size=10_000, columns=[name]):
            yield from batch.column(0).to_pylist()

    def close(self) -> None:
        """Close the stream."""
        self._table.close()
        self._stream.close()

    def _group(self, group: int) -> Any:
        if group in self._groups:
            self._groups.move_to_end(group)
            return self._groups[group]
        table = self._table.read_row_group(group, use_threads=False).combine_chunks()
        while self._groups and table.nbytes + sum(kept.nbytes for kept in self._groups.values()) > _KEPT:
            self._groups.popitem(last=False)
        self._groups[group] = table
        return table


def _unreadable(row: int, group: int, error: Exception) -> Found:
    return Found(row, b"", None, f"row group {group} cannot be read: {error}")


def found(table: Any, first_row: int) -> Iterator[Found]:
    """The rows of an Arrow table."""
    for start in range(0, table.num_rows, _AT_ONCE):
        for place, record in enumerate(_records(table.slice(start, _AT_ONCE))):
            row = first_row + start + place
            if record is None:
                yield Found(row, b"", None, "a value in it is no text, number or time that Python can hold")
                continue
            plain = {name: _plain(value) for name, value in record.items()}
            data = json.dumps(plain, default=_digest, separators=(",", ":")).encode()
            yield Found(row, data, plain)


def _records(table: Any) -> Iterator[dict[str, Any] | None]:
    """Each row, or None where it holds what can't be told, such as text that is no UTF-8."""
    try:
        yield from table.to_pylist()
    except (ValueError, OverflowError, TypeError):
        if table.num_rows == 1:
            yield None
            return
        for row in range(table.num_rows):
            yield from _records(table.slice(row, 1))


def _plain(value: Any) -> Any:
    """What JSON can hold, and bytes; `_number` and the like as they are, times as ISO 8601."""
    if isinstance(value, (str, int, float, bytes)) or value is None:
        return value
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    return value


def _digest(value: Any) -> str:
    return hashlib.blake2b(value, digest_size=16).hexdigest() if isinstance(value, bytes) else repr(value)


def _pyarrow(file: SourceFile, module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadConfig(
            f"source {file.name} needs pyarrow, which is not installed: pip install 'shardflow[parquet]'"
        ) from error
