"""Counts that no machine and no load changes: what our code calls, and the bytes that pass through system calls."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
_OURS = (f"{ROOT}/loader/", f"{ROOT}/tasks/")
_IO = Path("/proc/self/io")


@dataclass
class Counts:
    """`frames`: Python functions of ours entered (a generator each time it goes on). `calls`: what they called in C, by name."""

    frames: float = 0
    calls: Counter[Any] = field(default_factory=Counter)

    @property
    def in_c(self) -> float:
        return sum(self.calls.values())


@contextmanager
def counted() -> Iterator[Counts]:
    """Counts what loader/ and tasks/ do, in this thread and in those that start meanwhile. How others wait isn't counted."""
    each: dict[int, Counts] = {}  # one a thread: they don't take turns at adding up
    total = Counts()

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event not in ("call", "c_call") or not frame.f_code.co_filename.startswith(_OURS):
            return
        counts = each.setdefault(threading.get_ident(), Counts())
        if event == "call":
            counts.frames += 1
        else:
            counts.calls[called.__name__] += 1

    gc.collect()
    gc.disable()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield total
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        gc.enable()
        for counts in each.values():
            total.frames += counts.frames
            total.calls += counts.calls


def cost_of_one(work: Callable[[int], object], few: int, many: int) -> Counts:
    """What `work` costs for each more of what it is told to do: what it costs once falls out."""
    work(few)  # what is imported and compiled on the first time
    with counted() as less:
        work(few)
    with counted() as more:
        work(many)
    share = 1 / (many - few)
    names = {*less.calls, *more.calls}
    calls: Counter[Any] = Counter({name: (more.calls[name] - less.calls[name]) * share for name in names})
    return Counts((more.frames - less.frames) * share, calls)


def io_is_counted() -> bool:
    return _IO.exists()


def bytes_for_more(work: Callable[[int], object], few: int, many: int) -> tuple[int, int]:
    """Bytes that this process reads, and writes, by system calls for `many` more than it does for `few`."""
    work(few)
    found = []
    for number in (few, many):
        before = _passed()
        work(number)
        found.append([after - already for after, already in zip(_passed(), before, strict=True)])
    return found[1][0] - found[0][0], found[1][1] - found[0][1]


def _passed() -> tuple[int, int]:
    lines = dict(line.split(": ") for line in _IO.read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])
