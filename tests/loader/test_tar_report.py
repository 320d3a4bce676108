"""What is said of a tar by its index; `tests/loader/test_gen_meta.py` goes on from there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tars import make_tar

from loader.errors import BadIndex
from loader.index import Index
from loader.indexing import build
from loader.tar_report import count_bytes, count_extensions, describe


def index(path: Path, checksum: bool = True) -> Index:
    tar = make_tar(path, [("a.json", b"{}"), ("a.JPG", b"12345"), ("b.json", b"{ }"), ("README", b"")])
    return Index(build(Path(tar).read_bytes(), tar, checksum), tar)


def test_counts_and_bytes(tmp_path: Path) -> None:
    report = describe("x.tar", index(tmp_path / "x.tar"), "built")
    assert (report.extensions, report.bytes) == ({".json": 2, ".jpg": 1}, {".json": 5, ".jpg": 5})
    assert (report.num_samples, report.index, report.contents) == (2, "built", None)
    assert report.skipped == {"no extension": (1, ["README"])}


def test_an_index_that_says_what_can_not_be(tmp_path: Path) -> None:
    assert describe("x.tar", index(tmp_path / "x.tar", checksum=False), "built").checksum is None
    damaged = index(tmp_path / "x.tar")
    damaged.extensions = (".json",)
    for count in (count_extensions, count_bytes):
        with pytest.raises(BadIndex, match="an extension it doesn't list"):
            count(damaged)


def test_bytes_are_exact(tmp_path: Path) -> None:
    counted = index(tmp_path / "x.tar")
    counted.size = memoryview(np.array([2**40 + 1, 3, 2**40 + 1], np.uint64)).cast("B").cast("Q")
    assert sum(count_bytes(counted).values()) == 2**41 + 5
