"""The peers over a store, each as its documentation reads S3, and with its own cache. Runs in the peers' environment."""

from __future__ import annotations

import os
from typing import Any

from common import Args, Report, main
from peers import mosaic
from streams import columns, same
from two_epochs import two_epochs


def stream_webdataset(args: Args) -> Report:
    """By http and curl, which it uses for all but local files, with its own cache."""
    import webdataset

    def build(folder: str) -> Any:
        urls = [f"{args['url']}/{args['bucket']}/{name}" for name in args["names"]]
        data = webdataset.WebDataset(
            urls, shardshuffle=len(urls), empty_check=False, cache_dir=folder
        ).shuffle(1000)
        batched = data.batched(args["batch"], collation_fn=same)
        return webdataset.WebLoader(batched, batch_size=None, num_workers=args["workers"])

    return two_epochs(args, build)


def _bytes(sample: Any) -> Any:
    return {name: bytes(value) for name, value in sample.items()}


def _allow_http() -> None:
    """LitData has chunks fetched by obstore, and no way to tell it that a server on this machine speaks no TLS."""
    import obstore.store

    made = obstore.store.S3Store

    def make(*arguments: Any, client_options: Any = None, **keywords: Any) -> Any:
        return made(*arguments, client_options={**(client_options or {}), "allow_http": True}, **keywords)

    obstore.store.S3Store = make


def stream_litdata(args: Args) -> Report:
    import litdata

    _allow_http()
    options = {
        "endpoint_url": args["url"],
        "aws_access_key_id": args["key"],
        "aws_secret_access_key": args["secret"],
    }

    def build(folder: str) -> Any:
        data = litdata.StreamingDataset(
            args["litdata"], cache_dir=folder, shuffle=True, transform=_bytes, storage_options=options
        )
        return litdata.StreamingDataLoader(
            data, batch_size=args["batch"], num_workers=args["workers"], collate_fn=same
        )

    return two_epochs(args, build)


def stream_mosaic(args: Args) -> Report:
    os.environ.update(
        S3_ENDPOINT_URL=args["url"], AWS_ACCESS_KEY_ID=args["key"], AWS_SECRET_ACCESS_KEY=args["secret"],
        AWS_DEFAULT_REGION="us-east-1",
    )  # fmt: skip
    base = mosaic()
    from torch.utils.data import DataLoader

    def build(folder: str) -> Any:
        base.util.clean_stale_shared_memory()
        data = base.StreamingDataset(
            remote=args["mosaic"],
            local=folder,
            shuffle=True,
            batch_size=args["batch"],
            shuffle_block_size=50_000,
        )
        return DataLoader(data, args["batch"], num_workers=args["workers"], collate_fn=columns)

    return two_epochs(args, build)


if __name__ == "__main__":
    main({function.__name__: function for function in (stream_webdataset, stream_litdata, stream_mosaic)})
