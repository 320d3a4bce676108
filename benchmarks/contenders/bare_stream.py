"""Streams of a few lines: a random permutation, and one slice of a map a member. The practical limit."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

from bare import members, walk
from common import Args, Report, main
from streams import run, running, same


class Slices:
    """All samples of some tars, their places known as plain integers."""

    def __init__(self, tars: list[str]) -> None:
        self.maps: list[mmap.mmap] = []
        self.samples: list[tuple[int, list[tuple[str, int, int]]]] = []
        for number, path in enumerate(tars):
            samples: dict[str, list[tuple[str, int, int]]] = {}
            for name, offset, size in walk(path):
                key, _, extension = name.partition(".")
                samples.setdefault(key, []).append((extension, offset, offset + size))
            self.samples += [(number, places) for places in samples.values()]
            with open(path, "rb") as file:
                self.maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> dict[str, bytes]:
        number, places = self.samples[i]
        data = self.maps[number]
        return {extension: data[start:end] for extension, start, end in places}


def stream_in_order(args: Args) -> Report:
    """Each tar read into memory as a whole, its samples in the order that they have there; without workers."""

    def loop() -> Iterator[Any]:
        batch: list[dict[str, bytes]] = []
        for path in args["tars"]:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
            samples: dict[str, dict[str, bytes]] = {}
            for name, start, size in members(data):
                key, _, extension = name.partition(".")
                samples.setdefault(key, {})[extension] = data[start : start + size]
            for sample in samples.values():
                batch.append(sample)
                if len(batch) == args["batch"]:
                    yield batch
                    batch = []
        if batch:
            yield batch

    return run({**args, "workers": 0}, loop, running(args["samples"]))


def stream_mmap(args: Args) -> Report:
    """Without workers a plain loop, with workers torch's DataLoader."""
    import torch
    from torch.utils.data import DataLoader

    data = Slices(args["tars"])  # the walk is no part of it: others have an index

    def loop() -> Iterator[Any]:
        order = torch.randperm(len(data)).tolist()
        for start in range(0, len(order), args["batch"]):
            yield [data[i] for i in order[start : start + args["batch"]]]

    def build() -> Any:
        if not args["workers"]:
            return loop()
        return DataLoader(
            data,  # type: ignore[arg-type]  # has what DataLoader asks for
            args["batch"],
            shuffle=True,
            num_workers=args["workers"],
            collate_fn=same,
        )

    return run(args, build, running(args["samples"]))


if __name__ == "__main__":
    main({name: value for name, value in globals().items() if name.startswith("stream_")})
