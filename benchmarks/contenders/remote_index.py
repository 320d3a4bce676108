"""Contenders that index a tar in a store: ours, and the two plain ways, by obstore alone."""

from __future__ import annotations

import json
import random
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import Args, Report, Stopwatch, digest_members, main

from loader import storage
from loader.index import Index
from loader.indexing import build, build_remote
from loader.tar_writer import TarWriter

BLOCK = 512
CHUNK = 8 << 20
AT_ONCE = 8


def prepare(args: Args) -> Report:
    """Write `count` members of `size` bytes each."""
    noise = random.Random(7).randbytes(args["size"])
    options = _options(args) | {"endpoint_url": args["server"]}
    with storage.publish(args["address"], options) as file:
        tar = TarWriter(file)
        for number in range(args["count"]):
            tar.add(f"{number:06d}.bin".encode(), noise)
        tar.close()
    return {"check": ""}


def _options(args: Args) -> dict[str, Any]:
    return {"key": args["key"], "secret": args["secret"], "endpoint_url": args["url"], "client": "obstore"}


def _down(args: Args) -> int:
    with urllib.request.urlopen(args["url"] + "/__control") as answer:
        return int(json.load(answer)["down"])


def _ours(args: Args, **more: bool) -> Report:
    storage.stat(args["address"], _options(args))  # clients that are there, and connections
    storage.read_bytes(args["address"], _options(args), 0, BLOCK)
    before = _down(args)
    with Stopwatch(workers=True) as watch:
        index = Index(build_remote(args["address"], _options(args), **more), "x")
    found = zip(index.names(), index.offset, index.size, strict=True) if args["check"] else ()
    return watch.report(
        check=digest_members(sorted(found, key=lambda member: member[1])), down=_down(args) - before
    )


def ours(args: Args) -> Report:
    return _ours(args, checksum=False)


def ours_checksums(args: Args) -> Report:
    return _ours(args, checksum=True)


def ours_saving(args: Args) -> Report:
    return _ours(args, checksum=False, save_bytes=True)


def _store(args: Args) -> tuple[Any, str]:
    import obstore
    from obstore.store import S3Store

    bucket, _, key = args["address"].removeprefix("s3://").partition("/")
    store = S3Store(
        bucket, endpoint=args["url"], region="us-east-1", client_options={"allow_http": True},
        access_key_id=args["key"], secret_access_key=args["secret"],
    )  # fmt: skip
    obstore.get_range(store, key, start=0, length=BLOCK)
    return store, key


def _whole(store: Any, key: str) -> bytes:
    import obstore

    size = obstore.head(store, key)["size"]
    starts = range(0, size, CHUNK)
    data = bytearray(size)

    def fetch(start: int) -> None:
        stop = min(start + CHUNK, size)
        data[start:stop] = obstore.get_range(store, key, start=start, end=stop)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fetch, starts))
    return bytes(data)


def _read_all(args: Args, checksum: bool) -> Report:
    store, key = _store(args)
    before = _down(args)
    with Stopwatch(workers=True) as watch:
        index = Index(build(_whole(store, key), "x", checksum), "x")
    found = zip(index.names(), index.offset, index.size, strict=True) if args["check"] else ()
    return watch.report(check=digest_members(found), down=_down(args) - before)


def read_all(args: Args) -> Report:
    return _read_all(args, checksum=False)


def read_all_checksums(args: Args) -> Report:
    return _read_all(args, checksum=True)


def walk(args: Args) -> Report:
    import obstore

    store, key = _store(args)
    before, found, at = _down(args), [], 0
    with Stopwatch(workers=True) as watch:
        while True:
            header = bytes(obstore.get_range(store, key, start=at, length=BLOCK))
            name = header[: header.find(b"\0")]
            if not name:
                break
            size = int(header[124:135], 8)
            found.append((name.decode(), at + BLOCK, size))
            at += BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
    return watch.report(check=digest_members(found if args["check"] else ()), down=_down(args) - before)


if __name__ == "__main__":
    main(globals())
