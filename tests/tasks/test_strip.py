"""Metadata taken out of whole files; `tests/tasks/test_images.py` does so by way of the options."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photo, turned

from tasks.pictures import identify
from tasks.strip import strip

FILES = [
    encoded(photo(24, 32), kind, exif=turned(orientation), icc_profile=b"profile" * 9, **options)
    for kind, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("WEBP", {"lossless": True}))
    for orientation in (1, 6)
]  # fmt: skip


@pytest.mark.parametrize("data", FILES)
def test_what_is_taken_out_and_what_stays(data: bytes) -> None:
    picture = identify(data)
    for metadata in (True, False):
        for icc in (True, False):
            stripped = strip(data, picture, metadata, icc)
            assert identify(stripped) == picture
            assert strip(stripped, picture, metadata, icc) == stripped
            assert (stripped == data) == (not metadata and not icc)
            assert len(stripped) <= len(data)


def test_bytes_behind_the_end_go_with_the_metadata() -> None:
    for data in (FILES[0], FILES[4], FILES[6]):
        longer = data + b"\0hidden"
        assert strip(longer, identify(longer), False, False) == longer or data[:4] == b"RIFF"
        assert b"hidden" not in strip(longer, identify(longer), True, False)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FILES), st.data())
def test_damage_is_one_of_two_errors(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data[: draw.draw(st.integers(0, len(data)))])
    for _ in range(draw.draw(st.integers(0, 3)) if damaged else 0):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(IndexError, struct.error):
        assert len(strip(bytes(damaged), identify(data), True, True)) <= len(data) + 64
