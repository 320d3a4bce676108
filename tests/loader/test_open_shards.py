"""The shards that stay open: the least recently used one goes, its file with it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import packed

from loader.indexed_tar_samples import IndexedTarSamples
from loader.open_shards import OpenShards


class Closable:
    def __init__(self, shard: int, log: list[str]) -> None:
        self.shard, self.log = shard, log
        log.append(f"open {shard}")

    def close(self) -> None:
        self.log.append(f"close {self.shard}")


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 5), st.lists(st.integers(0, 8), max_size=60))
def test_the_least_recently_used_is_closed(size: int, asked: list[int]) -> None:
    log: list[str] = []
    shards: Any = OpenShards(size, lambda shard: Closable(shard, log))  # type: ignore[arg-type, return-value]
    recent: list[int] = []  # oldest first
    expected: list[str] = []
    for shard in asked:
        if shard in recent:
            recent.remove(shard)
        else:
            if len(recent) == size:
                expected.append(f"close {recent.pop(0)}")
            expected.append(f"open {shard}")
        recent.append(shard)
        assert shards.get(shard).shard == shard
        assert len(shards) == len(recent)
    assert log == expected
    shards.close()
    assert len(shards) == 0
    assert sorted(log[len(expected) :]) == sorted(f"close {shard}" for shard in recent)


def test_one_that_can_not_be_opened_leaves_no_trace() -> None:
    def open_shard(shard: int) -> Any:
        if shard == 1:
            raise OSError("gone")
        return Closable(shard, [])

    shards: Any = OpenShards(2, open_shard)
    shards.get(0)
    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            shards.get(1)
    assert len(shards) <= 1
    assert shards.get(0).shard == 0


def test_at_least_one() -> None:
    with pytest.raises(ValueError, match="lru_size is 0: at least 1"):
        OpenShards(0, IndexedTarSamples)  # type: ignore[arg-type]


def _maps(root: str) -> int:
    return Path("/proc/self/maps").read_text().count(root)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_files_and_maps_are_bounded(tmp_path: Path) -> None:
    """Two maps a shard, its tar and its index; no descriptor stays open for either."""
    root = packed(tmp_path / "d", [3] * 12)
    shards = OpenShards(4, lambda shard: IndexedTarSamples(f"{root}/{shard:05d}.tar"))
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        for shard in range(12):
            assert shards.get(shard)[0][".txt"] == str(3 * shard)
            assert _maps(root) <= 2 * 4
            # Python's mmap keeps a descriptor of its own for each map.
            assert len(os.listdir("/proc/self/fd")) <= descriptors + 2 * 4
    shards.close()
    assert _maps(root) == 0


def _open(shard: int) -> Any:
    return Closable(shard, [])


def test_a_pickle_carries_none() -> None:
    shards: Any = OpenShards(3, _open)
    shards.get(0)
    other = pickle.loads(pickle.dumps(shards))
    assert (len(other), other.size) == (0, 3)
    assert other.get(5).shard == 5
