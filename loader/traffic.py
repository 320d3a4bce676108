"""What reading asked of stores: requests, bytes, downloads, counted where it happens and added up for people."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_FIELDS = ("requests", "fetched", "wanted", "downloads", "cached", "repeated")
_ROWS = 128  # one for each process: the main one, then DataLoader's workers; beyond that, some share one


class Traffic:
    """`requests` made of stores (not counting what a client repeats by itself), bytes `fetched`, and of these the bytes
    of `wanted` members; whole shards in `downloads`, and those that were found in the cache, `cached`; members `repeated`,
    because their bytes had changed on the way.

    That of a dataset also counts what its DataLoader's workers do. Threads may share one.
    """

    def __init__(self) -> None:
        self._values: npt.NDArray[np.int64] = np.zeros((_ROWS, len(_FIELDS)), np.int64)
        self._tensor: Any = None  # the same memory, where it is shared
        self._row = 0
        self._own()

    def _own(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def share(self) -> Traffic:
        """Count with the workers from now on; returns itself."""
        import torch

        if self._tensor is None:
            self._tensor = torch.from_numpy(self._values).share_memory_()  # type: ignore[no-untyped-call]
            self._values = self._tensor.numpy()
        return self

    def of_worker(self, number: int | None) -> None:
        """This process is that worker; None: the main one."""
        self._row = 0 if number is None else 1 + number % (_ROWS - 1)

    def add(self, **counts: int) -> None:
        """Count."""
        if self._pid != os.getpid():  # forked, perhaps while the lock was held
            self._own()
        with self._lock:
            for name, count in counts.items():
                self._values[self._row, _FIELDS.index(name)] += count

    def __getattr__(self, name: str) -> int:
        if name not in _FIELDS:
            raise AttributeError(f"Traffic has no attribute {name!r}")
        return int(self._values[:, _FIELDS.index(name)].sum())

    def as_dict(self) -> dict[str, int]:
        """All numbers by name."""
        return dict(zip(_FIELDS, self._values.sum(axis=0).tolist(), strict=True))

    def reset(self) -> None:
        """Count from zero again."""
        self._values[:] = 0

    def __repr__(self) -> str:
        told = self.as_dict()
        return (
            f"<Traffic: {told['requests']:,} requests, {told['fetched']:,} bytes for {told['wanted']:,} wanted; "
            f"{told['downloads']:,} downloads, {told['cached']:,} from the cache; {told['repeated']:,} repeated>"
        )

    def __getstate__(self) -> dict[str, Any]:
        values = None if self._tensor is not None else self._values
        return {"_values": values, "_tensor": self._tensor, "_row": self._row}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._tensor is not None:
            self._values = self._tensor.numpy()
        self._own()
