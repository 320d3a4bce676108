"""Files are really gone from the page cache, or it is said that they aren't."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import cold
import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(4 << 20))
    return path


def cached(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return cold._cached_pages(descriptor, path.stat().st_size)
    finally:
        os.close(descriptor)


def test_evicted_files_are_not_cached(file: Path) -> None:
    try:
        cold.evict(str(file.parent))
    except cold.StillCached:
        pytest.skip("this file system keeps its files in memory alone")
    assert cached(file) <= 0.02 * (4 << 20) / mmap.PAGESIZE
    file.read_bytes()
    assert cached(file) == (4 << 20) / mmap.PAGESIZE


def test_a_file_that_stays_is_an_error(file: Path) -> None:
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as held:
        assert sum(held[:: mmap.PAGESIZE]) >= 0  # touches every page
        with pytest.raises(cold.StillCached, match="stays in the page cache"):
            cold.evict(str(file))
