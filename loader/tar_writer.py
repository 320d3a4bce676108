"""Write a tar: ustar, with a pax record only where a name or a size needs one.

mtime, owner and mode are fixed, so equal members give equal bytes.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import BinaryIO

from loader.checksums import adler32
from loader.tar import BLOCK

END = bytes(2 * BLOCK)  # closes an archive
_OCTAL_LIMIT = 8**11
_FLUSH = 1 << 18  # bytes collected before they are written, while they are in the processor's cache
_FLUSH_BEHIND = 1 << 21  # and where another thread writes them: handing them over costs each time
_MOST_PIECES = 1000  # and pieces: one call takes 1,024
_WAITING = 2  # collections that wait to be written
_START_DISK = 8 << 20  # bytes written before the disk is told to begin
_PADDING = [bytes(size) for size in range(BLOCK)]
_MTIME = 946684800  # 2000-01-01: some tools warn of 1970


def _template(kind: bytes) -> tuple[bytes, int]:
    """A header of ours as a format of name, size, sum and prefix, and the sum of all bytes of it that are fixed."""
    before = b"0000644\0" + b"0000000\0" * 2  # mode, user, group
    after = kind + bytes(100) + b"ustar\x0000" + bytes(32 + 32) + b"0000000\0" * 2
    when = b"%011o\0" % _MTIME
    # The sum is taken with eight spaces in its own place, and written as six digits, NUL and a space.
    return b"%b" + before + b"%b" + when + b"%06o\0 " + after + b"%b", sum(before + when + b" " * 8 + after)


_REGULAR = _template(b"0")
_PAX = _template(b"x")
_NAME = [bytes(100 - size) for size in range(101)]  # what follows a name of `size` bytes
_PREFIX = [bytes(167 - size) for size in range(156)]  # and a prefix, to the end of the block


def _header(name: bytes, size: int, prefix: bytes = b"", template: tuple[bytes, int] = _REGULAR) -> bytes:
    form, fixed = template
    digits = b"%011o\0" % size
    total = fixed + sum(name) + sum(digits) + sum(prefix)
    return form % (name + _NAME[len(name)], digits, total, prefix + _PREFIX[len(prefix)])


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
    `first_block` and `last_header` are what an index remembers of it. Memory: at most six MiB, and the members at
    hand, which are kept until they are written. `close` writes the end of the archive and leaves the file open;
    `abort` ends the thread and gives up. Errors of the file are raised by a later `add`, and by `close` in any case.

    `behind`: after the first pieces, a thread writes, while the next members are made. That takes less time where a
    core is idle, and more of the processor, which fetches the bytes from memory once more. A file that isn't local is
    always written so.
    """

    def __init__(self, file: BinaryIO, behind: bool = True) -> None:
        self._file = file
        self._descriptor = _descriptor(file)
        self._behind = behind or self._descriptor is None
        self._flush = _FLUSH_BEHIND if self._behind else _FLUSH
        self._pending: list[bytes] = []  # headers and payloads as they are: nothing is copied together
        self._bytes = 0  # in them
        self._padding = b""  # of the last member; goes with the next header
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()
        self._failure: BaseException | None = None  # of a write: a hole can't be closed
        self._written = self._started = 0  # bytes that the file has, and that the disk was told of
        self.size = 0
        self.checksum = 1  # adler32 of nothing
        self.first_block = self.last_header = bytes(BLOCK)
        self.last_header_at = 0

    def add(self, name: bytes, data: bytes | bytearray | memoryview) -> int:
        """Write one regular file; returns the offset of its payload."""
        payload = bytes(data)  # the same object if it is bytes; else a copy, which its owner can't change
        header, size = headers_for(name, len(payload)), len(payload)
        if self.size == 0:
            self.first_block = header[:BLOCK]
        offset = self.size + len(header)
        self.last_header, self.last_header_at = header[-BLOCK:], offset - BLOCK
        lead = self._padding + header
        # Summed while the payload is still in the processor's cache.
        self.checksum = adler32(payload, adler32(lead, self.checksum))
        self._padding = _PADDING[-size % BLOCK]
        self.size = offset + size + len(self._padding)
        self._pending += (lead, payload)
        self._bytes += len(lead) + size
        if self._bytes >= self._flush or len(self._pending) >= _MOST_PIECES:
            self._hand_over()
        return offset

    def _hand_over(self) -> None:
        self._settle(_WAITING - 1)
        pending, self._pending, self._bytes = self._pending, [], 0
        if not self._behind:
            self._write(pending)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tar-writer")
        self._under_way.append(self._thread.submit(self._write, pending))

    def _settle(self, most: int) -> None:
        """Wait until at most so many writes are under way."""
        while len(self._under_way) > most:
            wait([self._under_way.popleft()])
        if self._failure is not None:
            raise self._failure

    def _write(self, pieces: list[bytes]) -> None:
        try:
            self._write_all(pieces)
        except BaseException as error:
            self._failure = error
            raise

    def _write_all(self, pieces: list[bytes]) -> None:
        descriptor, total = self._descriptor, sum(map(len, pieces))
        written = 0 if descriptor is None else os.writev(descriptor, pieces)
        if written < total:  # an unbuffered file may take less than it was given
            rest = memoryview(b"".join(pieces))[written:]
            while len(rest):
                taken = self._file.write(rest) if descriptor is None else os.write(descriptor, rest)
                rest = rest[len(rest) if taken is None else taken :]
        self._written += total
        if self._written - self._started >= _START_DISK:
            self._start_disk()

    def _start_disk(self) -> None:
        """Let the disk begin with what was just written, so that the flush before publishing finds little left to do.

        On Linux this advice starts writing pages that are dirty, and forgets only such as are clean.
        """
        if self._descriptor is not None and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # advice; some file systems take none
                length = self._written - self._started
                os.posix_fadvise(self._descriptor, self._started, length, os.POSIX_FADV_DONTNEED)
        self._started = self._written

    def close(self) -> None:
        """Write the two zero blocks that end an archive, and hand all bytes to the file."""
        self._settle(0)
        self.abort()
        end = self._padding + END
        self.checksum = adler32(end, self.checksum)
        self.size += len(END)
        self._write([*self._pending, end])
        if self._started:
            self._start_disk()  # while the index is made
        self._pending, self._bytes, self._padding = [], 0, b""

    def abort(self) -> None:
        """Wait for what is being written, and end the thread; what was not handed to the file is lost."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(cancel_futures=True)
        self._under_way.clear()


def _descriptor(file: BinaryIO) -> int | None:
    """The descriptor of a local file, which takes a list of pieces as they are; None if it has to be asked."""
    raw = file.raw if isinstance(file, io.BufferedWriter) else file
    if not isinstance(raw, io.FileIO):
        return None
    file.flush()  # what was written before comes before; until `close` nobody else writes
    return raw.fileno()
