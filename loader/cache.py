"""``shardflow cache``: where the copies of remote shards are, what they take, and how to be rid of them."""

from __future__ import annotations

import os
import sys

from loader.progress import command, human_size, table
from loader.shard_cache import ShardCache
from loader.world import cache_folder

ACTIONS = ("path", "stat", "clear")


def main(action: str = "stat", cache_dir: str | None = None) -> int:
    """Do one of ACTIONS with the cache in that folder, by default the user's; returns the exit status."""
    cache = ShardCache(cache_dir or cache_folder())
    return command(lambda: _ACT[action](cache), "shardflow cache")


def _path(cache: ShardCache) -> int:
    sys.stdout.write(cache.folder + os.linesep)
    return 0


def _stat(cache: ShardCache) -> int:
    found = cache.stat()
    rows = [
        ("folder", found.folder),
        ("shards", f"{found.shards:,}"),
        ("indexes", f"{found.indexes:,}"),
        ("size", human_size(found.size)),
        ("in use", f"{found.used:,} files"),
        ("being downloaded", human_size(found.downloading)),
    ]
    table("", ["cache", ""], rows)
    return 0


def _clear(cache: ShardCache) -> int:
    files, size = cache.clear()
    left = cache.stat()
    rows = [("removed", f"{files:,} files, {human_size(size)}"), ("left, being used", f"{left.used:,} files")]
    table("", ["cache", ""], rows)
    return 0


_ACT = {"path": _path, "stat": _stat, "clear": _clear}
