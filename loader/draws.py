"""Chance that is a function of what it is drawn for: the same on every rank, worker, machine and version.

`key` is the key of words that `loader.order` specifies, on Python's integers: a microsecond or two for one draw.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

# Third word of a key: what is drawn. The order's own are 0 and 1.
CAPTION, FILTER = 2, 3


def key(*words: int) -> int:
    """64 bits that depend on all words, each 0 to 2^64 - 1, and on their order."""
    h = 0
    for word in words:
        h = (h + word + _GOLDEN) & _MASK
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        h = (h ^ h >> 27) * 0x94D049BB133111EB & _MASK
        h ^= h >> 31
    return h


def uniform(*words: int) -> float:
    """A number from [0, 1), evenly: the upper 53 bits of their key."""
    return (key(*words) >> 11) * 2.0**-53
