"""A picture's bytes → the bytes that are stored: as they are wherever that will do, else decoded and encoded anew.

What a reader sees (`loader.images`) in what is stored is what it would have seen in the source: upright, on white
where it was transparent, the first frame of an animation; but for what a lossy encoder or a smaller size changes.
The same bytes, options and Pillow give the same bytes.
"""

from __future__ import annotations

import io
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from loader.errors import BadSample
from loader.exif import PREFIX, with_orientation
from tasks.image_options import FORMATS, ImageOptions
from tasks.pictures import Picture, identify, is_native, name
from tasks.strip import strip

if TYPE_CHECKING:
    from PIL import Image

AS_IS, STRIPPED, ENCODED, RESIZED = "as it is", "stripped", "encoded anew", "scaled down"

_LOSSY = (".avif", ".heic")
_KINDS = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
_MARGIN = 3  # a JPEG that is scaled down is decoded at no less than so many times what is wanted
_XMP = "XML:com.adobe.xmp"
_LONGEST_SEGMENT = 65_533  # bytes that one marker of a JPEG holds


class Stored(NamedTuple):
    """What is stored of a picture: bytes, extension, width and height as seen, and what was done to it."""

    data: bytes
    extension: str
    width: int
    height: int
    outcome: str


def store(data: bytes, options: ImageOptions) -> Stored:
    """One picture. BadSample with the reason if it can't be stored, or the options leave it out."""
    if options.keep_all and is_native(data):  # the most frequent case by far
        picture = identify(data)
        width, height = picture.seen
        if width * height <= options.max_pixels:
            return Stored(data, picture.extension, width, height, AS_IS)
    if len(data) > options.max_bytes:
        raise BadSample(f"{len(data):,} bytes, more than image_max_bytes = {options.max_bytes:,}")
    if not is_native(data):
        return _convert(data, options)
    picture = identify(data, whole=options.verify != "none")
    width, height = picture.seen
    _check_size(width, height, options)
    scaled = fit(width, height, options)
    turned = picture.orientation != 1 and options.orientation == "apply"
    if options.format != "keep" or scaled != (width, height) or turned:
        extension = FORMATS.get(options.format, picture.extension)
        outcome = ENCODED if scaled == (width, height) else RESIZED
        return _anew(data, picture, scaled, extension, options, outcome)
    if options.verify == "full":
        _decode(data, options)
    outcome = AS_IS
    if "strip" in (options.icc, options.metadata):
        stripped = _stripped(data, picture, options)
        outcome = AS_IS if stripped == data else STRIPPED
        data = stripped
    return Stored(data, picture.extension, width, height, outcome)


def fit(width: int, height: int, options: ImageOptions) -> tuple[int, int]:
    """The size at which a picture is stored: as it is, or the largest of its shape that the limits allow."""
    side, area = options.max_side, options.max_area
    if side and max(width, height) > side:
        if width >= height:
            width, height = side, max(1, (2 * height * side + width) // (2 * width))
        else:
            width, height = max(1, (2 * width * side + height) // (2 * height)), side
    if area and width * height > area:
        wide, high = math.isqrt(area * width // height), math.isqrt(area * height // width)
        width = min(max(1, wide), area)
        height = min(max(1, high), area // width)
    return width, height


def _check_size(width: int, height: int, options: ImageOptions) -> None:
    if width * height > options.max_pixels:
        raise BadSample(
            f"a picture of {width:,} × {height:,} pixels, more than image_max_pixels = {options.max_pixels:,}"
        )
    if width < options.min_width or height < options.min_height:
        raise BadSample(
            f"a picture of {width:,} × {height:,} pixels, less than image_min_width = {options.min_width:,} and "
            f"image_min_height = {options.min_height:,}"
        )


def _stripped(data: bytes, picture: Picture, options: ImageOptions) -> bytes:
    try:
        return strip(data, picture, options.metadata == "strip", options.icc == "strip")
    except (IndexError, struct.error) as error:
        raise BadSample(f"damaged: its metadata can't be taken out ({error})") from error


def _convert(data: bytes, options: ImageOptions) -> Stored:
    """From a format that isn't stored."""
    from loader import images

    source = images.image_extension(data)
    if source is None or options.convert == "refuse":
        return Stored(data, *identify(data)[:3], AS_IS)  # which refuses it, and says what it is
    extension = FORMATS.get(options.format) or FORMATS.get(
        options.convert, ".jpg" if source in _LOSSY else ".png"
    )
    height, width = images.image_size(data)
    _check_size(width, height, options)
    scaled = fit(width, height, options)
    picture = Picture(source or "", width, height)
    return _anew(data, picture, scaled, extension, options, f"converted from {name(data)}")


def _anew(
    data: bytes,
    picture: Picture,
    size: tuple[int, int],
    extension: str,
    options: ImageOptions,
    outcome: str,
) -> Stored:
    """Decoded, scaled, encoded."""
    from PIL import Image

    seen = _decode(data, options, size if size != picture.seen else None)
    if seen.size != size:
        filtered = Image.Resampling[options.resize_filter.upper()]
        info, seen = seen.info, seen.resize(size, filtered)
        seen.info = info
    orientation = picture.orientation if options.orientation == "keep" else 1
    encoded = _encode(
        _turned_back(seen, orientation), extension, _carried(data, orientation, options), options
    )
    return Stored(encoded, extension, *size, outcome)


def _decode(data: bytes, options: ImageOptions, size: tuple[int, int] | None = None) -> Image.Image:
    from loader import images

    at_least = (_MARGIN * size[1], _MARGIN * size[0]) if size else None
    return images.decode_image(data, options.max_pixels, at_least)


def _turned_back(seen: Image.Image, orientation: int) -> Image.Image:
    """Upright pixels as they are stored under that orientation."""
    from loader import images

    back = images.turn_back(orientation)
    if back is None:
        return seen
    turned = seen.transpose(back)
    turned.info = seen.info
    return turned


def _carried(data: bytes, orientation: int, options: ImageOptions) -> dict[str, bytes]:
    """EXIF and XMP that go with a picture that is encoded anew."""
    from loader import images

    found = images.read_metadata(data) if options.metadata == "keep" else {}
    exif = found.get("exif", b"").removeprefix(PREFIX)
    return {**found, "exif": with_orientation(exif, orientation)}


def _encode(image: Image.Image, extension: str, carried: dict[str, bytes], options: ImageOptions) -> bytes:
    profile = image.info.get("icc_profile") if options.icc == "keep" else None
    image.info = {}
    settings: dict[str, Any] = {"icc_profile": profile} if profile else {}
    exif, xmp = carried["exif"], carried.get("xmp", b"")
    if extension == ".png":
        from PIL.PngImagePlugin import PngInfo

        chunks = PngInfo()
        if xmp:
            chunks.add_itxt(_XMP, xmp.decode("utf-8", "replace"))
        settings["pnginfo"] = chunks
    else:
        settings["quality"] = options.quality
        if xmp and not (extension == ".jpg" and len(xmp) > _LONGEST_SEGMENT - 29):
            settings["xmp"] = xmp
    if exif and not (extension == ".jpg" and len(PREFIX + exif) > _LONGEST_SEGMENT):
        settings["exif"] = PREFIX + exif
    buffer = io.BytesIO()
    try:
        image.save(buffer, _KINDS[extension], **settings)
    except (OSError, ValueError) as error:  # a side that the format can't have, say
        raise BadSample(f"can't be stored as {_KINDS[extension]}: {error}") from error
    return buffer.getvalue()
