"""Files of real encoders, stored under every option, and looked at as a person sees them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif  # type: ignore[import-untyped]
import pytest
import tifffile  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photo, turned
from PIL import Image, ImageCms

from loader.errors import BadSample
from loader.exif import exif_orientation
from loader.images import decode_image, image_extension, read_metadata
from tasks.image_options import ImageOptions
from tasks.images import AS_IS, ENCODED, RESIZED, STRIPPED, fit, store
from tasks.pictures import identify

PHOTO = photo(96, 128, 3)
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
XMP = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'/>"


def heic(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, quality=90, **options)
    return buffer.getvalue()


def gif(image: Image.Image, frames: int) -> bytes:
    buffer = io.BytesIO()
    others = [image.rotate(90 * n, expand=False) for n in range(1, frames)]
    image.save(buffer, "GIF", save_all=True, append_images=others)
    return buffer.getvalue()


def tiff16(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    grey = np.asarray(image.convert("L")).astype(np.uint16) * 257
    tifffile.imwrite(buffer, grey, photometric="minisblack")
    return buffer.getvalue()


OTHERS: dict[str, tuple[bytes, str, float]] = {  # bytes, what they are stored as, how far a pixel may be off on average
    "BMP": (encoded(PHOTO, "BMP"), ".png", 0),
    "BMP of a palette": (encoded(PHOTO.quantize(16), "BMP"), ".png", 0),
    "TIFF": (encoded(PHOTO, "TIFF"), ".png", 0),
    "TIFF, LZW": (encoded(PHOTO, "TIFF", compression="tiff_lzw"), ".png", 0),
    "TIFF, JPEG": (encoded(PHOTO, "TIFF", compression="jpeg"), ".png", 0),
    "TIFF, CMYK": (encoded(PHOTO.convert("CMYK"), "TIFF"), ".png", 0),
    "TIFF, turned": (encoded(PHOTO, "TIFF", tiffinfo={0x0112: 6}), ".png", 0),
    "TIFF, 16 bits, tifffile's": (tiff16(PHOTO), ".png", 0),
    "GIF": (gif(PHOTO, 1), ".png", 0),
    "GIF, animated": (gif(PHOTO, 3), ".png", 0),
    "GIF, transparent": (encoded(PHOTO.convert("RGBA").rotate(30), "GIF"), ".png", 0),
    "JPEG 2000": (encoded(PHOTO, "JPEG2000"), ".png", 0),
    "AVIF": (encoded(PHOTO, "AVIF", quality=90), ".jpg", 3),
    "AVIF, transparent": (encoded(PHOTO.convert("RGBA").rotate(30), "AVIF", quality=90), ".jpg", 3),
    "HEIC": (heic(PHOTO), ".jpg", 3),
    "HEIC, turned": (heic(PHOTO, exif=turned(6).tobytes()), ".jpg", 3),
}  # fmt: skip


def seen(data: bytes) -> Any:
    return np.asarray(decode_image(data)).astype(int)


def difference(first: bytes, second: bytes) -> float:
    a, b = seen(first), seen(second)
    assert a.shape == b.shape
    return float(np.abs(a - b).mean())


def refused(data: bytes, **options: Any) -> str:
    with pytest.raises(BadSample) as caught:
        store(data, ImageOptions(**options))
    return str(caught.value)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats_are_converted(kind: str) -> None:
    data, extension, off = OTHERS[kind]
    stored = store(data, ImageOptions())
    assert stored.extension == image_extension(stored.data) == extension
    assert stored.outcome == f"converted from {kind.partition(',')[0].partition(' of')[0]}"
    assert difference(stored.data, data) <= off
    assert identify(stored.data).seen == (stored.width, stored.height)
    assert store(data, ImageOptions()) == stored
    for format_, wanted in (("jpeg", ".jpg"), ("png", ".png"), ("webp", ".webp")):
        for named in ("format", "convert"):
            other = store(data, ImageOptions(**{named: format_}))
            assert other.extension == image_extension(other.data) == wanted
            assert difference(other.data, data) < (12 if "GIF" in kind or "palette" in kind else 4)
    assert "JPEG, PNG or WebP was expected" in refused(data, convert="refuse")


@pytest.mark.parametrize("kind", OTHERS)
def test_damage_is_found_by_converting(kind: str) -> None:
    data, _, _ = OTHERS[kind]
    for end in (len(data) // 3, 200, 40):
        with pytest.raises(BadSample):
            store(data[:end], ImageOptions())


def test_heic_without_its_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert "pip install 'shardflow[heif]'" in refused(OTHERS["HEIC"][0])


NATIVE = {
    ".jpg": [encoded(PHOTO), encoded(PHOTO, progressive=True), encoded(PHOTO.convert("L")), encoded(PHOTO.convert("CMYK"))],
    ".png": [encoded(PHOTO, "PNG"), encoded(PHOTO.quantize(), "PNG"), encoded(PHOTO.convert("RGBA").rotate(30), "PNG"), encoded(PHOTO.convert("I;16"), "PNG")],
    ".webp": [encoded(PHOTO, "WEBP"), encoded(PHOTO, "WEBP", lossless=True), encoded(PHOTO.convert("RGBA").rotate(30), "WEBP")],
}  # fmt: skip
EVERY = [(extension, data) for extension, files in NATIVE.items() for data in files]


@pytest.mark.parametrize(("extension", "data"), EVERY)
def test_bytes_are_kept_unless_more_is_asked_for(extension: str, data: bytes) -> None:
    for options in (
        {}, {"verify": "full"}, {"verify": "none"}, {"max_side": 128}, {"max_area": 128 * 96}, {"min_width": 128},
        {"orientation": "apply"}, {"quality": 1}, {"convert": "refuse"}, {"max_bytes": len(data)},
    ):  # fmt: skip
        assert store(data, ImageOptions(**options)) == (data, extension, 128, 96, AS_IS)


@pytest.mark.parametrize(("extension", "data"), EVERY)
@pytest.mark.parametrize("format_", ["jpeg", "png", "webp"])
def test_every_picture_can_be_encoded_anew(extension: str, data: bytes, format_: str) -> None:
    stored = store(data, ImageOptions(format=format_, quality=95))
    assert stored.extension == image_extension(stored.data)
    assert stored.outcome == ENCODED
    assert difference(stored.data, data) <= (0 if format_ == "png" else 12 if extension == ".png" else 4)
    assert store(data, ImageOptions(format=format_, quality=95)) == stored


def test_quality_matters() -> None:
    data = encoded(PHOTO, "PNG")
    for format_ in ("jpeg", "webp"):
        sizes = [
            len(store(data, ImageOptions(format=format_, quality=quality)).data) for quality in (20, 60, 95)
        ]
        assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("filter_", ["lanczos", "bicubic", "bilinear", "hamming", "box", "nearest"])
def test_scaled_as_pillow_scales(filter_: str) -> None:
    source = photo(200, 300, 5)
    stored = store(encoded(source, "PNG"), ImageOptions(max_side=90, resize_filter=filter_))
    assert (stored.width, stored.height, stored.extension, stored.outcome) == (90, 60, ".png", RESIZED)
    wanted = source.resize((90, 60), Image.Resampling[filter_.upper()])
    assert (seen(stored.data) == np.asarray(wanted)).all()


def test_a_large_jpeg_is_scaled_as_if_all_of_it_had_been_decoded() -> None:
    data = encoded(photo(1600, 2400, 5), quality=95)
    stored = store(data, ImageOptions(format="png", max_side=240))
    whole = decode_image(data).resize((240, 160), Image.Resampling.LANCZOS)
    assert np.abs(seen(stored.data) - np.asarray(whole)).mean() < 1


@given(
    st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 600), st.one_of(st.just(0), st.integers(1, 300_000))
)  # fmt: skip
def test_what_fits(width: int, height: int, side: int, area: int) -> None:
    options = ImageOptions(max_side=side, max_area=area)
    wide, high = fit(width, height, options)
    assert 1 <= wide <= width and 1 <= high <= height
    assert not side or max(wide, high) <= side
    assert not area or wide * high <= area
    if not ((side and max(width, height) > side) or (area and width * height > area)):
        assert (wide, high) == (width, height)
    elif min(wide, high) >= 20:  # the shape is kept, and the limit is used
        assert abs(wide / high - width / height) / (width / height) < 0.1
        assert (side and max(wide, high) >= side - 1) or (area and (wide + 2) * (high + 2) > area)
    assert fit(wide, high, options) == (wide, high)


def test_limits_leave_rows_out() -> None:
    data = encoded(PHOTO)
    assert refused(data, max_pixels=128 * 96 - 1) == (
        "a picture of 128 × 96 pixels, more than image_max_pixels = 12,287"
    )
    assert refused(data, max_bytes=len(data) - 1).startswith(
        f"{len(data):,} bytes, more than image_max_bytes"
    )
    assert "less than image_min_width = 129" in refused(data, min_width=129)
    assert "image_min_height = 97" in refused(data, min_height=97)
    upright = encoded(PHOTO, exif=turned(6))
    assert store(upright, ImageOptions(min_height=128))[2:4] == (96, 128)
    assert "96 × 128 pixels, less than" in refused(upright, min_width=97)


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    side = 13_500
    bomb = encoded(Image.new("1", (side, side)), "PNG")
    assert len(bomb) < 100_000
    for options in ({}, {"format": "jpeg"}, {"max_side": 100}, {"verify": "full"}, {"verify": "none"}):
        assert f"{side:,} × {side:,} pixels, more than" in refused(bomb, **options)
    tall = encoded(Image.new("1", (side, side)), "TIFF", compression="group4")
    assert "pixels, more than image_max_pixels" in refused(tall)


def test_what_each_way_of_looking_finds() -> None:
    whole = encoded(photo(400, 400, 2))
    cut = whole[:-2000]
    middle = encoded(photo(400, 400, 2), "PNG")
    middle = middle[:3000] + middle[-3000:]
    assert "cut short" in refused(cut)
    assert store(cut, ImageOptions(verify="none")) == (cut, ".jpg", 400, 400, AS_IS)
    assert store(middle, ImageOptions()).outcome == AS_IS  # its end is there
    assert "no readable picture" in refused(middle, verify="full")
    assert "cut short in its header" in refused(whole[:30], verify="none")
    for data in (b"", b"<html>", b"version https://git-lfs.github.com/spec/v1", b"GIF89a", bytes(100)):
        refused(data)
        refused(data, verify="none")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pictures_that_exif_turns(orientation: int, kind: str) -> None:
    data = encoded(PHOTO, kind, exif=turned(orientation), **({"lossless": True} if kind == "WEBP" else {}))
    size = (96, 128) if orientation >= 5 else (128, 96)
    kept = store(data, ImageOptions())
    assert kept == (data, identify(data).extension, *size, AS_IS)
    for options in ({"orientation": "apply"}, {"format": "png"}, {"format": "png", "metadata": "strip"}):
        stored = store(data, ImageOptions(**options))
        assert (stored.width, stored.height) == size
        assert identify(stored.data)[1:] == (*size, 1)
        assert difference(stored.data, data) <= (4 if stored.extension != ".png" else 0)
        assert (stored.outcome == AS_IS) == (orientation == 1 and "format" not in options)
    for options in ({"format": "png", "orientation": "keep"}, {"format": "webp", "orientation": "keep", "metadata": "strip"}):  # fmt: skip
        stored = store(data, ImageOptions(**options))
        assert identify(stored.data)[1:] == (128, 96, orientation)
        assert (stored.width, stored.height) == size
        assert difference(stored.data, data) <= (4 if stored.extension != ".png" else 0)
    smaller = store(data, ImageOptions(max_side=64, orientation="keep"))
    assert identify(smaller.data)[1:] == (64, 48, orientation)


def full(kind: str, orientation: int = 1) -> bytes:
    """With everything that a file can carry."""
    exif = turned(orientation)
    exif[0x010F] = "A camera"
    options: dict[str, Any] = {"exif": exif, "icc_profile": PROFILE, "xmp": XMP, "comment": b"a remark"}
    if kind == "PNG":
        from PIL.PngImagePlugin import PngInfo

        chunks = PngInfo()
        chunks.add_text("Author", "somebody")
        chunks.add_itxt("XML:com.adobe.xmp", XMP.decode())
        options = {"exif": exif, "icc_profile": PROFILE, "pnginfo": chunks}
    return encoded(PHOTO, kind, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_metadata_and_profiles_are_taken_out_of_bytes_that_are_kept(kind: str, orientation: int) -> None:
    data = full(kind, orientation)
    for icc in ("keep", "strip"):
        for metadata in ("keep", "strip"):
            stored = store(data, ImageOptions(icc=icc, metadata=metadata))
            assert stored.outcome == (AS_IS if icc == metadata == "keep" else STRIPPED)
            assert (PROFILE[:200] in stored.data or kind == "PNG") == (icc == "keep" or kind == "PNG")
            with Image.open(io.BytesIO(stored.data)) as opened:
                assert ("icc_profile" in opened.info) == (icc == "keep")
            found = read_metadata(stored.data)
            assert ("xmp" in found) == (metadata == "keep")
            assert (b"A camera" in found.get("exif", b"")) == (metadata == "keep")
            assert exif_orientation(found.get("exif", b"")) == orientation
            assert b"somebody" not in stored.data or metadata == "keep"
            assert b"a remark" not in stored.data or metadata == "keep"
            assert difference(stored.data, data) == 0
            assert identify(stored.data) == identify(data)
            assert store(stored.data, ImageOptions(icc=icc, metadata=metadata))[:4] == stored[:4]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("format_", ["jpeg", "png", "webp"])
def test_metadata_and_profiles_go_with_what_is_encoded_anew(kind: str, format_: str) -> None:
    data = full(kind, 6)
    kept = store(data, ImageOptions(format=format_))
    found = read_metadata(kept.data)
    assert b"A camera" in found["exif"] and exif_orientation(found["exif"]) == 1
    assert found["xmp"] == XMP
    with Image.open(io.BytesIO(kept.data)) as opened:
        assert opened.info["icc_profile"] == PROFILE
    bare = store(data, ImageOptions(format=format_, metadata="strip", icc="strip"))
    with Image.open(io.BytesIO(bare.data)) as opened:
        assert not {"icc_profile", "exif", "xmp", "comment"} & opened.info.keys()
    assert (seen(bare.data) == seen(kept.data)).all()


def test_profiles_of_converted_pictures() -> None:
    data = encoded(PHOTO, "TIFF", icc_profile=PROFILE)
    with Image.open(io.BytesIO(store(data, ImageOptions()).data)) as opened:
        assert opened.info["icc_profile"] == PROFILE


def test_exif_too_long_for_a_jpeg_is_left_out() -> None:
    exif = turned(6)
    exif[0x010F] = "x" * 70_000
    stored = store(encoded(PHOTO, "PNG", exif=exif), ImageOptions(format="jpeg"))
    assert read_metadata(stored.data) == {}
    assert (stored.width, stored.height) == (96, 128)


def test_what_a_format_cannot_hold() -> None:
    wide = encoded(Image.new("RGB", (20_000, 2)), "PNG")
    assert "can't be stored as WEBP" in refused(wide, format="webp")
    assert store(wide, ImageOptions(format="webp", max_side=16_000)).width == 16_000


def test_of_an_animation_the_first_frame() -> None:
    buffer = io.BytesIO()
    PHOTO.save(buffer, "WEBP", save_all=True, append_images=[PHOTO.rotate(180)] * 2, lossless=True)
    animated = buffer.getvalue()
    assert store(animated, ImageOptions()).data == animated
    assert (seen(store(animated, ImageOptions(format="png")).data) == np.asarray(PHOTO)).all()
    assert difference(store(gif(PHOTO, 3), ImageOptions()).data, gif(PHOTO, 1)) == 0


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([data for _, data in EVERY] + [full("JPEG", 6), full("PNG"), full("WEBP", 8)]), st.data()
)
def test_whatever_the_bytes_are(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    options = draw.draw(
        st.sampled_from(
            [{"icc": "strip", "metadata": "strip"}, {"verify": "none", "metadata": "strip"}, {"format": "jpeg"},
             {"max_side": 20}]
        )
    )  # fmt: skip
    with contextlib.suppress(BadSample):
        store(bytes(damaged[: draw.draw(st.integers(1, len(damaged)))]), ImageOptions(**options))


def test_a_real_photograph(photograph: Image.Image, tmp_path: Path) -> None:
    data = encoded(photograph, quality=92)
    small = store(data, ImageOptions(max_side=256, quality=85))
    assert max(small.width, small.height) == 256 and small.extension == ".jpg"
    assert len(small.data) < len(data) / 3
    wanted = np.asarray(photograph.resize((small.width, small.height), Image.Resampling.LANCZOS)).astype(int)
    assert np.abs(seen(small.data) - wanted).mean() < 6
