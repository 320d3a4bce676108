"""Picture bytes: which format they truly are, and whether they are all there. Looks at headers and ends only.

Content decides, never the file name. JPEG (ITU-T T.81), PNG (W3C PNG) and WebP (RFC 9649) pass; what else is
recognised is named in the refusal. Pixels are not decoded, so damage inside them goes unseen here.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from loader.errors import BadSample
from loader.exif import TURNED, exif_orientation


class Picture(NamedTuple):
    """Extension with its dot, the stored width and height in pixels, and how EXIF says to turn them (1: not)."""

    extension: str
    width: int
    height: int
    orientation: int = 1

    @property
    def seen(self) -> tuple[int, int]:
        """Width and height as a person sees it."""
        return (self.height, self.width) if self.orientation >= TURNED else (self.width, self.height)


_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
# Frames by which a JPEG gives its size: all SOFn but those that are something else (DHT, JPG, DAC).
_FRAMES = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
_BARE = frozenset((0xFF, 0x01, *range(0xD0, 0xD9)))  # padding, and markers that carry nothing
# All others are passed over: tables, comments, profiles.
_TELLING = frozenset((*_FRAMES, *_BARE, 0xD9, 0xDA, 0xE1))
_HEIGHT_AND_WIDTH = struct.Struct(">HH").unpack_from
_MOST_MARKERS = 1 << 16  # 4 GiB of metadata in segments of the usual size
_MOST_CHUNKS = 1000  # before the pixels of a PNG, or in a WebP, that are looked through for EXIF

_OTHERS = (
    (0, b"GIF8", "GIF"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"II+\0", "TIFF"),
    (0, b"MM\0+", "TIFF"),
    (4, b"ftypavif", "AVIF"),
    (4, b"ftypavis", "AVIF"),
    (4, b"ftyphei", "HEIC"),
    (4, b"ftyphev", "HEIC"),
    (4, b"ftypmif1", "HEIF"),
    (4, b"ftypmsf1", "HEIF"),
    (4, b"ftyp", "MP4 video"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"\0\0\x01\0", "ICO"),
    (0, b"8BPS", "Photoshop"),
    (0, b"%PDF", "PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"PK\x03\x04", "zip"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the picture itself"),
    (0, b"BM", "BMP"),
)


def is_native(data: bytes) -> bool:
    """Whether the bytes begin as those formats do that are stored as they are."""
    return data.startswith((b"\xff\xd8\xff", _PNG)) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def identify(data: bytes, whole: bool = True) -> Picture:
    """What the bytes are, if they are a JPEG, PNG or WebP; BadSample with the reason otherwise.

    `whole`: only if they are all there, as far as can be told without decoding them.
    """
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data, whole)
        if data.startswith(_PNG):
            return _png(data, whole)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data, whole)
    except (struct.error, IndexError) as error:
        raise BadSample(f"cut short in its header: {len(data):,} bytes") from error
    if not data:
        raise BadSample("an empty file")
    raise BadSample(f"{name(data)}: JPEG, PNG or WebP was expected")


def _jpeg(data: bytes, whole: bool) -> Picture:
    at, size, orientation = 2, None, 0
    for _ in range(_MOST_MARKERS):
        if data[at] != 0xFF:
            raise BadSample(f"a damaged JPEG: no marker at byte {at:,}")
        kind = data[at + 1]
        if kind in _TELLING:
            if kind in _BARE:
                at += 1 if kind == 0xFF else 2
                continue
            if kind == 0xD9:
                raise BadSample("a JPEG without a picture in it")
            if kind == 0xDA:  # the pixels follow
                at += 2 + (data[at + 2] << 8 | data[at + 3])
                break
            if kind in _FRAMES:
                size = _HEIGHT_AND_WIDTH(data, at + 5)
            elif not orientation and data[at + 4 : at + 10] == b"Exif\0\0":
                orientation = exif_orientation(data[at + 4 : at + 2 + (data[at + 2] << 8 | data[at + 3])])
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    else:
        raise BadSample(f"a damaged JPEG: more than {_MOST_MARKERS:,} markers before its pixels")
    if size is None:
        raise BadSample("a damaged JPEG: pixels, but no frame header")
    # Among the pixels 0xFF is followed by 0 or a restart marker, so this can't be a thumbnail's end.
    if whole and (at >= len(data) or not (data.endswith(b"\xff\xd9") or data.rfind(b"\xff\xd9", at) >= 0)):
        raise BadSample(f"a JPEG cut short: no end-of-image marker in {len(data):,} bytes")
    height, width = size
    return _sized(".jpg", width, height, orientation or 1)


def _png(data: bytes, whole: bool) -> Picture:
    length, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    (crc,) = struct.unpack_from(">I", data, 29)
    if kind != b"IHDR" or length != 13 or crc != zlib.crc32(data[12:29]):
        raise BadSample("a damaged PNG: its header chunk is wrong")
    if whole and not data.endswith(_PNG_END) and data.rfind(_PNG_END, 33) < 0:
        raise BadSample(f"a PNG cut short: no IEND chunk in {len(data):,} bytes")
    return _sized(".png", width, height, _png_orientation(data))


def _png_orientation(data: bytes) -> int:
    at = 33
    for _ in range(_MOST_CHUNKS):
        length, kind = struct.unpack_from(">I4s", data, at) if at + 8 <= len(data) else (0, b"IDAT")
        if kind == b"IDAT":
            break
        if kind == b"eXIf":
            return exif_orientation(data[at + 8 : at + 8 + length])
        at += 12 + length
    return 1


def _webp(data: bytes, whole: bool) -> Picture:
    (size,) = struct.unpack_from("<I", data, 4)
    if whole and len(data) < size + 8:
        raise BadSample(f"a WebP cut short: {len(data):,} of {size + 8:,} bytes")
    kind, orientation = data[12:16], 1
    if kind == b"VP8X":
        if data[20] & 0x08:  # "EXIF metadata"
            orientation = _webp_orientation(data)
        wide, high = data[24:27], data[27:30]
        width, height = int.from_bytes(wide, "little") + 1, int.from_bytes(high, "little") + 1
    elif kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        if signature != 0x2F:
            raise BadSample("a damaged WebP: no lossless signature")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        start, width, height = struct.unpack_from("<3sHH", data, 23)
        if start != b"\x9d\x01\x2a":
            raise BadSample("a damaged WebP: no start code")
        width, height = width & 0x3FFF, height & 0x3FFF
    else:
        raise BadSample(f"a damaged WebP: its first chunk is {kind!r}")
    return _sized(".webp", width, height, orientation)


def _webp_orientation(data: bytes) -> int:
    at = 12
    for _ in range(_MOST_CHUNKS):
        if at + 8 > len(data):
            break
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            return exif_orientation(data[at + 8 : at + 8 + length])
        at += 8 + length + length % 2
    return 1


def _sized(extension: str, width: int, height: int, orientation: int) -> Picture:
    if not (width and height):
        raise BadSample(f"a {extension[1:]} picture of {width} × {height} pixels")
    return Picture(extension, width, height, orientation)


def name(data: bytes) -> str:
    """What the bytes are, for a person: the format, or what else stands there."""
    for offset, magic, name in _OTHERS:
        if data.startswith(magic, offset):
            return name
    start = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page (an error page that was saved as a picture?)"
    if b"<svg" in start:
        return "SVG"
    if not data.strip(b"\0"):
        return f"{len(data):,} zero bytes"
    return f"no picture (starts with {data[:12]!r})"
