"""Take colour profiles and metadata out of picture bytes, not a pixel touched.

Which way up the picture is, is no metadata in this sense: it stays, in the fewest bytes that say it.
"""

from __future__ import annotations

import struct
import zlib

from loader.exif import PREFIX, only_orientation
from tasks.pictures import Picture

_ICC = b"ICC_PROFILE\0"
_PNG_METADATA = frozenset((b"eXIf", b"tEXt", b"zTXt", b"iTXt", b"tIME"))
_EXIF_FLAG, _XMP_FLAG, _ICC_FLAG = 0x08, 0x04, 0x20  # of VP8X


def strip(data: bytes, picture: Picture, metadata: bool, icc: bool) -> bytes:
    """The bytes of a whole JPEG, PNG or WebP without its metadata, or its profile, or either."""
    exif = only_orientation(picture.orientation)
    return {".jpg": _jpeg, ".png": _png, ".webp": _webp}[picture.extension](data, exif, metadata, icc)


def _jpeg(data: bytes, exif: bytes, metadata: bool, icc: bool) -> bytes:
    kept, at = [data[:2]], 2
    if metadata and exif:
        kept.append(struct.pack(">BBH", 0xFF, 0xE1, 2 + len(PREFIX) + len(exif)) + PREFIX + exif)
    while True:
        kind = data[at + 1]
        if kind == 0xFF:  # padding
            at += 1
            continue
        if kind == 0xDA:  # the pixels follow
            end = data.rfind(b"\xff\xd9") + 2
            kept.append(data[at : end if metadata else len(data)])
            return b"".join(kept)
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        profile = kind == 0xE2 and data.startswith(_ICC, at + 4)
        # APP0 and APP14 say how to read the pixels.
        other = kind == 0xFE or (0xE1 <= kind <= 0xEF and kind != 0xEE and not profile)
        if not ((profile and icc) or (other and metadata)):
            kept.append(data[at:end])
        at = end


def _png(data: bytes, exif: bytes, metadata: bool, icc: bool) -> bytes:
    kept, at = [data[:33]], 33
    if metadata and exif:
        body = b"eXIf" + exif
        kept.append(struct.pack(">I", len(exif)) + body + struct.pack(">I", zlib.crc32(body)))
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if not ((kind == b"iCCP" and icc) or (kind in _PNG_METADATA and metadata)):
            kept.append(data[at:end])
        at = end
        if kind == b"IEND":
            break
    if not metadata:
        kept.append(data[at:])
    return b"".join(kept)


def _webp(data: bytes, exif: bytes, metadata: bool, icc: bool) -> bytes:
    if data[12:16] != b"VP8X":  # nothing but pixels
        return data
    (size,) = struct.unpack_from("<I", data, 4)
    chunks, flags, at = [], data[20], 12
    while at + 8 <= size + 8:
        kind, length = struct.unpack_from("<4sI", data, at)
        end = at + 8 + length + length % 2
        if kind == b"ICCP" and icc:
            flags &= ~_ICC_FLAG
        elif kind in (b"EXIF", b"XMP ") and metadata:
            flags &= ~(_EXIF_FLAG if kind == b"EXIF" else _XMP_FLAG)
        else:
            chunks.append(data[at:end])
        at = end
    if metadata and exif:
        flags |= _EXIF_FLAG
        chunks.append(b"EXIF" + struct.pack("<I", len(exif)) + exif + bytes(len(exif) % 2))
    chunks[0] = chunks[0][:8] + bytes([flags]) + chunks[0][9:]
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body
