"""The same numbers as zlib's, whichever library computes them."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader import checksums


@given(st.lists(st.binary(max_size=5000), max_size=4), st.sampled_from([bytes, bytearray, memoryview]))
def test_as_zlib_does_piece_by_piece(pieces: list[bytes], kind: type) -> None:
    adler, crc = 1, 0
    for piece in pieces:
        adler, crc = checksums.adler32(kind(piece), adler), checksums.crc32(kind(piece), crc)
    assert (adler, crc) == (zlib.adler32(b"".join(pieces)), zlib.crc32(b"".join(pieces)))
    assert checksums.crc32(b"") == 0 and checksums.adler32(b"") == 1


@given(st.lists(st.binary(max_size=3000), max_size=5), st.integers(0, 70_000))
def test_pieces_that_were_summed_apart(pieces: list[bytes], zeros: int) -> None:
    total, pieces = 1, [*pieces, b"\xff" * zeros]
    for piece in pieces:
        total = checksums.combined_adler32(total, zlib.adler32(piece), len(piece))
    assert total == zlib.adler32(b"".join(pieces))


def test_zlib_serves_where_zlib_ng_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    try:
        assert importlib.reload(checksums).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(checksums)
