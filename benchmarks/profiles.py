"""Where the processor time goes: `python benchmarks/profiles.py [PATH …] [--lines 15] [--save]`.

Of each hot path: whose code it is (ours, Pillow's, torch's, NumPy's, Python's own, the kernel's), and the lines that cost most.
Measured by a timer that counts this process' processor time alone, so that a busy machine hardly matters: at each tick, what
has been used since the last one is put down to the line that runs. Nothing is slowed down for it, as a tracing
profiler would, which makes many small calls look dear. What a line calls in C is put down to that line, but
for the decoder and the checksums; time in the kernel to the kernel. What another thread uses, the one that writes when packing, is put
down to where the main thread waits for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import linecache
import os
import resource
import signal
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import corpora
import report
from harness import HERE, WORK

ROOT = os.path.dirname(HERE)
sys.path.insert(0, ROOT)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch: what two threads do has no one line
TICK = 0.002  # seconds of processor time; the kernel may make it longer
FILE = os.path.join(report.RESULTS, "profiles.json")
OWNERS = ("ours", "checksums", "Pillow", "simplejpeg", "torch", "NumPy", "Python", "others", "kernel")
_PACKAGES = {"PIL": "Pillow", "torch": "torch", "numpy": "NumPy"}
# Lines of ours that hand all of their work to C: there is no frame that would say so.
_CALLS = {"decode_jpeg(": "simplejpeg", "crc32(": "checksums", "adler32(": "checksums"}


class Sampler:
    """Processor seconds by owner and by line, while in a ``with`` block."""

    def __init__(self) -> None:
        self.owners: Counter[str] = Counter()
        self.lines: Counter[tuple[str, int, str]] = Counter()

    def __enter__(self) -> Sampler:
        self._last = _used()
        self._before = signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _tick(self, _: int, frame: FrameType | None) -> None:
        user, system = _used()
        in_python, in_kernel = user - self._last[0], system - self._last[1]
        self._last = user, system
        if frame is None:
            return
        number = frame.f_lineno or 0  # None where what runs belongs to no line
        self.owners["kernel"] += in_kernel
        self.owners[_owner(frame.f_code.co_filename, number)] += in_python
        place = (
            frame.f_code.co_filename,
            frame.f_lineno,
            getattr(frame.f_code, "co_qualname", frame.f_code.co_name),
        )
        self.lines[place] += in_python + in_kernel

    def shares(self) -> dict[str, float]:
        total = sum(self.owners.values()) or 1.0
        return {owner: self.owners[owner] / total for owner in OWNERS}

    def text(self, lines: int) -> str:
        total = sum(self.lines.values()) or 1.0
        parts = [
            "  ".join(f"{owner} {share:.0%}" for owner, share in self.shares().items() if share >= 0.005)
        ]
        for (file, number, function), seconds in self.lines.most_common(lines):
            short = os.path.relpath(file, ROOT) if file.startswith(ROOT + os.sep) else file
            short = short.rpartition("site-packages/")[2]
            parts.append(f"  {seconds / total:5.1%}  {short}:{number} {function}")
            parts.append(f"          {linecache.getline(file, number).strip()[:100]}")
        return "\n".join(parts)


def _used() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _owner(file: str, number: int) -> str:
    if file.startswith((os.path.join(ROOT, "loader"), os.path.join(ROOT, "tasks"))):
        line = linecache.getline(file, number)
        return next((owner for call, owner in _CALLS.items() if call in line), "ours")
    package = file.rpartition("site-packages/")[2].partition("/")[0] if "site-packages/" in file else ""
    if package:
        return _PACKAGES.get(package, "others")
    return "Python" if file.startswith((sysconfig.get_path("stdlib"), "<frozen")) else "others"


# -- the paths


def _photographs() -> corpora.Photographs:
    made = corpora.photographs(10_000)
    corpora.warm(*made.tars)
    return made


def index() -> Iterator[Callable[[], object]]:
    """A tar of tiny samples: walk, group, sort, no checksums."""
    from loader.indexing import build, tar_buffer

    path = corpora.tiny(50_000).tar

    def work() -> None:
        for _ in range(10):
            with tar_buffer(path) as buffer:
                build(buffer, path, checksum=False)

    yield work


def pack() -> Iterator[Callable[[], object]]:
    """Loose JPEGs, bytes kept, in one process."""
    from tasks import pack as step
    from tasks.config import PackConfig

    photographs = _photographs()
    corpora.warm(photographs.loose)
    with tempfile.TemporaryDirectory(dir=WORK) as out:
        config = PackConfig(
            source=photographs.rows,
            output=out,
            image_root=photographs.loose,
            max_samples=1000,
            on_error="raise",
            n_jobs=1,
        )
        yield lambda: step.pack(config)


@contextlib.contextmanager
def _dataset(tars: list[str]) -> Iterator[str]:
    """A folder with these tars, indexes and meta.json."""
    from loader.gen_meta import gen_meta

    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        for tar in tars:
            os.link(tar, os.path.join(folder, os.path.basename(tar)))
        gen_meta(folder, n_jobs=1)
        yield folder


def _stream(
    tars: list[str], epochs: int, num_workers: int = 0, **options: Any
) -> Iterator[Callable[[], object]]:
    from loader.data_loader import ShardedDataLoader
    from loader.datasets import SampleDataset

    with _dataset(tars) as folder:
        collate = None if "resize" in options else list
        dataset = SampleDataset(folder, **options)
        loader = ShardedDataLoader(dataset, 64, num_workers=num_workers, collate_fn=collate)

        def work() -> None:
            for _ in range(epochs):
                for _ in loader:
                    pass

        yield work


def stream_photographs() -> Iterator[Callable[[], object]]:
    """Raw bytes of corpus A, no workers, five epochs."""
    return _stream(_photographs().tars, 5, decode=False)


def stream_read() -> Iterator[Callable[[], object]]:
    """The same by calls: nothing is mapped."""
    return _stream(_photographs().tars, 3, decode=False, backend="read")


def stream_tiny() -> Iterator[Callable[[], object]]:
    """Raw bytes of corpus B, no workers, five epochs."""
    return _stream([corpora.tiny(50_000).tar], 5, decode=False)


def stream_workers() -> Iterator[Callable[[], object]]:
    """Raw bytes of corpus A by 2 workers: what the main process does."""
    return _stream(_photographs().tars, 2, decode=False, num_workers=2)


def _jpg(sample: Any) -> Any:
    return sample[".jpg"]


def _jpg_array(sample: Any) -> Any:
    import numpy as np

    return np.asarray(sample[".jpg"])


def decode_pillow() -> Iterator[Callable[[], object]]:
    """1,000 photographs of corpus A by Pillow, to 224 pixels."""
    return _stream(_photographs().tars[:1], 2, resize=224, extensions=[".jpg"], transform=_jpg_array)


def decode_array() -> Iterator[Callable[[], object]]:
    """The same by simplejpeg and torch."""
    return _stream(
        _photographs().tars[:1], 4, resize=224, extensions=[".jpg"], images="array", transform=_jpg
    )


def first_batch() -> Iterator[Callable[[], object]]:
    """Construction to the first batch of corpus A with 2 workers, twenty times: what the main process does."""
    from loader.data_loader import ShardedDataLoader
    from loader.datasets import SampleDataset

    with _dataset(_photographs().tars) as folder:

        def work() -> None:
            for _ in range(20):
                dataset = SampleDataset(folder, decode=False)
                loader = ShardedDataLoader(dataset, 64, num_workers=2, collate_fn=list)
                next(iter(loader))

        yield work


def saved() -> dict[str, Any]:
    """What --save has left: name of a path → what it is, and the shares."""
    if not os.path.exists(FILE):
        return {}
    with open(FILE) as file:
        paths: dict[str, Any] = json.load(file)["paths"]
    return paths


PATHS: dict[str, Callable[[], Iterator[Callable[[], object]]]] = {
    "index": index,
    "pack": pack,
    "stream A": stream_photographs,
    "stream A, read": stream_read,
    "stream A, 2 workers": stream_workers,
    "stream B": stream_tiny,
    "decode, Pillow": decode_pillow,
    "decode, array": decode_array,
    "first batch, 2 workers": first_batch,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"of: {'; '.join(PATHS)} (default: all)")
    parser.add_argument("--lines", type=int, default=12, help="how many lines to show (default 12)")
    parser.add_argument(
        "--save", action="store_true", help=f"write the shares to {os.path.relpath(FILE, ROOT)}"
    )
    args = parser.parse_args()
    if unknown := set(args.paths) - set(PATHS):
        parser.error(f"no path is called {', '.join(unknown)}; there are {', '.join(PATHS)}")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("signals go to the main thread")
    found = {}
    for name in args.paths or PATHS:
        with contextlib.contextmanager(PATHS[name])() as work, Sampler() as sampler:
            work()
        print(f"{name}: {PATHS[name].__doc__}\n{sampler.text(args.lines)}\n", flush=True)
        found[name] = {"what": PATHS[name].__doc__, "shares": sampler.shares()}
    if args.save:
        with open(FILE, "w") as file:
            json.dump({"where": report.surroundings(), "paths": found}, file, indent=1, ensure_ascii=False)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
