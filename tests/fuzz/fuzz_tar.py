"""Fuzz the header walk. Not part of the suite; what it finds goes to ``tests/exhibits/tar``.

In an environment of its own, since atheris lags behind Python: ``pip install atheris numpy fsspec pillow``, then
``PYTHONPATH=.:tests python tests/fuzz/fuzz_tar.py /tmp/corpus tests/golden -max_total_time=300``.
"""

from __future__ import annotations

import random
import sys

import atheris

with atheris.instrument_imports(include=["loader"]):
    from checks import check_tar

BLOCK = 512
_FIELDS = (0, 99, 100, 124, 125, 134, 135, 136, 148, 154, 155, 156, 157, 257, 262, 263, 345, 499)
_VALUES = b"\0 01789xXgLKSM5D/.\x80\xff-"


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change what a header says, and let its checksum agree: else nothing but checksums is ever tested."""
    dice = random.Random(seed)
    changed = bytearray(data if dice.random() < 0.4 else atheris.Mutate(data, min(len(data) or 1, max_size)))
    headers = [
        at for at in range(0, len(changed) - BLOCK + 1, BLOCK) if changed[at + 257 : at + 262] == b"ustar"
    ]
    for _ in range(dice.randint(0, 3)):
        if not headers:
            break
        at = dice.choice(headers)
        move = dice.random()
        if move < 0.5:
            changed[at + dice.choice(_FIELDS)] = dice.choice(_VALUES)
        elif move < 0.7:
            changed[at + 124 : at + 136] = b"%011o\0" % dice.choice((0, 1, 511, 512, 513, 1024, 8**11 - 1))
        elif move < 0.85:  # a member again, or another's block over this
            other = dice.choice(headers)
            changed[at : at + BLOCK] = changed[other : other + BLOCK]
        else:
            changed[at:at] = changed[at : at + BLOCK * dice.randint(1, 4)]
    for at in range(0, len(changed) - BLOCK + 1, BLOCK):
        if changed[at + 257 : at + 262] == b"ustar" and dice.random() < 0.95:
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + BLOCK])
    return bytes(changed[:max_size])


def one(data: bytes) -> None:
    check_tar(data)
    check_tar(data, require_end=False)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one, custom_mutator=mutate)
    atheris.Fuzz()
