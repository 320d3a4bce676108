"""The one thing in EXIF bytes that changes what a person sees: which way up the picture is. Pure.

Everything else in them is carried as it is. Pillow's own reader parses every tag, and warns or raises where any of
them is damaged.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

TURNED = 5  # from this orientation on, height and width change places
PREFIX = b"Exif\0\0"

_ORIENTATION = 0x0112  # EXIF 2.3
_CODES = {1: "B", 3: "H", 4: "I"}  # SHORT by the standard; some cameras write BYTE or LONG


class _Entry(NamedTuple):
    at: int  # of its value, in the bytes given
    format: str
    value: int


def exif_orientation(exif: bytes) -> int:
    """1 to 8, from EXIF bytes with or without their ``Exif`` prefix; 1 (as stored) where absent or malformed."""
    entry = _find(exif)
    return entry.value if entry is not None and 1 <= entry.value <= 8 else 1


def with_orientation(exif: bytes, orientation: int) -> bytes:
    """The same EXIF with another orientation; where it says none, it goes on saying none if 1 is asked for.

    From nothing, or from what says nothing, the fewest bytes that say it (without the prefix).
    """
    entry = _find(exif)
    if entry is None:
        return exif if orientation == 1 else only_orientation(orientation)
    changed = bytearray(exif)
    struct.pack_into(entry.format, changed, entry.at, orientation)
    return bytes(changed)


def only_orientation(orientation: int) -> bytes:
    """EXIF that says nothing else; empty for 1."""
    if orientation == 1:
        return b""
    return struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, _ORIENTATION, 3, 1, orientation, 0, 0)


def _find(exif: bytes) -> _Entry | None:
    start = len(PREFIX) if exif.startswith(PREFIX) else 0
    order = {b"II": "<", b"MM": ">"}.get(exif[start : start + 2])
    if order is None:
        return None
    try:
        (first,) = struct.unpack_from(f"{order}I", exif, start + 4)
        (count,) = struct.unpack_from(f"{order}H", exif, start + first)
        for entry in range(start + first + 2, start + first + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", exif, entry)
            if tag == _ORIENTATION:
                if kind not in _CODES:
                    return None
                form = order + _CODES[kind]
                return _Entry(entry + 8, form, struct.unpack_from(form, exif, entry + 8)[0])
    except struct.error:  # the block ends before what it announces
        pass
    return None
