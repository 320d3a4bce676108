"""Our own loader in the streaming questions, through the interfaces that users have."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import torch
from common import Args, Report, Stopwatch, main
from streams import SIZE, half, picture, resume, run, running, same

from loader.data_loader import ShardedDataLoader
from loader.datasets import SampleDataset


def stream_prepare(args: Args) -> Report:
    """meta.json beside the tars, as a dataset has it."""
    from loader.gen_meta import main as command

    if command([os.path.dirname(args["tars"][0]), "--n_jobs", "1"]):
        raise RuntimeError("gen_meta has failed")
    return {}


def _source(args: Args) -> Any:
    """The folder where all its tars are meant, else the tar."""
    return args["tars"][0] if len(args["tars"]) == 1 else os.path.dirname(args["tars"][0])


def _loader(args: Args, dataset: Any, collate: Any) -> Any:
    return ShardedDataLoader(dataset, args["batch"], num_workers=args["workers"], collate_fn=collate)


def stream(args: Args) -> Report:
    """Raw bytes."""
    return _raw(args)


def stream_read(args: Args) -> Report:
    """Raw bytes, read by calls: nothing is mapped."""
    return _raw(args, backend="read")


def stream_views(args: Args) -> Report:
    """Views into the map."""
    return _raw(args, views=True)


def _raw(args: Args, **options: Any) -> Report:
    return run(
        args,
        lambda: _loader(args, SampleDataset(_source(args), decode=False, **options), same),
        running(args["samples"]),
    )


def _jpg(sample: Any) -> Any:
    return sample[".jpg"]


def _jpg_array(sample: Any) -> Any:
    import numpy as np

    return np.asarray(sample[".jpg"])


def decode_pillow(args: Args) -> Report:
    """Pictures by Pillow: the same to the byte as those of the peers' function."""
    if args["check"]:
        _check_equal(args)
    return _decoded(args, "pil", _jpg_array)


def decode_array(args: Args) -> Report:
    """Pictures by simplejpeg and torch: compared with Pillow's by the level, not by the byte."""
    if args["check"]:
        _check_close(args)
    return _decoded(args, "array", _jpg)


def _decoded(args: Args, images: Any, transform: Any) -> Report:
    def build() -> Any:
        dataset = SampleDataset(
            _source(args), images=images, resize=SIZE, extensions=[".jpg"], transform=transform
        )
        return _loader(args, dataset, None)

    return run(args, build)


def _batches(args: Args, **options: Any) -> Any:
    dataset = SampleDataset(_source(args), extensions=[".jpg"], **options)
    return itertools.islice(ShardedDataLoader(dataset, args["batch"]), 4)


def _check_equal(args: Args) -> None:
    raw = _batches(args, decode=False, transform=_picture)
    for ours, theirs in zip(_batches(args, resize=SIZE, transform=_jpg_array), raw, strict=True):
        if not torch.equal(ours, theirs):
            raise RuntimeError("Pillow's pictures differ from those of the peers' function")


def _picture(sample: Any) -> Any:
    return picture(sample[".jpg"])


def _check_close(args: Args) -> None:
    """The same batches, and pictures that differ by less than one level on average."""
    for pillow, array in zip(
        _batches(args, resize=SIZE, transform=_jpg_array),
        _batches(args, resize=SIZE, images="array", transform=_jpg),
        strict=True,
    ):
        difference = float((pillow.int() - array.int()).abs().float().mean())
        if difference >= 1:
            raise RuntimeError(f"pictures differ by {difference:.2f} levels on average")


# -- what our own code takes


def overhead(args: Args) -> Report:
    """Time a sample that our loader takes on top of what reads its bytes, in the same order: a slice a member out of
    the same maps, or a read of the same files, whichever the loader does. The second epoch of one process: pages are mapped in both.
    """
    from loader.indexed_tar_samples import IndexedTarSamples

    files: dict[str, int] = {}

    class Places(SampleDataset):
        """Where each sample lies: in a map, or in an open file."""

        def make(self, shard: IndexedTarSamples, i: int, index: int, epoch: int) -> Any:
            if shard.tar.backend != "read":
                place: Any = shard.tar.buffer
            elif shard.path in files:
                place = files[shard.path]
            else:
                place = files[shard.path] = os.open(shard.path, os.O_RDONLY)
            return place, [shard.index.span(member) for member in shard.index.members(i)]

    loader = _loader(args, SampleDataset(_source(args), decode=False), same)
    for _ in loader:  # maps its pages
        pass
    loader.set_epoch(0)
    with Stopwatch() as whole:
        count = sum(len(batch) for batch in loader)
    places = [sample for batch in _loader(args, Places(_source(args)), same) for sample in batch]

    def bytes_alone() -> Iterator[list[list[bytes]]]:
        """Batches, of which a loop holds one while the next is made, as it holds ours."""
        for start in range(0, count, args["batch"]):
            batch = []
            for place, spans in places[start : start + args["batch"]]:
                if isinstance(place, int):
                    batch.append([os.pread(place, last - first, first) for first, last in spans])
                else:
                    batch.append([place[first:last] for first, last in spans])
            yield batch

    with Stopwatch() as bare:
        count = sum(len(batch) for batch in bytes_alone())
    seconds = {name: (watch.wall - watch.waited) / count for name, watch in (("ours", whole), ("bare", bare))}
    return whole.report(overhead=seconds["ours"] - seconds["bare"], check={"count": count}, **seconds)


# -- 100,000 shards


def scale_prepare(args: Args) -> Report:
    """A made-up meta.json of as many shards; no tars."""
    from loader.meta import ShardMeta, write_meta

    os.makedirs(args["root"], exist_ok=True)
    shards = {
        f"part-{i // 1000:03d}/shard-{i:06d}.tar": ShardMeta(1000, 1 << 30, i, {})
        for i in range(args["shards"])
    }
    write_meta(args["root"], shards)
    return {}


def scale(args: Args) -> Report:
    """From construction to the first index; to that after a restore at the middle; what a spawned worker holds."""
    import multiprocessing

    import torch.multiprocessing  # noqa: F401 - its pickler shares tensors, as it does for DataLoader's workers

    context = multiprocessing.get_context("spawn")
    with Stopwatch() as start:
        dataset = SampleDataset(args["root"], decode=False)
        loader = ShardedDataLoader(dataset, 64)
        first = next(loader.indexed.index_generator())
    state = middle(loader)
    with Stopwatch() as restore:
        dataset = SampleDataset(args["root"], decode=False)
        loader = ShardedDataLoader(dataset, 64)
        loader.load_state_dict(state)
        later = next(loader.indexed.index_generator())
    parent, child = context.Pipe()
    process = context.Process(target=_worker, args=(child,))
    process.start()
    parent.send(dataset)
    before, after = parent.recv()
    process.join()
    return start.report(
        start=start.wall - start.waited,
        restored=(restore.wall - restore.waited) / (start.wall - start.waited),
        private=after - before,
        check={"different": first != later},
    )


def middle(loader: Any) -> dict[str, Any]:
    """The state of a run that is half through its epoch, without having read any sample."""
    from loader.state import RankProgress

    batches = len(loader) // 2
    state: dict[str, Any] = loader.indexed.state_of(RankProgress(0, batches, (batches * 64,), 0)).to_dict()
    return state


def _worker(pipe: Any) -> None:
    """What this process holds for itself before it gets the dataset, and after it has handed out 100,000 indices."""
    from common import private_bytes

    before = private_bytes()
    indices = pipe.recv().index_generator()
    for _ in range(100_000):
        next(indices)
    pipe.send((before, private_bytes()))


def resume_ours(args: Args) -> Report:
    return resume(args, lambda: _loader(args, SampleDataset(_source(args), decode=False), same))


def resume_ours_half(args: Args) -> Report:
    return half(args, _loader(args, SampleDataset(_source(args), decode=False), same))


if __name__ == "__main__":
    main(
        {
            name: value
            for name, value in globals().items()
            if name.startswith(("stream", "decode_", "overhead", "scale", "resume_"))
        }
    )
