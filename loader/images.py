"""Picture bytes → what a person sees, as RGB: the one place where that is decided.

- EXIF orientation is applied (of JPEG, PNG and WebP; Pillow itself applies TIFF's).
- Transparency, however it is stored, is composited on white.
- 16-bit grey is scaled to 8 bits, not clipped. 32-bit grey: see `_grey`.
- CMYK becomes RGB by Pillow's plain formula, and Adobe's inverted CMYK JPEG comes out right. Colour profiles
  are not applied; the profile of an RGB picture stays in ``info["icc_profile"]``.
- Of an animation, the first frame.

A file is recognised by its first bytes, never by its name, and only by the formats listed here: Pillow knows
others that start foreign programs (PostScript). All pixels are decoded at once, so a file that was cut short
raises here and not in the middle of training. The limit on pixels is `max_pixels`, not Pillow's process-wide
one (which still bounds WebP, at twice ``Image.MAX_IMAGE_PIXELS``). Nothing here keeps state or changes
Pillow's; threads and forked or spawned processes may call everything freely.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import struct
import types
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from loader.errors import BadSample
from loader.exif import TURNED, exif_orientation

Data = bytes | memoryview
Pixels = npt.NDArray[np.uint8]

# Twice Pillow's own limit for its warning, which is where Pillow too refuses: 537 MB as RGB.
MAX_PIXELS = 178_956_970

_PLUGINS = {
    ".jpg": ("JpegImagePlugin", "JpegImageFile"),
    ".png": ("PngImagePlugin", "PngImageFile"),
    ".webp": ("WebPImagePlugin", "WebPImageFile"),
    ".gif": ("GifImagePlugin", "GifImageFile"),
    ".bmp": ("BmpImagePlugin", "BmpImageFile"),
    ".tiff": ("TiffImagePlugin", "TiffImageFile"),
    ".jp2": ("Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    ".avif": ("AvifImagePlugin", "AvifImageFile"),  # from Pillow 11.3 on
    ".heic": ("pillow_heif", "HeifImageFile"),  # of the extra `heif`
}
_SIGNATURES = (
    (0, b"\xff\xd8\xff", ".jpg"),
    (0, b"\x89PNG\r\n\x1a\n", ".png"),
    (8, b"WEBP", ".webp"),
    (0, b"GIF8", ".gif"),
    (0, b"BM", ".bmp"),
    (0, b"II*\0", ".tiff"),
    (0, b"MM\0*", ".tiff"),
    (0, b"II+\0", ".tiff"),  # BigTIFF
    (0, b"MM\0+", ".tiff"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", ".jp2"),
    (4, b"ftypavif", ".avif"),
    (4, b"ftypavis", ".avif"),
    (4, b"ftyphei", ".heic"),
    (4, b"ftyphev", ".heic"),
)
_CONTAINERS = (b"ftypmif1", b"ftypmsf1")  # of AVIF or HEIC: the brands that follow tell
_WARN_OF_SIZE = (".tiff", ".gif")  # Pillow does, while it opens these
_RGB_PROFILE_MODES = ("RGB", "RGBA", "RGBX", "RGBa", "P", "PA")

# EXIF orientation (EXIF 2.3, tag 0x0112) → what turns the stored picture into the seen one.
_TURN_IMAGE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TURN_PIXELS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels[::-1].swapaxes(0, 1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels[:, ::-1].swapaxes(0, 1),
}


# JPEG markers: frames of other kinds, restarts, start, end, and pixels with no frame before them.
_NO_PLAIN_JPEG = frozenset((*range(0xC5, 0xCC), *range(0xCD, 0xDB)))


def image_extension(data: Data) -> str | None:
    """The true format by the first bytes: ``.jpg .png .webp .gif .bmp .tiff .jp2 .avif .heic``, or None."""
    head = bytes(data[:16])
    for offset, signature, extension in _SIGNATURES:
        if head.startswith(signature, offset):
            # A WAV or AVI file is RIFF too, and four letters alone at byte 8 prove nothing.
            return extension if extension != ".webp" or head.startswith(b"RIFF") else None
    if head[4:12] in _CONTAINERS:
        brands = bytes(data[16 : min(int.from_bytes(head[:4], "big"), 256)])
        return ".avif" if b"avif" in brands or b"avis" in brands else ".heic"
    return None


def image_size(data: Data) -> tuple[int, int]:
    """(height, width) of what `decode_image` would give, from the header: no pixels are decoded.

    The first few kilobytes of a JPEG or PNG are mostly enough; BadSample where they are not.
    """
    header = _jpeg_header(data)
    if header is not None:
        width, height, orientation = header
    else:
        image = _opened(data, lambda image: image)
        (width, height), orientation = image.size, _orientation(image)
    return (width, height) if orientation >= TURNED else (height, width)


def decode_image(
    data: Data, max_pixels: int = MAX_PIXELS, at_least: tuple[int, int] | None = None
) -> Image.Image:
    """The picture as an RGB image, all pixels decoded. BadSample with the decoder's reason otherwise.

    `at_least` (height, width): a JPEG may come at half, a quarter or an eighth of its size, if that is as large.
    """
    image = _opened(data, lambda image: _decode(image, max_pixels, at_least))
    with _as_bad_sample(f"no readable picture of mode {image.mode}"):
        return _strip(_seen(image), image)


def decode_array(data: Data, max_pixels: int = MAX_PIXELS, at_least: tuple[int, int] | None = None) -> Pixels:
    """The picture as a writable, contiguous uint8 array, height × width × RGB.

    Plain JPEGs go through simplejpeg where it is installed (extra ``fast``), everything else, and whatever it
    refuses, through `decode_image`: the same pictures are good or bad with both, and the pixels differ by no
    more than two JPEG decoders do. `at_least`: as for `decode_image`; here 3/8 of its size serves, too.
    """
    decoder = _simplejpeg()
    header = _jpeg_header(data) if decoder else None
    if decoder and header and header.width * header.height <= max_pixels:
        # simplejpeg is strict: it raises for damage that Pillow may or may not shrug off. Pillow decides.
        with contextlib.suppress(ValueError):
            smaller = _scale(header, at_least)
            pixels = cast(Pixels, decoder.decode_jpeg(data, colorspace="RGB", **smaller))
            turn = _TURN_PIXELS.get(header.orientation)
            return np.ascontiguousarray(turn(pixels)) if turn else pixels
    return np.array(decode_image(data, max_pixels, at_least))


def read_metadata(data: Data) -> dict[str, bytes]:
    """EXIF and XMP as they stand in a picture's header, under ``exif`` and ``xmp`` where there are any."""
    image = _opened(data, lambda image: image)
    found = {"exif": image.info.get("exif"), "xmp": image.info.get("xmp")}
    return {name: value for name, value in found.items() if isinstance(value, bytes) and value}


def turn_back(orientation: int) -> Image.Transpose | None:
    """What makes stored pixels of seen ones, under that EXIF orientation; None where they are the same."""
    turn = _TURN_IMAGE.get(orientation)
    quarter = {
        Image.Transpose.ROTATE_270: Image.Transpose.ROTATE_90,
        Image.Transpose.ROTATE_90: Image.Transpose.ROTATE_270,
    }
    return turn if turn is None else quarter.get(turn, turn)


def to_rgb(image: Image.Image) -> Image.Image:
    """A new RGB image of what a person sees in `image`, which is left as it was.

    An orientation is read from ``image.info["exif"]``, where Pillow leaves it when it opens a file; the result
    carries none, so applying it twice does no harm.
    """
    with _as_bad_sample(f"no readable picture of mode {image.mode}"):
        image.load()
        seen = _seen(image)
        return _strip(image.copy() if seen is image else seen, image)


def _opened(data: Data, read: Callable[[ImageFile.ImageFile], ImageFile.ImageFile]) -> ImageFile.ImageFile:
    """What `read` makes of the picture whose header has been read."""
    extension = image_extension(data)
    if extension is None:
        raise BadSample(
            f"no picture ({len(data):,} bytes that start with {bytes(data[:12])!r}): "
            f"expected one of {' '.join(_PLUGINS)}"
        )
    # Not Image.open, which warns of size for every format, by a process-wide limit.
    plugin = _plugin(extension)
    with _as_bad_sample(f"no readable picture, though it starts as {extension}"):
        # Warnings are silenced only where it must be: doing so changes a list of the whole process, and makes
        # Python show again what it has shown once.
        if extension in _WARN_OF_SIZE:
            with _quiet():
                return read(plugin(io.BytesIO(data)))
        try:
            return read(plugin(io.BytesIO(data)))
        except Warning:  # a caller that turns warnings into errors doesn't mean damaged EXIF
            with _quiet():
                return read(plugin(io.BytesIO(data)))


def _decode(
    image: ImageFile.ImageFile, max_pixels: int, at_least: tuple[int, int] | None
) -> ImageFile.ImageFile:
    """The picture as stored, all pixels decoded."""
    width, height = image.size
    if width * height > max_pixels:
        raise BadSample(
            f"a picture of {width:,} × {height:,} = {width * height:,} pixels, the limit is {max_pixels:,}: "
            "if it is meant, pass a handler with a higher one, e.g. "
            "functools.partial(loader.images.decode_image, max_pixels=…)"
        )
    if at_least is not None:
        least_height, least_width = _stored(at_least, _orientation(image))
        image.draft(None, (least_width, least_height))  # does something for JPEG alone
    _scale_key(image)
    image.load()
    return image


def _stored(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """A size as seen → as stored."""
    return (size[1], size[0]) if orientation >= TURNED else size


def _scale(header: _JpegHeader, at_least: tuple[int, int] | None) -> dict[str, int]:
    """What tells simplejpeg to decode a JPEG smaller, where that is wanted and pays."""
    if at_least is not None:
        height, width = _stored(at_least, header.orientation)
        if 2 * height <= header.height and 2 * width <= header.width:
            # Scales above a half gain nothing: libjpeg-turbo has no fast code for 5/8 and 7/8.
            return {"min_height": height, "min_width": width, "min_factor": 2}
    return {}


def _scale_key(image: ImageFile.ImageFile) -> None:
    """Pillow widens the pixels of a 2- or 4-bit grey PNG to 8 bits, but not the value that is transparent."""
    key = image.info.get("transparency")
    if image.mode == "L" and isinstance(key, int) and image.tile:
        image.info["transparency"] = key * {"L;2": 85, "L;4": 17}.get(str(image.tile[0][3]), 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _plugin(extension: str) -> Callable[[io.BytesIO], ImageFile.ImageFile]:
    module, name = _PLUGINS[extension]
    try:
        found = importlib.import_module(module if extension == ".heic" else f"PIL.{module}")
    except ImportError as error:
        wanted = "pip install 'shardflow[heif]'" if extension == ".heic" else "a newer Pillow"
        raise BadSample(f"{extension} can't be decoded here: it needs {wanted}") from error
    return cast(Callable[[io.BytesIO], ImageFile.ImageFile], getattr(found, name))


@contextlib.contextmanager
def _as_bad_sample(what: str) -> Iterator[None]:
    try:
        yield
    except (BadSample, MemoryError):
        raise
    except Exception as error:  # a decoder fed with arbitrary bytes raises nearly anything
        raise BadSample(f"{what}: {str(error) or type(error).__name__}") from error


def _seen(image: Image.Image) -> Image.Image:
    """RGB, upright; `image` itself where it is both already."""
    turn = _TURN_IMAGE.get(_orientation(image))
    rgb = _opaque(image)
    return rgb if turn is None else rgb.transpose(turn)


def _orientation(image: Image.Image) -> int:
    exif = image.info.get("exif")
    return exif_orientation(exif) if isinstance(exif, bytes) else 1


def _strip(rgb: Image.Image, source: Image.Image) -> Image.Image:
    """`rgb` without metadata (small to pickle, no orientation left), but for a profile that still fits."""
    profile = source.info.get("icc_profile") if source.mode in _RGB_PROFILE_MODES else None
    rgb.info = {"icc_profile": profile} if profile else {}
    return rgb


def _opaque(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        return _grey(image)
    if image.has_transparency_data:
        key = image.info.get("transparency")
        if image.mode == "RGB" and isinstance(key, tuple) and max(key) > 255:
            # The transparent colour of a 16-bit PNG, whose pixels Pillow has reduced to 8 bits.
            image = image.copy()
            image.info["transparency"] = tuple(value >> 8 for value in key)
        straight = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(straight, mask=straight)
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """Grey of 16 or 32 bits. Which value is white is not stored for 32 bits; the rule is the first that fits:

    whole numbers: 65535 where all lie in 0…65535 (Pillow's ``I`` of a 16-bit PNG);
    real numbers: 1 where all lie in 0…1, 255 in 0…255, 65535 in 0…65535;
    both: otherwise the smallest value is black and the largest is white. NaN and −∞ are black, +∞ is white.
    """
    values = np.asarray(image)
    if image.mode != "F" and values.min() >= 0 and values.max() <= 65535:
        pixels = np.rint(np.arange(65536) / 257).astype(np.uint8)[values]
    else:
        pixels = _stretch(values.astype(np.float64), (1.0, 255.0, 65535.0) if image.mode == "F" else ())
    key = image.info.get("transparency")
    if isinstance(key, int):  # a 16-bit grey PNG names one value that is transparent
        pixels[values == key] = 255
    return Image.fromarray(pixels).convert("RGB")


def _stretch(values: npt.NDArray[np.float64], whites: tuple[float, ...]) -> Pixels:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    white = next((white for white in whites if low >= 0 and high <= white), high)
    black = 0.0 if low >= 0 and white in whites else low
    share = (np.clip(values, black, white) - black) / ((white - black) or 1.0)
    return np.rint(np.nan_to_num(share, nan=0.0) * 255).astype(np.uint8)


@functools.cache
def _simplejpeg() -> types.ModuleType | None:
    """The module if it is installed. Remembered, since a failing import searches the disk each time."""
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


class _JpegHeader(NamedTuple):
    width: int
    height: int
    orientation: int


def _jpeg_header(data: Data) -> _JpegHeader | None:
    """Of a plain JPEG (8 bits, grey or three components, Huffman-coded); None for any other bytes.

    Markers as in ITU-T T.81, annex B: 0xFF, the kind, and for all that come before the picture a 16-bit length
    that counts itself.
    """
    if data[:3] != b"\xff\xd8\xff":
        return None
    orientation, exif_seen, at = 1, False, 2
    while at + 10 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # padding
            at += 1
            continue
        if kind in (0xC0, 0xC1, 0xC2):  # baseline, extended, progressive
            precision, height, width, components = struct.unpack_from(">BHHB", data, at + 4)
            plain = precision == 8 and components in (1, 3) and width > 0 and height > 0
            return _JpegHeader(width, height, orientation) if plain else None
        if not 0xC4 <= kind <= 0xFE or kind in _NO_PLAIN_JPEG:
            return None
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == 0xE1 and not exif_seen and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation, exif_seen = exif_orientation(bytes(data[at + 4 : at + 2 + length])), True
        at += 2 + length
    return None
