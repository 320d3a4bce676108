from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from growth import growth
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from loader.errors import BadSample
from loader.images import image_size
from tasks.pictures import Picture, identify, is_native

Encode = Callable[..., bytes]

STORED: list[tuple[str, str, dict[str, Any]]] = [
    (".jpg", "JPEG", {}),
    (".jpg", "JPEG", {"progressive": True, "quality": 95, "exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}),
    (".jpg", "JPEG", {"icc_profile": bytes(200_000), "comment": b"\xff\xd9"}),
    (".png", "PNG", {}),
    (".png", "PNG", {"optimize": True, "icc_profile": bytes(1000)}),
    (".webp", "WEBP", {}),
    (".webp", "WEBP", {"lossless": True}),
    (".webp", "WEBP", {"icc_profile": bytes(1000)}),
]


def refused(data: bytes) -> str:
    with pytest.raises(BadSample) as caught:
        identify(data)
    return str(caught.value)


@pytest.mark.parametrize(("extension", "kind", "options"), STORED)
@pytest.mark.parametrize("size", [(1, 1), (64, 48), (300, 17)])
def test_what_is_stored_as_it_is(
    encode: Encode, extension: str, kind: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    data = encode(kind, size=size, **options)
    assert identify(data) == Picture(extension, *size)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode(mode: str) -> None:
    buffer = io.BytesIO()
    kind = "JPEG" if mode == "CMYK" else "PNG"
    Image.new(mode, (5, 4)).save(buffer, kind)
    assert identify(buffer.getvalue())[1:3] == (5, 4)


def test_animated_webp(encode: Encode, photograph: Image.Image) -> None:
    buffer = io.BytesIO()
    frames = [photograph.crop((n, n, n + 40, n + 30)) for n in range(3)]
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:])
    assert identify(buffer.getvalue()) == Picture(".webp", 40, 30)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_which_way_up(encode: Encode, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(kind, size=(64, 48), exif=exif)
    picture = identify(data)
    assert picture[1:] == (64, 48, orientation)
    assert picture.seen == image_size(data)[::-1] == ((48, 64) if orientation >= 5 else (64, 48))


@pytest.mark.parametrize(("extension", "kind", "options"), STORED)
def test_cut_anywhere_and_taken_as_it_is(
    encode: Encode, extension: str, kind: str, options: dict[str, Any]
) -> None:
    data = encode(kind, **options)
    whole = identify(data)
    assert is_native(data) and identify(data[:-30], whole=False) == whole
    for end in range(0, len(data), 97):
        with contextlib.suppress(BadSample):
            assert identify(data[:end], whole=False)[:3] == whole[:3]


@pytest.mark.parametrize(("extension", "kind", "options"), STORED)
def test_cut_anywhere(encode: Encode, extension: str, kind: str, options: dict[str, Any]) -> None:
    data = encode(kind, **options)
    for end in {*range(min(700, len(data))), *range(0, len(data), 97), *range(len(data) - 12, len(data))}:
        reason = refused(data[:end])
        assert "JPEG, PNG or WebP was expected" not in reason or end < 12, (end, reason)


def test_a_thumbnails_end_is_not_the_end(encode: Encode) -> None:
    thumbnail = encode("JPEG", size=(16, 16))
    assert thumbnail.endswith(b"\xff\xd9")
    data = encode("JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0" + thumbnail)
    assert thumbnail in data
    identify(data)
    assert "a JPEG cut short: no end-of-image marker" in refused(data[:-20])


def test_bytes_after_the_end_do_no_harm(encode: Encode) -> None:
    for kind in ("JPEG", "PNG", "WEBP"):
        assert identify(encode(kind) + b"trailer\n") == identify(encode(kind))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("GIF", "GIF"), ("BMP", "BMP"), ("TIFF", "TIFF"), ("ICO", "ICO"), ("JPEG2000", "JPEG 2000"),
     ("AVIF", "AVIF"), ("PPM", "no picture"), ("PDF", "PDF")],
)  # fmt: skip
def test_other_formats_are_named(encode: Encode, kind: str, name: str) -> None:
    assert refused(encode(kind)).startswith(f"{name}")
    assert "JPEG, PNG or WebP was expected" in refused(encode(kind))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "an empty file"),
        (bytes(5000), "5,000 zero bytes"),
        (b"\n <!DOCTYPE html><html>404</html>", "an HTML page"),
        (b'<?xml version="1.0"?>\n<svg xmlns="...">', "SVG"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"\0\0\0\x18ftypmp42", "MP4 video"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b"RIFF\x04\0\0\0WAVE", "no picture (starts with b'RIFF"),
        (b"hello", "no picture (starts with b'hello')"),
        (b"\xff\xd8\xff\xd9", "a JPEG without a picture in it"),
        (b"\xff\xd8\xff\xe0\0\x04ab123456", "a damaged JPEG: no marker at byte 8"),
        (b"\xff\xd8\xff\xda\0\x02\x11\x22\xff\xd9", "a damaged JPEG: pixels, but no frame header"),
        (b"RIFF\x14\0\0\0WEBPVP8L" + bytes(20), "a damaged WebP: no lossless signature"),
        (b"RIFF\x16\0\0\0WEBPVP8 " + bytes(20), "a damaged WebP: no start code"),
        (b"RIFF\x16\0\0\0WEBPJUNK" + bytes(20), "a damaged WebP: its first chunk is b'JUNK'"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "a damaged PNG"),
    ],
)
def test_what_is_no_picture(data: bytes, reason: str) -> None:
    assert refused(data).startswith(reason)


def test_a_picture_has_pixels(encode: Encode) -> None:
    png = bytearray(encode("PNG"))
    png[16:20] = bytes(4)
    assert "its header chunk is wrong" in refused(bytes(png))  # the checksum tells
    png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
    assert refused(bytes(png)) == "a png picture of 0 × 48 pixels"


@pytest.mark.parametrize("markers", [b"\xff" * 4, b"\xff\xe0\0\x02"])
def test_hostile_headers_cost_the_same_whatever_their_length(markers: bytes) -> None:
    few, many = (b"\xff\xd8" + markers * count for count in (1 << 18, 1 << 24))
    assert "more than 65,536 markers" in refused(few)
    assert "more than 65,536 markers" in refused(many)
    assert growth(lambda: refused(few), lambda: refused(many)) < 8  # 64 times the bytes


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(
        [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"RIFF\x08\0\0\0WEBPVP8 ", b"BM", b""]
    ),
    st.binary(max_size=60),
)
def test_any_bytes_give_an_answer_or_one_clear_error(start: bytes, rest: bytes) -> None:
    try:
        picture = identify(start + rest)
    except BadSample:
        return
    assert picture.width > 0
    assert picture.height > 0
