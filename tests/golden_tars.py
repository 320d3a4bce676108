"""The golden tars: a small one of each format, with its index, and the bytes of a shard of ours.

They pin what is on disk: a test that finds a difference has found a change of the format. Written once, by
``python tests/golden_tars.py``; written again only together with a new version of the format.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import tarmaker

from loader.index import Index
from loader.indexing import build
from loader.writer import write_shard

FOLDER = Path(__file__).parent / "golden"

OURS: list[tuple[str, list[tuple[str, bytes]]]] = [
    ("000000000", [(".json", b'{"caption":"<image_0> a <image_1>"}'), ("-0.jpg", b"\xff\xd8jpeg"), ("-1.png", b"png")]),
    ("000000001", [(".json", b'{"caption":"text"}')]),
    ("d" * 120 + "/000000002", [(".json", b"{}"), ("-0.webp", bytes(range(256)) * 3)]),
    ("日本/" + "l" * 170, [(".json", b"{}")]),
    ("caf\udce9", [(".json", b"{}")]),
]  # fmt: skip

_FILES = {
    "README": b"no sample",
    "a.jpg": b"\xff\xd8" + b"a" * 600,
    "a.json": b"{}",
    ".DS_Store": b"hidden",
    "sub/b.JPG": b"b",
    "sub/b.seg.png": b"",
    "sub/" + "n" * 76 + ".txt": b"long",
    "日本.txt": b"utf-8",
}
_LONG = {"p" * 90 + "/" + "q" * 60 + ".txt": b"prefix", "l" * 180 + ".txt": b"no place to split"}

TARS = (
    "gnutar-gnu",
    "gnutar-pax",
    "gnutar-ustar",
    "gnutar-v7",
    "tarfile-gnu",
    "tarfile-pax",
    "tarfile-ustar",
    "odd",
)


def describe(index: Index) -> dict[str, Any]:
    """What an index says, in plain JSON: a second opinion on the bytes beside it."""
    return {
        "members": [
            [index.member_name(i).encode("utf-8", "surrogateescape").decode("latin-1"), *index.span(i),
             index.member_extension(i), None if index.crc32 is None else index.crc32[i]]
            for i in range(index.num_members)
        ],
        "keys": [index.key(s) for s in range(index.num_samples)],
        "samples": [list(index.members(s)) for s in range(index.num_samples)],
        "skipped": index.skipped,
        "grouping": index.grouping,
        "checksum": index.checksum,
    }  # fmt: skip


def _odd() -> bytes:
    """What the tools don't write any more, and some only in special cases."""
    return (
        tarmaker.pax((b"comment", b"global"), kind=b"g")
        + tarmaker.member("signed-é.jpg".encode("latin-1"), b"signed", signed=True)
        + tarmaker.member(b"octal.jpg", b"o" * 513, checksum="%6o\0 ")
        + tarmaker.header(b"base256.jpg", b"\x80" + (700).to_bytes(11, "big"))
        + tarmaker.padded(b"b" * 700)
        + tarmaker.member(b"octal.jpg", b"again")
        + tarmaker.member(b"link.jpg", b"", b"2", link=b"octal.jpg")
        + tarmaker.member(b"k-1.jpg", b"1")
        + tarmaker.pax((b"mtime", b"1.25"))
        + tarmaker.member(b"k.json", b"{}")
        + tarmaker.member(b"k-0.jpg", b"0")
        + bytes(512 * 3)
        + b"after the end"
    )


def _make(name: str, folder: Path) -> bytes:
    if name == "odd":
        return _odd()
    tool, form = name.split("-")
    files = _FILES | (_LONG if form in ("gnu", "pax") else {})
    if form == "ustar":
        files = files | dict([next(iter(_LONG.items()))])
    if tool == "tarfile":
        return tarmaker.by_tarfile(files.items(), form, mtime=1.5 if form == "pax" else 1)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        os.chmod(folder / path, 0o644)
    os.symlink("a.jpg", folder / "link.jpg")
    extra = ("--pax-option=exthdr.name=%d/%f,delete=atime,delete=ctime",) if form == "pax" else ()
    what = ["--owner=0", "--group=0", "--numeric-owner", "--mtime=@1", "--mode=a=r"]
    return tarmaker.by_gnu_tar(folder, form, *what, *extra)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    expected = {}
    for name in TARS:
        with tempfile.TemporaryDirectory() as folder:
            data = _make(name, Path(folder))
        index = build(data, name)
        (FOLDER / f"{name}.tar").write_bytes(data)
        (FOLDER / f"{name}.tar.index").write_bytes(index)
        expected[name] = describe(Index(index, name))
    write_shard(str(FOLDER / "shard.tar"), OURS)
    text = json.dumps(expected, indent=1, ensure_ascii=True, sort_keys=True)
    (FOLDER / "tars.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
