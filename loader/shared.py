"""What a process shares with its DataLoader workers: the epoch at hand, and which loaded state counts."""

from __future__ import annotations

import os

import torch
from torch.utils.data import get_worker_info

_EPOCH, _LOADED, _COUNTER, _WARNED = range(4)


class Shared:
    """Workers that live through epochs see what the process that started them sets, however they were started.

    A process of its own that got this by fork or pickle (a rank, for which the dataset was built beforehand) goes
    on with numbers of its own as soon as it sets one, so that ranks never set each other's epoch.
    """

    def __init__(self, values: torch.Tensor | None = None) -> None:
        self._use(torch.zeros(4, dtype=torch.int64) if values is None else values.clone())

    def _use(self, values: torch.Tensor) -> None:
        self._tensor = values.share_memory_()  # type: ignore[no-untyped-call]
        self._values = self._tensor.numpy()  # the same memory, read twenty times as fast
        self._owner = os.getpid()

    def __getstate__(self) -> tuple[torch.Tensor, int]:
        self._own()
        return self._tensor, self._owner

    def __setstate__(self, state: tuple[torch.Tensor, int]) -> None:
        self._use(state[0])  # shared already, but after an ordinary pickle or a deep copy
        self._owner = state[1]

    def copy(self) -> Shared:
        """The same numbers, set apart from here on."""
        return Shared(self._tensor)

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that comes next."""
        return int(self._values[_EPOCH])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._own()
        self._values[_EPOCH] = epoch

    @property
    def loaded(self) -> int:
        """The number of the loaded state that counts; 0 for none."""
        return int(self._values[_LOADED])

    def load(self) -> int:
        """A new number, for a state that counts from now on."""
        self._own()
        self._values[_COUNTER] += 1
        self._values[_LOADED] = self._values[_COUNTER]
        return self.loaded

    def forget(self) -> None:
        """No loaded state counts any more."""
        if self.loaded:
            self._own()
            self._values[_LOADED] = 0

    def first_warning(self) -> bool:
        """Whether nobody has asked before."""
        first = not self._values[_WARNED]
        self._values[_WARNED] = 1
        return bool(first)

    def _own(self) -> None:
        if self._owner != os.getpid() and get_worker_info() is None:
            self._use(self._tensor.clone())
