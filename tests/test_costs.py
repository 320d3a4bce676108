"""What the hot paths cost, in counts that no machine and no load changes: frames and calls of ours, bytes through the kernel.

A bound is what was counted when it was written (in brackets, with Python 3.11) and a little more. Who makes a path dearer
on purpose raises it here, and says why in the commit. Wall time is what `make bench` is for.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from counting import bytes_for_more, cost_of_one, io_is_counted
from pictures import encoded, photo

from loader.data_loader import ShardedDataLoader
from loader.datasets import SampleDataset
from loader.indexed_tar_samples import IndexedTarSamples
from loader.indexing import build, tar_buffer
from loader.meta import ShardMeta, write_meta
from loader.writer import write_shard
from tasks.config import PackConfig
from tasks.pack import pack

FEW, MANY = 128, 640  # whole batches
MORE = MANY - FEW
SMALL, LARGE = 200, 40_000  # bytes of a .txt; shards of the one are mapped, of the other read
needs_io = pytest.mark.skipif(not io_is_counted(), reason="this kernel counts no bytes: no /proc/self/io")


def shard(root: Path, samples: int, size: int) -> str:
    """A dataset of one tar: beside the .txt a .cls of one byte."""
    made = (
        (f"{n:06d}", [(".cls", b"1"), (".txt", n.to_bytes(4, "big") * (size // 4))]) for n in range(samples)
    )
    info = write_shard(f"{root}/0.tar", made)
    write_meta(str(root), {"0.tar": ShardMeta(info.num_samples, info.size, info.checksum, {})})
    return str(root)


class Epochs:
    """Reads all of a dataset of so many samples as raw bytes, in the main process."""

    def __init__(self, root: Path, size: int) -> None:
        self.roots = {n: shard(root / str(n), n, size) for n in (FEW, MANY)}

    def __call__(self, samples: int) -> None:
        dataset = SampleDataset(self.roots[samples], decode=False)
        assert sum(map(len, ShardedDataLoader(dataset, 64, collate_fn=list))) == samples


def test_a_tiny_sample_of_a_stream(tmp_path: Path) -> None:
    cost = cost_of_one(Epochs(tmp_path, SMALL), FEW, MANY)
    assert cost.frames < 10.5, "9.3: the stream's generators, finish, make, the sample; none for a member"
    assert cost.in_c < 6, "5.1: len, isinstance, the open shard's look-up; none for a member"


def test_a_large_sample_of_a_stream(tmp_path: Path) -> None:
    cost = cost_of_one(Epochs(tmp_path, LARGE), FEW, MANY)
    assert cost.calls["pread"] == pytest.approx(2), "one for each member"
    assert cost.frames < 15.5, "14.3: two more than a tiny one for each member, and whether it is one"
    assert cost.in_c < 11, "9.1"


@needs_io
def test_bytes_of_a_stream(tmp_path: Path) -> None:
    read, written = bytes_for_more(Epochs(tmp_path / "large", LARGE), FEW, MANY)
    assert MORE * (LARGE + 1) <= read < 1.001 * MORE * (LARGE + 1), "each byte is read once"
    assert written < 1000
    read, written = bytes_for_more(Epochs(tmp_path / "small", SMALL), FEW, MANY)
    assert read < 10_000 and written < 1000, "what is mapped goes through no system call, nor does its index"


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_one_sample_at_random(tmp_path: Path, size: int) -> None:
    samples = IndexedTarSamples(f"{shard(tmp_path, MANY, size)}/0.tar")
    cost = cost_of_one(lambda n: [samples.raw(i) for i in range(n)], FEW, MANY)
    assert cost.frames < 7, "6"
    assert cost.in_c < 4, "3: len"


def test_the_index_of_a_sample(tmp_path: Path) -> None:
    roots = {n: shard(tmp_path / str(n), n, 8) for n in (FEW, 16 * MANY)}

    def index(samples: int) -> None:
        with tar_buffer(f"{roots[samples]}/0.tar") as buffer:
            build(buffer, "a tar", checksum=False)

    cost = cost_of_one(index, FEW, 16 * MANY)
    assert cost.frames < 8, "7, of two members: their names are grouped one by one, their headers by NumPy"
    assert cost.in_c < 48, "44"


class Packing:
    """Packs so many rows of JSON, each with a JPEG of a few kilobytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.turns = itertools.count()
        picture = encoded(photo(96, 128))
        self.picture_bytes = len(picture)
        for n in range(MANY):
            (root / f"{n}.jpg").write_bytes(picture)
        rows = [json.dumps({"image": f"{n}.jpg", "caption": f"picture {n}"}) + "\n" for n in range(MANY)]
        for n in (FEW, MANY):
            (root / f"{n}.jsonl").write_text("".join(rows[:n]))

    def __call__(self, rows: int) -> None:
        config = PackConfig(
            source=str(self.root / f"{rows}.jsonl"),
            output=str(self.root / f"out-{next(self.turns)}"),
            image_root=str(self.root),
            n_jobs=1,
            on_error="raise",
        )
        assert pack(config).samples == rows


def test_a_packed_row(tmp_path: Path) -> None:
    cost = cost_of_one(Packing(tmp_path), FEW, MANY)
    assert [cost.calls[name] for name in ("open", "read", "close")] == pytest.approx([1, 1, 1], abs=0.05)
    assert cost.calls["writev"] + cost.calls["write"] < 0.1, "written in large pieces"
    assert cost.frames < 77, "69"
    assert cost.in_c < 160, "146"


@needs_io
def test_bytes_of_a_packed_row(tmp_path: Path) -> None:
    packing = Packing(tmp_path)
    read, written = bytes_for_more(packing, FEW, MANY)
    assert read < MORE * (packing.picture_bytes + 300), "each picture and each line is read once"
    assert written < MORE * (packing.picture_bytes + 5 * 512), (
        "and written once: two headers, padding, JSON, the index"
    )
