"""Bytes and arrays of a batch across the process border: through memory that is used again, not through a pipe.

torch's DataLoader pickles whatever is no tensor through a pipe, at some hundred MB/s. Here a worker copies large
bytes and NumPy arrays of a batch into one of a few slots of shared memory, and the main process copies them out
before it hands the batch on. The slots are used in turn, so their pages are there after the first round.

The main process counts the batches that it has copied out, in the first bytes of the memory. A worker that has as
many on their way as there are slots sends the next one whole through the pipe: nothing waits, and no slot is
overwritten too early, whatever torch's queues do.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np

SLOT = 64 << 20  # bytes of address space; memory is taken as it is touched. What doesn't fit goes by pipe
SMALLEST = 4096  # bytes: below that a pickle is as fast
_ALIGNED = 64
_HEAD = mmap.PAGESIZE
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>


class Bytes(NamedTuple):
    """Stands for bytes that lie in the slot."""

    begin: int
    end: int


class Array(NamedTuple):
    """Stands for an array that lies in the slot."""

    begin: int
    shape: tuple[int, ...]
    dtype: str


def make_slots(workers: int, prefetch_factor: int | None) -> list[Slots]:
    """Slots for each worker; none where the system has no anonymous files that processes can share."""
    if not hasattr(os, "memfd_create"):
        return []
    return [Slots((prefetch_factor or 2) + 1) for _ in range(workers)]


class Slots:
    """The slots of one worker. Made in the main process, inherited or pickled to the worker that it is for."""

    def __init__(self, count: int) -> None:
        self._open(count, os.memfd_create("shardflow-batches", os.MFD_CLOEXEC))

    def _open(self, count: int, file: int) -> None:
        size = _HEAD + count * SLOT
        os.ftruncate(file, size)
        self.count, self._file = count, file
        self._map = mmap.mmap(file, size)
        self._taken = memoryview(self._map)[:8].cast("q")  # written by the main process alone
        self._sent = 0  # by this worker, since it last began
        self._iteration: object = None

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count, "file": DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["count"], state["file"].detach())

    def __del__(self) -> None:
        file, self._file = getattr(self, "_file", -1), -1
        if file >= 0:
            os.close(file)

    def put(self, batch: Any, iteration: object) -> Any:
        """The batch with its large parts in the next slot; worker side.

        A new `iteration` (by identity) begins when everything of the one before was taken or thrown away.
        """
        if iteration is not self._iteration:
            keep_freed_memory()
            self._iteration, self._sent = iteration, self._taken[0]
        if self._sent - self._taken[0] >= self.count:
            return Whole(batch)
        begin = _HEAD + self._sent % self.count * SLOT
        self._sent += 1
        return _Cursor(self._map, begin, begin + SLOT).replace(batch)

    def take(self, batch: Any) -> Any:
        """The batch as it was, in memory of its own; main side, in the order of `put`."""
        if type(batch) is Whole:
            return batch.batch
        batch = _restore(batch, self._map)
        self._taken[0] += 1
        return batch


class Whole(NamedTuple):
    """A batch that found no free slot."""

    batch: Any


def keep_freed_memory() -> None:
    """Have this process' malloc keep what one batch frees for the next, up to 64 MB; nothing but with glibc.

    Without, a batch's pages go back to the system and come anew, zeroed, for the next one: half of what a worker
    that reads photographs does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_TRIM_THRESHOLD, 64 << 20)
    mallopt(_MMAP_THRESHOLD, 32 << 20)  # setting the first keeps this one from growing by itself, up to there


class _Cursor:
    def __init__(self, memory: mmap.mmap, at: int, end: int) -> None:
        self.memory, self.at, self.end = memory, at, end

    def replace(self, value: Any) -> Any:
        kind = type(value)
        if kind is bytes:
            size = len(value)
            if size < SMALLEST or self.at + size > self.end:
                return value
            begin = self.at
            self.memory[begin : begin + size] = value
            self._advance(size)
            return Bytes(begin, begin + size)
        if kind is dict:
            return {key: self.replace(item) for key, item in value.items()}
        if kind is list:
            return [self.replace(item) for item in value]
        if isinstance(value, tuple):
            items = [self.replace(item) for item in value]
            return kind(*items) if hasattr(value, "_fields") else (tuple(items) if kind is tuple else value)
        if kind is np.ndarray:
            return self._array(value)
        return value

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        if value.nbytes < SMALLEST or self.at + value.nbytes > self.end or value.dtype.kind not in "biufc":
            return value
        begin = self.at
        np.ndarray(value.shape, value.dtype, self.memory, begin)[...] = value
        self._advance(value.nbytes)
        return Array(begin, value.shape, value.dtype.str)

    def _advance(self, size: int) -> None:
        self.at += (size + _ALIGNED - 1) & -_ALIGNED


def _restore(value: Any, memory: mmap.mmap) -> Any:
    kind = type(value)
    if kind is Bytes:
        return memory[value[0] : value[1]]
    if kind is Array:
        return np.ndarray(value.shape, value.dtype, memory, value.begin).copy()
    if kind is dict:
        return {key: _restore(item, memory) for key, item in value.items()}
    if kind is list:
        return [_restore(item, memory) for item in value]
    if isinstance(value, tuple):
        items = [_restore(item, memory) for item in value]
        return kind(*items) if hasattr(value, "_fields") else (tuple(items) if kind is tuple else value)
    return value
