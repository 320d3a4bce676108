"""The command lines of ``stats``, ``verify`` and ``extract``, whose bodies are the loader's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loader.arguments import not_negative


def add(commands: Any, new: Callable[..., Any]) -> None:
    """Add their parsers; `new` makes one, given name, summary and examples."""
    stats = new(commands, "stats", "count what a dataset holds: members, bytes, sizes of pictures, captions", """examples:
  shardflow stats /data/photos
  shardflow stats /data/photos --plot photos.html     and draw it, as a page or a .png""")  # fmt: skip
    stats.add_argument("--plot", metavar="FILE", help="draw it as well: a name that ends in .html or .png")
    stats.add_argument(
        "--fresh", action="store_true", help="count again, whatever meta_stats.json says from packing"
    )
    _add_jobs(stats)
    stats.add_argument("paths", metavar="PATH", nargs="+", help="a dataset's folder, its meta.json, or a tar")
    verify = new(commands, "verify", "compare every tar with its index, meta.json, checksum and sidecar", """examples:
  shardflow verify /data/photos
  shardflow verify s3://bucket/photos --deep          and decode every member
  shardflow verify /data/photos --repair              write anew what is wrong beside the tars""")  # fmt: skip
    verify.add_argument("--deep", action="store_true", help="decode every member as well")
    verify.add_argument(
        "--repair", action="store_true",
        help="write indexes, sidecars, meta.json and meta_stats.json anew where they are wrong; no tar is touched",
    )  # fmt: skip
    _add_jobs(verify)
    verify.add_argument(
        "--index-root", metavar="P", help="the indexes are under this folder (read-only datasets)"
    )
    verify.add_argument(
        "--no-end-ok", action="store_true", help="accept tars without the zero blocks at their end"
    )
    verify.add_argument("paths", metavar="PATH", nargs="+", help="a dataset's folder, or a tar")
    extract = new(commands, "extract", "write the members of single samples as files", """examples:
  shardflow extract /data/photos#000000017 -o out     by key
  shardflow extract shard-000000.tar#0 -o out         by number""")  # fmt: skip
    extract.add_argument(
        "-o", "--output", metavar="DIR", required=True, help="the folder that they go to: a path or a URL"
    )
    extract.add_argument(
        "paths", metavar="PATH#SAMPLE", nargs="+", help="a dataset or tar, and #NUMBER or #KEY"
    )


def _add_jobs(parser: Any) -> None:
    parser.add_argument(
        "--n-jobs", type=not_negative, metavar="N", help="at most this many processes (default: all cores)"
    )
