"""The questions about the loader: streams of shuffled batches, resume, own overhead, 100,000 shards."""

from __future__ import annotations

import os
from typing import Any

import corpora
from harness import WORK, Contender, call
from questions import Corpora, converted
from races import LEVEL, Aspect, Limit, Race

BATCH = 64
TINY = 50_000  # samples of corpus B: enough for a stream, and every one of them is compared
SHARDS = 100_000

OURS = "ours"
READ = 'ours, backend="read"'
VIEWS = "ours, views=True"
LITDATA_VIEWS = "LitData, views not read"
BARE = "bare mmap slices"
PILLOW = "ours, Pillow"
ARRAY = 'ours, images="array"'
WEBDATASET, WIDS, LITDATA, MOSAIC, ENERGON = "webdataset", "wids", "LitData", "MosaicML", "Energon"
PEERS = (WEBDATASET, WIDS, LITDATA, MOSAIC, ENERGON)
OVER_SHARDS = (WEBDATASET, MOSAIC, ENERGON)  # a batch of theirs draws from several shards, as ours does


def stream_args(corpus: str, data: Corpora, workers: int, **more: Any) -> dict[str, Any]:
    """What all contenders are told; `limit`: samples of the epoch that are timed, all but its very end."""
    if corpus == "A":
        tars, samples = data.photographs.tars, data.photographs.samples
        limit = sum(samples) * 96 // 100
        call(Contender("gen_meta", "ours_stream.py", "stream_prepare"), {"tars": tars})
    else:
        tiny = corpora.tiny(TINY)
        corpora.warm(tiny.tar)
        tars, samples = [tiny.tar], [tiny.count]
        limit = TINY * 96 // 100
    args = {
        "tars": tars,
        "samples": samples,
        "batch": BATCH,
        "workers": workers,
        "limit": limit,
        "decode": False,
    }
    return {**args, **converted(corpus.lower(), args), **more}


def peers_of(function: str = "stream") -> list[Contender]:
    names = {WEBDATASET: "webdataset", WIDS: "wids", LITDATA: "litdata", MOSAIC: "mosaic"}
    peers = [Contender(title, "peers_stream.py", f"{function}_{name}") for title, name in names.items()]
    return [*peers, Contender(ENERGON, "peers_energon.py", f"{function}_energon")]


def _per_sample(seconds: float) -> float:
    return seconds * 1e6


def workers_of(count: int) -> str:
    return f"{count} workers" if count else "no workers"


def stream_questions(data: Corpora) -> list[Race]:
    corpora_asked = ("A",) if data.quick else ("A", "B")
    return [_raw(corpus, data, workers) for corpus in corpora_asked for workers in (0, 2)]


def _raw(corpus: str, data: Corpora, workers: int) -> Race:
    what = f"corpus {corpus}, raw bytes, {workers_of(workers)}"
    name = f"{corpus} {workers}"
    targets: dict[str, float | None] = dict.fromkeys(PEERS, 1.0 if workers else 2.0)
    aspects = [
        Aspect(
            f"stream {name}",
            f"Stream, {what}",
            "sample",
            "µs a sample",
            _per_sample,
            OURS,
            {**targets, BARE: 1.0 if workers else None, READ: None, VIEWS: None, LITDATA_VIEWS: None},
            "The first epoch of a process, in batches of 64. LitData's bytes are made of the views that it gives.",
        ),
        Aspect(
            f"first {name}",
            f"From construction to the first batch, {what}",
            "first",
            "ms",
            lambda seconds: seconds * 1e3,
            OURS,
            {title: 2.0 if title in OVER_SHARDS else None for title in PEERS},
        ),
        Aspect(
            f"memory {name}",
            f"Memory (PSS) of all processes late in the epoch, {what}",
            "pss",
            "MB",
            lambda size: size / 1e6,
            OURS,
            {**dict.fromkeys(PEERS, None), BARE: None},
            "Pages of the page cache that are mapped count as memory here.",
        ),
        Aspect(
            f"memory read {name}",
            f'Memory (PSS), the same, ours with backend="read", {what}',
            "pss",
            "MB",
            lambda size: size / 1e6,
            READ,
            dict.fromkeys(PEERS, 1.0),
        ),
    ]
    contenders = [
        Contender(OURS, "ours_stream.py", "stream"),
        *peers_of(),
        Contender(BARE, "bare_stream.py", "stream_mmap"),
        Contender(READ, "ours_stream.py", "stream_read"),
    ]
    if not workers:
        contenders += [
            Contender(VIEWS, "ours_stream.py", "stream_views"),
            Contender(LITDATA_VIEWS, "peers_stream.py", "stream_litdata_views"),
        ]
        aspects.insert(
            1,
            Aspect(
                f"views {name}",
                f"Stream of views, whose bytes nobody reads, {what}",
                "sample",
                "µs a sample",
                _per_sample,
                VIEWS,
                {LITDATA_VIEWS: 2.0},
            ),
        )
    return Race(f"Streams, {what}", contenders, stream_args(corpus, data, workers), aspects)


def decode_questions(data: Corpora) -> list[Race]:
    return [_decoded(data, workers) for workers in ((2,) if data.quick else (0, 2))]


def _decoded(data: Corpora, workers: int) -> Race:
    what = f"decoded to 224 pixels, {workers_of(workers)}"
    args = stream_args("A", data, workers, decode=True, limit=1920 if not data.quick else 640)
    aspects = [
        Aspect(
            f"decode {workers} {kind}",
            f"Stream, corpus A, {what}, {by}",
            "sample",
            "µs a sample",
            _per_sample,
            ours,
            {**dict.fromkeys(PEERS, target), **({PILLOW: None} if ours == ARRAY else {})},
            note,
        )
        for kind, by, ours, target, note in (
            ("Pillow", "Pillow everywhere", PILLOW, LEVEL, "Level: at least 0.95 of a peer's speed."),
            (
                "array",
                "ours by simplejpeg and torch",
                ARRAY,
                1.6,
                "Pictures differ by less than a level on average.",
            ),
        )
    ]
    contenders = [
        Contender(PILLOW, "ours_stream.py", "decode_pillow"),
        *peers_of(),
        Contender(ARRAY, "ours_stream.py", "decode_array"),
    ]
    return Race(f"Streams, {what}", contenders, args, aspects)


def resume_questions(data: Corpora) -> list[Race]:
    titles = (OURS, LITDATA, MOSAIC, ENERGON)
    contenders = [
        Contender(OURS, "ours_stream.py", "resume_ours"),
        Contender(LITDATA, "peers_stream.py", "resume_litdata"),
        Contender(MOSAIC, "peers_stream.py", "resume_mosaic"),
    ]
    if (
        len(data.photographs.tars) > 1
    ):  # of a dataset of one tar, Energon repeats the epoch after its state is loaded
        contenders.append(Contender(ENERGON, "peers_energon.py", "resume_energon"))
    args = stream_args("A", data, 0, batches=sum(data.photographs.samples) // BATCH // 2)
    aspects = [
        Aspect(
            "resume A",
            "Half an epoch of A done: from construction to the first batch after it",
            "first",
            "ms",
            lambda seconds: seconds * 1e3,
            OURS,
            dict.fromkeys(titles[1:], 1.0),
            "In a process of its own. webdataset and wids have no state.",
        ),
        Aspect(
            "state A",
            "Size of that state as JSON",
            "size",
            "bytes",
            float,
            OURS,
            dict.fromkeys(titles[1:], None),
            "Energon's is a pickle, counted as base64.",
        ),
    ]
    return [Race("Resume", contenders, args, aspects)]


def overhead_questions(data: Corpora) -> list[Race]:
    return [
        Race(
            f"Own overhead, corpus {corpus}",
            [Contender(OURS, "ours_stream.py", "overhead")],
            stream_args(corpus, data, 0),
            [
                Aspect(
                    f"overhead {corpus}",
                    f"The whole loader, corpus {corpus}, raw bytes, no workers, pages mapped already",
                    "ours",
                    "µs a sample",
                    _per_sample,
                    OURS,
                    {},
                    "Overhead: what it takes beyond reading each member in the same order, by the same call or out of the same maps.",
                )
            ],
            [Limit("overhead", "overhead", 5e-6, 1e-6, "µs")],
        )
        for corpus in ("A", "B")
    ]


def scale_questions(data: Corpora) -> list[Race]:
    root = os.path.join(WORK, "made-up")
    args = {"root": root, "shards": SHARDS}
    if not os.path.exists(os.path.join(root, "meta.json")):
        call(Contender("made-up meta.json", "ours_stream.py", "scale_prepare"), args)
    aspect = Aspect(
        "scale",
        f"{SHARDS:,} shards of 1,000 samples (made-up meta.json): from construction to the first index",
        "start",
        "s",
        float,
        OURS,
        {},
    )
    limits = [
        Limit("start", "start", 1, 1, "s"),
        Limit("restore in mid-epoch, in starts", "restored", 1.25, 1, ""),
        Limit("private memory of a worker", "private", 60e6, 1e6, "MB"),
    ]
    return [Race("100,000 shards", [Contender(OURS, "ours_stream.py", "scale")], args, [aspect], limits)]
