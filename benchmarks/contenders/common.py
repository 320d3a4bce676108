"""What each contender's process shares: a stopwatch, memory as the kernel counts it, digests, one JSON line out.

Standard library alone, so that it runs in the peers' environment and in ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

Args = Mapping[str, Any]
Report = dict[str, Any]
Contender = Callable[[Args], Report]


class Stopwatch:
    """What a `with` block took, on this machine as if nobody else were on it.

    `wall` are all seconds, `waited` those in which this thread could have run but the kernel had given the core to
    somebody else (its run-queue delay, /proc/self/schedstat), `seconds` the difference: what counts. `cpu` are the
    CPU seconds of this process and its finished children. A contender whose work is done by other processes says
    so with `workers=True`, since their waiting can't be told: its wall seconds count then, on both sides.
    """

    def __init__(self, workers: bool = False) -> None:
        self.workers = workers
        self.wall = 0.0
        self.cpu = 0.0
        self.waited = 0.0

    def __enter__(self) -> Stopwatch:
        have_pages()
        self._waited = queue_seconds()
        self._cpu = _cpu_seconds()
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall = time.perf_counter() - self._start
        self.cpu = _cpu_seconds() - self._cpu
        self.waited += queue_seconds() - self._waited

    def run(self, command: Sequence[str], out: str | None = None) -> None:
        """Run a command inside the block, its waiting counted with ours; its output goes to the file `out`."""
        with contextlib.ExitStack() as stack:
            stdout = stack.enter_context(open(out, "ab")) if out else None
            child = subprocess.Popen(command, stdout=stdout)
        # Waited for but not yet reaped, it can still be asked.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self.waited += queue_seconds(child.pid)
        if child.wait() != 0:
            raise RuntimeError(f"{command[0]}: exit status {child.returncode}")

    def report(self, **more: object) -> Report:
        waited = 0.0 if self.workers else self.waited
        return {
            "seconds": self.wall - waited,
            "wall": self.wall,
            "waited": waited,
            "cpu": self.cpu,
            "workers": self.workers,
            **more,
        }


class _Pages:
    """Bytes that the run will write, until its first stopwatch has seen to it that there is memory for them."""

    wanted = 0


def have_pages() -> None:
    """Write as much as the run will, and remove it.

    On some virtual machines a file of 640 MB takes 2.3 s to write after a pause of ten seconds, 0.8 s after one, and 0.2 s
    at once, all of it in the kernel's copy: their free memory seems to go back to the host meanwhile. Who starts at
    once, as GNU tar, wouldn't pay for that, and who imports libraries first would.
    """
    size, _Pages.wanted = _Pages.wanted, 0
    if size:
        with tempfile.TemporaryFile(dir=os.getcwd()) as file:
            for _ in range(0, size, 1 << 22):
                file.write(bytes(1 << 22))


def queue_seconds(process: int | None = None) -> float:
    """How long a process' main thread, or the one that asks, has waited for a core in all its life."""
    path = "/proc/thread-self/schedstat" if process is None else f"/proc/{process}/schedstat"
    with open(path) as file:
        return int(file.read().split()[1]) / 1e9


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def median_of(action: Callable[[], object], times: int) -> Report:
    """Median wall and CPU seconds of one call, for actions too short to be timed once."""
    walls: list[float] = []
    undisturbed: list[float] = []
    start = _cpu_seconds()
    for _ in range(times):
        waited, before = queue_seconds(), time.perf_counter()
        action()
        wall = time.perf_counter() - before
        walls.append(wall)
        undisturbed.append(max(0.0, wall - (queue_seconds() - waited)))
    wall, seconds = statistics.median(walls), statistics.median(undisturbed)
    cpu = (_cpu_seconds() - start) / times
    return {"seconds": seconds, "wall": wall, "waited": wall - seconds, "cpu": cpu, "workers": False}


def private_bytes() -> int:
    """Memory that only this process holds (private clean and dirty pages), now."""
    total = 0
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1]) * 1024
    return total


def peak_bytes(children: bool = False) -> int:
    """Largest resident set so far of this process, or of the largest of its finished children."""
    who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss * 1024


def digest_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def digest_members(members: Iterable[tuple[str, int, int]]) -> Report:
    """Digests of (name, payload offset, size) in order: of the names alone, and of everything."""
    listed = list(members)
    return {
        "count": len(listed),
        "names": digest_lines(name for name, _, _ in listed),
        "offsets": digest_lines(f"{name}\t{offset}\t{size}" for name, offset, size in listed),
    }


def digest_samples(samples: Iterable[Mapping[str, bytes]]) -> str:
    """Digest of samples given as {extension: bytes}, whatever the order and the dots of the extensions."""
    total = hashlib.sha256()
    for sample in samples:
        for extension in sorted(sample, key=lambda name: name.lstrip(".")):
            total.update(extension.lstrip(".").encode() + b"\0" + hashlib.sha256(sample[extension]).digest())
    return total.hexdigest()[:16]


def random_places(args: Args) -> list[tuple[int, int]]:
    """`draws` places (tar, sample), each once, drawn over all tars alike for every contender."""
    counts: list[int] = args["samples"]
    places = [(tar, i) for tar, count in enumerate(counts) for i in range(count)]
    random.Random(args["seed"]).shuffle(places)
    return places[: args["draws"]]


def main(contenders: Mapping[str, Contender]) -> None:
    """`python FILE NAME '{"arguments": …}'` runs one contender and prints its report as one line of JSON."""
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    _Pages.wanted = 0 if arguments.get("check") else arguments.get("writes", 0)
    report = contenders[name](arguments)
    # What libraries print of their own went to stdout before: the report is the last line.
    sys.stdout.flush()
    os.write(1, b"\n" + json.dumps(report).encode() + b"\n")
