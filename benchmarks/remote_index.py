"""Indexing a tar in a store, each request 20 ms away: against reading all of it side by side, and against its headers alone.

Three shapes of tar, since neither of the two is the better one for all. Ours finds out by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness import Contender, call
from questions import Corpora
from races import Aspect, Limit, Race
from remote import store

OURS, SUMS, SAVING = "ours", "ours, with checksums", "ours, --save-bytes"
ALL, ALL_SUMS, WALK = (
    "all of it, 8 × 8 MiB at once, then indexed",
    "the same, with checksums",
    "headers, one by one",
)
LATENCY = 0.02
ENOUGH = 1 / 1.2  # of the better one's speed
SAVED = 0.03  # of the bytes, at most
SLOW = 5_000  # members: a walk over more takes minutes


def remote_index_questions(data: Corpora) -> Sequence[Race]:
    shapes = (
        ((200, 100_000), (5_000, 2_000), (6, 20_000_000))
        if data.quick
        else ((1_000, 100_000), (50_000, 2_000), (20, 50_000_000))
    )
    return [_race(count, size) for count, size in shapes]


def _race(count: int, size: int) -> Race:
    from s3_server import BUCKET, KEY, SECRET

    server, proxy = store()
    args: dict[str, Any] = {
        "address": f"s3://{BUCKET}/index-{size}.tar", "server": server.url, "url": proxy.url, "key": KEY, "secret": SECRET,
        "count": count, "size": size,
    }  # fmt: skip
    call(Contender("to the store", "remote_index.py", "prepare"), args)
    proxy.reset(latency=LATENCY)
    small = size < SLOW
    functions = {OURS: "ours", SUMS: "ours_checksums", ALL: "read_all", ALL_SUMS: "read_all_checksums"}
    functions |= {} if small else {SAVING: "ours_saving", WALK: "walk"}
    contenders = [Contender(title, "remote_index.py", function) for title, function in functions.items()]
    what = f"{count:,} × {size / 1000:,.0f} kB at 20 ms"
    name = f"remote-index {count}x{size}"
    against: dict[str, float | None] = {ALL: ENOUGH, **({} if small else {WALK: ENOUGH, SAVING: None})}
    aspects = [
        Aspect(name, f"Index of {what}", "wall", "ms", _ms, OURS, against, "By obstore, on both sides."),
        Aspect(
            f"{name} sums", f"Index of {what}, with checksums", "wall", "ms", _ms, SUMS, {ALL_SUMS: ENOUGH}
        ),
    ]
    if small:
        return Race(what, contenders, args, aspects)
    aspects.append(
        Aspect(f"{name} bytes", f"Bytes read of {what}", "down", "kB", _kb, SAVING, {WALK: None, ALL: None})
    )
    contenders.sort(key=lambda each: each.title != SAVING)  # whose limit it is
    limits = [Limit("bytes read with --save-bytes", "down", SAVED * count * size, 1e6, "MB")]
    return Race(what, contenders, args, aspects, limits)


def _ms(seconds: float) -> float:
    return seconds * 1e3


def _kb(count: float) -> float:
    return count / 1e3
