"""Byte ranges of one file: close ones read together, many in flight, each body checked against what was asked for.

What is near each other costs one request (`plan`), what is large costs several side by side. A request
that fails is tried again on its own (`loader.retrying`); a body that is too short is never taken for data.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fsspec.asyn import sync

from loader import addresses, obstore_client, retrying, stores
from loader.errors import FileChanged
from loader.obstore_client import ObstoreClient
from loader.stores import StorageOptions

Range = tuple[int, int]  # half-open
Body: TypeAlias = Any  # bytes, or what is read as they are: typing has no name for that before Python 3.12

IN_FLIGHT = 32  # requests at once
AHEAD = 8  # of a file that is read in order
LARGEST = 8 << 20  # bytes a request
SMALLEST = 1 << 20  # of a file that is read whole: below, a request costs more than its bytes


class RangeClient(Protocol):
    """What reads ranges of one file in a store."""

    def read(self, ranges: Sequence[Range], in_flight: int) -> list[Any]:
        """A body, or the exception that came instead, for each range."""

    def whole(self) -> bytes:
        """The file, by one request."""

    def size(self) -> int:
        """How many bytes the file has."""

    def renew(self) -> None:
        """Look up credentials anew."""


class FsspecClient:
    """Ranges by fsspec: one request each. `version`: that of S3's files alone is read, no other."""

    def __init__(self, address: str, storage_options: StorageOptions | None, version: str | None) -> None:
        self._address, self._options = address, storage_options
        self._version = version if addresses.protocol(address) in stores.S3 else None

    def read(self, ranges: Sequence[Range], in_flight: int) -> list[Any]:
        fs, path = self._filesystem()
        if self._version is not None:
            return list(sync(fs.loop, _pinned, fs, path, ranges, self._version, in_flight))
        more = {"batch_size": in_flight} if getattr(fs, "async_impl", False) else {}
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
        found: list[Any] = fs.cat_ranges([path] * len(ranges), starts, ends, on_error="return", **more)
        return found

    def whole(self) -> bytes:
        fs, path = self._filesystem()
        return bytes(fs.cat_file(path))

    def size(self) -> int:
        fs, path = self._filesystem()
        return int(fs.info(path)["size"])

    def renew(self) -> None:
        stores.renew(self._address, self._options, tries=1)

    def _filesystem(self) -> tuple[Any, str]:
        return stores.filesystem(self._address, self._options, tries=1)


async def _pinned(fs: Any, path: str, ranges: Sequence[Range], version: str, in_flight: int) -> list[Any]:
    """Ranges of that version of an S3 object; S3 refuses the request if it is another one by now."""
    bucket, key, _ = fs.split_path(path)
    free = asyncio.Semaphore(in_flight)

    async def one(start: int, end: int) -> Any:
        async with free:
            # s3fs has no other way to say so than the call that all its own go by.
            answer = await fs._call_s3(
                "get_object",
                Bucket=bucket,
                Key=key,
                Range=f"bytes={start}-{end - 1}",
                IfMatch=version,
                **fs.req_kw,
            )
            async with answer["Body"] as body:
                return await body.read()

    return await asyncio.gather(*(one(start, end) for start, end in ranges), return_exceptions=True)


@dataclass(frozen=True)
class Plan:
    """`requests`: what is asked for. `parts[i]`: the first and the last request that range i lies in."""

    requests: list[Range]
    parts: list[Range]


def plan(ranges: Sequence[Range], max_gap: int = 0, largest: int = LARGEST) -> Plan:
    """Requests that cover `ranges`, given in any order: those at most `max_gap` bytes apart are read in one.

    No request is larger than `largest`; a range that is gets several.
    """
    requests: list[Range] = []
    parts: list[Range] = [(0, -1)] * len(ranges)
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, end = ranges[number]
        if not 0 <= start <= end:
            raise ValueError(f"range ({start}, {end}): 0 ≤ start ≤ end was expected")
        if start == end:
            continue
        if requests:
            begin, stop = requests[-1]
            if start >= begin and start - stop <= max_gap and max(end, stop) - begin <= largest:
                requests[-1] = (begin, max(end, stop))
                parts[number] = (len(requests) - 1, len(requests) - 1)
                continue
        first = len(requests)
        count = -(-(end - start) // largest)
        share = -(-(end - start) // count)
        requests += [(at, min(at + share, end)) for at in range(start, end, share)]
        parts[number] = (first, len(requests) - 1)
    return Plan(requests, parts)


def read_ranges(
    address: str,
    ranges: Sequence[Range],
    storage_options: StorageOptions | None = None,
    *,
    max_gap: int = 0,
    in_flight: int = IN_FLIGHT,
    largest: int = LARGEST,
    version: str | None = None,
) -> list[bytes]:
    """The bytes of each half-open range ``(start, end)`` of a file, in the order given.

    Ranges at most `max_gap` bytes apart are read together; no request takes more than `largest` bytes, and at most
    `in_flight` are under way. Overlaps, doubles and empty ranges are fine. `version`: as `storage.stat` told it;
    FileChanged if S3 holds another one by now (other stores don't compare). EOFError if the file ends before a
    range does; StoreError where the store keeps failing. Memory: what is asked for, and the gaps, twice.
    """
    if addresses.is_local(address):
        return _local(addresses.local_path(address), ranges)
    planned = plan(ranges, max_gap, largest)
    bodies = _bodies(
        address, planned.requests, _client(address, storage_options, version), storage_options, in_flight
    )
    return [
        _cut(asked, part, planned.requests, bodies) for asked, part in zip(ranges, planned.parts, strict=True)
    ]


def read_body(
    address: str, start: int, end: int, storage_options: StorageOptions | None, version: str | None
) -> Body:
    """One range of a file by one request, in the memory that the client has put it into: not copied, as `read_ranges`
    does where that isn't bytes. Arguments and errors as there."""
    if addresses.is_local(address):
        return _local(addresses.local_path(address), [(start, end)])[0]
    client = _client(address, storage_options, version)
    return _bodies(address, [(start, end)], client, storage_options, 1)[0]


def _local(path: str, ranges: Sequence[Range]) -> list[bytes]:
    found = []
    file = os.open(path, os.O_RDONLY)
    try:
        for start, end in ranges:
            data = _pread(file, start, end) if end > start else b""
            _check(path, (start, end), data, os.fstat(file).st_size)
            found.append(data)
    finally:
        os.close(file)
    return found


def _pread(file: int, start: int, end: int) -> bytes:
    data = os.pread(file, end - start, start)
    while (
        data
        and len(data) < end - start
        and (more := os.pread(file, end - start - len(data), start + len(data)))
    ):
        data += more  # one call gives at most 2 GiB
    return data


def _check(address: str, asked: Range, data: bytes, size: int) -> None:
    start, end = asked
    if len(data) == end - start:
        return
    if end > size:
        raise EOFError(f"{address}: asked for bytes {start} to {end} of a file of {size}")
    raise retrying.ShortBody(f"{address}: asked for bytes {start} to {end}, got {len(data)} of them")


def _cut(asked: Range, part: Range, requests: Sequence[Range], bodies: Sequence[Body]) -> bytes:
    (start, end), (first, last) = asked, part
    if last < first:
        return b""
    begin = requests[first][0]
    if first == last:
        body = bodies[first]
        return bytes(
            body if (start, end) == requests[first] else memoryview(body)[start - begin : end - begin]
        )
    return b"".join(bodies[first : last + 1])


def _bodies(
    address: str,
    requests: Sequence[Range],
    client: RangeClient,
    storage_options: StorageOptions | None,
    in_flight: int,
) -> list[Body]:
    """The body of each request; those that failed are asked for again, all together."""
    bodies: list[Body] = [b""] * len(requests)
    missing = list(range(len(requests)))

    def fetch() -> None:
        nonlocal missing
        failed: list[tuple[int, Exception]] = []
        answers = client.read([requests[number] for number in missing], in_flight)
        for number, answer in zip(missing, answers, strict=True):
            start, end = requests[number]
            if isinstance(answer, Exception):
                failed.append((number, answer))
            elif len(answer) != end - start:
                failed.append((number, _short(address, requests[number], len(answer))))
            else:
                bodies[number] = answer
        missing = [number for number, _ in failed]
        if failed:
            raise _worst(address, client, [(requests[number], error) for number, error in failed])

    if requests:
        retrying.call("reading", address, storage_options, fetch, client.renew)
    return bodies


def _short(address: str, asked: Range, got: int) -> retrying.ShortBody:
    return retrying.ShortBody(f"{address}: asked for bytes {asked[0]} to {asked[1]}, got {got} of them")


def _worst(address: str, client: RangeClient, failed: Sequence[tuple[Range, Exception]]) -> Exception:
    """The error that says most: a file that is too short for what is asked of it, or one that no try will mend."""
    final = [error for _, error in failed if not retrying.passing(error)]
    if any(retrying.refused(error) for error in final):
        return FileChanged(f"{address}: replaced by another version while it was read: start again")
    known = next((error for error in final if _answer(error)), None)
    if known is not None:
        return known
    odd = [asked for asked, error in failed if isinstance(error, retrying.ShortBody) or error in final]
    if odd:
        size, (start, end) = client.size(), max(odd, key=lambda asked: asked[1])
        if end > size:
            return EOFError(f"{address}: asked for bytes {start} to {end} of a file of {size}")
    return final[0] if final else failed[0][1]


def _answer(error: Exception) -> bool:
    """Whether an error has nothing to do with which range was asked for."""
    return isinstance(error, FileNotFoundError) or retrying.no_access(error) or retrying.expired(error)


def _client(address: str, storage_options: StorageOptions | None, version: str | None) -> RangeClient:
    kind = ObstoreClient if obstore_client.chosen(address, storage_options) else FsspecClient
    return kind(address, storage_options, version)


# -- whole files


def read_small(address: str, storage_options: StorageOptions | None = None) -> bytes:
    """A file of a store by one request, which no other one compares: for what says itself whether it is whole."""
    client = _client(address, storage_options, None)
    return retrying.call("reading", address, storage_options, client.whole, client.renew)


def read_in_order(
    address: str,
    size: int,
    storage_options: StorageOptions | None = None,
    *,
    start: int = 0,
    in_flight: int = AHEAD,
    smallest: int | None = None,
    largest: int = LARGEST,
    version: str | None = None,
) -> Iterator[bytes]:
    """The bytes of a file from `start` up to its `size`, as consecutive chunks of at most `largest` bytes.

    At most `in_flight` chunks are under way or wait to be taken: that is all the memory it needs. They are as large
    as lets all be under way at once, or, where it may end early, `smallest` at first and twice as large after each
    round. Close the iterator to stop. `version` and errors as for `read_ranges`.
    """
    share = min(largest, max(SMALLEST, -(-(size - start) // in_flight)))
    waiting = _chunks(start, size, smallest or share, share, in_flight)
    pool = ThreadPoolExecutor(in_flight, thread_name_prefix="shardflow-read")
    under_way: deque[Future[list[bytes]]] = deque()

    def read(asked: Range) -> list[bytes]:
        return read_ranges(address, [asked], storage_options, largest=largest, version=version)

    try:
        while True:
            while len(under_way) < in_flight and (asked := next(waiting, None)) is not None:
                under_way.append(pool.submit(read, asked))
            if not under_way:
                return
            yield under_way.popleft().result()[0]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _chunks(start: int, size: int, first: int, largest: int, count: int) -> Iterator[Range]:
    chunk, at = min(first, largest), start
    while at < size:
        for _ in range(count):
            if at < size:
                yield at, min(at + chunk, size)
                at += chunk
        chunk = min(2 * chunk, largest)


def read_whole(
    address: str,
    start: int,
    end: int,
    storage_options: StorageOptions | None = None,
    version: str | None = None,
) -> bytes:
    """A large range in as many requests side by side as serve."""
    largest = min(LARGEST, max(SMALLEST, -(-(end - start) // AHEAD)))
    ranges = [(start, end)]
    return read_ranges(address, ranges, storage_options, largest=largest, in_flight=AHEAD, version=version)[0]


class RemoteFile(io.RawIOBase):
    """A file in a store, to be read in any order through a BufferedReader: that decides how much comes at a time."""

    def __init__(
        self, address: str, size: int, storage_options: StorageOptions | None, version: str | None
    ) -> None:
        self._address, self._options, self._version = address, storage_options, version
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError(f"{self._address}: can't seek to byte {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size)
        if end <= self._at:
            return 0
        data = read_whole(self._address, self._at, end, self._options, self._version)
        view[: len(data)] = data
        self._at = end
        return len(data)
