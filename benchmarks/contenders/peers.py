"""The peers, each used in the way that its own documentation recommends. Runs in the peers' environment."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import tarfile
import types
from collections.abc import Iterator
from typing import Any

from common import (
    Args,
    Report,
    Stopwatch,
    digest_members,
    digest_samples,
    main,
    median_of,
    peak_bytes,
    private_bytes,
    random_places,
)

BLOCK = 512


def _part(package: str, module: str) -> Any:
    """A module of an installed package without what the package's top imports."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"{package} is not installed: run benchmarks/setup.sh")
    top = types.ModuleType(package)
    top.__path__ = list(spec.submodule_search_locations)
    sys.modules[package] = top
    return importlib.import_module(f"{package}.{module}")


def mosaic() -> Any:
    """The top of MosaicML Streaming also imports torchvision's datasets."""
    return _part("streaming", "base")


# -- index


def index_wids(args: Args) -> Report:
    from wids.wids_mmtar import MMIndexedTar

    with Stopwatch() as watch:
        tars = [MMIndexedTar(path) for path in args["tars"]]
    if not args["check"]:
        return watch.report()
    return watch.report(
        check=digest_members(
            (name, offset + BLOCK, size) for tar in tars for name, offset, size in tar.by_index
        )
    )


def index_itar(args: Args) -> Report:
    import itar

    with Stopwatch() as watch:
        found = [itar.index.build(path) for path in args["tars"]]
    if not args["check"]:
        return watch.report()
    return watch.report(
        check=digest_members(
            (name, offset, size) for index in found for name, (_, (_, offset, size)) in index.items()
        )
    )


# -- open a saved index


def open_itar(args: Args) -> Report:
    import itar
    import msgpack

    msgpack.packb(0)  # imported before the clock and the memory count start
    if args.get("prepare"):
        itar.index.create(args["itar"], args["tars"][0], progress_bar=False)
        return {}
    before = private_bytes()
    held = itar.open(args["itar"], shards=args["tars"][0])
    memory = private_bytes() - before
    report = median_of(lambda: itar.open(args["itar"], shards=args["tars"][0]), args["times"])
    report["private"] = memory
    if args["check"]:
        report["check"] = digest_members(
            (name, offset, size) for name, (_, (_, offset, size)) in held._index.items()
        )
    return report


# -- random access


def _random(args: Args, read: Any) -> Report:
    """`read(tar, i)` gives a sample as the library does; {extension: bytes} is made of it for the check."""
    places = random_places(args)
    with Stopwatch() as watch:
        for tar, i in places:
            read(tar, i)
    if not args["check"]:
        return watch.report()
    samples = (read(tar, i) for tar, i in places)
    return watch.report(
        check={
            "samples": digest_samples(
                {
                    name: value.getvalue() if hasattr(value, "getvalue") else bytes(value)
                    for name, value in sample.items()
                    if not name.startswith("_")
                }
                for sample in samples
            )
        }
    )


def random_wids(args: Args) -> Report:
    from wids.wids import IndexedTarSamples

    tars = [IndexedTarSamples(path=path) for path in args["tars"]]
    return _random(args, lambda tar, i: tars[tar][i])


def random_itar(args: Args) -> Report:
    """itar knows members, not samples: the names of each sample are given to it."""
    import itar

    archives, tables = [], []
    for path in args["tars"]:
        saved = f"{path}.itar"
        if not os.path.exists(saved):
            itar.index.create(saved, path, progress_bar=False)
        archives.append(itar.open(saved, shards=path))
        samples: dict[str, list[tuple[str, str]]] = {}
        for name in archives[-1]:
            key, _, extension = name.partition(".")
            samples.setdefault(key, []).append((extension, name))
        tables.append(list(samples.values()))
    return _random(
        args,
        lambda tar, i: {extension: archives[tar][name].read() for extension, name in tables[tar][i]},
    )


def random_mosaic(args: Args) -> Report:
    base = mosaic()
    data = base.LocalDataset(args["mosaic"])
    starts = _starts(args)
    return _random(args, lambda tar, i: data[starts[tar] + i])


def random_litdata(args: Args) -> Report:
    import litdata

    data = litdata.StreamingDataset(args["litdata"], shuffle=False)
    starts = _starts(args)
    return _random(args, lambda tar, i: data[starts[tar] + i])


def _starts(args: Args) -> list[int]:
    starts = [0]
    for count in args["samples"]:
        starts.append(starts[-1] + count)
    return starts


# -- converting a tar corpus to the peers' own formats, for random access and streams (not timed)


def convert_mosaic(args: Args) -> Report:
    base = mosaic()
    samples = _tar_samples(args["tars"])
    first = next(samples)
    with base.MDSWriter(out=args["out"], columns=dict.fromkeys(first, "bytes")) as writer:
        writer.write(first)
        for sample in samples:
            writer.write(sample)
    return {}


def convert_litdata(args: Args) -> Report:
    import litdata

    litdata.optimize(
        fn=_tar_samples, inputs=[args["tars"]], output_dir=args["out"], chunk_bytes="64MB", num_workers=1
    )
    return {}


def _tar_samples(tars: list[str]) -> Iterator[dict[str, bytes]]:
    for path in tars:
        key, sample = None, {}
        with tarfile.open(path, "r:") as tar:
            for info in tar:
                stem, _, extension = info.name.partition(".")
                if key is not None and stem != key:
                    yield sample
                    sample = {}
                key = stem
                file = tar.extractfile(info)
                if file is not None:
                    sample[extension] = file.read()
        if sample:
            yield sample


# -- packing: every contender reads the same JSON lines and the loose JPEGs that they name


def _rows(args: Args) -> Iterator[tuple[str, dict[str, Any]]]:
    with open(args["rows"]) as file:
        for line in file:
            row = json.loads(line)
            yield os.path.join(args["loose"], row["image"]), row


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def pack_webdataset(args: Args) -> Report:
    """`ShardWriter` as its documentation shows it: 1,000 samples a shard, like ours."""
    import webdataset

    os.makedirs(args["out"])
    pattern = os.path.join(args["out"], "shard-%06d.tar")
    with Stopwatch() as watch, webdataset.ShardWriter(pattern, maxcount=1000, verbose=0) as writer:
        for i, (path, row) in enumerate(_rows(args)):
            writer.write({"__key__": f"{i:09d}", "jpg": _read(path), "json": {"caption": row["caption"]}})
    return watch.report(peak=peak_bytes(), check=_tar_jpegs(args) if args["check"] else {})


def pack_img2dataset(args: Args) -> Report:
    """Its writer for tars, given the bytes that its downloader would hand to it; beside each tar, a Parquet file."""
    import pyarrow

    writer = _part("img2dataset", "writer")
    schema = pyarrow.schema([("key", pyarrow.string()), ("caption", pyarrow.string())])
    os.makedirs(args["out"])
    with Stopwatch() as watch:
        shard = None
        for i, (path, row) in enumerate(_rows(args)):
            if i % 1000 == 0:
                if shard is not None:
                    shard.close()
                shard = writer.WebDatasetSampleWriter(i // 1000, args["out"], False, 5, schema, "jpg")
            key, caption = f"{i:09d}", row["caption"]
            shard.write(_read(path), key, caption, {"key": key, "caption": caption})
        if shard is not None:
            shard.close()
    return watch.report(peak=peak_bytes(), check=_tar_jpegs(args) if args["check"] else {})


def _tar_jpegs(args: Args) -> Report:
    tars = sorted(
        os.path.join(args["out"], name) for name in os.listdir(args["out"]) if name.endswith(".tar")
    )
    return {"samples": digest_samples({"jpg": sample["jpg"]} for sample in _tar_samples(tars))}


def pack_mosaic(args: Args) -> Report:
    base = mosaic()
    columns = {"jpg": "bytes", "json": "json"}
    with Stopwatch() as watch, base.MDSWriter(out=args["out"], columns=columns) as writer:
        for path, row in _rows(args):
            writer.write({"jpg": _read(path), "json": {"caption": row["caption"]}})
    report = watch.report(peak=peak_bytes())
    if args["check"]:
        data = base.LocalDataset(args["out"])
        report["check"] = {"samples": digest_samples({"jpg": data[i]["jpg"]} for i in range(len(data)))}
    return report


def _litdata_sample(item: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    path, row = item
    return {"jpg": _read(path), "caption": row["caption"]}


def pack_litdata(args: Args) -> Report:
    """One worker: its own process, as LitData does it."""
    import litdata

    # Its progress bars and greetings go to stderr, so that stdout keeps to the report.
    with Stopwatch(workers=True) as watch, contextlib.redirect_stdout(sys.stderr):
        litdata.optimize(
            fn=_litdata_sample,
            inputs=list(_rows(args)),
            output_dir=args["out"],
            chunk_bytes="64MB",
            num_workers=1,
        )
    report = watch.report(peak=max(peak_bytes(), peak_bytes(children=True)))
    if args["check"]:
        data = litdata.StreamingDataset(args["out"], shuffle=False)
        report["check"] = {"samples": digest_samples({"jpg": data[i]["jpg"]} for i in range(len(data)))}
    return report


if __name__ == "__main__":
    main(
        {
            name: value
            for name, value in globals().items()
            if name.startswith(("index_", "open_", "random_", "pack_", "convert_"))
        }
    )
