"""Tars for tests, made by the standard library, and what it says about them."""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

Member = tuple[str, bytes]


def make_tar(path: Path | str, members: Iterable[Member], **options: object) -> str:
    """Write a tar with these members in this order, folders made; returns its path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tarfile.open(path, "w", **options) as tar:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def pairs(count: int, start: int = 0) -> Sequence[Member]:
    """`count` samples of a .txt and a .cls each."""
    return [
        (f"{number:06d}.{kind}", f"{kind} {number}".encode())
        for number in range(start, start + count)
        for kind in ("txt", "cls")
    ]


def make_dataset(root: Path | str, counts: Sequence[int]) -> list[str]:
    """Tars ``shard-000000.tar`` and on, of `counts` samples; returns their paths."""
    starts = [sum(counts[:number]) for number in range(len(counts))]
    return [
        make_tar(f"{root}/shard-{number:06d}.tar", pairs(count, start))
        for number, (count, start) in enumerate(zip(counts, starts, strict=True))
    ]


def adler32(path: Path | str) -> int:
    """The checksum that meta.json holds of a file."""
    return zlib.adler32(Path(path).read_bytes())


def snapshot(root: Path | str) -> dict[str, bytes]:
    """The bytes of every file under a folder, hidden ones included, by relative path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(Path(root).rglob("*"))
        if path.is_file()
    }
