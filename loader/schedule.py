"""Who gets which position, and when: an epoch's remaining positions dealt to batches, ranks and workers.

A pure function, like the order itself, and arithmetic throughout: any entry of any stream is found in O(log
holes), so a restored run starts as fast as a new one. Nothing here knows what a position means
(`loader.order`), and nothing is ever replayed.

The list
    What is dealt out are the positions that no checkpoint calls done, ascending: entry 0, 1, …. On a fresh
    epoch entry k is position k. `tail` says how the list ends where it doesn't come out even; G is the global
    batch, `world_size * batch_size`:

    - ``"drop"``: up to G - 1 last entries are left out. Every batch is full.
    - ``"pad"``: up to G - 1 positions from the epoch's start (0, 1, …) are appended. Every batch is full.
    - ``"even"``: up to world_size - 1 positions from the epoch's start are appended, so that ranks end together with
      batches of one size; the last may be short. What PyTorch's DistributedSampler does.
    - ``"keep"``: nothing added, nothing left out: each sample exactly once. The last batch may be short, by
      one sample more on some ranks than on others, and a rank may miss it: for evaluation without
      collectives in the loop, or on one rank, where it is the same as "even".

Batches
    Global batch t is entries t·G … t·G+G-1. Rank r takes those that are r modulo the world size. So the
    sequence of global batches is the same for any world size and any worker count under one G. Where a run
    resumes after whole global batches, it is the same as uninterrupted, its padding included.

Workers
    A rank's batch t is made by its worker t modulo the number of workers, as torch's DataLoader asks them in
    turn for whole batches. A worker's *stream* is the entries of its batches, one behind the other: an iterable
    dataset that yields exactly its stream sample by sample, under a DataLoader of the same batch size, gives
    every batch as stated here. A dataset that isn't told the batch size deals single samples (batch_size=1):
    each sample still comes once, ranks still end together under "drop", "pad" and "even", but DataLoader then
    collects its batches from samples that lie a worker count apart, so what they hold depends on that count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from loader.ranges import Positions, Ranges

Tail = Literal["drop", "pad", "even", "keep"]


@dataclass(frozen=True)
class Schedule:
    """How what remains of an epoch of `samples` positions is dealt out. `num_workers` 0 means 1: no workers."""

    samples: int
    world_size: int = 1
    batch_size: int = 1
    num_workers: int = 1
    tail: Tail = "drop"
    done: Ranges = field(default_factory=Ranges)

    def __post_init__(self) -> None:
        for name, low in (("samples", 0), ("world_size", 1), ("batch_size", 1), ("num_workers", 0)):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < low:
                raise ValueError(f"{name} is {value!r}: an integer of at least {low} was expected")
            object.__setattr__(self, name, int(value))
        if self.num_workers == 0:
            object.__setattr__(self, "num_workers", 1)
        if self.tail not in get_args(Tail):
            raise ValueError(f"tail is {self.tail!r}: one of {', '.join(get_args(Tail))} was expected")
        if self.done.stop > self.samples:
            raise ValueError(f"position {self.done.stop - 1} is done, in an epoch of {self.samples} samples")

    @property
    def global_batch_size(self) -> int:
        """G: samples that all ranks together take for one step."""
        return self.world_size * self.batch_size

    @cached_property
    def remaining(self) -> Ranges:
        """The positions to deal out, before the tail is evened."""
        return self.done.complement(self.samples)

    @property
    def entries(self) -> int:
        """Length of the list, over all ranks, what the tail rule adds or leaves out included."""
        left = self.remaining.size
        if self.tail == "keep":
            return left
        unit = self.world_size if self.tail == "even" else self.global_batch_size
        return left // unit * unit if self.tail == "drop" else -(-left // unit) * unit

    @property
    def global_batches(self) -> int:
        """Steps until the epoch ends, for the rank that makes most of them; under "keep" others may make one less."""
        return -(-self.entries // self.global_batch_size)

    def rank_samples(self, rank: int) -> int:
        """Exact number of samples that this rank gets."""
        self._check(rank, 0)
        return max(0, -(-(self.entries - rank) // self.world_size))

    def rank_batches(self, rank: int) -> int:
        """Exact number of batches that this rank gets."""
        return -(-self.rank_samples(rank) // self.batch_size)

    def worker_batches(self, rank: int, worker: int) -> int:
        """Exact number of batches that this worker makes."""
        self._check(rank, worker)
        return max(0, -(-(self.rank_batches(rank) - worker) // self.num_workers))

    def worker_samples(self, rank: int, worker: int) -> int:
        """Exact length of this worker's stream."""
        full = self.worker_batches(rank, worker) * self.batch_size
        batches = self.rank_batches(rank)
        makes_last = batches > 0 and (batches - 1) % self.num_workers == worker
        return full - (batches * self.batch_size - self.rank_samples(rank) if makes_last else 0)

    def global_batch(self, number: int) -> Positions:
        """The positions of one global batch in order: all ranks' samples, interleaved."""
        low = number * self.global_batch_size
        if not 0 <= low < self.entries:
            raise IndexError(f"global batch {number} of {self.global_batches}")
        return self._positions(np.arange(low, min(low + self.global_batch_size, self.entries)))

    def batch(self, rank: int, number: int) -> Positions:
        """The positions of one batch of a rank, in order."""
        if not 0 <= number < self.rank_batches(rank):
            raise IndexError(f"batch {number} of {self.rank_batches(rank)} on rank {rank}")
        low = number * self.global_batch_size
        high = min(low + self.global_batch_size, self.entries)
        return self._positions(np.arange(low + rank, high, self.world_size))

    def stream(self, rank: int, worker: int, start: int = 0, stop: int | None = None) -> Positions:
        """The positions of a worker's stream from `start` up to `stop`, clipped at its end."""
        length = self.worker_samples(rank, worker)
        stop = length if stop is None else min(stop, length)
        return self._positions(self._entry(rank, worker, np.arange(min(start, stop), stop)))

    def iterate(
        self, rank: int, worker: int, start: int = 0, chunk: int = 8192, first: int = 256
    ) -> Iterator[Positions]:
        """A worker's stream in pieces of `chunk` positions, the first ones smaller, so that it starts at once."""
        length = self.worker_samples(rank, worker)
        size = min(first, chunk)
        while start < length:
            yield self.stream(rank, worker, start, start + size)
            start, size = start + size, min(2 * size, chunk)

    def delivered(self, batches: int) -> Ranges:
        """What is done once every rank has been handed its first `batches` batches and nothing was skipped.

        So a rank that knows only of itself knows of all, as ranks step together.
        """
        return self.done.union(self.remaining.first(batches * self.global_batch_size))

    def streams_after(self, rank: int, batches: int) -> tuple[int, ...]:
        """How far each stream of a rank is once its first `batches` batches were made and nothing was skipped."""
        self._check(rank, 0)
        entry = min(batches * self.global_batch_size, self.entries)
        return tuple(self._below(entry)[rank].tolist())

    def batches_left(self, rank: int, streams: Sequence[int]) -> int:
        """How many batches a rank still gets with its streams so far; exact if nothing is skipped from here on.

        Streams that are uneven end unevenly: each with a short batch of its own.
        """
        lengths = [self.worker_samples(rank, worker) for worker in range(self.num_workers)]
        return sum(
            max(0, -(-(length - start) // self.batch_size))
            for length, start in zip(lengths, streams, strict=True)
        )

    def consumed(self, streams: Mapping[int, Sequence[int]], batches: int = 0) -> Ranges:
        """What is done once each stream has got so far.

        `streams` maps a rank to how many entries of each worker's stream are done, handed out or skipped. Of a
        rank that is not in it, the first `batches` batches are taken to be done. Padding doesn't count: it
        repeats a position that some stream holds as its own. Costs what some streams are ahead of the others.
        """
        counts = self._below(batches * self.global_batch_size)
        for rank, own in streams.items():
            self._check(rank, 0)
            if len(own) != self.num_workers or min(own) < 0:
                raise ValueError(
                    f"counts {list(own)} of rank {rank}: {self.num_workers} numbers ≥ 0 were expected"
                )
            counts[rank] = own
        ranks, workers = np.indices(counts.shape)
        left = self.remaining.size
        low = min(left, int(self._entry(ranks, workers, counts).min()))  # below it, all streams are done
        common = self._below(low)
        ahead = [np.empty(0, dtype=np.int64)]
        for rank, worker in np.argwhere(counts > common).tolist():
            places = np.arange(common[rank, worker], counts[rank, worker])
            ahead.append(self._entry(rank, worker, places))
        entries = np.concatenate(ahead)
        beyond = Ranges.of(self.remaining.select(entries[entries < left]))
        return self.done.union(self.remaining.first(low), beyond)

    def _below(self, entry: int) -> npt.NDArray[np.int64]:
        """How many entries of each stream (rank, worker) lie before this entry of the list."""
        batches, rest = divmod(entry, self.global_batch_size)
        worker = np.arange(self.num_workers)
        counts = np.empty((self.world_size, self.num_workers), dtype=np.int64)
        counts[:] = np.maximum(0, -((worker - batches) // self.num_workers)) * self.batch_size
        items = np.maximum(0, -((np.arange(self.world_size) - rest) // self.world_size))
        counts[:, batches % self.num_workers] += items
        return counts

    def _entry(
        self, rank: npt.ArrayLike, worker: npt.ArrayLike, places: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Which entry of the list lies at each place of a stream (or would, behind its end)."""
        batch, item = np.divmod(places, self.batch_size)
        batch = batch * self.num_workers + np.asarray(worker)
        return np.asarray(batch * self.global_batch_size + item * self.world_size + np.asarray(rank))

    def _positions(self, entries: npt.NDArray[np.int64]) -> Positions:
        left = self.remaining.size
        padded = int(np.count_nonzero(entries >= left))  # entries ascend: padding is at the end
        if not padded:
            return self.remaining.select(entries)
        own, more = entries[:-padded], entries[-padded:]
        return np.concatenate((self.remaining.select(own), (more - left) % self.samples))

    def _check(self, rank: int, worker: int) -> None:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank}: 0 … {self.world_size - 1} was expected")
        if not 0 <= worker < self.num_workers:
            raise ValueError(f"worker {worker}: 0 … {self.num_workers - 1} was expected")
