"""Orientation in EXIF bytes, read and changed; what Pillow reads in them afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loader.exif import PREFIX, exif_orientation, only_orientation, with_orientation


def tags(orientation: int | None = None, **more: str) -> bytes:
    exif = Image.Exif()
    exif[0x010F] = more.get("make", "A camera")
    exif[0x0131] = "software"
    if orientation is not None:
        exif[0x0112] = orientation
    return exif.tobytes()


def by_pillow(data: bytes) -> dict[int, object]:
    exif = Image.Exif()
    exif.load(data)
    return dict(exif)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("prefix", [b"", PREFIX])
def test_another_orientation_and_nothing_else(orientation: int, prefix: bytes) -> None:
    before = prefix + tags(3).removeprefix(PREFIX)
    after = with_orientation(before, orientation)
    assert exif_orientation(after) == orientation
    assert len(after) == len(before)
    assert by_pillow(after) == {**by_pillow(before), 0x0112: orientation}


@pytest.mark.parametrize("order", ["II", "MM"])
def test_both_byte_orders(order: str) -> None:
    head = (b"II*\0\x08\0\0\0", "little") if order == "II" else (b"MM\0*\0\0\0\x08", "big")
    entry = b"".join(n.to_bytes(size, head[1]) for n, size in ((1, 2), (0x0112, 2), (3, 2), (1, 4), (6, 2)))  # type: ignore[arg-type]
    exif = head[0] + entry + bytes(6)
    assert exif_orientation(exif) == 6
    assert exif_orientation(with_orientation(exif, 1)) == 1


@pytest.mark.parametrize("orientation", range(2, 9))
def test_the_fewest_bytes_that_say_it(orientation: int) -> None:
    assert by_pillow(only_orientation(orientation)) == {0x0112: orientation}
    assert with_orientation(b"", orientation) == only_orientation(orientation)
    assert with_orientation(tags(), 1) == tags()
    assert only_orientation(1) == b""


@given(
    st.binary(max_size=80), st.sampled_from([b"", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08", PREFIX + b"II*\0"])
)
def test_whatever_the_bytes_are(rest: bytes, head: bytes) -> None:
    exif = head + rest
    assert 1 <= exif_orientation(exif) <= 8
    assert exif_orientation(with_orientation(exif, 6)) in (6, 1 if with_orientation(exif, 6) == exif else 6)
