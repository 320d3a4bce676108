"""Minimal programs of a few lines that do only the one thing: the practical limit, and what the system brings."""

from __future__ import annotations

import mmap
import os
import pickle
import tarfile
import tempfile

from common import (
    Args,
    Report,
    Stopwatch,
    digest_lines,
    digest_members,
    digest_samples,
    main,
    median_of,
    peak_bytes,
    private_bytes,
    random_places,
)

BLOCK = 512


def walk(path: str) -> list[tuple[str, int, int]]:
    """(name, payload offset, size) of a plain ustar file. No checks, no long names: a limit, not a reader."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return members(data)


def members(data: mmap.mmap | bytes) -> list[tuple[str, int, int]]:
    found = []
    at, end = 0, len(data)
    while at < end:
        header = data[at : at + BLOCK]
        name = header[: header.find(b"\0")]
        if not name:
            break
        size = int(header[124:135], 8)
        found.append((name.decode(), at + BLOCK, size))
        at += BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
    return found


def index_bare(args: Args) -> Report:
    with Stopwatch() as watch:
        found = [walk(tar) for tar in args["tars"]]
    return watch.report(check=_check(args, found))


def index_tarfile(args: Args) -> Report:
    with Stopwatch() as watch:
        found = []
        for path in args["tars"]:
            with tarfile.open(path, "r:") as tar:
                found.append(tar.getmembers())
    if not args["check"]:
        return watch.report()
    return watch.report(
        check=digest_members(
            (info.name, info.offset_data, info.size) for members in found for info in members if info.isreg()
        )
    )


def index_read(args: Args) -> Report:
    """Every byte of the tars, from the first to the last: what the disk and the page cache give. The walk isn't timed."""
    buffer = bytearray(1 << 20)
    with Stopwatch() as watch:
        for path in args["tars"]:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    return watch.report(check=_check(args, [walk(path) for path in args["tars"]]))


def _check(args: Args, found: list[list[tuple[str, int, int]]]) -> Report:
    return digest_members(member for members in found for member in members) if args["check"] else {}


def index_gnu_tar(args: Args) -> Report:
    """`tar -tf`: names alone."""
    return _gnu_listing(args, ["tar", "-tf"])


def index_gnu_tar_verbose(args: Args) -> Report:
    """`tar -tvRf`: names, sizes and block numbers, which is what an index needs."""
    return _gnu_listing(args, ["tar", "--quoting-style=literal", "-tvRf"])


def _gnu_listing(args: Args, command: list[str]) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "listing")
        with Stopwatch() as watch:
            for tar in args["tars"]:
                watch.run([*command, tar], out)
        if not args["check"]:
            return watch.report()
        with open(out) as file:
            lines = [line for line in file.read().splitlines() if "** Block" not in line]
    if len(command) == 2:
        return watch.report(check={"count": len(lines), "names": digest_lines(lines)})
    return watch.report(check=digest_members(_listed(line) for line in lines))


def _listed(line: str) -> tuple[str, int, int]:
    """One line of `tar -tvR`: block 12: -rw-r--r-- 0/0  200 2023-11-14 22:13 00000000.txt"""
    block, rest = line.removeprefix("block ").split(": ", 1)
    _, _, size, _, _, name = rest.split(None, 5)
    return name, (int(block) + 1) * BLOCK, int(size)


def open_pickle(args: Args) -> Report:
    """Unpickle (name, offset, size) of every member; or names, with the numbers as NumPy arrays."""
    return _open_pickle(args["pickle"], args)


def open_pickle_arrays(args: Args) -> Report:
    import numpy as np

    np.zeros(1)  # imported before the clock and the memory count start
    return _open_pickle(args["pickle_arrays"], args)


def _open_pickle(path: str, args: Args) -> Report:
    def load() -> object:
        with open(path, "rb") as file:
            return pickle.load(file)  # noqa: S301 (our own file, made a moment ago)

    before = private_bytes()
    held = load()
    memory = private_bytes() - before
    report = median_of(load, args["times"])
    report["private"] = memory
    if args["check"]:
        members = held if isinstance(held, list) else zip(*held.values(), strict=True)  # type: ignore[attr-defined]
        report["check"] = digest_members((name, int(offset), int(size)) for name, offset, size in members)
    return report


def random_bare(args: Args) -> Report:
    """One slice a member out of a map, places known as plain integers."""
    tables = []
    for path in args["tars"]:
        samples: dict[str, list[tuple[str, int, int]]] = {}
        for name, offset, size in walk(path):
            key, _, extension = name.partition(".")
            samples.setdefault(key, []).append((extension, offset, offset + size))
        tables.append(list(samples.values()))
    maps = []
    for path in args["tars"]:
        with open(path, "rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    places = random_places(args)
    with Stopwatch() as watch:
        for tar, i in places:
            data = maps[tar]
            [data[start:end] for _, start, end in tables[tar][i]]
    if not args["check"]:
        return watch.report()
    return watch.report(
        check={
            "samples": digest_samples(
                {extension: maps[tar][start:end] for extension, start, end in tables[tar][i]}
                for tar, i in places
            )
        }
    )


def random_loose(args: Args) -> Report:
    """Open and read one loose file a member."""
    places = random_places(args)

    def read(tar: int, i: int) -> dict[str, bytes]:
        stem = os.path.join(args["loose"], f"{tar:05d}", f"{tar * 1000 + i:08d}")
        sample = {}
        for extension in ("jpg", "json", "txt"):
            with open(f"{stem}.{extension}", "rb", buffering=0) as file:
                sample[extension] = file.read()
        return sample

    with Stopwatch() as watch:
        for tar, i in places:
            read(tar, i)
    if not args["check"]:
        return watch.report()
    return watch.report(check={"samples": digest_samples(read(tar, i) for tar, i in places)})


def random_tarfile(args: Args) -> Report:
    """`tarfile.extractfile`, the members known."""
    tars = [tarfile.open(path, "r:") for path in args["tars"]]  # noqa: SIM115 (the process ends with them)
    tables = []
    for tar in tars:
        samples: dict[str, list[tarfile.TarInfo]] = {}
        for info in tar.getmembers():
            samples.setdefault(info.name.partition(".")[0], []).append(info)
        tables.append(list(samples.values()))
    places = random_places(args)

    def read(tar: int, i: int) -> dict[str, bytes]:
        sample = {}
        for info in tables[tar][i]:
            file = tars[tar].extractfile(info)
            if file is None:
                raise RuntimeError(f"{info.name} is no file")
            sample[info.name.partition(".")[2]] = file.read()
        return sample

    with Stopwatch() as watch:
        for tar, i in places:
            read(tar, i)
    if not args["check"]:
        return watch.report()
    return watch.report(check={"samples": digest_samples(read(tar, i) for tar, i in places)})


def pack_gnu_tar(args: Args) -> Report:
    """The same members as ours, their JSON made beforehand, given to GNU tar in the same order."""
    return _gnu_tar(args, args["members"], flush=False)


def pack_gnu_tar_flushed(args: Args) -> Report:
    """The same, and wait until the disk has it, as ours does before it publishes a shard."""
    return _gnu_tar(args, args["members"], flush=True)


def pack_gnu_tar_jpeg(args: Args) -> Report:
    """The JPEGs alone: one file a sample where the others handle two."""
    return _gnu_tar(args, args["jpegs"], flush=False)


def _gnu_tar(args: Args, names: str, flush: bool) -> Report:
    out = os.path.join(args["out"], "all.tar")
    os.makedirs(args["out"])
    command = ["tar", "--format=ustar", "-cf", out, "-C", args["loose"], "--files-from", names]
    with Stopwatch() as watch:
        watch.run(command)
        if flush:
            with open(out, "rb") as file:
                os.fsync(file.fileno())
    return watch.report(peak=peak_bytes(children=True), check=_jpegs(out) if args["check"] else {})


def _jpegs(path: str) -> Report:
    """The pictures that a tar holds, in order."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {
            "samples": digest_samples(
                {"jpg": data[offset : offset + size]}
                for name, offset, size in walk(path)
                if name.endswith(".jpg")
            )
        }


def pack_cp(args: Args) -> Report:
    """`cp -r` of the folders that hold the files, their .txt included: as many opens, reads and writes, no tar."""
    os.makedirs(args["out"])
    with open(args["jpegs"]) as file:
        folders = sorted({os.path.dirname(name) for name in file.read().split()})
    with Stopwatch() as watch:
        watch.run(["cp", "-r", *(os.path.join(args["loose"], folder) for folder in folders), args["out"]])
    report = watch.report(peak=peak_bytes(children=True))
    if args["check"]:
        with open(args["jpegs"]) as file:
            paths = [os.path.join(args["out"], name) for name in file.read().split()]
        report["check"] = {"samples": digest_samples({"jpg": _bytes(path)} for path in paths)}
    return report


def _bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def pack_read_only(args: Args) -> Report:
    """Read every source file, write nothing: what reading alone costs."""
    with open(args["members"]) as file:
        names = file.read().split()
    with Stopwatch() as watch:
        for name in names:
            with open(os.path.join(args["loose"], name), "rb", buffering=0) as member:
                member.read()
    return watch.report(peak=peak_bytes())


if __name__ == "__main__":
    main(
        {
            name: value
            for name, value in globals().items()
            if name.startswith(("index_", "open_", "random_", "pack_"))
        }
    )
