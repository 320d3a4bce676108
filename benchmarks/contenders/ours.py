"""Our own side of each question, through the interfaces that users have."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import random
import signal
import zlib
from collections.abc import Iterator

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

from loader.index import Index, index_path
from loader.indexing import build, check_fresh, ensure_index, find_fresh, tar_buffer
from loader.tar import Walk

# -- index


def walk(path: str) -> list[tuple[list[str], list[int], list[int]]]:
    """Names, payload offsets and sizes of a tar's members, a batch at a time."""
    with tar_buffer(path) as buffer:
        return [
            ([name.decode() for name in batch.names], batch.offsets.tolist(), batch.sizes.tolist())
            for batch in Walk(buffer, path)
        ]


def index_walk(args: Args) -> Report:
    """The header walk alone, names as text, numbers as int: what tarfile's list of members holds."""
    with Stopwatch() as watch:
        found = [walk(path) for path in args["tars"]]
    if not args["check"]:
        return watch.report()
    return watch.report(
        check=digest_members(
            member for batches in found for batch in batches for member in zip(*batch, strict=True)
        )
    )


def index_whole(args: Args) -> Report:
    """The whole index file's bytes: walk, samples, names by hash. No checksums, as no peer makes them."""
    return _index(args, checksum=False)


def index_checked(args: Args) -> Report:
    """The whole index file's bytes, checksums included: every byte of the tar is read."""
    return _index(args, checksum=True)


def _index(args: Args, checksum: bool) -> Report:
    with Stopwatch() as watch:
        found = []
        for path in args["tars"]:
            with tar_buffer(path) as buffer:
                found.append(build(buffer, path, checksum=checksum))
    if not args["check"]:
        return watch.report()
    indexes = [Index(data, "the index just made") for data in found]
    return watch.report(check=digest_members(member for index in indexes for member in _members(index)))


def _members(index: Index) -> list[tuple[str, int, int]]:
    return [(index.member_name(i), index.offset[i], index.size[i]) for i in range(index.num_members)]


# -- open a saved index


def open_prepare(args: Args) -> Report:
    """Our index beside the tar, and the same data pickled: as tuples, and as names with NumPy arrays."""
    import numpy as np

    index, _ = ensure_index(args["tars"][0], checksum=False)
    members = _members(index)
    with open(args["pickle"], "wb") as file:
        pickle.dump(members, file, protocol=pickle.HIGHEST_PROTOCOL)
    names, offsets, sizes = zip(*members, strict=True)
    arrays = {"names": list(names), "offsets": np.array(offsets), "sizes": np.array(sizes)}
    with open(args["pickle_arrays"], "wb") as file:
        pickle.dump(arrays, file, protocol=pickle.HIGHEST_PROTOCOL)
    return {}


@contextlib.contextmanager
def another_reader(path: str) -> Iterator[None]:
    """A second process that holds the same file mapped, as other workers do.

    Without one the kernel counts the page cache's pages as private to the only process that maps them.
    """
    with open(path, "rb") as file:
        other = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        zlib.crc32(other)  # touches every page
        os.write(write_end, b"x")
        signal.pause()
    os.read(read_end, 1)
    other.close()
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def open_index(args: Args) -> Report:
    """Open, see that it is fresh, and look up one member in the middle. Memory: every sample looked up."""
    path = args["tars"][0]

    def opened() -> Index:
        index, reason = find_fresh(path)
        if index is None:
            raise RuntimeError(f"{index_path(path)}: {reason}")
        middle = index.num_members // 2
        index.span(middle)
        index.member_name(middle)
        return index

    opened()  # what is imported and compiled on the first call is no part of an open index
    with another_reader(index_path(path)):
        before = private_bytes()
        held = opened()
        for sample in range(held.num_samples):
            held.members(sample)
        private = private_bytes() - before
    report = median_of(opened, args["times"])
    report["private"] = private
    if args["check"]:
        check_fresh(held, path)
        report["check"] = digest_members(_members(held))
    return report


# -- random access


def random_samples(args: Args) -> Report:
    from loader.indexed_tar_samples import IndexedTarSamples

    tars = [IndexedTarSamples(path) for path in args["tars"]]
    places = random_places(args)
    with Stopwatch() as watch:
        for tar, i in places:
            tars[tar].raw(i)
    if not args["check"]:
        return watch.report()
    samples = (tars[tar].raw(i) for tar, i in places)
    return watch.report(
        check={
            "samples": digest_samples(
                {name: value for name, value in sample.items() if name != "__key__"} for sample in samples
            )
        }
    )


def random_members(args: Args) -> Report:
    """One member of each sample by its number, from `IndexedTar`."""
    from loader.indexed_tar import IndexedTar

    tars = [IndexedTar(path) for path in args["tars"]]
    places = [(tar, random.Random(tar).randrange(len(tars[tar]))) for tar, _ in random_places(args)]
    with Stopwatch() as watch:
        for tar, i in places:
            tars[tar].by_index(i)
    return watch.report()


# -- packing


def pack_shardflow(args: Args) -> Report:
    """The whole step in this one process: plan, pack with indexes and checksums, meta.json."""
    from tasks.config import PackConfig
    from tasks.pack import pack

    config = PackConfig(
        source=args["rows"],
        output=args["out"],
        image_root=args["loose"],
        max_samples=1000,
        on_error="raise",
        n_jobs=1,
    )
    with Stopwatch() as watch:
        summary = pack(config)
    report = watch.report(peak=peak_bytes())
    if args["check"]:
        from loader.indexed_tar_samples import IndexedTarSamples

        tars = sorted(name for name in os.listdir(args["out"]) if name.endswith(".tar"))
        samples = [
            sample
            for tar in tars
            for sample in IndexedTarSamples(os.path.join(args["out"], tar), extensions=[".jpg"], decode=False)
        ]
        if len(samples) != summary.samples:
            raise RuntimeError(f"{len(samples)} samples in the shards, {summary.samples} in the summary")
        report["check"] = {"samples": digest_samples({"jpg": sample[".jpg"]} for sample in samples)}
    return report


if __name__ == "__main__":
    main(
        {
            name: value
            for name, value in globals().items()
            if name.startswith(("index_", "open_", "random_", "pack_")) and name != "index_path"
        }
    )
