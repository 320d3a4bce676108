"""A Hugging Face dataset on disk (``save_to_disk``): rows by number, pictures as they are stored, never decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loader import storage
from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.sources.base import Found, NumberedReader, Segment, SourceFile
from tasks.sources.parquet_rows import found

STATE = "state.json"  # in each folder that holds a dataset
_AT_ONCE = 256


class SavedReader(NumberedReader):
    """One dataset; `file` is the ``state.json`` in its folder."""

    def __init__(self, file: SourceFile, config: PackConfig) -> None:
        super().__init__(file, config)
        try:
            from datasets import load_from_disk
        except ImportError as error:
            raise BadConfig(
                f"source {file.name} needs the library datasets, which is not installed: pip install datasets"
            ) from error
        try:
            self._data: Any = load_from_disk(
                storage.parent(file.address), storage_options=dict(self.options) if self.options else None
            ).with_format("arrow")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadConfig(
                f"source {file.name}: the dataset in this folder cannot be loaded: {error}"
            ) from error

    def __len__(self) -> int:
        return len(self._data)

    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """Some rows at a time; the files are mapped."""
        for start in range(segment.start, segment.end, _AT_ONCE):
            stop = min(start + _AT_ONCE, segment.end)
            yield from found(self._data[start:stop], segment.first_row + start - segment.start)

    def pick(self, rows: Sequence[Segment], light: bool = False) -> Iterator[Found]:
        """All at once."""
        picked = found(self._data[[row.start for row in rows]], 0)
        for row, one in zip(rows, picked, strict=True):
            yield one._replace(row=row.first_row)

    def column(self, name: str) -> Iterator[Any]:
        """Of this column alone."""
        if name not in self._data.column_names:
            yield from (None for _ in range(len(self)))
            return
        only = self._data.select_columns([name])
        for start in range(0, len(self), 10_000):
            yield from only[start : start + 10_000].column(0).to_pylist()
