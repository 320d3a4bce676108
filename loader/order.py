"""What a position of an epoch means: a pure function of the shards' counts, seed, epoch, lanes and window.

Any position leads to its sample in O(log shards), without replay and without state; memory is a few numbers
a shard. Nothing here depends on ranks, workers or time (`loader.schedule` deals positions out), and nothing
on a library's random stream: the whole of it follows, so that it can be written again elsewhere.

Order, version 1
----------------

All arithmetic is on unsigned 64-bit integers and wraps. ``G = 0x9E3779B97F4A7C15``.

**Mix**: ``z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31``
(the finaliser of SplitMix64). **Key of words** w0, w1, …: start with h = 0; for each ``h = mix(h + w + G)``.

**Shards.** Shards without samples take no part. Let m others be left, numbered 0 … m-1 as on disk. Sort them
by ``mix(key(seed, epoch, 0) + G·number)``, equal ones by number. Shard k of that sequence goes to lane k mod
V, behind those already there.

**Lanes.** Let q be the number of samples in the shortest lane. Position p < q·V is lane p mod V, place p // V.
What is left follows in one more sequence: the rest of lane 0, from place q on, then that of lane 1, ….

**Windows.** A lane of L samples has ``w = max(1, floor(L / shuffle_size + 1/2))`` windows to fill, of
``ceil(L / w)`` places each. A shard belongs, whole, to the one in which its first sample lies. Those that got
a shard are numbered through all lanes, lane 0 first: 0, 1, …. A window with n samples and number j is permuted
inside: place x of it holds its sample P(x), P being the bijection below with ``key(seed, epoch, 1, j)``.

**P**, on 0 … n-1: a Feistel network over two digits of unlike size. ``a = ceil(sqrt(n))``, ``b = ceil(n / a)``.
Write x as l·b + r. For i = 0 … 7: if i is even, ``l = (l + F(i, r, a)) mod a``, else ``r = (r + F(i, l, b))
mod b``, where F(i, v, m) is::

    y = ((v ^ key) + (i+1) * 0x632BE59BD9B4E019) * G
    y = (y ^ (y >> 32)) * 0xD1B54A32D192ED03
    F = ((y >> 32) * m) >> 32

The result is l·b + r; as long as that is n or more, it goes through the network again (a·b is hardly larger
than n, so that is rare).

**Shuffle off**: shards stay as on disk, windows are not permuted. With one lane, that is the order on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

ORDER_VERSION = 1  # goes into every checkpoint: another order under the same number would train on doubles

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 8
_ROUND_STEP = 0x632BE59BD9B4E019
_FINISH = np.uint64(0xD1B54A32D192ED03)
_G = np.uint64(_GOLDEN)
_1, _32 = np.uint64(1), np.uint64(32)
_BLOCK = 16384  # positions looked up together: what they need stays in the second-level cache

_SHARDS, _WINDOWS = 0, 1  # third word of a key: what it permutes

URL_MODE_SHARDS = 10  # shards a rank, from which on each shard is read by one rank


def choose_lanes(num_shards: int, world_size: int, shuffle: bool = True) -> int:
    """Lanes for a run that starts now: the world size where each rank has 10 shards or more, else 1.

    With as many lanes as ranks each shard is read by one rank ("url" mode), with one lane every rank reads
    every shard ("sample" mode). Shuffle off keeps to one lane, because only that is the order on disk.
    """
    return world_size if shuffle and num_shards >= URL_MODE_SHARDS * world_size else 1


@dataclass(frozen=True, eq=False)
class Order:
    """The samples of one epoch in order. Immutable; build a new one for another epoch (milliseconds).

    `counts` are the samples of each shard, in the order of the dataset's list of shards; zeros are allowed.
    """

    counts: Int64s
    seed: int = 0
    epoch: int = 0
    shuffle_size: int = 50_000
    lanes: int = 1
    shuffle: bool = True

    # Derived. "Line": the samples of lane 0, then those of lane 1, …, before windows are permuted.
    _shards: Int64s = field(init=False, repr=False)  # shard ids along the line
    _starts: Int64s = field(init=False, repr=False)  # where on the line each begins, and the end
    _lanes: _Lanes = field(init=False, repr=False)
    _windows: _Windows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        counts = _checked_counts(self.counts)
        _set_integer(self, "seed", 0, _MASK)
        _set_integer(self, "epoch", 0, _MASK)
        _set_integer(self, "shuffle_size", 1, 1 << 62)
        _set_integer(self, "lanes", 1, 1 << 31)

        shards = np.flatnonzero(counts)
        if self.shuffle:
            numbers = np.arange(len(shards), dtype=np.uint64)
            ranks = _mix(numbers * _G + np.uint64(key_of(self.seed, self.epoch, _SHARDS)))
            shards = shards[np.argsort(ranks, kind="stable")]
        lane = np.arange(len(shards)) % self.lanes
        if self.lanes > 1:
            dealt = np.argsort(lane, kind="stable")
            shards, lane = shards[dealt], lane[dealt]
        starts = _offsets(counts[shards])
        lanes = _Lanes.of(starts, lane, self.lanes)
        key = key_of(self.seed, self.epoch, _WINDOWS)
        windows = _Windows.of(starts, lane, lanes, self.shuffle_size, key)
        for array in (counts, shards, starts):
            array.flags.writeable = False
        for name, value in (
            ("counts", counts),
            ("_shards", shards),
            ("_starts", starts),
            ("_lanes", lanes),
            ("_windows", windows),
        ):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """How many samples, and so positions: 0 … len-1."""
        return int(self._starts[-1])

    def at(self, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """The shard id and the number of the sample within it, for each position.

        Positions may come in any order, repeatedly, of any shape; one outside the epoch is an IndexError.
        The price is some 0.1 ms a call and about 60 ns a position where they lie together.
        """
        asked = np.asarray(positions)
        flat = self._checked(asked)
        shards, samples = np.empty_like(flat), np.empty_like(flat)
        for low in range(0, len(flat), _BLOCK):
            block = slice(low, low + _BLOCK)
            line = self._line(flat[block])
            window = np.searchsorted(self._windows.starts, line, side="right") - 1
            if self.shuffle:
                line = self._windows.permuted(line, window)
            at = self._shard_at(line, window)
            shards[block] = self._shards[at]
            samples[block] = line - self._starts[at]
        return shards.reshape(asked.shape), samples.reshape(asked.shape)

    def windows(self, positions: npt.ArrayLike) -> Int64s:
        """The number of the window that each position lies in, in the shape of `positions`."""
        asked = np.asarray(positions)
        at = np.searchsorted(self._windows.starts, self._line(self._checked(asked)), side="right") - 1
        return at.reshape(asked.shape)

    @property
    def num_windows(self) -> int:
        """How many windows the epoch has, in all lanes together."""
        return len(self._windows.keys)

    @property
    def largest_window(self) -> int:
        """The most shards in one window: how many a reader of one lane wants to hold open."""
        return int(np.diff(self._windows.shards).max(initial=0))

    def window_shards(self, window: int) -> Int64s:
        """The ids of the shards in one window, in the order of the epoch's permutation."""
        if not 0 <= window < self.num_windows:
            raise IndexError(f"window {window} of {self.num_windows}")
        return self._shards[self._windows.shards[window] : self._windows.shards[window + 1]]

    def shards_for(self, positions: npt.ArrayLike) -> Int64s:
        """The ids of all shards in the windows that these positions touch, in the order of first touch.

        What to have at hand before reading them: a window is permuted inside, so any of its shards may be
        needed at once.
        """
        touched, first = np.unique(self.windows(positions), return_index=True)
        parts = [self.window_shards(window) for window in touched[np.argsort(first)].tolist()]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _checked(self, positions: npt.NDArray[Any]) -> Int64s:
        if positions.size == 0:
            return np.empty(0, dtype=np.int64)
        if positions.dtype.kind not in "iu":
            raise TypeError(f"positions of type {positions.dtype}: integers were expected")
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= len(self):
            raise IndexError(f"positions {low} … {high} of an epoch of {len(self)} samples")
        return positions.reshape(-1).astype(np.int64, copy=False)

    def _line(self, positions: Int64s) -> Int64s:
        """Where on the line each position lies."""
        if self.lanes == 1:
            return positions
        lanes = self._lanes
        place, lane = np.divmod(positions, self.lanes)
        line = lanes.starts[lane] + place
        rest = np.flatnonzero(positions >= lanes.shortest * self.lanes)
        if rest.size:
            place = positions[rest] - lanes.shortest * self.lanes
            lane = np.searchsorted(lanes.rest_starts, place, side="right") - 1
            line[rest] = lanes.starts[lane] + lanes.shortest + place - lanes.rest_starts[lane]
        return line

    def _shard_at(self, line: Int64s, window: Int64s) -> Int64s:
        """Along the line, the shard that each place lies in.

        Guessed first as if the shards of a window were of one size, which they mostly are: a search through
        all of them would cost as much as the rest of `at`.
        """
        windows, starts = self._windows, self._starts
        at = ((line - windows.starts[window]) * windows.density[window]).astype(np.int64)
        at = np.asarray(np.minimum(at + windows.shards[window], windows.shards[window + 1] - 1))
        wrong = np.flatnonzero((starts[at] > line) | (starts[at + 1] <= line))
        if wrong.size:
            at[wrong] = np.searchsorted(starts, line[wrong], side="right") - 1
        return at


@dataclass(frozen=True, eq=False)
class _Lanes:
    starts: Int64s  # where on the line each lane begins
    shortest: int  # samples in the shortest lane
    rest_starts: Int64s  # where in the last sequence the rest of each lane begins

    @classmethod
    def of(cls, starts: Int64s, lane: Int64s, lanes: int) -> _Lanes:
        """From where on the line each shard begins (and the end), and its lane."""
        ends = starts[_offsets(np.bincount(lane, minlength=lanes))]
        sizes = np.diff(ends)
        shortest = int(sizes.min())
        return cls(ends[:-1], shortest, _offsets(sizes - shortest))


@dataclass(frozen=True, eq=False)
class _Windows:
    shards: Int64s  # along the line, the first shard of each window, and their number
    starts: Int64s  # where on the line each window begins, and the end
    density: npt.NDArray[np.float64]  # shards a sample
    sizes: UInt64s
    big: UInt64s  # a and b of the module's head
    small: UInt64s
    keys: UInt64s

    @classmethod
    def of(cls, starts: Int64s, lane: Int64s, lanes: _Lanes, shuffle_size: int, key: int) -> _Windows:
        """From where on the line each shard begins (and the end), and its lane."""
        in_lane = np.diff(np.append(lanes.starts, starts[-1]))
        wanted = np.maximum(1, (in_lane + shuffle_size // 2) // shuffle_size)
        target = np.maximum(1, -(-in_lane // wanted))
        window = (starts[:-1] - lanes.starts[lane]) // target[lane]
        new = np.ones(len(lane), dtype=bool)
        new[1:] = (window[1:] != window[:-1]) | (lane[1:] != lane[:-1])
        shards = np.append(np.flatnonzero(new), len(lane))
        begins = starts[shards]
        sizes = np.diff(begins).astype(np.uint64)
        numbers = np.arange(len(sizes), dtype=np.uint64)
        return cls(
            shards,
            begins,
            np.diff(shards) / sizes.astype(np.float64),
            sizes,
            *_digits(sizes),
            _mix(numbers + np.uint64((key + _GOLDEN) & _MASK)),
        )

    def permuted(self, line: Int64s, window: Int64s) -> Int64s:
        """Where on the line the sample lies that each place of a window holds."""
        begin = self.starts[window]
        places = (line - begin).view(np.uint64)
        images = _permute(places, self.sizes[window], self.big[window], self.small[window], self.keys[window])
        return begin + images.view(np.int64)


def permute(places: UInt64s, sizes: UInt64s, keys: UInt64s) -> UInt64s:
    """P of the module's head: for each place its image in 0 … size-1, for the size and key beside it.

    Three arrays of one length, sizes from 1 to 2^62; each place is below its size (unchecked).
    """
    return _permute(places.copy(), sizes, *_digits(sizes), keys)


def _digits(sizes: UInt64s) -> tuple[UInt64s, UInt64s]:
    """a and b of the module's head: ceil(sqrt(n)) and ceil(n / a), exactly."""
    big = np.sqrt(sizes.astype(np.float64)).astype(np.uint64)
    big += big * big < sizes  # floor to ceiling, by integers: it must not depend on how a float was rounded
    return big, (sizes + big - _1) // big


def _permute(places: UInt64s, sizes: UInt64s, big: UInt64s, small: UInt64s, keys: UInt64s) -> UInt64s:
    """As `permute`, in place."""
    _network(places, big, small, keys)
    todo = np.flatnonzero(places >= sizes)
    while todo.size:
        again = places[todo]
        _network(again, big[todo], small[todo], keys[todo])
        places[todo] = again
        todo = todo[again >= sizes[todo]]
    return places


def _network(places: UInt64s, big: UInt64s, small: UInt64s, keys: UInt64s) -> None:
    """All rounds, once, in place. Every operation writes where it has written before: no array is made twice."""
    digits, sizes = np.divmod(places, small), (big, small)
    mixed, shifted = np.empty_like(places), np.empty_like(places)
    for number in range(_ROUNDS):
        target = number % 2
        digit, size = digits[target], sizes[target]
        np.bitwise_xor(digits[1 - target], keys, out=mixed)
        np.add(mixed, np.uint64((number + 1) * _ROUND_STEP & _MASK), out=mixed)
        np.multiply(mixed, _G, out=mixed)
        np.right_shift(mixed, _32, out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.multiply(mixed, _FINISH, out=mixed)
        np.right_shift(mixed, _32, out=mixed)
        np.multiply(mixed, size, out=mixed)  # a size is below 2^32: no carry is lost
        np.right_shift(mixed, _32, out=mixed)
        np.add(digit, mixed, out=digit)
        np.subtract(digit, size, out=mixed)  # wraps to a huge number where the digit is in range
        np.minimum(digit, mixed, out=digit)
    np.multiply(digits[0], small, out=places)
    np.add(places, digits[1], out=places)


def _mix(values: UInt64s) -> UInt64s:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


def key_of(*words: int) -> int:
    """The key of some words below 2^64."""
    key = np.zeros(1, dtype=np.uint64)  # an array, because NumPy's scalars warn where they wrap
    for word in words:
        key = _mix(key + np.uint64((word + _GOLDEN) & _MASK))
    return int(key[0])


def _offsets(sizes: Int64s) -> Int64s:
    """Where each of these begins, one behind the other, and the end: one number more than sizes."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _set_integer(order: Order, name: str, low: int, high: int) -> None:
    value = getattr(order, name)
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}: an integer from {low} to {high} was expected")
    object.__setattr__(order, name, int(value))


def _checked_counts(counts: npt.ArrayLike) -> Int64s:
    """A private copy of the counts, refused where they can't be meant."""
    given = np.asarray(counts)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(
            f"counts of shape {given.shape} and type {given.dtype}: one integer for each shard was expected"
        )
    checked = given.astype(np.int64)
    if checked.size and checked.min() < 0:
        shard = int(np.argmin(checked))
        raise ValueError(f"shard {shard} has {checked[shard]} samples: 0 or more were expected")
    if checked.size and checked.sum(dtype=np.float64) >= 1 << 62:
        raise ValueError("more than 2^62 samples: counts can't be right")
    return checked
