"""Megatron-Energon, as its documentation recommends: tars prepared by it, crude samples cooked by a task encoder.

It loops over a dataset for ever unless told otherwise, and then an epoch's length holds some samples twice and leaves
others out. Here it is told `repeat=False`: one epoch, each sample once, as the others do it. Its shuffle buffer
is the one that webdataset is given, 1,000 samples.
"""

from __future__ import annotations

import base64
import os
import pickle
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from sys import stderr
from typing import Any

import torch
from common import Args, Report, Stopwatch, digest_members, main
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.edataclass import edataclass
from megatron.energon.flavors import BaseWebdatasetFactory
from streams import half, picture, resume, run, running

DATASET = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"  # dataset.yaml: members as they are
BUFFER = 1000
SEQUENCE = 100  # samples in a row of one tar, as in its quick start


# -- index


def _prepared(tars: list[str], folder: str) -> None:
    """What `energon prepare` does, in this process: links to the tars, indexed and described in `folder`."""
    names = [os.path.basename(tar) for tar in tars]
    for tar, name in zip(tars, names, strict=True):
        os.link(tar, os.path.join(folder, name))
    with redirect_stdout(stderr):
        BaseWebdatasetFactory.prepare_dataset(folder, names, split_parts_ratio=[("train", 1.0)], workers=1)


def index_energon(args: Args) -> Report:
    """One worker, as ours has one; it is a process of its own."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(args["tars"][0])) as folder:
        with Stopwatch(workers=True) as watch:
            _prepared(args["tars"], folder)
        return watch.report(check=digest_members(_members(folder)) if args["check"] else {})


def _members(folder: str) -> Iterator[tuple[str, int, int]]:
    with sqlite3.connect(os.path.join(folder, ".nv-meta", "index.sqlite")) as index:
        yield from index.execute(
            "SELECT sample_key || '.' || part_name, content_byte_offset, content_byte_size FROM sample_parts "
            "JOIN samples USING (tar_file_id, sample_index) ORDER BY tar_file_id, content_byte_offset"
        )


def convert_energon(args: Args) -> Report:
    """For the streams, not timed: the dataset that `energon prepare` makes of the tars."""
    os.makedirs(args["out"])
    _prepared(args["tars"], args["out"])
    with open(os.path.join(args["out"], ".nv-meta", "dataset.yaml"), "w") as file:
        file.write(DATASET)
    return {}


# -- streams


@edataclass
class Members(Sample):  # type: ignore[misc]  # its package brings no types
    """A sample's members as bytes, or its picture."""

    value: Any


@stateless
def _raw(sample: Any) -> Members:
    members = {name: value for name, value in sample.items() if not name.startswith("__")}
    return Members(**basic_sample_keys(sample), value=members)


@stateless
def _picture(sample: Any) -> Members:
    return Members(**basic_sample_keys(sample), value=picture(sample["jpg"]))


class Raw(DefaultTaskEncoder):  # type: ignore[misc]
    """Batches as lists of samples."""

    decoder = None
    cookers = (Cooker(_raw),)

    @stateless
    def batch(self, samples: Any) -> Any:
        return [sample.value for sample in samples]

    def encode_batch(self, batch: Any) -> Any:
        return batch


class Pictures(Raw):
    cookers = (Cooker(_picture),)

    @stateless
    def batch(self, samples: Any) -> Any:
        return torch.stack([torch.from_numpy(sample.value.copy()) for sample in samples])


def _dataset(args: Args) -> Any:
    return get_train_dataset(
        args["energon"],
        batch_size=args["batch"],
        shuffle_buffer_size=BUFFER,
        max_samples_per_sequence=SEQUENCE,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=args["workers"]),
        task_encoder=Pictures() if args["decode"] else Raw(),
        repeat=False,
    )


def stream_energon(args: Args) -> Report:
    return run(args, lambda: get_loader(_dataset(args)), running(args["samples"]))


class Resumable:
    """Its loader, with the two methods by which the others save and load."""

    def __init__(self, args: Args) -> None:
        self.loader = get_savable_loader(_dataset(args))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, str]:
        """Its state is an object, to be pickled: here as text."""
        return {"state": base64.b64encode(pickle.dumps(self.loader.save_state_rank())).decode()}

    def load_state_dict(self, state: dict[str, str]) -> None:
        saved = pickle.loads(base64.b64decode(state["state"]))  # noqa: S301 (our own, of a moment ago)
        self.loader.restore_state_rank(saved)


def resume_energon(args: Args) -> Report:
    return resume(args, lambda: Resumable(args))


def resume_energon_half(args: Args) -> Report:
    return half(args, Resumable(args))


if __name__ == "__main__":
    main(
        {
            name: value
            for name, value in globals().items()
            if name.startswith(("index_", "stream_", "resume_", "convert_"))
        }
    )
