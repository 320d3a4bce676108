"""A walk that reads headers through the file's descriptor finds what one over bytes does."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tarmaker import END, member, pax

from loader.errors import BadTar
from loader.tar import Batch, TarMap, Walk


def walked(walk: Walk) -> list[tuple[bytes, int, int]]:
    batches: list[Batch] = list(walk)
    walk.release()
    return [
        (name, offset, size)
        for batch in batches
        for name, offset, size in zip(batch.names, batch.offsets.tolist(), batch.sizes.tolist(), strict=True)
    ]


def mapped(path: Path, held: bool = True) -> tuple[TarMap, int]:
    descriptor = os.open(path, os.O_RDONLY)
    buffer = TarMap(descriptor, 0, access=mmap.ACCESS_READ)
    buffer.file = descriptor if held else None
    return buffer, descriptor


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 40_000), st.booleans()), max_size=40))
def test_same_as_over_bytes(tmp_path_factory: pytest.TempPathFactory, shape: list[tuple[int, bool]]) -> None:
    parts = [
        (pax((b"path", b"long/" * 30 + b"%d.bin" % i)) if long else b"")
        + member(b"%d.bin" % i, bytes([i]) * size)
        for i, (size, long) in enumerate(shape)
    ]
    data = b"".join(parts) + END
    path = tmp_path_factory.mktemp("map") / "a.tar"
    path.write_bytes(data)
    expected = walked(Walk(data, "a.tar"))
    assert len(expected) == len(shape)
    for held in (True, False):
        buffer, descriptor = mapped(path, held)
        assert walked(Walk(buffer, "a.tar")) == expected
        buffer.close()
        os.close(descriptor)


def test_headers_are_read_through_the_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(member(b"%d.bin" % i, bytes(30_000)) for i in range(50)) + END)
    buffer, descriptor = mapped(path)
    read: list[int] = []
    pread = os.pread

    def counted(file: int, size: int, at: int) -> bytes:
        read.append(at)
        return pread(file, size, at)

    monkeypatch.setattr(os, "pread", counted)
    assert len(walked(Walk(buffer, "a.tar"))) == 50
    assert len(read) >= 50
    os.close(descriptor)


@pytest.mark.parametrize("cut", [100, 200, 511])
def test_a_file_that_is_cut_meanwhile(tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short answer of the file system is no header."""
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(member(b"%d.bin" % i, b"x" * 600) for i in range(20)) + END)
    buffer, descriptor = mapped(path)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, cut if at > 9000 else size, at))
    try:
        found = walked(Walk(buffer, "a.tar"))
    except BadTar:
        return
    finally:
        os.close(descriptor)
    assert [name for name, _, _ in found] == [b"%d.bin" % i for i in range(20)]
