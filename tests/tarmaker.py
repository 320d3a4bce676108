"""Tars for tests: by hand to the byte, by `tarfile`, and by GNU tar; and what `tarfile` reads in one."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

BLOCK = 512
END = bytes(2 * BLOCK)
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def padded(data: bytes) -> bytes:
    """`data` and the zero bytes up to the next block."""
    return data + bytes(-len(data) % BLOCK)


def header(
    name: bytes,
    size: int | bytes = 0,
    kind: bytes = b"0",
    *,
    prefix: bytes = b"",
    magic: bytes = b"ustar\x0000",
    link: bytes = b"",
    checksum: str = "%06o\0 ",
    signed: bool = False,
) -> bytes:
    """One header block, field by field; `size` as bytes stands for the whole field."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = bytearray(BLOCK)
    for at, value in (
        (0, name),
        (100, b"0000644\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, field),
        (136, b"00000000000\0"),
        (148, b" " * 8),
        (156, kind),
        (157, link),
        (257, magic),
        (345, prefix),
    ):
        block[at : at + len(value)] = value
    total = sum(block) - (256 * sum(byte > 127 for byte in block) if signed else 0)
    text = (checksum % total).encode()
    block[148 : 148 + len(text)] = text
    return bytes(block)


def member(name: bytes, data: bytes = b"", kind: bytes = b"0", **fields: object) -> bytes:
    """One header, its body and its padding."""
    return header(name, len(data), kind, **fields) + padded(data)  # type: ignore[arg-type]


def record(key: bytes, value: bytes) -> bytes:
    """One pax record, which counts its own length."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return b"%d" % length + body


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    """A pax header with these records, to stand before a member."""
    return member(b"././@PaxHeader", b"".join(record(*pair) for pair in records), kind)


def gnu_long(name: bytes) -> bytes:
    """A GNU long-name record, to stand before a member."""
    return member(b"././@LongLink", name + b"\0", b"L", magic=b"ustar  \0")


def by_tarfile(members: Iterable[tuple[str, bytes]], form: str, mtime: float = 0) -> bytes:
    """A tar that `tarfile` writes; ValueError for a name that ustar can't hold."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[form]) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def by_gnu_tar(folder: Path, form: str, *options: str, names: Sequence[str] | None = None) -> bytes:
    """A tar that GNU tar writes of a folder, whole and sorted, or of these files; skips the test without GNU tar."""
    program = shutil.which("tar")
    version = subprocess.run([program or "false", "--version"], capture_output=True, check=False).stdout
    if b"GNU tar" not in version:
        pytest.skip("GNU tar is not installed")
    what = ["--sort=name", "."] if names is None else ["--", *names]
    done = subprocess.run(
        [str(program), f"--format={form}", *options, "-cf", "-", "-C", str(folder), *what],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    return done.stdout


def members_of(data: bytes) -> list[tuple[str, int, int]]:
    """(name, payload offset, size) of the regular files, as `tarfile` reports them."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as tar:
        return [(info.name, info.offset_data, info.size) for info in tar if info.isreg()]
