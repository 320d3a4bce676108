"""Cold: the questions index and stream once more, with nothing of the files in the page cache before each run."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

from harness import Args, Contender, Question
from questions import Corpora
from races import Aspect, Race
from streaming import OURS, PEERS, peers_of, stream_args, workers_of

IN_ORDER = "bare: tars read whole, in order, not shuffled"
STILL_THERE = 0.02  # of the pages: more, and a run wouldn't be a cold one


class StillCached(RuntimeError):
    """Files that the kernel won't drop: another process has them mapped, or the file system keeps no other copy."""


def evict(*paths: str) -> None:
    """Drop files, or all files under folders, from the page cache; needs no privileges. Written pages go to the disk."""
    pages = left = 0
    for file in _files(*paths):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(descriptor).st_size
            pages += -(-size // mmap.PAGESIZE)
            left += _cached_pages(descriptor, size)
        finally:
            os.close(descriptor)
    if left > STILL_THERE * pages:
        where = os.path.commonpath(paths)
        raise StillCached(
            f"{left / pages:.0%} of the files in {where} stays in the page cache: another process has them mapped, or "
            "they lie in memory alone"
        )


def _files(*paths: str) -> Iterator[str]:
    for path in paths:
        if os.path.isdir(path):
            for folder, _, names in os.walk(path):
                yield from (os.path.join(folder, name) for name in names)
        else:
            yield path


def _cached_pages(descriptor: int, size: int) -> int:
    if not size:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    pages = -(-size // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * pages)()
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    try:
        if libc.mincore(address, size, seen):
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        libc.munmap(address, size)
    return sum(each & 1 for each in seen)


def cold_questions(data: Corpora) -> list[Question | Race]:
    races = [] if data.quick else [_stream(data, workers) for workers in (0, 2)]
    return [_index(data), *races]


def _index(data: Corpora) -> Question:
    photographs = data.photographs

    def fresh(args: Args) -> Args:
        evict(*args["tars"])
        return args

    members = 3 * photographs.count
    return Question(
        name="cold index A",
        title=f"Header walk with names, A, photographs ({members:,} members), cold",
        ours=Contender("ours: Walk", "ours.py", "index_walk"),
        peers=[
            Contender("tarfile getmembers", "bare.py", "index_tarfile"),
            Contender("wids MMIndexedTar", "peers.py", "index_wids"),
            Contender("GNU tar -t", "bare.py", "index_gnu_tar"),
            Contender("bare: every byte read, in order", "bare.py", "index_read"),
            Contender("ours: whole index file, checksums included", "ours.py", "index_checked"),
        ],
        unit="µs a member",
        scale=lambda seconds: seconds / members * 1e6,
        args={"tars": photographs.tars},
        note="The tars are dropped from the page cache before each run.",
        fresh=fresh,
    )


def _stream(data: Corpora, workers: int) -> Race:
    args = stream_args("A", data, workers)
    what = f"corpus A, raw bytes, {workers_of(workers)}, cold"
    others = dict.fromkeys((*PEERS, IN_ORDER), None)
    aspects = [
        Aspect(
            f"cold stream {workers}",
            f"Stream from construction on, {what}",
            "epoch",
            "µs a sample",
            lambda seconds: seconds * 1e6,
            OURS,
            others,
            "All files are dropped from the page cache before each run.",
        ),
        Aspect(
            f"cold first {workers}",
            f"From construction to the first batch, {what}",
            "first",
            "ms",
            lambda seconds: seconds * 1e3,
            OURS,
            others,
        ),
    ]
    contenders = [
        Contender(OURS, "ours_stream.py", "stream"),
        *peers_of(),
        Contender(IN_ORDER, "bare_stream.py", "stream_in_order"),
    ]
    # Folders, with all that is read beside the tars. No bare map here: its walk, which has no index, would warm them.
    places = [
        *{os.path.dirname(tar) for tar in args["tars"]},
        args["litdata"],
        args["mosaic"],
        args["energon"],
    ]
    return Race(f"Streams, {what}", contenders, args, aspects, before=lambda: evict(*places))
