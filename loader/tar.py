"""The header chain of a tar: walk any.

Reading (`Walk`): POSIX ustar with prefix, pax (global and local records), GNU long names, base-256 sizes, v7.
Formats after POSIX.1-2001 "pax Interchange Format" and the GNU tar manual's "Basic Tar Format". Payload offsets
are what the chain says. A header's size field leads to the next header, so the chain itself is followed one by
one; everything else about a header (checksum, type, name) is looked at in bulk, thousands at a time. Where
members are small, the size fields of all 512-byte blocks that could be headers are read in bulk as well, and
only the jumps remain. Whatever is unusual about a header is left to `Walk._step`, which looks at one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loader.errors import BadTar, TruncatedTar

Buffer: TypeAlias = bytes | mmap.mmap  # what slices to bytes without a copy of the whole

BLOCK = 512
_WINDOW = 1 << 12  # blocks looked at together (2 MiB, which a cache holds), where only plain headers come
_SMALLEST_WINDOW = 64  # and where other ones lie between them
_SPARSE = 24  # blocks a member: from here on, hopping beats looking at every block
_BATCH = 4096  # headers hopped over before they are decoded together
_FIRST_BATCH = 256
_SMALLEST_BATCH = 16
_FEW = 8  # members: fewer than these at once, and bulk costs more than it saves
_PATIENCE = 255  # headers taken one by one, at most, before bulk is tried again
_LONGEST_RECORD = 8 << 20  # bytes of one pax or long-name record

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}
_NO_FILE = {b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "device", b"5": "directory",
            b"6": "pipe", b"V": "volume label", b"D": "directory"}  # fmt: skip
_NO_BODY = b"\x00123456"  # whatever the size field of a link, a device or a directory says
_FILES = b"0\x007"  # \0 is the v7 spelling; 7 was for files that lie in one piece on disk
_BULK = b"0\x00xL"  # types that are read in bulk
_POWERS = 8.0 ** np.arange(10, -1, -1)  # exact: 8**11 < 2**53

Ints = npt.NDArray[np.int64]


class TarMap(mmap.mmap):
    """A mapped file. `file`: its descriptor, for as long as whoever mapped it holds it open.

    Of a page that nobody has touched yet, a header is read through the descriptor in half the time that mapping
    the page takes; and where the page isn't in memory either, mapping it fetches as much around it as the disk's
    read-ahead says, which may be megabytes.
    """

    file: int | None = None


def block_reader(buffer: Buffer) -> Callable[[int], bytes]:
    """What reads the block at a position of a tar: through the descriptor of a map, where it has one."""
    file = buffer.file if isinstance(buffer, TarMap) else None
    if file is not None:
        return lambda position: os.pread(file, BLOCK, position)
    return lambda position: buffer[position : position + BLOCK]


@dataclass
class Batch:
    """Consecutive regular members, in tar order.

    `names` are bytes as stored (prefix joined, long names resolved); `offsets` and `sizes` of the payloads and
    `headers` of the last header of each are int64 arrays in bytes. `skipped` holds (reason, name) of what is no
    regular file and came in between. `end` is the first byte after the batch.
    """

    names: list[bytes]
    offsets: Ints
    sizes: Ints
    headers: Ints
    skipped: list[tuple[str, bytes]]
    end: int


def trailing_bytes(pieces: Iterable[tuple[int, bytes]], end: int) -> int:
    """How many bytes follow the zero blocks at `end`: from the first block that isn't zero to the last such byte.

    `pieces`: (where it lies, bytes) of all that follows `end`, in order.
    """
    first = last = 0
    for at, piece in pieces:
        rest = piece.rstrip(b"\0")
        if rest:
            first = first or at + len(rest) - len(rest.lstrip(b"\0"))
            last = at + len(rest)
    return last - (first - (first - end) % BLOCK) if last else 0


@dataclass
class _Pending:
    """What extension headers said about the member that follows them."""

    name: bytes | None = None
    size: int | None = None
    start: int | None = None  # byte of the first of them
    sparse: bool = False


@dataclass
class _Found:
    names: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    headers: list[int] = field(default_factory=list)


class Walk:
    """Follow the header chain of a whole tar: an iterable of batches of members, in tar order.

    `buffer` holds the file; `shard` names it in errors. `require_end`: refuse a tar without the zero blocks that
    end an archive, which can't be told from one that was cut between two members. `at` is the byte where the walk
    stands: after the last batch, the end of the archive. `need(start, end)`: where the bytes are still coming, waits
    for those and says how many there are without a gap (all: see `loader.arriving`).

    Iterating raises TruncatedTar or BadTar, naming shard, member and byte. Time and memory are bounded by the
    number of blocks, whatever the headers claim.
    """

    def __init__(
        self,
        buffer: Buffer,
        shard: str,
        require_end: bool = True,
        need: Callable[[int, int], int] | None = None,
    ) -> None:
        self.buffer = buffer
        self.need = need
        self.shard = shard
        self.require_end = require_end
        self.size = len(buffer)
        self.ready = 0 if need else self.size  # how far one may look
        self.at = 0  # the next header
        self.last: bytes | None = None  # name of the member before it, for messages
        self.found = _Found()
        self.skipped: list[tuple[str, bytes]] = []
        self.pending = _Pending()
        self.ended = False
        self.window = _SMALLEST_WINDOW  # blocks that `_dense` looks at together
        self.batch = _FIRST_BATCH  # headers that `_hop` looks at together
        # A view of whole blocks; bytes after the last whole block can hold no header.
        blocks = self.size // BLOCK
        self.rows: npt.NDArray[np.uint8] = np.frombuffer(buffer, np.uint8, blocks * BLOCK).reshape(-1, BLOCK)

    def __iter__(self) -> Iterator[Batch]:
        self._wait_for(0, BLOCK)
        self._check_start()
        dense = False  # the first few headers tell which way is the faster one
        wait = backoff = 0  # headers to take one by one; doubled each time that bulk finds next to nothing
        while not self.ended:
            start, bulk = self.at, None
            self._wait_for(start, start + BLOCK)
            if self.pending.start is None:
                if wait:
                    wait -= 1
                else:
                    bulk = self._dense() if dense else self._hop()
                    few = bulk is None or len(bulk.names) < _FEW
                    wait, backoff = (backoff, min(2 * backoff + 1, _PATIENCE)) if few else (0, 0)
                    dense = bulk is not None and self.at - start < len(bulk.names) * _SPARSE * BLOCK
            if bulk is not None:
                if self.found.names:
                    yield self._flush(start)
                yield bulk
            else:
                self._step()
                if len(self.found.names) >= _BATCH:
                    yield self._flush(self.at)
        if self.found.names or self.skipped:
            yield self._flush(self.at)

    def _wait_for(self, start: int, end: int) -> None:
        if self.need is not None and min(end, self.size) > self.ready:
            self.ready = self.need(start, min(end, self.size))

    def release(self) -> None:
        """Let go of the buffer, so that a map can be closed."""
        self.rows = np.empty((0, BLOCK), np.uint8)

    def _flush(self, end: int) -> Batch:
        found, self.found = self.found, _Found()
        skipped, self.skipped = self.skipped, []
        offsets, sizes, headers = (
            np.array(values, np.int64) for values in (found.offsets, found.sizes, found.headers)
        )
        return Batch(found.names, offsets, sizes, headers, skipped, end)

    def _check_start(self) -> None:
        if self.size == 0:
            raise TruncatedTar(f"{self.shard}: a file of zero bytes is no tar: write it again")
        head = self.buffer[:8]
        for magic, kind in _COMPRESSED.items():  # a member's name may begin like one: "BZhang.jpg"
            if head.startswith(magic) and not _checksum_fits(self.buffer[:BLOCK]):
                raise BadTar(
                    f"{self.shard}: compressed with {kind}; members of a compressed tar can't be reached one by "
                    "one: decompress it first"
                )
        if self.size < BLOCK:
            raise TruncatedTar(
                f"{self.shard}: {self.size} bytes, but a tar has at least one block of {BLOCK}"
            )

    # -- plain headers, in bulk

    def _hop(self) -> Batch | None:
        """Follow plain headers from one to the next; None if the very next one is not plain."""
        read = block_reader(self.buffer)
        position, end = self.at, self.ready - BLOCK + 1
        places: list[int] = []
        headers: list[bytes] = []
        try:
            while position < end and len(places) < self.batch:
                header = read(position)
                size = int(header[124:135], 8)
                if (
                    header[156] not in _BULK or size < 0 or len(header) < BLOCK
                ):  # short: the file is being cut
                    break
                places.append(position)
                headers.append(header)
                position += (size + 1023) & -BLOCK
        except (ValueError, IndexError):  # no octal number: base-256, the end, or no header at all
            pass
        if not places:
            return None
        rows = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, BLOCK)
        return self._decode(rows, np.array(places, np.int64) // BLOCK)

    def _dense(self) -> Batch | None:
        """The same for small members: read the size field of every block that looks like a header."""
        first = self.at // BLOCK
        window = self.rows[first : min(first + self.window, self.ready // BLOCK)]
        candidates = np.flatnonzero(window[:, 257] == 117)  # the u of "ustar"
        if not len(candidates) or candidates[0] != 0:
            self.window = _SMALLEST_WINDOW
            return None
        rows = window[candidates]
        sizes, plain = _plain_sizes(rows)
        jumps = np.zeros(len(window), np.int64)
        jumps[candidates] = np.where(plain, candidates + 1 + ((sizes + (BLOCK - 1)) >> 9), 0)
        # One list look-up a header: the only step that goes from one to the next.
        steps = jumps.tolist()
        place, chain, limit = 0, [], len(steps)
        while place < limit and (following := steps[place]):
            chain.append(place)
            place = following
        self.window = min(2 * self.window, _WINDOW) if place >= limit else _SMALLEST_WINDOW
        if not chain:
            return None
        kept = np.array(chain, np.int64)
        if len(kept) < len(candidates):  # a payload that looks like a header, or what lies beyond the chain
            rows = rows[np.searchsorted(candidates, kept)]
        return self._decode(rows, kept + first)

    def _decode(self, rows: npt.NDArray[np.uint8], blocks: Ints) -> Batch | None:
        """Check and read the headers `rows` at `blocks`, up to the first that needs a closer look."""
        sizes, plain = _plain_sizes(rows)
        plain &= _checksums_fit(rows)
        bodies = (blocks + 1) * BLOCK
        plain &= bodies + sizes <= self.size
        count = len(rows) if plain.all() else int(np.argmin(plain))
        longer: list[tuple[int, bytes]] = []
        members: Any = slice(count)
        if (rows[:count, 156] != 48).any():
            count, longer = self._extended(rows[:count], bodies, sizes)
            members = np.flatnonzero(rows[:count, 156] < 50)  # "0" and NUL
        if count < len(rows) - 1:  # don't read so far ahead for nothing again (the last may want its member)
            self.window, self.batch = _SMALLEST_WINDOW, _SMALLEST_BATCH
        else:
            self.batch = min(4 * self.batch, _BATCH)
        if count == 0:
            return None
        names = _names(rows[members])
        for row, name in longer:
            names[int(np.searchsorted(members, row))] = name
        self.at = int(bodies[count - 1] + ((sizes[count - 1] + BLOCK - 1) & -BLOCK))
        self.last = names[-1]
        skipped, self.skipped = self.skipped, []
        return Batch(names, bodies[members], sizes[members], blocks[members] * BLOCK, skipped, self.at)

    def _extended(
        self, rows: npt.NDArray[np.uint8], bodies: Ints, sizes: Ints
    ) -> tuple[int, list[tuple[int, bytes]]]:
        """Read what stands before its member's header and says no more than a name, as most of it does.

        Returns how many rows could be read, and (row, name) of the members whose name is told by another.
        """
        longer: list[tuple[int, bytes]] = []
        kinds = rows[:, 156].tolist()
        for row in np.flatnonzero(rows[:, 156] != 48).tolist():
            kind, following = kinds[row], kinds[row + 1] if row + 1 < len(kinds) else None
            if kind == 0:
                if _name(rows[row].tobytes()).endswith(b"/"):  # a directory, as v7 spells it
                    return row, longer
                continue
            if following != 48 or sizes[row] > _LONGEST_RECORD:
                return row, longer
            start = int(bodies[row])
            self._wait_for(start, start + int(sizes[row]))
            data = self.buffer[start : start + int(sizes[row])]
            if kind == 76:  # L
                longer.append((row + 1, data.split(b"\0", 1)[0]))
                continue
            try:
                records = dict(_pax(data))
            except ValueError:
                return row, longer
            if b"size" in records or b"GNU.sparse." in data:
                return row, longer
            if records.get(b"path"):
                longer.append((row + 1, records[b"path"]))
        return len(kinds), longer

    # -- any header, one at a time

    def _where(self) -> str:
        after = f", after member {_show(self.last)}" if self.last is not None else ""
        return f"{self.shard}: at byte {self.at}{after}"

    def _step(self) -> None:
        """Read the one header at `self.at`, whatever it is."""
        header = self.buffer[self.at : self.at + BLOCK]
        if len(header) < BLOCK:
            return self._end_of_file(len(header))
        if header.count(0) == BLOCK:
            return self._end_of_archive()
        if not _checksum_fits(header):
            raise BadTar(
                f"{self._where()}: the header's checksum is wrong: the file is damaged there, or no tar"
            )
        size = self._number(header[124:136], "size")
        kind = header[156:157]
        body = self.at + BLOCK
        if kind in b"xXgLK":
            return self._extension(kind, body, size)
        pending, self.pending = self.pending, _Pending()
        name = pending.name if pending.name is not None else _name(header)
        if kind in b"SM" or pending.sparse:
            what = "the continuation of a multi-volume archive" if kind == b"M" else "a sparse file"
            raise BadTar(f"{self._where()}: member {_show(name)} is {what}, whose bytes don't lie in one piece: "
                         "repack it without")  # fmt: skip
        folder = kind == b"\0" and name.endswith(b"/")
        if kind in _NO_BODY and (kind != b"\0" or folder):
            size = 0
        elif pending.size is not None:
            size = pending.size
        if body + size > self.size:
            raise TruncatedTar(
                f"{self._where()}: member {_show(name)} should have {size} bytes, but the file ends after "
                f"{self.size - body} of them: it was cut short"
            )
        if kind not in _FILES or folder:
            unknown = "directory" if folder else f"of the unknown type {kind.decode('latin-1')!r}"
            self.skipped.append((_NO_FILE.get(kind, unknown), name))
            self._advance(body, size, name)
            return None
        header_at = self.at
        self._advance(body, size, name)
        found = self.found
        found.names.append(name)
        found.offsets.append(body)
        found.sizes.append(size)
        found.headers.append(header_at)
        return None

    def _advance(self, body: int, size: int, name: bytes) -> None:
        self.at = body + ((size + BLOCK - 1) & -BLOCK)
        self.last = name

    def _number(self, field_: bytes, what: str) -> int:
        """An octal or base-256 field; BadTar if it is neither, or negative."""
        if field_[0] in (0x80, 0xFF):
            value = int.from_bytes(field_, "big", signed=True) if field_[0] == 0xFF else 0
            value = value or int.from_bytes(field_[1:], "big")
        else:
            digits = field_.split(b"\0", 1)[0].strip(b" ")
            if digits.strip(b"01234567"):
                raise BadTar(f"{self._where()}: the {what} field holds {field_!r}, which is no octal number")
            value = int(digits or b"0", 8)
        if value < 0:
            raise BadTar(f"{self._where()}: the {what} field holds the negative number {value}")
        return value

    def _extension(self, kind: bytes, body: int, size: int) -> None:
        """A pax or GNU record, which speaks of the header that follows."""
        if size > _LONGEST_RECORD:
            raise BadTar(
                f"{self._where()}: an extension record of {size} bytes (at most {_LONGEST_RECORD} are read)"
            )
        if body + size > self.size:
            raise TruncatedTar(f"{self._where()}: an extension record of {size} bytes is cut short")
        self._wait_for(body, body + size)
        data = self.buffer[body : body + size]
        pending = self.pending
        if pending.start is None and kind != b"g":
            pending.start = self.at
        if kind == b"L":
            pending.name = data.split(b"\0", 1)[0]
        elif kind in b"xX":
            for key, value in self._records(data):
                if key == b"path":
                    pending.name = value or None  # an empty value takes a record back
                elif key == b"size":
                    if not value.isdigit() or len(value) > 20:
                        raise BadTar(f"{self._where()}: the pax record 'size' holds {value[:40]!r}")
                    pending.size = int(value)
                elif key.startswith(b"GNU.sparse."):
                    pending.sparse = True
        elif kind == b"g":  # a name or a size for all members would be absurd; nothing else concerns us
            for key, _ in self._records(data):
                if key in (b"path", b"size") or key.startswith(b"GNU.sparse."):
                    raise BadTar(f"{self._where()}: a global pax record sets {_show(key)} for all members")
        self.at = body + ((size + BLOCK - 1) & -BLOCK)

    def _records(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from _pax(data)
        except ValueError as error:
            raise BadTar(f"{self._where()}: {error}") from None

    # -- how it ends

    def _end_of_archive(self) -> None:
        """Zero blocks: the archive is over, wherever the file ends."""
        if self.pending.start is not None:
            raise BadTar(f"{self._where()}: an extension record is followed by no member")
        self.ended = True

    def _end_of_file(self, rest: int) -> None:
        if self.pending.start is not None or (self.at > self.size and self.require_end):
            raise TruncatedTar(f"{self._where()}: the file ends there, inside a member's header or padding")
        if self.buffer[self.size - rest : self.size].strip(b"\0"):
            raise TruncatedTar(f"{self._where()}: the file ends after {rest} bytes of a member's header")
        if self.require_end:
            raise TruncatedTar(
                f"{self._where()}: the file ends there ({rest} bytes left) without the zero blocks that end a tar: "
                "it was cut short between two members, or its writer was not closed. If it is whole all the "
                "same, say require_end=False (--no-end-ok on the command line)"
            )
        self.ended = True


def _show(name: bytes) -> str:
    text = repr(name[:300].decode("utf-8", "backslashreplace"))
    return text if len(name) <= 300 else text + "…"


def _pax(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records ``<length> <key>=<value>\\n`` of a pax header; ValueError where they are malformed."""
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 20)
        digits = data[at:space] if space > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = data[space + 1 : at + length]
        if not length or at + length > len(data) or record[-1:] != b"\n" or b"=" not in record:
            raise ValueError(f"malformed pax record {data[at : at + 40]!r}")
        key, _, value = record[:-1].partition(b"=")
        yield key, value
        at += length


def _plain_sizes(rows: npt.NDArray[np.uint8]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Sizes of ``[n, 512]`` headers, and which of them have a plain octal size and a type out of `_BULK`.

    Eleven octal digits, as every current tar writes them; anything else is left to the closer look.
    """
    digits = rows[:, 124:135] - np.uint8(48)  # wraps: what is no digit becomes large
    kinds = rows[:, 156]
    plain = (digits.max(axis=1) < 8) & ((kinds == 48) | (kinds == 0) | (kinds == 120) | (kinds == 76))
    plain &= (rows[:, 135] == 0) | (rows[:, 135] == 32)
    sizes = (digits.astype(np.float64) @ _POWERS).astype(np.int64)
    return sizes, plain


def _checksums_fit(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Whether the checksum field of ``[n, 512]`` headers is six octal digits and NUL, and matches the bytes."""
    totals = rows.sum(axis=1, dtype=np.uint32).astype(np.int64)
    stored = rows[:, 148:156].astype(np.int64)
    digits = stored[:, :6] - 48
    value = digits @ (8 ** np.arange(5, -1, -1))
    fits: npt.NDArray[np.bool_] = totals - stored.sum(axis=1) + 8 * 32 == value
    fits &= ((digits >= 0) & (digits < 8)).all(axis=1)
    fits &= stored[:, 6] == 0
    return fits


def _checksum_fits(header: bytes) -> bool:
    """The same for one header, in any spelling; some old tars summed signed bytes."""
    field_ = header[148:156].split(b"\0", 1)[0].strip(b" ")
    if not field_ or field_.strip(b"01234567"):
        return False
    rest = header[:148] + header[156:]
    stored, unsigned = int(field_, 8), sum(rest) + 8 * 32
    return stored == unsigned or stored == unsigned - 256 * sum(byte > 127 for byte in rest)


def _names(rows: npt.NDArray[np.uint8]) -> list[bytes]:
    """Names of ``[n, 512]`` headers."""
    fields = np.ascontiguousarray(rows[:, :100])
    names: list[bytes] = fields.view("S100").ravel().tolist()
    if b"\0" in b"".join(names):  # a shorter name over an older, longer one
        names = [name.split(b"\0", 1)[0] for name in names]
    # POSIX's magic ends in NUL; GNU's in a space, and keeps times where the prefix would be.
    for i in np.flatnonzero((rows[:, 345] != 0) & (rows[:, 262] == 0)).tolist():
        names[i] = _name(rows[i].tobytes())
    return names


def _name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and header[345]:
        return header[345:500].split(b"\0", 1)[0] + b"/" + name
    return name
