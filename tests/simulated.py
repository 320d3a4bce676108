"""torch's DataLoader workers, played in this process: as many examples a second as a property test wants."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

from loader.data_loader import ShardedDataLoader


@contextlib.contextmanager
def as_worker(number: int, num_workers: int, dataset: Any) -> Iterator[None]:
    before = torch_worker._worker_info
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=num_workers, seed=0, dataset=dataset
    )
    try:
        yield
    finally:
        torch_worker._worker_info = before


class Workers:
    """Tasks dealt as torch does: `prefetch_factor` for each worker at first, then one for each that came back.

    A worker here does its tasks as soon as they are sent, so everything that may be prefetched is.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader, self.collate = loader, loader.collate_fn
        self.datasets = []
        for _ in range(loader.num_workers):
            forked = copy.copy(loader.dataset)
            if hasattr(forked, "_shared"):
                forked._shared = loader.dataset._shared  # type: ignore[attr-defined]
            self.datasets.append(forked)
        self._reset(loader)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        count = loader.num_workers
        self.samples = []
        for number, dataset in enumerate(self.datasets):
            with as_worker(number, count, dataset):
                self.samples.append(iter(dataset))
        self.alive = [True] * count
        self.turn = 0
        self.tasks: deque[tuple[int, Any]] = deque()
        for _ in range((loader.prefetch_factor or 2) * count):
            self._send()

    def _send(self) -> None:
        count = len(self.alive)
        for _ in range(count):
            number, self.turn = self.turn, (self.turn + 1) % count
            if self.alive[number]:
                self.tasks.append((number, self._fetch(number)))
                return

    def _fetch(self, number: int) -> Any:
        dataset, size = self.datasets[number], self.loader.batch_size
        with as_worker(number, len(self.alive), dataset):
            try:
                samples = list(islice(self.samples[number], size or 1))
                if not samples:
                    return StopIteration
                return self.collate(samples if size else samples[0])
            except Exception as error:  # noqa: BLE001 - raised where it is asked for
                return error

    def __iter__(self) -> Workers:
        return self

    def __next__(self) -> Any:
        while self.tasks:
            number, batch = self.tasks.popleft()
            if not self.alive[number]:
                continue
            if batch is StopIteration:
                self.alive[number] = False
                self._send()
                continue
            self._send()
            if isinstance(batch, Exception):
                raise batch
            return batch
        raise StopIteration


class SimulatedLoader(ShardedDataLoader):
    """The loader under test, its workers played."""

    def check_worker_number_rationality(self) -> None:
        """There are none."""

    def _get_iterator(self) -> Any:
        return Workers(self) if self.num_workers else super()._get_iterator()


class PlainSimulatedLoader(DataLoader[Any]):
    """torch's own DataLoader, its workers played."""

    def check_worker_number_rationality(self) -> None:
        """There are none."""

    def _get_iterator(self) -> Any:
        return Workers(self) if self.num_workers else super()._get_iterator()
