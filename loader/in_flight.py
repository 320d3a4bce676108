"""Requests of one process to stores: threads, what they have fetched and nobody has read yet, and what all that took.

Threads are made when they are first needed, in the process that needs them: a fork, a copy or a pickle starts without.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from loader.range_reads import Body, read_body, read_ranges
from loader.storage import StorageOptions
from loader.traffic import Traffic

AT_ONCE = 32  # requests of a kind in flight
BYTES_AHEAD = 256 << 20  # of members that were announced and not read yet
_OPENING = 8  # shards that are opened, and so downloaded, at a time ahead of their use

Span = tuple[int, int]
T = TypeVar("T")
Self = TypeVar("Self", bound="InFlight")


class Awaited(NamedTuple):
    """A span on its way: in body `number` of those that come, which begins at `begin` of the tar."""

    bodies: Future[list[bytes]]
    number: int
    begin: int
    size: int


class _Process:
    """What belongs to one process."""

    def __init__(self, at_once: int, of_thread: threading.local) -> None:
        self.pid = os.getpid()

        own = weakref.ref(self)  # else its own threads would keep it, and themselves, for ever

        def begin() -> None:
            of_thread.process = own

        self.requests = ThreadPoolExecutor(at_once, "shardflow-request", begin)
        # Of downloads: no member waits behind them.
        self.parts = ThreadPoolExecutor(at_once, "shardflow-part", begin)
        self.opening = ThreadPoolExecutor(_OPENING, "shardflow-open", begin)
        self.coming: dict[tuple[str, int], Awaited] = {}
        self.expected = 0
        self.lock = threading.Lock()
        self.closed = threading.Event()


class InFlight:
    """What is on its way. Threads may share one."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.traffic = Traffic()
        self.at_once = at_once
        self._process: _Process | None = None
        self._of_thread = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_of_thread": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _of_thread=threading.local())

    def __copy__(self: Self) -> Self:
        """Another one with the same counts, and threads of its own."""
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__())
        return other

    @property
    def _own(self) -> _Process:
        whose = getattr(self._of_thread, "process", None)
        if whose is not None:  # a thread goes on with what it belongs to, closed as that may be
            own: _Process | None = whose()
            if own is None:
                raise InterruptedError("closed: nothing is fetched any more")
            return own
        if self._process is None or self._process.pid != os.getpid():
            self._process = _Process(self.at_once, self._of_thread)
        return self._process

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function that fetches a part of a download, on one of the threads for that; InterruptedError once closed."""
        return self._submit(self._own.parts, function, *arguments)

    def _submit(self, pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> Future[T]:
        try:
            return pool.submit(function, *arguments)
        except RuntimeError as error:
            raise InterruptedError("closed: nothing is fetched any more") from error

    def fetch(
        self, address: str, options: StorageOptions | None, ranges: Sequence[Span], version: str
    ) -> list[bytes]:
        """Byte ranges of that version of a file, as soon as all are here: a request each."""
        self.traffic.add(requests=len(ranges), fetched=sum(end - start for start, end in ranges))
        return read_ranges(address, ranges, options, in_flight=self.at_once, version=version or None)

    def fetch_part(self, address: str, options: StorageOptions | None, part: Span, version: str) -> Body:
        """One large range of that version of a file, by one request, as the client has it."""
        self.traffic.add(requests=1, fetched=part[1] - part[0])
        return read_body(address, *part, options, version or None)

    def get(
        self, address: str, options: StorageOptions | None, ranges: Sequence[Span], version: str
    ) -> Future[list[bytes]]:
        """What `fetch` gives, on its way."""
        return self._submit(self._own.requests, self.fetch, address, options, ranges, version)

    def background(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function that opens shards, on one of few threads."""
        return self._own.opening.submit(function, *arguments)

    def await_(self, tar: str, start: int, awaited: Awaited) -> None:
        """Note what is on its way. What was announced first, and was never read, is forgotten where it gets too much."""
        own = self._own
        with own.lock:
            before = own.coming.get((tar, start))
            own.coming[tar, start] = awaited
            own.expected += awaited.size - (before.size if before is not None else 0)
            while own.expected > BYTES_AHEAD and len(own.coming) > 1:
                own.expected -= own.coming.pop(next(iter(own.coming))).size

    def awaits(self, tar: str, start: int) -> bool:
        """Whether the span that starts there is on its way, or here and not read yet."""
        return (tar, start) in self._own.coming

    def take(self, tar: str, start: int) -> Awaited | None:
        """What was noted, once."""
        own = self._own
        with own.lock:
            found = own.coming.pop((tar, start), None)
            own.expected -= found.size if found is not None else 0
        return found

    def settle(self) -> None:
        """Wait until what is on its way now has come, or has failed."""
        own = self._own
        with own.lock:
            bodies = {id(awaited.bodies): awaited.bodies for awaited in own.coming.values()}
        for future in bodies.values():
            with contextlib.suppress(CancelledError):
                future.exception()

    def forget(self, bodies: Future[list[bytes]]) -> None:
        """What was to come with these bodies doesn't."""
        own = self._own
        with own.lock:
            for place in [place for place, awaited in own.coming.items() if awaited.bodies is bodies]:
                own.expected -= own.coming.pop(place).size

    @property
    def bytes_ahead(self) -> int:
        """Bytes that are on their way, or here and not read yet."""
        return self._own.expected

    def close(self, wait: bool = False) -> None:
        """Give up what is on its way, and end the threads as soon as their requests do; `wait` for that."""
        own, self._process = self._process, None
        if own is not None and own.pid == os.getpid():
            own.closed.set()
            own.opening.shutdown(wait, cancel_futures=True)
            own.parts.shutdown(wait, cancel_futures=True)
            own.requests.shutdown(wait, cancel_futures=True)
