"""The same samples by number, for torch's own samplers."""

from __future__ import annotations

import copy
import logging
import operator
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, SupportsIndex, get_args, overload

import numpy as np
from torch.utils.data import Dataset

from loader.datasets import SampleDataset
from loader.errors import ShardflowError, StoreError, TooManyBad
from loader.open_shards import OpenShards
from loader.remote import Remote
from loader.selection import Ints

logger = logging.getLogger(__name__)

OnBad = Literal["raise", "substitute"]


class IndexedTarMapDataset(Dataset[Any]):
    """``dataset[i]``, ``len(dataset)``, slices: what a `SampleDataset`, or one of its kind, yields, in the order on disk.

    Only samples that take part are counted. Goes with torch's DataLoader and any sampler of indices
    (RandomSampler, DistributedSampler, WeightedRandomSampler, …), which then are in charge of order, ranks and resume;
    a batch that is fetched whole is read shard by shard. A random sampler opens shards at random: choose the dataset's
    `lru_size` no smaller than its number of shards, or shuffle less far, if that is slow.

    `dataset`: a SampleDataset, ImageTextDataset, …, of which this is a view with shards and epoch of its own; or what
    `SampleDataset` takes, with its keywords. `on_bad`: "raise" BadSample for a sample that can't be read, or
    "substitute" another in its place, the same each time. What `transform` leaves out is None ("raise") or
    substituted as well. `set_epoch` chooses other captions; samplers have a `set_epoch` of their own.

    Not thread-safe; forked and spawned workers each open their own shards.
    """

    def __init__(self, dataset: SampleDataset | Any, *, on_bad: OnBad = "raise", **keywords: Any) -> None:
        if on_bad not in get_args(OnBad):
            raise ValueError(f"on_bad is {on_bad!r}: one of {', '.join(get_args(OnBad))} was expected")
        if not isinstance(dataset, SampleDataset):
            if isinstance(dataset, Dataset):
                raise TypeError(
                    f"dataset is a {type(dataset).__name__}: a SampleDataset, or one of its kind, was expected"
                )
            dataset = SampleDataset(dataset, **keywords)
        elif keywords:
            raise TypeError(f"{', '.join(keywords)}: say that to the {type(dataset).__name__}")
        self.dataset = copy.copy(dataset)
        self.on_bad: OnBad = on_bad
        self._shards = OpenShards(dataset.lru_size, self.dataset.open_shard)
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r})"

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def epoch(self) -> int:
        """The epoch that chance (of captions) belongs to."""
        return self.dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the samples that come; workers that live through epochs see it, too."""
        self.dataset.set_epoch(epoch)

    def locate(self, i: SupportsIndex) -> tuple[str, int]:
        """(url of its shard, number in that shard) of sample `i`; IndexError where there is none."""
        shard, number = self._place(self._checked(i))
        return self.dataset.table.url(shard), number

    @overload
    def __getitem__(self, which: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, which: slice) -> list[Any]: ...
    def __getitem__(self, which: SupportsIndex | slice) -> Any:
        if isinstance(which, slice):
            return self.__getitems__(range(*which.indices(len(self))))
        return self._get(self._checked(which))

    def __getitems__(self, which: Sequence[SupportsIndex]) -> list[Any]:
        """Several samples, in the order asked for; what DataLoader calls for a batch."""
        numbers = [self._checked(i) for i in which]
        if self.dataset.remote is not None:
            self._prefetch(numbers, self.dataset.remote)
        samples: dict[int, Any] = {}
        for place in sorted(range(len(numbers)), key=numbers.__getitem__):
            samples[place] = self._get(numbers[place])
        return [samples[place] for place in range(len(numbers))]

    @cached_property
    def _begins(self) -> Ints:
        """The number of each shard's first sample that takes part, and of all that do."""
        begins = np.zeros(len(self.dataset.counts) + 1, np.int64)
        np.cumsum(self.dataset.counts, out=begins[1:])
        return begins

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_begins"}

    def _checked(self, i: SupportsIndex) -> int:
        number, length = operator.index(i), len(self)
        if not -length <= number < length:
            raise IndexError(f"{self!r}: there is no sample {number}")
        return number % length

    def _place(self, number: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._begins, number, side="right")) - 1
        place = number - int(self._begins[shard])
        selection = self.dataset.selection
        return shard, place if selection is None else int(selection.numbers[selection.begins[shard] + place])

    def _prefetch(self, numbers: Sequence[int], remote: Remote) -> None:
        """Have what is read by ranges fetched together: shards are opened side by side, as many as stay open."""
        wanted: dict[int, list[int]] = defaultdict(list)
        for number in numbers:
            shard, i = self._place(number)
            wanted[shard].append(i)
        shards = list(wanted)[: self._shards.size]
        self._shards.get_all(shards, remote.background)
        for shard in shards:
            if shard in self._shards:
                self._shards.get(shard).prefetch(wanted[shard])

    def _get(self, number: int) -> Any:
        if self.on_bad == "raise":
            return self._read(number)
        length = len(self)
        for step in range(length):
            try:
                # Half of them away, and on, as the iterable one does.
                sample = self._read(number if not step else (number + length // 2 + step - 1) % length)
                if sample is not None:
                    return sample
            except StoreError:  # of no sample: the others can't be read either
                raise
            except ShardflowError as error:
                self._tell(number, error)
            if step == self.dataset.max_bad_in_row:
                break
        raise TooManyBad(f"{self!r}: sample {number} can't be read, nor can any that were tried in its place")

    def _read(self, number: int) -> Any:
        shard, i = self._place(number)
        index = int(self.dataset.table.begins[shard]) + i
        return self.dataset.finish(self._shards.get(shard), i, index, self.dataset.epoch)

    def _tell(self, number: int, error: ShardflowError) -> None:
        url, i = self.locate(number)
        if url not in self._told:
            self._told.add(url)
            logger.warning("%s: sample %d is replaced by another: %s (told once a shard)", url, i, error)
