"""The questions: who is measured at what, on which corpus, against which target."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cached_property
from typing import Any

import corpora
from harness import WORK, Args, Contender, Question, call

MB = 1e6


class Corpora:
    """The corpora of a run, made and read into the page cache when a question first asks for them."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick

    @cached_property
    def photographs(self) -> corpora.Photographs:
        made = corpora.photographs(1000 if self.quick else 10_000)
        corpora.warm(*made.tars, made.loose)
        return made

    @cached_property
    def tiny(self) -> corpora.Tiny:
        made = corpora.tiny(20_000 if self.quick else 200_000)
        corpora.warm(made.tar)
        return made


def _per(units: int) -> Callable[[float], float]:
    """Microseconds a unit."""
    return lambda seconds: seconds / units * 1e6


# -- index


def index_questions(data: Corpora) -> list[Question]:
    tiny = data.tiny
    found = [_index("B, tiny samples", [tiny.tar], tiny.members, tarfile_target=15)]
    if not data.quick:  # `cold` has A as well
        photographs = data.photographs
        found.insert(0, _index("A, photographs", photographs.tars, 3 * photographs.count, tarfile_target=5))
    return found


def _index(corpus: str, tars: list[str], members: int, tarfile_target: float) -> Question:
    return Question(
        name=f"index {corpus[0]}",
        title=f"Header walk with names, {corpus} ({members:,} members)",
        ours=Contender("ours: Walk", "ours.py", "index_walk"),
        peers=[
            Contender("tarfile getmembers", "bare.py", "index_tarfile", tarfile_target),
            Contender("wids MMIndexedTar", "peers.py", "index_wids", ahead=True),
            Contender("itar index.build", "peers.py", "index_itar", ahead=True),
            Contender("GNU tar -t", "bare.py", "index_gnu_tar", ahead=True),
            Contender("GNU tar -tvR", "bare.py", "index_gnu_tar_verbose", ahead=True),
            Contender("bare mmap walk", "bare.py", "index_bare"),
            Contender("ours: whole index file", "ours.py", "index_whole"),
            Contender("Energon prepare (whole index, SQLite)", "peers_energon.py", "index_energon"),
        ],
        unit="µs a member",
        scale=_per(members),
        args={"tars": tars},
    )


# -- open


def open_questions(data: Corpora) -> list[Question]:
    tiny = data.tiny
    args = {
        "tars": [tiny.tar],
        "pickle": os.path.join(WORK, "open.pickle"),
        "pickle_arrays": os.path.join(WORK, "open-arrays.pickle"),
        "itar": os.path.join(WORK, "open.itar"),
        "times": 20,
    }
    call(Contender("our index, and pickles", "ours.py", "open_prepare"), args)
    call(Contender("itar's index", "peers.py", "open_itar"), {**args, "prepare": True})
    return [
        Question(
            name="open B",
            title=f"Open a saved index of {tiny.count:,} samples, {tiny.members:,} members",
            ours=Contender("ours: open, see that it is fresh, look up one", "ours.py", "open_index"),
            peers=[
                Contender("unpickle (name, offset, size) tuples", "bare.py", "open_pickle", 100),
                Contender("unpickle names and NumPy arrays", "bare.py", "open_pickle_arrays"),
                Contender("itar open", "peers.py", "open_itar"),
            ],
            unit="ms",
            scale=lambda seconds: seconds * 1e3,
            args=args,
            limits=[("private memory of ours", "private", 5e6)],
        )
    ]


# -- random access


def random_questions(data: Corpora) -> list[Question]:
    tiny = data.tiny
    b_args = {"tars": [tiny.tar], "samples": [tiny.count], "draws": min(tiny.count, 20_000)}
    found = [_random("B, tiny samples", {**b_args, **converted("b", b_args)}, loose=False)]
    if data.quick:
        return found
    photographs = data.photographs
    a_args = {
        "tars": photographs.tars,
        "samples": photographs.samples,
        "loose": photographs.loose,
        "draws": min(photographs.count, 5000),
    }
    return [_random("A, photographs", {**a_args, **converted("a", a_args)}, loose=True), *found]


def _random(corpus: str, args: dict[str, Any], loose: bool) -> Question:
    peers = [
        # "At most 2.5 times a bare slice": bare may be at most 2.5 times as fast.
        Contender("bare mmap slices", "bare.py", "random_bare", 1 / 2.5),
        Contender("wids IndexedTarSamples", "peers.py", "random_wids"),
        Contender("itar", "peers.py", "random_itar"),
        Contender("MosaicML LocalDataset", "peers.py", "random_mosaic"),
    ]
    if (
        loose
    ):  # of A alone: no file system likes 400,000 loose files of 200 bytes, and tarfile is slow to open B
        peers.append(Contender("tarfile extractfile", "bare.py", "random_tarfile"))
        peers.append(Contender("loose files", "bare.py", "random_loose"))
    return Question(
        name=f"random {corpus[0]}",
        title=f"One random sample as bytes, all its members, {corpus}",
        ours=Contender("ours: IndexedTarSamples.raw", "ours.py", "random_samples"),
        peers=peers,
        unit="µs a sample",
        scale=_per(args["draws"]),
        args={**args, "seed": 1},
        note="Each sample is drawn once, from maps that were just opened (page faults are in the time).",
    )


def converted(corpus: str, args: dict[str, Any]) -> dict[str, str]:
    """The same tars in the peers' own formats, for those that read no tar."""
    folders = {}
    for peer, file in (("mosaic", "peers.py"), ("litdata", "peers.py"), ("energon", "peers_energon.py")):
        out = os.path.join(WORK, f"{corpus}-{sum(args['samples'])}-{peer}")
        if not os.path.exists(out + ".done"):
            shutil.rmtree(out, ignore_errors=True)
            call(Contender(f"converter to {peer}", file, f"convert_{peer}"), {**args, "out": out})
            with open(out + ".done", "w"):
                pass
        corpora.warm(out)
        folders[peer] = out
    return folders


# -- pack


def pack_questions(data: Corpora) -> list[Question]:
    photographs = data.photographs
    out = os.path.join(WORK, "packed")

    def fresh(args: Args) -> Args:
        """Nothing is left of the last run; its pages that the disk has not seen yet go with it."""
        shutil.rmtree(out, ignore_errors=True)
        return args

    return [
        Question(
            name="pack A",
            title=f"Pack {photographs.count:,} loose JPEGs, bytes kept, single process",
            ours=Contender("ours: tasks.pack, index and checksums included", "ours.py", "pack_shardflow"),
            peers=[
                Contender("GNU tar, same members", "bare.py", "pack_gnu_tar", 0.6),
                Contender("GNU tar, same members, flushed", "bare.py", "pack_gnu_tar_flushed"),
                Contender("GNU tar, JPEGs alone", "bare.py", "pack_gnu_tar_jpeg"),
                Contender("webdataset ShardWriter", "peers.py", "pack_webdataset", 3),
                Contender("LitData optimize, 1 worker", "peers.py", "pack_litdata", 6),
                Contender("MosaicML MDSWriter", "peers.py", "pack_mosaic", 3),
                Contender("img2dataset's writer, Parquet included", "peers.py", "pack_img2dataset", 3),
                Contender("cp -r of the files", "bare.py", "pack_cp"),
                Contender("read only", "bare.py", "pack_read_only"),
            ],
            unit="MB/s",
            scale=lambda seconds: photographs.jpeg_bytes / MB / seconds,
            args={
                "loose": photographs.loose,
                "rows": photographs.rows,
                "members": photographs.members,
                "jpegs": photographs.jpegs,
                "out": out,
                "writes": photographs.jpeg_bytes * 11 // 10,
            },
            limits=[("peak memory of ours", "peak", 100e6)],
            note="All write to the same disk; ours flushes each shard to it before publishing, the others don't.",
            fresh=fresh,
        )
    ]
