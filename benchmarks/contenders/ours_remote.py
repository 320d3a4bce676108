"""Our own loader over shards in a store, and the fastest client's reads of the same bytes."""

from __future__ import annotations

import asyncio
import itertools
import random
import tarfile
from collections.abc import Iterator
from typing import Any

from common import Args, Report, Stopwatch, main
from streams import same
from two_epochs import two_epochs

from loader.data_loader import ShardedDataLoader
from loader.datasets import SampleDataset
from loader.in_flight import AT_ONCE
from loader.remote import PART


def _options(args: Args) -> dict[str, Any]:
    client = {"client": args["client"]} if "client" in args else {}
    return {"key": args["key"], "secret": args["secret"], "endpoint_url": args["url"], **client}


def prepare(args: Args) -> Report:
    """The samples of the tars as shards in the store, with indexes and meta.json."""
    from loader.meta import ShardMeta, write_meta
    from loader.writer import write_shard

    samples, shards = _samples(args["tars"]), {}
    for number in itertools.count():
        some = list(itertools.islice(samples, args["shard"]))
        if not some:
            break
        name = f"{number:05d}.tar"
        info = write_shard(f"{args['ours']}/{name}", some, storage_options=_options(args))
        shards[name] = ShardMeta(info.num_samples, info.size, info.checksum)
    write_meta(args["ours"], shards, _options(args))
    return {"names": list(shards)}


def _samples(tars: list[str]) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    for path in tars:
        with tarfile.open(path, "r:") as tar:
            for key, members in itertools.groupby(tar, lambda info: info.name.partition(".")[0]):
                files = [
                    (info.name[len(key) :], file.read())
                    for info in members
                    if (file := tar.extractfile(info))
                ]
                yield key, files


def cached(args: Args) -> Report:
    """Through the disk cache."""
    return _stream(args, "cache")


def ranged(args: Args) -> Report:
    """By ranges; the indexes alone are kept."""
    return _stream(args, "range")


def _stream(args: Args, backend: str) -> Report:
    import obstore  # noqa: F401 - before the clock starts, as those of the others
    import s3fs  # noqa: F401

    def build(folder: str) -> Any:
        dataset = SampleDataset(
            args["ours"], storage_options=_options(args), backend=backend, cache_dir=folder, decode=False,
            prefetch=args.get("prefetch"),
        )  # fmt: skip
        return ShardedDataLoader(dataset, args["batch"], num_workers=args["workers"], collate_fn=same)

    return two_epochs(args, build)


# -- the bare client


def raw_whole(args: Args) -> Report:
    """All shards, in parts as our downloads have them, as many in flight."""
    return _raw(args, whole=True)


def raw_ranges(args: Args) -> Report:
    """The ranges that our loader asks for, in an order as random as its own, as many in flight."""
    return _raw(args, whole=False)


def _raw(args: Args, whole: bool) -> Report:
    from loader import storage
    from loader.index import load_index
    from loader.range_reader import coalesce

    asked, samples = [], 0
    for name in args["names"]:
        address = f"{args['ours']}/{name}"
        index = load_index(address + ".index", _options(args))
        samples += index.num_samples
        if whole:
            size = storage.stat(address, _options(args)).size
            asked += [(name, start, min(start + PART, size)) for start in range(0, size, PART)]
        else:
            for sample in range(index.num_samples):
                spans = coalesce(map(index.span, index.members(sample)))
                asked += [(name, start, end) for start, end in spans]
    if args["check"]:
        return {
            "check": cached(args)["check"]
        }  # it yields nothing to compare: what it reads are the same shards
    if not whole:
        random.Random(1).shuffle(asked)
    with Stopwatch(workers=True) as watch:
        asyncio.run(_fetch(args, asked))
    return watch.report(first=watch.wall, cold=watch.wall / samples, again=watch.wall / samples)


async def _fetch(args: Args, asked: list[tuple[str, int, int]]) -> None:
    import obstore
    from obstore.store import S3Store

    bucket, _, prefix = args["bucket"].partition("/")
    store = S3Store(
        bucket, prefix=prefix, endpoint=args["url"], access_key_id=args["key"], secret_access_key=args["secret"],
        region="us-east-1", client_options={"allow_http": True},
    )  # fmt: skip
    free = asyncio.Semaphore(AT_ONCE)

    async def one(name: str, start: int, end: int) -> None:
        async with free:
            await obstore.get_range_async(store, name, start=start, end=end)

    await asyncio.gather(*(one(*each) for each in asked))


if __name__ == "__main__":
    main({function.__name__: function for function in (prepare, cached, ranged, raw_whole, raw_ranges)})
