"""What the contenders of the streaming questions share: how a loader is timed, checked and weighed.

One process does one epoch, from the construction of the dataset on (imports don't count): the time to the first
batch, then the time a sample up to `limit` samples, then, with the workers still at work, the memory of all its
processes. With ``check`` it does the whole epoch instead, and tells what came.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from common import Args, Report, Stopwatch

SIZE = 224  # pixels a side of a decoded picture
Build = Callable[[], Iterable[Any]]


def same(samples: Any) -> Any:
    """Collate nothing: a batch is a list of samples."""
    return samples


def columns(samples: Any) -> dict[str, Any]:
    """A batch as a dict of lists."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def picture(data: bytes) -> Any:
    """A JPEG by Pillow, RGB, scaled to cover 224 × 224, its middle cut out: a uint8 array."""
    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = image.size
    if height < width:
        wide, high = (2 * width * SIZE + height) // (2 * height), SIZE
    else:
        wide, high = SIZE, (2 * height * SIZE + width) // (2 * width)
    image = image.resize((wide, high), Image.Resampling.BICUBIC)
    left, top = (wide - SIZE) // 2, (high - SIZE) // 2
    return np.asarray(image.crop((left, top, left + SIZE, top + SIZE)))


def run(args: Args, build: Build, starts: list[int] | None = None) -> Report:
    """Time an epoch of `build()`; or, with ``check``, say what it yields.

    `starts`: the number of the first sample of each of the contender's shards, and the end, in the order of the tars.
    """
    if args["check"]:
        return _checked(args, build(), starts)
    gc.collect()
    workers = args["workers"] > 0
    # Threads that a contender starts in its own process are taken for workers neither here nor there.
    with Stopwatch(workers) as first:
        loader = build()
        batches = iter(loader)
        size = len(next(batches))
    count = 0
    with Stopwatch(workers) as rest:
        for batch in batches:
            count += len(batch)
            if count >= args["limit"]:
                break
    memory = tree_pss()
    begin, then = _seconds(first), _seconds(rest)
    report = rest.report(first=begin, sample=then / count, epoch=(begin + then) / (count + size), pss=memory)
    report["cpu"] += first.cpu
    return report


def _seconds(watch: Stopwatch) -> float:
    return watch.wall if watch.workers else watch.wall - watch.waited


_ENDED = (FileNotFoundError, ProcessLookupError)  # a worker may, while it is looked at


def tree_pss() -> int:
    """Bytes that this process and all below it hold, pages that n processes share counted as 1/n each."""
    return sum(_pss(process) for process in _tree(os.getpid()))


def _tree(process: int) -> Iterator[int]:
    yield process
    with contextlib.suppress(*_ENDED):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                children = file.read().split()
            for child in children:
                yield from _tree(int(child))


def _pss(process: int) -> int:
    with contextlib.suppress(*_ENDED), open(f"/proc/{process}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    return 0


# -- checks


def _checked(args: Args, batches: Iterable[Any], starts: list[int] | None) -> Report:
    if args["decode"]:  # the bytes were compared as raw bytes
        some = [batch for batch, _ in zip(batches, range(4), strict=False)]
        return {"check": {"shapes": [list(batch.shape) for batch in some], "type": str(some[0].dtype)}}
    found = Found()
    for batch in batches:
        found.add(batch)
    report: Report = {"check": found.check()}
    if starts is not None and len(args["tars"]) > 1:
        report["shards"] = found.shards_a_batch(numbers_of(args), starts)
    return report


class Found:
    """What batches held, each sample as a digest."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def add(self, batch: Any) -> None:
        if isinstance(batch, Mapping):
            batch = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
        self.batches.append([digest_sample(sample) for sample in batch])

    def check(self) -> Report:
        samples = sorted(sample for batch in self.batches for sample in batch)
        whole = hashlib.sha256("\n".join(samples).encode()).hexdigest()[:16]
        return {"count": len(samples), "samples": whole}

    def shards_a_batch(self, numbers: Mapping[str, int], starts: list[int]) -> float:
        """The mean over all full batches."""
        size = max(map(len, self.batches))
        full = [batch for batch in self.batches if len(batch) == size]
        touched = [len({bisect.bisect_right(starts, numbers[each]) for each in batch}) for batch in full]
        return sum(touched) / len(touched)


def digest_sample(sample: Mapping[str, Any]) -> str:
    """Of a sample's members, whatever the library makes of raw bytes, however it spells extensions."""
    total = hashlib.sha256()
    members = {name.lstrip("."): value for name, value in sample.items() if not name.startswith("_")}
    for extension in sorted(members):
        value = members[extension]
        data = value.getvalue() if isinstance(value, io.BytesIO) else bytes(value)
        total.update(extension.encode() + b"\0" + hashlib.sha256(data).digest())
    return total.hexdigest()


def numbers_of(args: Args) -> dict[str, int]:
    """The digest of each sample in the tars → its number."""
    from bare import walk

    numbers: dict[str, int] = {}
    for path in args["tars"]:
        samples: dict[str, dict[str, bytes]] = {}
        with open(path, "rb") as file:
            for name, offset, size in walk(path):
                key, _, extension = name.partition(".")
                file.seek(offset)
                samples.setdefault(key, {})[extension] = file.read(size)
        for sample in samples.values():
            numbers[digest_sample(sample)] = len(numbers)
    return numbers


def running(counts: Iterable[int]) -> list[int]:
    """Where each begins, one behind the other, and the end."""
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts


# -- resume


def half(args: Args, loader: Any) -> Report:
    """Half an epoch: the state, and what it held, go to files."""
    found = Found()
    for number, batch in enumerate(loader):
        if args["check"]:
            found.add(batch)
        if number + 1 == args["batches"]:
            break
    state = loader.state_dict()
    with open(args["state"], "w") as file:
        json.dump({"state": state, "found": found.batches}, file)
    return {}


def resume(args: Args, build: Callable[[], Any]) -> Report:
    """Another process has done half an epoch. From construction to the first batch after it; `size`: of the state."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.json")
        _half_elsewhere({**args, "state": path})
        with open(path) as file:
            saved = json.load(file)
    state = saved["state"]
    with Stopwatch(args["workers"] > 0) as watch:
        loader = build()
        loader.load_state_dict(state)
        batches = iter(loader)
        first = next(batches)
    report = watch.report(first=_seconds(watch), size=len(json.dumps(state)))
    if args["check"]:
        found = Found()
        found.batches = saved["found"]
        found.add(first)
        for batch in batches:
            found.add(batch)
        report["check"] = found.check()
        held = Counter(sample for batch in found.batches for sample in batch)
        report["twice"] = sum(count - 1 for count in held.values())
    return report


def _half_elsewhere(args: Args) -> None:
    script = os.path.abspath(sys.argv[0])
    command = [sys.executable, script, f"{sys.argv[1]}_half", json.dumps(dict(args))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
