"""What iterating a dataset yields, and how far a user who counts it has got."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class RetSample(NamedTuple):
    """One sample and where it came from.

    `index` is its number over the whole dataset (order on disk), `url_index` (url, number in its shard). The
    `missing_*` lists, of one length, tell what this worker left out since the sample it yielded before: numbers,
    (url, number) pairs, and whatever `skip_sample` was told about each.
    """

    name: str
    data_type: str
    missing_indices: list[int]
    missing_urls_indices: list[tuple[str, int]]
    missing_samples: list[Any]
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants of this one
    url_index: tuple[str, int]
    sample: Any
    worker_id: int
    num_workers: int


@dataclass
class DataStatus:
    """How far each worker of one rank got, for those who count with a plain DataLoader.

    `update` it with every RetSample that was used for training; `IndexedTarDataset.set_data_status` resumes from
    it, under the same number of ranks and workers. `consumed` counts what is done, left-out samples included,
    `emitted` what was used; both by worker.
    """

    epoch: int = 0
    num_workers: int = 1
    consumed: dict[int, int] = field(default_factory=dict)
    emitted: dict[int, int] = field(default_factory=dict)

    def update(self, sample: RetSample) -> None:
        """Count one sample as used."""
        worker = sample.worker_id
        self.num_workers = sample.num_workers
        self.consumed[worker] = self.consumed.get(worker, 0) + 1 + len(sample.missing_indices)
        self.emitted[worker] = self.emitted.get(worker, 0) + 1
