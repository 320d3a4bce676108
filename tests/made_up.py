"""Datasets that exist as meta.json alone, or as tiny tars whose samples say their own number; a module of its own,
so that spawned workers find it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from loader.indexed_tar_dataset import IndexedTarDataset, RetSample
from loader.meta import ShardMeta, write_meta
from loader.writer import write_shard


def made_up(root: Path, counts: Sequence[int]) -> str:
    """A dataset's folder with nothing in it but what meta.json says."""
    root.mkdir(parents=True, exist_ok=True)
    entry = '"{:05d}.tar": {{"num_samples": {}, "size": 1024, "checksum": 1}}'
    # Not by write_meta, which waits for the disk: tests make thousands of these.
    text = ",\n".join(entry.format(n, count) for n, count in enumerate(counts))
    (root / "meta.json").write_text("{" + text + "}")
    return str(root)


def packed(root: Path, counts: Sequence[int], start: int = 0) -> str:
    """Real shards; ``.txt`` of each sample is its number over the dataset."""
    numbers = itertools.count(start)
    shards = {}
    for shard, count in enumerate(counts):
        samples = [(f"{n:07d}", [(".txt", str(n).encode())]) for n in itertools.islice(numbers, count)]
        info = write_shard(f"{root}/{shard:05d}.tar", samples)
        shards[f"{shard:05d}.tar"] = ShardMeta(info.num_samples, info.size, info.checksum, {})
    write_meta(str(root), shards)
    return str(root)


def with_bad(root: Path, count: int, bad: Collection[int]) -> str:
    """Shards of ten samples with a ``.json`` each, which holds none in those that are `bad`."""
    shards = {}
    for first in range(0, count, 10):
        samples = [
            (f"{n:07d}", [(".json", b"{" if n in bad else b'{"n": %d}' % n)])
            for n in range(first, first + 10)
        ]
        info = write_shard(f"{root}/{first // 10}.tar", samples)
        shards[f"{first // 10}.tar"] = ShardMeta(info.num_samples, info.size, info.checksum, {})
    write_meta(str(root), shards)
    return str(root)


class Numbers(IndexedTarDataset):
    """Yields the number of each sample, without reading; `bad` ones can't be read, `unwanted` ones are left out."""

    def __init__(
        self,
        *arguments: Any,
        bad: Collection[int] = (),
        unwanted: Collection[int] = (),
        ret_samples: bool = False,
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        self.bad, self.unwanted = frozenset(bad), frozenset(unwanted)
        self.ret_samples = ret_samples

    def data_generator(self) -> Iterator[RetSample]:
        for index in self.index_generator():
            if index in self.bad or index in self.unwanted:
                self.skip_sample(index, f"no {index}", bad=index in self.bad)
                continue
            place = self.index2indices(index)
            missing = self.success_sample()
            yield RetSample(
                self.name,
                self.data_type,
                *missing,
                index,
                place,
                index,
                self.worker_id,
                self.num_workers,
            )

    def present(self, sample: RetSample) -> Any:
        return sample if self.ret_samples else sample.sample


def numbers(sample: dict[str, Any]) -> int:
    """A transform: the number that a packed sample says."""
    return int(sample[".txt"])
