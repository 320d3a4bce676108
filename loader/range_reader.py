"""Members of a remote tar by ranges: what will be read is asked for together, and read as it comes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import CancelledError

from loader.in_flight import Awaited, InFlight, Span
from loader.storage import StorageOptions

WASTE = 0.02  # of the bytes that are wanted: what may be fetched beside them to have fewer requests
_PIECE = 8 << 20  # bytes of one request, unless a single member is larger
_TOGETHER = 64  # requests that are waited for together


def coalesce(spans: Iterable[Span], waste: float = WASTE, piece: int = _PIECE) -> list[Span]:
    """Few ranges that hold all spans, and at most `waste` times their bytes beside them: small gaps are closed first.

    A range of several spans has at most `piece` bytes. Spans may overlap; those that are empty are left out.
    """
    wanted: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if wanted and start < wanted[-1][1]:
            wanted[-1] = wanted[-1][0], max(end, wanted[-1][1])
        else:
            wanted.append((start, end))
    left = waste * sum(end - start for start, end in wanted)
    closed = set()
    gaps = sorted((wanted[n][0] - wanted[n - 1][1], n) for n in range(1, len(wanted)))
    for gap, number in gaps:
        left -= gap
        if left < 0:
            break
        closed.add(number)
    ranges: list[Span] = []
    for number, (start, end) in enumerate(wanted):
        if number in closed and end - ranges[-1][0] <= piece:
            ranges[-1] = ranges[-1][0], end
        else:
            ranges.append((start, end))
    return ranges


class RangeReader:
    """Reads spans of one version of a tar. What was announced by `expect` comes in the background; all else is fetched when asked for.

    What is announced belongs to `remote`, not to this object: a shard that is closed and opened again in between
    still gets it. Threads may share one.
    """

    def __init__(
        self, address: str, storage_options: StorageOptions | None, version: str, key: str, remote: InFlight
    ) -> None:
        """`key` tells this version of this tar from all others that are read by `remote`."""
        self.address, self.storage_options, self.version = address, storage_options, version
        self.key, self.remote = key, remote

    def expect(self, spans: Iterable[Span]) -> None:
        """These will be read soon, each once: start to fetch them."""
        remote, key = self.remote, self.key
        wanted = sorted({span for span in spans if span[0] < span[1] and not remote.awaits(key, span[0])})
        ranges, place = coalesce(wanted), 0
        for first in range(0, len(ranges), _TOGETHER):
            together = ranges[first : first + _TOGETHER]
            bodies = remote.get(self.address, self.storage_options, together, self.version)
            for number, (begin, stop) in enumerate(together):
                while place < len(wanted) and wanted[place][0] < stop:
                    start, end = wanted[place]
                    remote.await_(key, start, Awaited(bodies, number, begin, end - start))
                    place += 1

    def read(self, start: int, size: int) -> bytes:
        """Exactly these bytes."""
        if not size:
            return b""
        self.remote.traffic.add(wanted=size)
        found = self.remote.take(self.key, start)
        if found is None:
            return self._fetch(start, size)
        try:
            body = found.bodies.result()[found.number]
        except (CancelledError, EOFError):  # given up; or another member of a damaged index lies outside
            return self._fetch(start, size)
        except BaseException:
            self.remote.forget(
                found.bodies
            )  # what failed is told once, and asked for again by the next who wants it
            raise
        at = start - found.begin
        if at + size > len(body):
            return self._fetch(start, size)
        return body if size == len(body) else body[at : at + size]

    def again(self, start: int, size: int) -> bytes:
        """Fetch what has just been read once more: its bytes were not what they should be."""
        self.remote.traffic.add(repeated=1)
        return self._fetch(start, size)

    def part(self, start: int, end: int) -> bytes:
        """Any bytes of the tar, by a request of their own."""
        self.remote.traffic.add(wanted=end - start)
        return self._fetch(start, end - start)

    def _fetch(self, start: int, size: int) -> bytes:
        return self.remote.fetch(self.address, self.storage_options, [(start, start + size)], self.version)[0]
