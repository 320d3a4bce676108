"""Shards in a store: a real S3 server on this machine, at once and through a proxy that adds 20 ms to each request.

What a run reads comes from the server for its first epoch, and from wherever it keeps copies for its second.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import corpora
from harness import HERE, WORK, Contender, call
from questions import Corpora, converted
from races import Aspect, Race

sys.path.append(os.path.join(os.path.dirname(HERE), "tests"))

CACHE, RANGE = 'ours, backend="cache"', 'ours, backend="range"'
RAW, RAW_RANGES = "obstore: shards whole, read and dropped", "obstore: the same ranges, read and dropped"
WEBDATASET, LITDATA, MOSAIC = "webdataset", "LitData", "MosaicML"
PEERS = (WEBDATASET, LITDATA, MOSAIC)
LATENCIES = (0.0, 0.02)
BATCH = 64
SHARDS = 10
PHOTOGRAPHS = 2500  # read by ranges: for each, the server reads far more from its disk than it is asked for


@cache
def store() -> tuple[Any, Any]:
    """The server and the proxy before it, for as long as this run lasts."""
    from pathlib import Path

    from fault_proxy import FaultProxy
    from s3_server import S3Server

    folder = os.path.join(WORK, "s3")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    server = S3Server(Path(folder)).start()
    proxy = FaultProxy(server.port)
    atexit.register(shutil.rmtree, folder, True)
    atexit.register(server.stop)
    atexit.register(proxy.stop)
    return server, proxy


def _stored(photographs: corpora.Photographs, folder: str) -> dict[str, Any]:
    """Have the corpus in the store, as shards of ours; what contenders are told of it."""
    from s3_server import BUCKET, KEY, SECRET

    server, _ = store()
    where = f"{BUCKET}/{folder}/ours"
    args: dict[str, Any] = {
        "tars": photographs.tars, "samples": photographs.samples, "bytes": photographs.jpeg_bytes,
        "shard": photographs.count // SHARDS, "batch": BATCH, "key": KEY, "secret": SECRET, "url": server.url,
        "ours": f"s3://{where}", "bucket": where, "decode": False, "writes": photographs.jpeg_bytes * 11 // 10,
    }  # fmt: skip
    args["names"] = call(Contender("to the store", "ours_remote.py", "prepare"), args)["names"]
    return args


def _converted(args: dict[str, Any]) -> dict[str, Any]:
    """The same in everybody's format."""
    import s3fs
    from s3_server import BUCKET

    fs = s3fs.S3FileSystem(**store()[0].storage_options)
    found = dict(args)
    for peer, folder in converted("a", args).items():
        fs.put(folder + "/", f"{BUCKET}/open/{peer}/", recursive=True)
        found[peer] = f"s3://{BUCKET}/open/{peer}"
    return found


def remote_questions(data: Corpora) -> Sequence[Race]:
    some = _stored(data.photographs if data.quick else corpora.photographs(PHOTOGRAPHS), "open/some")
    whole = some if data.quick else _stored(data.photographs, "open/whole")
    all_formats = _converted(some)
    return [
        _raw(CACHE, RAW, "cached", "raw_whole", 0.85, whole),
        _raw(RANGE, RAW_RANGES, "ranged", "raw_ranges", 0.7, some),
        *(_streams(all_formats, latency) for latency in LATENCIES),
    ]


def _per_sample(seconds: float) -> float:
    return seconds * 1e6


def _raw(ours: str, raw: str, function: str, raw_function: str, target: float, args: dict[str, Any]) -> Race:
    """No workers, obstore on both sides, as many requests in flight."""
    contenders = [Contender(ours, "ours_remote.py", function), Contender(raw, "ours_remote.py", raw_function)]
    aspect = Aspect(
        f"remote raw {function}", f"First epoch, no workers, 32 requests in flight, {ours}", "cold", "µs a sample", _per_sample,
        ours, {raw: target},
        "Against a program that reads the same bytes by the fastest client, and does nothing with them; "
        f"{sum(args['samples']):,} photographs.",
    )  # fmt: skip
    told = {**args, "workers": 0, "client": "obstore", "prefetch": 8}
    return Race(f"From a store, raw, {ours}", contenders, told, [aspect])


def _streams(args: dict[str, Any], latency: float) -> Race:
    server, proxy = store()
    where = f"{latency * 1000:.0f} ms"
    contenders = [
        Contender(CACHE, "ours_remote.py", "cached"),
        Contender(RANGE, "ours_remote.py", "ranged"),
        Contender(WEBDATASET, "peers_remote.py", "stream_webdataset"),
        Contender(LITDATA, "peers_remote.py", "stream_litdata"),
        Contender(MOSAIC, "peers_remote.py", "stream_mosaic"),
    ]
    aspects = [
        Aspect(
            f"remote {kind} {where}", f"{title}, 2 workers, {where} a request", key, unit, scale, CACHE,
            {RANGE: None, **dict.fromkeys(PEERS, 1.0)},
        )
        for kind, title, key, unit, scale in (
            ("first", "From construction to the first batch, nothing cached", "first", "ms", lambda s: s * 1e3),
            ("cold", "First epoch, nothing cached", "cold", "µs a sample", _per_sample),
            ("cached", "Second epoch", "again", "µs a sample", _per_sample),
        )
    ]  # fmt: skip
    told = {**args, "workers": 2, "client": "auto", "url": proxy.url if latency else server.url}
    title = f"From a store, {where}"
    if not latency:
        return Race(title, contenders, told, aspects, before=proxy.reset)
    return Race(
        title, contenders, told, [*aspects, *_traffic(where)], before=lambda: proxy.reset(latency=latency),
        after=lambda: _passed(proxy, args),
    )  # fmt: skip


def _traffic(where: str) -> list[Aspect]:
    """What the proxy has counted."""
    note = "Both epochs, counted before the server: a cached second one asks for little."
    return [
        Aspect(
            f"remote {key} {where}", title, key, unit, lambda count: count, CACHE,
            {RANGE: None, **dict.fromkeys(PEERS)}, note,
        )
        for key, title, unit in (
            ("requests", "Requests to the store", "a sample"),
            ("fetched", "Bytes from the store", "× the photographs"),
        )
    ]  # fmt: skip


def _passed(proxy: Any, args: dict[str, Any]) -> dict[str, Any]:
    stats = proxy.stats()
    return {"requests": stats["requests"] / sum(args["samples"]), "fetched": stats["down"] / args["bytes"]}
