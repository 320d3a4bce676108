"""One per cent of a corpus is bad, in twelve ways: the others are packed, and each bad one is named."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from places import python
from source_kinds import picture, pictures

from loader.indexed_tar_samples import IndexedTarSamples
from loader.meta import read_meta

ROWS = 1200


def bomb() -> bytes:
    """A PNG of a few bytes and 3,600,000,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0"))
        + chunk(b"IEND", b"")
    )


def image(name: str) -> bytes:
    return json.dumps({"image": name, "caption": "bad"}).encode()


# What is wrong → the row, its stage in errors.jsonl, and what is said there.
BAD: dict[str, tuple[bytes, str, str]] = {
    "missing file": (image("gone.jpg"), "read", "gone.jpg: No such file or directory"),
    "directory": (image("folder.jpg"), "read", "folder.jpg: a folder"),
    "empty file": (image("empty.jpg"), "picture", "empty.jpg: an empty file"),
    "truncated": (image("short.jpg"), "picture", "short.jpg: a JPEG cut short"),
    "wrong type": (image("page.jpg"), "picture", "page.jpg: an HTML page"),
    "bomb": (image("bomb.png"), "picture", "bomb.png: a picture of 60,000 × 60,000 pixels, more than image_max_pixels"),
    "wrong encoding": ('{"image": "000.jpg", "caption": "café"}'.encode("latin-1"), "parse", "not UTF-8"),
    "null": (b'{"image": null, "caption": "x"}', "recipe", "image is null"),
    "NaN": (b'{"image": "000.jpg", "caption": "x", "score": NaN}', "recipe", "metadata.score cannot be stored as JSON"),
    "wrong placeholder count": (
        b'{"images": ["000.jpg", "000.jpg"], "caption": "<image_0>"}', "recipe", "the caption has <image_0> but the sample has 2 pictures",
    ),
    "duplicate key": (b'{"image": "000.jpg", "caption": "a", "caption": "b"}', "parse", "the field 'caption' is there twice"),
    "unreadable permission": (image("secret.jpg"), "read", "secret.jpg: Permission denied"),
}  # fmt: skip

# Root may read all, but for who has given that up.
PACK = """
import ctypes, os, sys
from tasks import pack
from tasks.config import PackConfig

if os.geteuid() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
print(pack.pack(PackConfig(sys.argv[1], sys.argv[2], max_samples=100, n_jobs=1, max_bad_fraction=0.01)).bad)
"""


def corpus(folder: Path) -> dict[int, str]:
    """Write it; which row (from 1) is bad in which way."""
    names = pictures(folder)
    (folder / "folder.jpg").mkdir()
    files: dict[str, Callable[[], bytes]] = {
        "empty.jpg": lambda: b"",
        "short.jpg": lambda: picture(0)[0][:-20],
        "page.jpg": lambda: b"<!DOCTYPE html><title>404</title>",
        "bomb.png": bomb,
        "secret.jpg": lambda: picture(0)[0],
    }
    for name, data in files.items():
        (folder / name).write_bytes(data())
    (folder / "secret.jpg").chmod(0)
    lines = [
        json.dumps({"image": names[n % len(names)], "caption": f"good {n}"}).encode() for n in range(ROWS)
    ]
    bad = {}
    for number, (kind, (line, _, _)) in enumerate(BAD.items()):
        lines[50 + 97 * number] = line
        bad[51 + 97 * number] = kind
    (folder / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return bad


def test_each_costs_itself_and_is_named(tmp_path: Path) -> None:
    bad = corpus(tmp_path / "in")
    source, output = tmp_path / "in/records.jsonl", tmp_path / "out"
    with python(PACK, source, output) as process:
        said, problem = process.communicate()
    assert process.returncode == 0, problem
    assert int(said) == len(BAD) == 12 == ROWS // 100
    errors = [json.loads(line) for line in (output / "errors.jsonl").read_text().splitlines()]
    assert [error["row"] for error in errors] == list(bad)
    for error in errors:
        _, stage, reason = BAD[bad[error["row"]]]
        assert (error["source"], error["stage"]) == (str(source), stage)
        assert reason in error["reason"], bad[error["row"]]
        assert error["key"] == f"{error['row'] - 1:09d}"
    found = []
    for name in read_meta(str(output)):
        with IndexedTarSamples(str(output / name), decode=False) as tar:
            found += [(sample["__key__"], json.loads(sample[".json"])["caption"]) for sample in tar]
    good = [n for n in range(ROWS) if n + 1 not in bad]
    assert found == [(f"{n:09d}", f"<image_0>good {n}") for n in good]
