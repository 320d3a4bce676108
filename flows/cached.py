"""The command line of ``cache``, whose body is the loader's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add(commands: Any, new: Callable[..., Any]) -> None:
    """Add its parser; `new` makes one, given name, summary and examples."""
    cache = new(commands, "cache", "copies of remote shards on this machine: where, how much, remove them", """examples:
  shardflow cache stat                         how much is in it, and in use
  shardflow cache clear                        remove all that nobody reads just now
  du -sh "$(shardflow cache path)\"""")  # fmt: skip
    cache.add_argument("action", choices=("path", "stat", "clear"), help="what to do")
    cache.add_argument(
        "--cache-dir", metavar="DIR",
        help="another folder than SHARDFLOW_CACHE_DIR, or else ~/.cache/shardflow/shards",
    )  # fmt: skip
