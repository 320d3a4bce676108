"""Sets of positions, held as the ranges they form: what has been handed out, and what remains.

A `Ranges` costs what its gaps cost, never what it contains: all of the first billion positions is one pair.
Immutable, compared by value, safe to share between threads and to pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


class Ranges:
    """A set of integers ≥ 0 as sorted half-open ranges that neither overlap nor touch.

    Two sets are equal exactly if they contain the same integers. Pairs may be given in any order,
    overlapping, adjacent or empty; a negative or reversed one is a ValueError.
    """

    __slots__ = ("_before", "_starts", "_stops")

    def __init__(self, pairs: Iterable[tuple[int, int]] | Positions = ()) -> None:
        # Kept as int64 (n, 2) whatever came; a list of pairs and an array of two columns serve alike.
        given = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=np.int64)
        given = given.reshape(-1, 2) if given.size == 0 else given
        if given.ndim != 2 or given.shape[1] != 2:
            raise ValueError(f"ranges of shape {given.shape}: pairs (start, stop) were expected")
        wrong = np.flatnonzero((given[:, 0] < 0) | (given[:, 1] < given[:, 0]))
        if wrong.size:
            start, stop = given[wrong[0]].tolist()
            raise ValueError(f"range ({start}, {stop}): 0 ≤ start ≤ stop was expected")
        given = given[given[:, 0] < given[:, 1]]
        given = given[np.argsort(given[:, 0], kind="stable")]
        # A range starts anew where it begins behind everything before it.
        reach = np.maximum.accumulate(given[:, 1])
        new = np.ones(len(given), dtype=bool)
        new[1:] = given[1:, 0] > reach[:-1]
        first = np.flatnonzero(new)
        self._starts: Positions = np.ascontiguousarray(given[first, 0])
        self._stops: Positions = reach[np.append(first[1:], len(given)) - 1] if first.size else reach[:0]
        # How many members lie before each range, and all of them at the end: one number more than ranges.
        self._before: Positions = np.zeros(len(first) + 1, dtype=np.int64)
        np.cumsum(self._stops - self._starts, out=self._before[1:])

    @classmethod
    def until(cls, stop: int) -> Ranges:
        """All positions below `stop`."""
        return cls([(0, stop)])

    @classmethod
    def of(cls, positions: npt.ArrayLike) -> Ranges:
        """Exactly these positions, given in any order, doubles allowed."""
        single = np.asarray(positions, dtype=np.int64).reshape(-1)
        return cls(np.stack((single, single + 1), axis=1))

    @property
    def size(self) -> int:
        """How many positions."""
        return int(self._before[-1])

    @property
    def prefix(self) -> int:
        """The largest p with every position below p in the set."""
        return int(self._stops[0]) if self._starts.size and self._starts[0] == 0 else 0

    @property
    def stop(self) -> int:
        """One more than the largest position; 0 of an empty set."""
        return int(self._stops[-1]) if self._stops.size else 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, in order."""
        return zip(self._starts.tolist(), self._stops.tolist(), strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts.size)

    def union(self, *others: Ranges) -> Ranges:
        """Positions in any of the sets."""
        return Ranges(np.concatenate([each._pairs() for each in (self, *others)]))

    def complement(self, stop: int) -> Ranges:
        """Positions below `stop` that are not in the set."""
        starts = np.minimum(np.concatenate(([0], self._stops)), stop)
        stops = np.minimum(np.append(self._starts, stop), stop)
        return Ranges(np.stack((starts, np.maximum(starts, stops)), axis=1))

    def first(self, count: int) -> Ranges:
        """The `count` smallest positions; all of them where there are no more."""
        kept = np.clip(count - self._before[:-1], 0, self._stops - self._starts)
        return Ranges(np.stack((self._starts, self._starts + kept), axis=1))

    def contains(self, positions: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """For each position whether it is in the set."""
        asked = np.asarray(positions, dtype=np.int64)
        if not self:
            return np.zeros(asked.shape, dtype=bool)
        at = np.searchsorted(self._starts, asked, side="right") - 1
        return np.asarray((at >= 0) & (asked < self._stops[np.maximum(at, 0)]))

    def select(self, ordinals: npt.ArrayLike) -> Positions:
        """The position with that many members below it, for each; an ordinal outside 0 … size-1 is an IndexError."""
        asked = np.asarray(ordinals, dtype=np.int64)
        if asked.size and not (asked.min() >= 0 and asked.max() < self.size):
            raise IndexError(f"ordinals {asked.min()} … {asked.max()} of a set of {self.size} positions")
        if self._starts.size == 1:  # nearly always: no holes
            return np.asarray(asked + self._starts[0])
        at = np.searchsorted(self._before, asked, side="right") - 1
        return np.asarray(asked - self._before[at] + self._starts[at]) if asked.size else asked

    def to_list(self) -> list[list[int]]:
        """JSON: a list of [start, stop]."""
        return [[start, stop] for start, stop in self]

    def _pairs(self) -> Positions:
        return np.stack((self._starts, self._stops), axis=1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return np.array_equal(self._starts, other._starts) and np.array_equal(self._stops, other._stops)

    def __hash__(self) -> int:
        return hash((self._starts.tobytes(), self._stops.tobytes()))

    def __repr__(self) -> str:
        shown = [f"({start}, {stop})" for start, stop in zip(self._starts[:8], self._stops[:8], strict=True)]
        return f"Ranges([{', '.join(shown)}{', …' if self._starts.size > 8 else ''}])"

    def __reduce__(self) -> tuple[Any, ...]:
        return Ranges, (self._pairs(),)
