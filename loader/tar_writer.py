"""Write a tar: ustar, with a pax record only where a name or a size needs one.

mtime, owner and mode are fixed, so equal members give equal bytes.
"""

from __future__ import annotations

import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from loader.tar import BLOCK

END = bytes(2 * BLOCK)  # closes an archive
_OCTAL_LIMIT = 8**11
_FLUSH = 1 << 20  # bytes collected before they are handed to the file
_WAITING = 2  # pieces that wait to be written
_PADDING = [bytes(size) for size in range(BLOCK)]
_MTIME = 946684800  # 2000-01-01: some tools warn of 1970


def _template(kind: bytes) -> tuple[bytes, bytes, int]:
    """What surrounds name and size in a header of ours, and the sum of its bytes."""
    before = b"0000644\0" + b"0000000\0" * 2  # mode, user, group
    after = (
        b"%011o\0" % _MTIME,
        b"        ",
        kind,
        bytes(100),
        b"ustar\x0000",
        bytes(32 + 32),
        b"0000000\0" * 2,
    )
    tail = b"".join(after)
    return before, tail, sum(before) + sum(tail)


_REGULAR = _template(b"0")
_PAX = _template(b"x")


def _header(
    name: bytes, size: int, prefix: bytes = b"", template: tuple[bytes, bytes, int] = _REGULAR
) -> bytes:
    before, tail, base = template
    digits = b"%011o\0" % size
    total = base + sum(name) + sum(digits) + sum(prefix)
    # tail: mtime 12, checksum 8, type …
    return b"".join(
        (name.ljust(100, b"\0"), before, digits, tail[:12], b"%06o\0 " % total, tail[20:], prefix)
    ).ljust(BLOCK, b"\0")


def headers_for(name: bytes, size: int) -> bytes:
    """All header blocks of one member: one, or a pax record and one where the name or the size needs it."""
    if not name or b"\0" in name:
        raise ValueError(f"a member's name can be neither empty nor hold a NUL byte: {name!r}")
    records = b""
    prefix = b""
    if len(name) > 100:
        cut = name.rfind(b"/", 0, 156)
        if cut > 0 and 0 < len(name) - cut - 1 <= 100:
            prefix, name = name[:cut], name[cut + 1 :]
        else:
            records += _record(b"path", name)
            name = name[-100:]
    if size >= _OCTAL_LIMIT:
        records += _record(b"size", b"%d" % size)
        size = 0
    header = _header(name, size, prefix)
    if not records:
        return header
    return _header(b"././@PaxHeader", len(records), template=_PAX) + records + padding(len(records)) + header


def _record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 1
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return b"%d" % length + body


def padding(size: int) -> bytes:
    """The zero bytes that follow a payload of `size` bytes."""
    return _PADDING[-size % BLOCK]


class TarWriter:
    """Append members to a binary file object; tells where each payload went, and the sum of all bytes.

    `size` is the number of bytes so far, `checksum` (after `close`) the adler32 of the whole archive;
    `first_block` and `last_header` are what an index remembers of it. From the first MiB on, summing and writing are
    done by a thread of its own, while the next members are made. Memory: a few MiB, and the members at hand.
    `close` writes the end of the archive and leaves the file open; `abort` ends the thread and gives up.
    Errors of the file are raised by a later `add`, or by `close`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pending = bytearray()
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()
        self.size = 0
        self.checksum = 1  # adler32 of nothing
        self.first_block = self.last_header = bytes(BLOCK)
        self.last_header_at = 0

    def add(self, name: bytes, data: bytes | bytearray | memoryview) -> int:
        """Write one regular file; returns the offset of its payload."""
        header, size = headers_for(name, len(data)), len(data)
        if self.size == 0:
            self.first_block = header[:BLOCK]
        offset = self.size + len(header)
        self.last_header, self.last_header_at = header[-BLOCK:], offset - BLOCK
        pending = self._pending
        pending += header
        if size < _FLUSH:
            pending += data
        else:
            self._flush()
            self._hand_over(bytes(data))  # the same object if it is bytes
            pending = self._pending
        pending += _PADDING[-size % BLOCK]
        self.size = offset + size + -size % BLOCK
        if len(pending) >= _FLUSH:
            self._flush()
        return offset

    def _flush(self) -> None:
        if self._pending:
            self._hand_over(self._pending)
            self._pending = bytearray()

    def _hand_over(self, data: bytes | bytearray) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tar-writer")
        while len(self._under_way) >= _WAITING:
            self._under_way.popleft().result()
        self._under_way.append(self._thread.submit(self._write, data))

    def _write(self, data: bytes | bytearray) -> None:
        self.checksum = zlib.adler32(data, self.checksum)
        rest: Any = memoryview(data)
        while len(rest):  # an unbuffered file may take less than it was given
            written = self._file.write(rest)
            rest = rest[len(rest) if written is None else written :]

    def close(self) -> None:
        """Write the two zero blocks that end an archive, and hand all bytes to the file."""
        try:
            while self._under_way:
                self._under_way.popleft().result()
        finally:
            self.abort()
        self._pending += END
        self.size += len(END)
        self._write(self._pending)
        self._pending = bytearray()

    def abort(self) -> None:
        """Wait for what is being written, and end the thread; what was not handed to the file is lost."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(cancel_futures=True)
        self._under_way.clear()
