"""What people see of the cache, and do with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loader.cache import main
from loader.shard_cache import Partial, ShardCache


def fill(partial: Partial) -> None:
    partial.reserve(2048)
    partial.write(bytes(2048), 0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardCache:
    made = ShardCache(str(tmp_path / "cache"))
    monkeypatch.setenv("SHARDFLOW_CACHE_DIR", made.folder)
    return made


def test_a_cache_that_is_not_there_yet(cache: ShardCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("path") == 0
    assert capsys.readouterr().out == cache.folder + "\n"
    assert main("stat") == main("clear") == 0
    assert "0 bytes" in capsys.readouterr().out
    assert not os.path.exists(cache.folder)


def test_stat_and_clear(cache: ShardCache, capsys: pytest.CaptureFixture[str]) -> None:
    cache.prepare()
    held = cache.open("1" * 40 + ".tar", fill)
    os.close(cache.open("2" * 40 + ".index", fill))
    assert main("stat") == 0
    words = " ".join(capsys.readouterr().out.split())
    for text in (cache.folder, "shards 1", "indexes 1", "size 4.00 KiB", "in use 1 files"):
        assert text in words
    assert main("clear") == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "removed 1 files, 2.00 KiB" in words and "left, being used 1 files" in words
    os.close(held)
    assert main("clear", cache.folder) == 0
    assert cache.stat().shards == 0
    assert main("path", "elsewhere") == 0
    assert capsys.readouterr().out.endswith(os.path.abspath("elsewhere") + "\n")


def test_the_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SHARDFLOW_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert main("path") == 0
    assert capsys.readouterr().out == "/home/somebody/.cache/shardflow/shards\n"
