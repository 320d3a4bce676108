"""A tar in a store, walked while it comes: large ranges side by side, or little more than its headers.

What has come lies where it belongs in a map of the tar's size, of which only that much is memory: what the walk has
passed is given back. To get over a member to the next header there are two ways. Reading on takes as long as its
bytes do, asking for the header alone takes a round trip; so members are jumped over that are larger than what
comes meanwhile, latency × bandwidth, both as measured here. Whoever wants all bytes (for checksums) never jumps, whoever
pays for bytes jumps over all that is larger than a request is worth.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Iterator

from loader import storage
from loader.storage import Stat, StorageOptions
from loader.tar import BLOCK

_WORTH = 16 << 10  # bytes: what a request is taken to cost, where bytes are to be saved
# After a jump, another may follow: read on in small steps first, and side by side only after these.
_STEPS = (BLOCK, 64 << 10, 256 << 10, 1 << 20)
_SAVING_STEPS = (BLOCK, 4 << 10, 4 << 10, _WORTH, _WORTH, 64 << 10, 256 << 10, 1 << 20)
_WAVE = 4 << 20  # bytes: what the first requests of a stream ask for together
_LARGE = 1 << 20  # bytes: of members that may be worth a jump
_FASTEST = 1.25e9  # bytes a second: what is more than this in a round trip is jumped over unmeasured
_NO_SWAP = 0x4000  # MAP_NORESERVE: the map may be larger than the memory there is


class Arriving:
    """The bytes of a tar, as far as they were asked for by `need`.

    `every`: all bytes are wanted. `save`: as few as possible. Neither: as fast as possible. Use it as a context.
    """

    def __init__(
        self,
        address: str,
        found: Stat,
        storage_options: StorageOptions | None = None,
        *,
        every: bool,
        save: bool = False,
    ) -> None:
        self.size = found.size
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_SWAP
        self.buffer = mmap.mmap(-1, found.size, flags=flags)
        self.fetched = 0  # bytes
        self._address, self._options, self._version = address, storage_options, found.version or None
        self._every, self._save = every, save
        self._base = self._filled = 0  # what is there
        self._released = 0
        self._stream: Iterator[bytes] | None = None
        self._opened = 0.0  # when
        self._streamed = 0  # bytes since
        self._latency = math.inf  # seconds of the quickest answer
        self._bandwidth = _FASTEST  # bytes a second, of all requests together
        # The first header alone, which tells how long an answer takes; then all at once.
        self._steps: tuple[int, ...] = _SAVING_STEPS if save else () if every else _STEPS[:1]
        self._step = 0

    def __enter__(self) -> Arriving:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def need(self, start: int, end: int) -> int:
        """Wait for the bytes from `start` to `end`; returns up to where all that follow `start` are there."""
        if not self._base <= start:
            raise ValueError(f"{self._address}: byte {start} was given back")
        while self._filled < end:
            if start - self._filled > self._worth():
                self._jump(start)
            self._more(end)
        return self._filled

    def _jump(self, start: int) -> None:
        self._close()
        self._base = self._filled = start
        self._steps, self._step = _SAVING_STEPS if self._save else _STEPS, 0

    def release(self, before: int) -> None:
        """Give back the memory of what lies before; it can't be asked for again."""
        page = before - before % mmap.PAGESIZE
        if page > self._released:
            self.buffer.madvise(mmap.MADV_DONTNEED, self._released, page - self._released)
            self._released = page
            self._base = max(self._base, min(page, self._filled))

    def _worth(self) -> float:
        """How large a gap must be to be jumped over."""
        if self._every:
            return math.inf
        return _WORTH if self._save else self._latency * self._bandwidth  # infinite before the first answer

    def _more(self, end: int) -> None:
        """Fetch what follows: at least a byte, if not all up to `end`."""
        if self._stream is None and self._step < len(self._steps):
            stop = max(self._filled + self._steps[self._step], end)
            stop = stop if stop + _WORTH < self.size else self.size  # no request for the last zero blocks
            self._step += 1
            began = time.monotonic()
            self._put(
                storage.read_bytes(self._address, self._options, self._filled, stop, version=self._version)
            )
            self._latency = min(self._latency, time.monotonic() - began)
            return
        if self._stream is None:
            self._opened, self._streamed = time.monotonic(), 0
            # Small members only so far: nothing will be jumped over, as far as one can tell.
            small = self._steps is not _STEPS and not self._save and end - self._filled <= _LARGE
            self._stream = storage.read_in_order(
                self._address,
                self.size,
                self._options,
                start=self._filled,
                smallest=None if self._every or small else _WAVE // storage.AHEAD,
                version=self._version,
            )
        data = next(self._stream)
        self._put(data)
        took = time.monotonic() - self._opened
        self._streamed += len(data)
        # The first wave is asked for at once: when its first chunk is there, the others are about to be.
        self._bandwidth = max(self._streamed, _WAVE) / max(took - self._latency, took / 4)

    def _put(self, data: bytes) -> None:
        self.buffer[self._filled : self._filled + len(data)] = data
        self._filled += len(data)
        self.fetched += len(data)

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()  # type: ignore[attr-defined]
