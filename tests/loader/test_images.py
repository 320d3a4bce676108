"""Pictures as a person sees them: pixels are compared with what other code, or a formula, says they are."""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import struct
import sys
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from strategies import images

from loader.errors import BadSample
from loader.images import (
    MAX_PIXELS,
    _simplejpeg,
    decode_array,
    decode_image,
    exif_orientation,
    image_extension,
    image_size,
    to_rgb,
)

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def photo(width=96, height=64, seed=0):
    """Smooth and coloured, as JPEG likes it: two decoders then differ by little, and order matters."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    noise = np.random.default_rng(seed).normal(0, 4, (height, width, 3))
    pixels = np.stack([255 * x, 255 * y, 127 + 120 * np.sin(6 * x * y)], -1) + noise
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def png(width, height, depth, colour, rows, *chunks):
    """A PNG by hand, for what Pillow doesn't write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [
        chunk(b"IHDR", header),
        *(chunk(*pair) for pair in chunks),
        chunk(b"IDAT", body),
        chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def on_white(rgb, alpha):
    share = alpha[..., None].astype(float) / 255
    return rgb * share + 255 * (1 - share)


# --- modes -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(images(modes=("1", "L", "LA", "P", "PA", "RGB", "RGBA")))
def test_grey_palette_and_alpha_are_what_the_bytes_say(image):
    before = image.tobytes(), dict(image.info), image.mode
    raw = np.array(image)
    alpha = np.full(image.size[::-1], 255)
    if image.mode in ("P", "PA"):
        palette = np.array(image.getpalette()).reshape(-1, 3)
        index = raw if image.mode == "P" else raw[..., 0]
        rgb = palette[index]
        if image.mode == "PA":
            alpha = raw[..., 1]
        elif "transparency" in image.info:
            alphas = np.full(256, 255)
            alphas[: len(image.info["transparency"])] = list(image.info["transparency"])
            alpha = alphas[index]
    elif image.mode in ("1", "L"):
        rgb = np.repeat(raw[..., None].astype(int) * (255 if image.mode == "1" else 1), 3, -1)
    elif image.mode == "LA":
        rgb, alpha = np.repeat(raw[..., :1], 3, -1), raw[..., 1]
    else:
        rgb, alpha = raw[..., :3], (raw[..., 3] if image.mode == "RGBA" else alpha)
    seen = to_rgb(image)
    assert seen.mode == "RGB" and seen.size == image.size and seen is not image
    assert np.abs(np.array(seen) - on_white(rgb, alpha)).max() <= 1
    assert (image.tobytes(), dict(image.info), image.mode) == before


@settings(deadline=None, max_examples=150)
@given(images())
def test_every_mode_becomes_rgb_without_a_warning(image):
    seen = to_rgb(image)
    assert (seen.mode, seen.size, seen.info) == ("RGB", image.size, {})


@settings(deadline=None, max_examples=60)
@given(images(modes=("RGB", "L", "1", "RGBA", "LA", "P")))
def test_a_lossless_file_shows_what_the_picture_shows(image):
    """Through real encoders: what was drawn is what is decoded, in every lossless format that takes the mode."""
    expected = np.array(to_rgb(image))
    files = [encoded(image, "PNG")]
    if image.mode in ("RGB", "RGBA"):
        files.append(encoded(image, "WEBP", lossless=True, exact=True))
    if image.mode in ("RGB", "L", "1"):
        files.append(encoded(image, "BMP"))
        files.append(encoded(image, "TIFF"))
    for data in files:
        assert np.array_equal(np.array(decode_image(data)), expected)
        assert np.array_equal(decode_array(memoryview(data)), expected)


@pytest.mark.parametrize("mode, dtype", [("I;16", "<u2"), ("I;16B", ">u2"), ("I", "<i4")])
def test_16_bit_grey_is_scaled_not_clipped(mode, dtype):
    values = np.arange(0, 65536, 13)[:5000].reshape(50, 100)
    image = Image.frombytes(mode, (100, 50), values.astype(dtype).tobytes())
    expected = np.repeat(np.rint(values / 257).astype(np.uint8)[..., None], 3, -1)
    assert np.array_equal(np.array(to_rgb(image)), expected)
    for kind in ("TIFF", "PNG") if mode == "I;16" else ("TIFF",):
        assert np.array_equal(np.array(decode_image(encoded(image, kind))), expected)


def test_16_bit_grey_png_from_another_encoder():
    values = np.linspace(0, 65535, 64).astype(">u2").reshape(8, 8)
    seen = np.array(decode_image(png(8, 8, 16, 0, [row.tobytes() for row in values])))
    assert seen[0, 0].tolist() == [0, 0, 0] and seen[-1, -1].tolist() == [255, 255, 255]
    assert len(np.unique(seen)) > 60


@pytest.mark.parametrize(
    "values, expected",
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),  # a share of white
        ([0.0, 100.0, 255.0], [0, 100, 255]),  # grey levels
        ([0.0, 25700.0, 65535.0], [0, 100, 255]),  # 16-bit levels
        ([-1.0, 0.0, 1.0], [0, 128, 255]),  # anything else: darkest to lightest
        ([1e6, 2e6, 3e6], [0, 128, 255]),
        ([float("nan"), 1.0, float("inf")], [0, 255, 255]),
        ([-float("inf"), 0.25, 1.0], [0, 64, 255]),
        ([7e5, 7e5, 7e5], [0, 0, 0]),
    ],
)
def test_float_grey(values, expected):
    image = Image.fromarray(np.array([values], np.float32))
    assert image.mode == "F"
    assert np.array(to_rgb(image))[0, :, 0].tolist() == expected
    if np.isfinite(values).all():
        assert np.array(decode_image(encoded(image, "TIFF")))[0, :, 1].tolist() == expected


def test_32_bit_grey_beyond_16_bits_is_stretched():
    image = Image.fromarray(np.array([[-100, 0, 2_000_000_000]], np.int32))
    assert np.array(to_rgb(image))[0, :, 0].tolist() == [0, 0, 255]


CMYK_COLOURS = {
    (0, 0, 0, 0): (255, 255, 255),
    (0, 0, 0, 255): (0, 0, 0),
    (255, 0, 0, 0): (0, 255, 255),
    (0, 255, 0, 0): (255, 0, 255),
    (0, 0, 255, 0): (255, 255, 0),
    (0, 255, 255, 0): (255, 0, 0),
}


@pytest.mark.parametrize("inks, seen", CMYK_COLOURS.items())
@pytest.mark.parametrize("decode", [lambda data: np.array(decode_image(data)), decode_array])
def test_cmyk_jpeg_which_adobe_inverts(inks, seen, decode):
    data = encoded(Image.new("CMYK", (16, 16), inks), "JPEG", quality=100)
    assert b"Adobe" in data[:100]
    assert np.abs(decode(data).astype(int) - seen).max() <= 2


def test_colour_keys_of_png():
    """One value, not an alpha channel, is transparent: in grey of 1, 2, 4, 8, 16 bits and RGB of 8 and 16."""
    white = [255, 255, 255]
    key = lambda *values: (b"tRNS", struct.pack(f">{len(values)}H", *values))  # noqa: E731
    cases = [
        (png(2, 1, 1, 0, [b"\x40"], key(0)), [white, white]),
        (png(2, 1, 1, 0, [b"\x00"], key(1)), [[0] * 3, [0] * 3]),
        (png(2, 1, 2, 0, [b"\x10"], key(0)), [white, [85] * 3]),
        (png(2, 1, 2, 0, [b"\x10"], key(1)), [[0] * 3, white]),
        (png(2, 1, 4, 0, [b"\x12"], key(2)), [[17] * 3, white]),
        (png(2, 1, 8, 0, [b"\x01\x02"], key(2)), [[1] * 3, white]),
        (png(2, 1, 16, 0, [struct.pack(">2H", 2570, 1000)], key(1000)), [[10] * 3, white]),
        (png(2, 1, 8, 2, [bytes([255, 0, 0, 0, 9, 0])], key(0, 9, 0)), [[255, 0, 0], white]),
        (
            png(2, 1, 16, 2, [struct.pack(">6H", 65535, 0, 0, 0, 65535, 0)], key(65535, 0, 0)),
            [white, [0, 255, 0]],
        ),
        (
            png(2, 1, 16, 2, [struct.pack(">6H", 0x1234, 0, 0, 0xFF00, 0, 0)], key(0x1234, 0, 0)),
            [white, [255, 0, 0]],
        ),
    ]
    for data, expected in cases:
        assert np.array(decode_image(data))[0].tolist() == expected


def test_gif_with_transparency():
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 200, 10, 10])
    image.putpixel((1, 0), 1)
    seen = decode_image(encoded(image, "GIF", transparency=0))
    assert np.array(seen)[0].tolist() == [[255, 255, 255], [200, 10, 10]]


def test_a_colour_profile_stays_where_it_fits():
    profile = b"\0" * 128
    assert decode_image(encoded(photo(), "PNG", icc_profile=profile)).info == {"icc_profile": profile}
    assert decode_image(encoded(photo().convert("L"), "PNG", icc_profile=profile)).info == {}


# --- orientation, frames ---------------------------------------------------------------------------------

# Where the stored top-left corner is seen, for each orientation (EXIF 2.3: row 0, column 0 of the stored picture).
SEEN_CORNER = {1: "NW", 2: "NE", 3: "SE", 4: "SW", 5: "NW", 6: "NE", 7: "SE", 8: "SW"}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("decode", [decode_image, lambda data: Image.fromarray(decode_array(data))])
def test_orientation_is_applied_once(orientation, kind, decode):
    stored = Image.new("RGB", (48, 32), "white")
    stored.paste((200, 0, 0), (0, 0, 16, 16))
    options = {"quality": 95} if kind != "TIFF" else {}
    seen = decode(encoded(stored, kind, exif=exif(orientation), **options))
    assert seen.size == ((48, 32) if orientation < 5 else (32, 48))
    x = {"W": 4, "E": seen.width - 5}[SEEN_CORNER[orientation][1]]
    y = {"N": 4, "S": seen.height - 5}[SEEN_CORNER[orientation][0]]
    for corner in itertools.product((4, seen.width - 5), (4, seen.height - 5)):
        red = seen.getpixel(corner)[1] < 128
        assert red == (corner == (x, y))
    assert np.array_equal(np.array(to_rgb(seen)), np.array(seen)), "turned a second time"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_agrees_with_pillow(orientation):
    data = encoded(photo(), "JPEG", exif=exif(orientation))
    expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(np.array(decode_image(data)), expected)
    assert np.abs(decode_array(data).astype(int) - expected).max() <= 4
    assert decode_array(data).flags.c_contiguous


@settings(deadline=None, max_examples=200)
@given(
    st.binary(max_size=60), st.sampled_from([b"", b"Exif\0\0"]), st.sampled_from([b"", b"II*\0", b"MM\0*"])
)
def test_any_exif_gives_an_orientation(data, prefix, order):
    assert 1 <= exif_orientation(prefix + order + data) <= 8


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind, code", [(1, "B"), (3, "H"), (4, "I")])
def test_orientation_of_either_byte_order_and_odd_types(order, kind, code):
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, 2)
    other = struct.pack(f"{order}HHII", 0x010F, 2, 99, 0xFFFFFF)  # a make that points outside
    entry = struct.pack(f"{order}HHI{code}", 0x0112, kind, 1, 6).ljust(12, b"\0")
    assert exif_orientation(b"Exif\0\0" + head + other + entry) == 6
    assert exif_orientation(head + other + entry) == 6
    assert exif_orientation(head + other) == 1


def test_of_two_exif_blocks_the_first_counts():
    data = encoded(photo(), "JPEG", exif=exif(6))
    block = exif(3).tobytes()
    second = b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block
    at = data.index(b"\xff\xdb")  # the tables begin: all EXIF is before
    twice = data[:at] + second + data[at:]
    assert np.array_equal(np.array(decode_image(twice)), np.array(decode_image(data)))
    assert np.array_equal(decode_array(twice), decode_array(data))


def test_broken_exif_does_not_make_a_picture_bad():
    plain = encoded(photo(), "JPEG")
    for block in (
        b"Exif\0\0",
        b"Exif\0\0nonsense",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
    ):
        data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:]
        assert np.array_equal(np.array(decode_image(data)), np.array(decode_image(plain)))
        assert np.array_equal(decode_array(data), decode_array(plain))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(kind):
    colours = ["red", "lime", "blue"]
    frames = [Image.new("RGB", (8, 6), colour) for colour in colours]
    options = {"WEBP": {"lossless": True}, "TIFF": {}}.get(kind, {"duration": 50})
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    assert set(
        decode_image(data).get_flattened_data()
        if hasattr(Image.Image, "get_flattened_data")
        else decode_image(data).getdata()
    ) == {(255, 0, 0)}


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("decode", [decode_image, decode_array])
def test_a_file_cut_short_raises(kind, decode):
    noise = np.random.default_rng(1).integers(0, 256, (80, 80, 3), np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    assert len(data) > 4_000
    with pytest.raises(BadSample, match="no readable picture"):
        decode(data[:-2000])


def test_a_jpeg_whose_header_verifies_but_whose_pixels_are_missing():
    data = encoded(photo(400, 300), "JPEG", quality=95)[:-2048]
    Image.open(io.BytesIO(data)).verify()
    for decode in (decode_image, decode_array):
        with pytest.raises(BadSample, match="truncated"):
            decode(data)


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "0 bytes"),
        (b"<!DOCTYPE html>not found", "DOCTYPE"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "WAVE"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "PS-Adobe"),  # Pillow would start Ghostscript
        (b"\xff\xd8\xff", "starts as .jpg"),
        (b"\x89PNG\r\n\x1a\n", "starts as .png"),
        (b"RIFF\x10\0\0\0WEBP", "starts as .webp"),
    ],
)
def test_what_is_no_picture_says_so(data, said):
    for decode in (decode_image, decode_array):
        with pytest.raises(BadSample, match=said):
            decode(data)


def test_a_picture_over_the_limit_is_refused_before_its_pixels_are_decoded():
    bomb = png(50_000, 50_000, 8, 2, [b""])
    with pytest.raises(BadSample, match="2,500,000,000 pixels, the limit is 178,956,970"):
        decode_image(bomb)
    for kind in FORMATS:
        data = encoded(photo(30, 20), kind)
        for decode in (decode_image, decode_array):
            with pytest.raises(BadSample, match="30 × 20 = 600 pixels, the limit is 599"):
                decode(data, max_pixels=599)
            decode(data, max_pixels=600)
    assert MAX_PIXELS == 2 * (1024**3 // 4 // 3) == 2 * Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("kind", FORMATS)
def test_pillows_own_limit_neither_warns_nor_is_touched(kind, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    data = encoded(photo(30, 20), kind)
    for action in ("error", "always"):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter(action)
            assert decode_image(data).size == (30, 20)
            assert decode_array(data).shape == (20, 30, 3)
        assert shown == []
    assert Image.MAX_IMAGE_PIXELS == 400


@st.composite
def damaged(draw):
    kind = draw(st.sampled_from((*FORMATS, "AVIF", "JPEG2000") if "AVIF" in Image.SAVE else FORMATS))
    data = bytearray(encoded(photo(24, 16), kind))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)):
        data[at] = byte
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@settings(deadline=None, max_examples=400)
@given(damaged())
def test_damage_gives_a_picture_or_bad_sample(data):
    try:
        seen = decode_image(data, max_pixels=100_000)
    except BadSample as error:
        assert str(error)
        with pytest.raises(BadSample):
            decode_array(data, max_pixels=100_000)
    else:
        assert seen.mode == "RGB" and seen.width * seen.height <= 100_000
        assert decode_array(data, max_pixels=100_000).shape == (seen.height, seen.width, 3)


def test_out_of_memory_is_no_bad_sample(monkeypatch):
    def exhausted(self):
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", exhausted)
    with pytest.raises(MemoryError):
        decode_image(encoded(photo(), "PNG"))


# --- the second decoder ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 2}, {"quality": 30}]
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_both_decoders_give_the_same_picture(options, mode):
    assert _simplejpeg() is not None, "the extra `fast` is part of `dev`"
    data = encoded(photo(203, 151).convert(mode), "JPEG", **options)
    array, image = decode_array(data), np.array(decode_image(data))
    assert array.shape == (151, 203, 3) and array.dtype == np.uint8 and array.flags.writeable
    assert np.abs(array.astype(int) - image).max() <= 4


def test_plain_jpegs_do_go_through_simplejpeg(monkeypatch):
    seen = []
    decoder = _simplejpeg()
    real = decoder.decode_jpeg
    monkeypatch.setattr(
        decoder, "decode_jpeg", lambda data, **options: seen.append(1) or real(data, **options)
    )
    decode_array(encoded(photo(), "JPEG", exif=exif(6), progressive=True))
    assert seen == [1]
    decode_array(encoded(photo().convert("CMYK"), "JPEG"))
    decode_array(encoded(photo(), "PNG"))
    assert seen == [1]


def test_without_simplejpeg_pillow_serves(monkeypatch):
    data = encoded(photo(), "JPEG", exif=exif(8))
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    _simplejpeg.cache_clear()
    try:
        assert _simplejpeg() is None
        assert np.array_equal(decode_array(data), np.array(decode_image(data)))
    finally:
        _simplejpeg.cache_clear()


# --- small things ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, extension", [("JPEG", ".jpg"), ("PNG", ".png"), ("WEBP", ".webp"), ("GIF", ".gif")]
)
def test_the_true_extension(kind, extension):
    assert image_extension(encoded(photo(), kind)) == extension
    assert image_extension(memoryview(encoded(photo(), kind))) == extension
    assert image_extension(b"") is None


def test_a_decoded_picture_pickles_without_its_metadata():
    data = encoded(photo(), "JPEG", exif=exif(6), comment=b"x" * 50_000)
    image = decode_image(data)
    again = pickle.loads(pickle.dumps(image))
    assert np.array_equal(np.array(again), np.array(image))
    assert len(pickle.dumps(image)) < 96 * 64 * 3 + 2_000


def test_a_higher_limit_travels_as_a_handler():
    handler = pickle.loads(pickle.dumps(functools.partial(decode_image, max_pixels=10)))
    with pytest.raises(BadSample):
        handler(encoded(photo(), "PNG"))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_from_the_header_is_that_of_the_decoded_picture(kind, orientation):
    options = {"exif": exif(orientation)} if kind in ("JPEG", "PNG", "WEBP", "TIFF") else {}
    data = encoded(photo(40, 24), kind, **options)
    image = decode_image(data)
    assert image_size(data) == (image.height, image.width)


@pytest.mark.parametrize("mode", ["CMYK", "L", "RGB"])
def test_size_needs_no_more_of_a_jpeg_than_its_header(mode):
    data = encoded(photo(400, 240).convert(mode), "JPEG", exif=exif(6))
    assert image_size(data[:1024]) == (400, 240)
    with pytest.raises(BadSample):
        image_size(data[:30])


def test_size_needs_no_more_of_a_png_than_its_header():
    data = encoded(photo(400, 240), "PNG", exif=exif(6))
    assert image_size(data[:300]) == (400, 240)


@pytest.mark.parametrize("data", [b"", b"text" * 100, b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_no_picture_has_no_size(data):
    with pytest.raises(BadSample):
        image_size(data)
