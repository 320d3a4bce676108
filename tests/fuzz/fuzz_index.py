"""Fuzz the index reader. Not part of the suite; what it finds goes to ``tests/exhibits/index``.

Run it as ``fuzz_tar.py`` is run.
"""

from __future__ import annotations

import json
import random
import sys

import atheris

with atheris.instrument_imports(include=["loader"]):
    from checks import check_index

    from loader.index import Index

_TAR = bytes(64 << 10)
_NUMBERS = (0, 1, 2, 7, 8, 255, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 65536, 65024)
_VALUES = (
    "",
    "1",
    "2",
    "-1",
    "²",
    "plain",
    "65536",
    "9" * 19,
    "9" * 20,
    "{}",
    "[]",
    '{"a":{"count":1,"names":[5]}}',
    None,
    5,
    [],
)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change what the header says as JSON, or whole numbers in the arrays: bytes alone would break the JSON."""
    dice = random.Random(seed)
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        names = [name for name in header if name != "__metadata__"]
        assert names
    except (ValueError, RecursionError, AssertionError, TypeError):
        return atheris.Mutate(data, max_size)
    body = bytearray(data[8 + length :])
    for _ in range(dice.randint(1, 3)):
        move, name = dice.random(), dice.choice(names)
        try:
            entry = header[name]
            first, last = entry["data_offsets"]
            if move < 0.5 and last - first >= 8:
                width = int(entry["dtype"][1:]) // 8
                at = first + width * dice.randrange((last - first) // width)
                body[at : at + width] = (dice.choice(_NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little")
            elif move < 0.6:
                entry["data_offsets"] = [first + dice.choice((-8, 0, 8)), last + dice.choice((-8, 0, 8))]
            elif move < 0.7:
                entry["shape"] = [dice.choice(_NUMBERS)]
            elif move < 0.8:
                header["__metadata__"][dice.choice(list(header["__metadata__"]))] = dice.choice(_VALUES)
            elif move < 0.85:
                header[name] = dice.choice(_VALUES)
            elif move < 0.95:
                header["__metadata__"]["tar_size"] = str(len(_TAR))
            else:
                body = bytearray(atheris.Mutate(bytes(body), max(1, len(body))))
        except (TypeError, KeyError, ValueError, ZeroDivisionError, IndexError):
            continue
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return (len(text).to_bytes(8, "little") + text + bytes(body))[:max_size]


def one(data: bytes) -> None:
    try:
        size = Index(data, "x.index").tar_size
    except ValueError:
        size = 0
    check_index(data, _TAR[:size] if 0 < size <= len(_TAR) else None)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one, custom_mutator=mutate)
    atheris.Fuzz()
