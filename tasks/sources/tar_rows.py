"""Tars of the WebDataset kind: rows are samples, by number, with their members byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from loader import indexing, storage
from loader.checksums import crc32
from loader.errors import BadConfig, ShardflowError
from loader.index import Index, load_index
from loader.storage import StorageOptions
from tasks.config import PackConfig
from tasks.sources import spool
from tasks.sources.base import (
    Found,
    Members,
    NumberedReader,
    Segment,
    SourceFile,
    StreamReader,
    field_of,
    options_of,
)


class TarReader(StreamReader, NumberedReader):
    """One tar, with the index beside it, or one made of it: nothing is written beside a source."""

    def __init__(self, file: SourceFile, config: PackConfig) -> None:
        super().__init__(file, config)
        self._index = _find_index(file, config)
        self._stream = storage.open_read(file.address, self.options)

    def __len__(self) -> int:
        return self._index.num_samples

    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """Sample by sample, in the order of the tar."""
        for sample in range(segment.start, segment.end):
            yield self._sample(sample, segment.first_row + sample - segment.start, light)

    def column(self, name: str) -> Iterator[Any]:
        """A field of the samples' .json, or ``__key__``."""
        for sample in range(len(self)):
            if name == "__key__":
                yield self._index.key(sample)
                continue
            yield field_of(self._sample(sample, sample + 1, light=False).record, name, ready=True)

    def _spans(self, row: Segment) -> list[tuple[int, int]]:
        return [self._index.span(number) for number in self._index.members(row.start)]

    def _sample(self, sample: int, row: int, light: bool) -> Found:
        index = self._index
        key, numbers = index.key(sample), index.members(sample)
        spans = [index.span(number) for number in numbers]
        suffixes = [index.member_name(number)[len(key) :] for number in numbers]
        told = [[suffix, *span] for suffix, span in zip(suffixes, spans, strict=True)]
        data = json.dumps([self.file.version, self.file.size, key, told]).encode()
        if light:
            return Found(row, data, {}, "", (), key)
        members: list[tuple[str, bytes]] = []
        for number, suffix, (start, end) in zip(numbers, suffixes, spans, strict=True):
            self._stream.seek(start)
            payload = self._stream.read(end - start)
            if len(payload) != end - start:
                return Found(
                    row, data, None, f"{key}{suffix} is cut short: {len(payload):,} of {end - start:,} bytes"
                )
            if index.crc32 is not None and crc32(payload) != index.crc32[number]:
                return Found(
                    row, data, None, f"{key}{suffix} is damaged: its bytes don't match the index's CRC-32"
                )
            members.append((suffix, payload))
        return Found(row, data, as_record(key, tuple(members)), "", tuple(members), key)


def as_record(key: str, members: Members) -> dict[str, Any]:
    """What a recipe is given of a sample: ``__key__``, the .json as what it holds, all else as bytes."""
    record: dict[str, Any] = {"__key__": key}
    for suffix, data in members:
        record[suffix] = _document(data) if suffix.lower() == ".json" else data
    return record


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data  # the recipe may know what it is


def _find_index(file: SourceFile, config: PackConfig) -> Index:
    """The index beside a tar; else one that is built, and kept in the output for those who read other slots of it."""
    options = options_of(config, file.address)
    kept = spool.address(config, f"{file.address} {file.size} {file.version}", ".index")
    try:
        index, _ = indexing.find_fresh(file.address, options)
        if index is not None:
            return index
        if not storage.exists(kept, config.storage_options):
            storage.write_bytes(kept, _built(file.address, options), config.storage_options)
        return load_index(kept, config.storage_options)
    except (ShardflowError, EOFError) as error:
        raise BadConfig(f"source {file.name}: {error}") from error


def _built(address: str, options: StorageOptions | None) -> bytes:
    if not storage.is_local(address):
        return indexing.build_remote(address, options, checksum=False)
    with indexing.tar_buffer(address) as buffer:
        return indexing.build(buffer, address, checksum=False)
