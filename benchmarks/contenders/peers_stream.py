"""The peers as streams of shuffled batches, each as its documentation recommends. Runs in the peers' environment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from common import Args, Report, main
from peers import mosaic
from streams import columns, half, picture, resume, run, running, same


def _jpg(sample: Any) -> Any:
    return picture(sample["jpg"])


# -- webdataset: shards shuffled, then samples in a buffer of 1,000


def stream_webdataset(args: Args) -> Report:
    import webdataset

    def build() -> Any:
        tars = args["tars"]
        data = webdataset.WebDataset(tars, shardshuffle=len(tars), empty_check=False).shuffle(1000)
        collate: Callable[[Any], Any] | None = same
        if args["decode"]:
            data, collate = data.map(_jpg), _stacked
        # Batches are made in the workers, as it recommends.
        batched = data.batched(args["batch"], collation_fn=collate)
        return webdataset.WebLoader(batched, batch_size=None, num_workers=args["workers"])

    return run(args, build, running(args["samples"]))


def _stacked(pictures: Any) -> Any:
    from torch.utils.data import default_collate

    return default_collate(pictures)


# -- wids: its dataset, its sampler, torch's DataLoader


def _local(url: str) -> str:
    return url


def _wids_jpg(sample: Any) -> Any:
    return picture(sample[".jpg"].getvalue())


def stream_wids(args: Args) -> Report:
    import wids
    from torch.utils.data import DataLoader

    def build() -> Any:
        shards = [
            {"url": tar, "nsamples": count} for tar, count in zip(args["tars"], args["samples"], strict=True)
        ]
        transformations = [_wids_jpg] if args["decode"] else []
        data = wids.ShardListDataset(shards, localname=_local, transformations=transformations, keep=True)
        sampler = wids.DistributedChunkedSampler(data, chunksize=1000, shuffle=True)
        collate = None if args["decode"] else same
        return DataLoader(
            data, args["batch"], sampler=sampler, num_workers=args["workers"], collate_fn=collate
        )

    return run(args, build, running(args["samples"]))


# -- LitData: its dataset and its loader. Its bytes are views into its maps, which no worker can send: bytes are
# made of them, but where it says otherwise.


def _bytes(sample: Any) -> Any:
    return {name: bytes(value) for name, value in sample.items()}


def _litdata(args: Args, views: bool = False) -> Any:
    import litdata

    transform = {} if views else {"transform": _jpg if args["decode"] else _bytes}
    data = litdata.StreamingDataset(args["litdata"], shuffle=True, **transform)
    more = {} if args["decode"] else {"collate_fn": same}
    return litdata.StreamingDataLoader(data, batch_size=args["batch"], num_workers=args["workers"], **more)


def stream_litdata(args: Args) -> Report:
    return _stream_litdata(args, views=False)


def stream_litdata_views(args: Args) -> Report:
    return _stream_litdata(args, views=True)


def _stream_litdata(args: Args, views: bool) -> Report:
    with open(os.path.join(args["litdata"], "index.json")) as file:
        chunks = json.load(file)["chunks"]
    import litdata  # noqa: F401 - before the clock starts

    return run(args, lambda: _litdata(args, views), running(chunk["chunk_size"] for chunk in chunks))


def resume_litdata(args: Args) -> Report:
    import litdata  # noqa: F401

    return resume(args, lambda: _litdata(args))


def resume_litdata_half(args: Args) -> Report:
    return half(args, _litdata(args))


# -- MosaicML Streaming: its dataset, told the batch size, and its loader


def _mosaic(args: Args, base: Any) -> Any:
    class Pictures(base.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> Any:
            return _jpg(super().__getitem__(at))

    kind = Pictures if args["decode"] else base.StreamingDataset
    data = kind(local=args["mosaic"], shuffle=True, batch_size=args["batch"])
    # It counts the samples of a dict's first column: of a list of dicts it would count wrongly.
    more = {} if args["decode"] else {"collate_fn": columns if "state" in args or "batches" in args else same}
    return base.StreamingDataLoader(data, batch_size=args["batch"], num_workers=args["workers"], **more)


def stream_mosaic(args: Args) -> Report:
    with open(os.path.join(args["mosaic"], "index.json")) as file:
        shards = json.load(file)["shards"]
    base = mosaic()
    return run(args, lambda: _mosaic(args, base), running(shard["samples"] for shard in shards))


def resume_mosaic(args: Args) -> Report:
    base = mosaic()
    return resume(args, lambda: _mosaic(args, base))


def resume_mosaic_half(args: Args) -> Report:
    return half(args, _mosaic(args, mosaic()))


if __name__ == "__main__":
    main({name: value for name, value in globals().items() if name.startswith(("stream_", "resume_"))})
