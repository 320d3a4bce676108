"""Which samples of each shard take part, where not all do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_ARRAYS = ("counts", "begins", "numbers")


class Selection:
    """The numbers of the samples that take part, shard by shard: four bytes a sample.

    `counts` are how many of each shard, `numbers` their numbers in their shards, shard behind shard. Immutable; safe
    with threads and after a fork. Pickled to spawned workers by torch's own pickler, the arrays are shared memory.
    """

    def __init__(self, counts: npt.ArrayLike, numbers: npt.ArrayLike, samples: Ints) -> None:
        """`samples`: how many each shard has. ValueError unless numbers ascend within each shard, below that."""
        self.counts: Ints = np.asarray(counts, np.int64)
        self.begins: Ints = np.zeros(len(self.counts) + 1, np.int64)
        np.cumsum(self.counts, out=self.begins[1:])
        given = np.asarray(numbers)
        if self.counts.shape != samples.shape or self.counts.min(initial=0) < 0:
            raise ValueError(f"a selection of {len(self.counts)} shards, where there are {len(samples)}")
        if given.shape != (self.begins[-1],) or (given.size and given.dtype.kind not in "iu"):
            raise ValueError(
                f"numbers of shape {given.shape} and type {given.dtype} for {self.begins[-1]} samples"
            )
        shard = np.repeat(np.arange(len(samples)), self.counts)
        outside = np.flatnonzero((given < 0) | (given >= np.minimum(samples, 1 << 32)[shard]))
        if outside.size:
            at = outside[0]
            raise ValueError(
                f"shard {shard[at]} has {samples[shard[at]]} samples: there is no sample {given[at]}"
            )
        self.numbers: npt.NDArray[np.uint32] = given.astype(np.uint32)
        if np.any((self.numbers[1:] <= self.numbers[:-1]) & (shard[1:] == shard[:-1])):
            raise ValueError("the numbers within a shard must ascend, each once")

    @classmethod
    def of(cls, kept: Sequence[npt.ArrayLike], samples: Ints) -> Selection:
        """From one array of numbers for each shard."""
        arrays = [np.asarray(numbers).reshape(-1) for numbers in kept]
        arrays = [array if array.size else array.astype(np.int64) for array in arrays]
        flat = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls([len(array) for array in arrays], flat, samples)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def digest(self) -> str:
        """Equal exactly if the same samples take part."""
        parts = (self.counts.astype("<i8").tobytes(), self.numbers.astype("<u4").tobytes())
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def at(self, shards: Ints, places: Ints) -> Ints:
        """For each (shard, place) the number in the shard of its sample with so many kept ones before it."""
        return np.asarray(self.numbers[self.begins[shards] + places], np.int64)

    def __getstate__(self) -> dict[str, Any]:
        import torch

        state = {}
        for name in _ARRAYS:
            array = getattr(self, name)
            # One copy for all workers, and this process goes on with that one. torch has no uint32 in all versions.
            shared = torch.from_numpy(array.view(f"i{array.itemsize}").copy()).share_memory_()  # type: ignore[no-untyped-call]
            setattr(self, name, shared.numpy().view(array.dtype))
            state[name] = shared
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in _ARRAYS:
            array = state[name].numpy()
            setattr(self, name, array.view(np.uint32) if name == "numbers" else array)
