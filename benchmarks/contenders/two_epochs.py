"""Two epochs over shards in a store: the first with nothing here, the second with what the first left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from common import Args, Report, Stopwatch
from streams import Found

Build = Callable[[str], Iterable[Any]]


def two_epochs(args: Args, build: Build) -> Report:
    """`build(folder)` gives batches, and may keep copies in `folder`. With ``check``, says what both epochs yielded."""
    folder = tempfile.mkdtemp(dir=os.getcwd(), prefix="remote-")
    try:
        if args["check"]:
            return _checked(build, folder)
        with Stopwatch(workers=True) as cold:
            with Stopwatch(workers=True) as first:
                batches = iter(build(folder))
                count = _size(next(batches))
            count += sum(_size(batch) for batch in batches)
        del batches
        with Stopwatch(workers=True) as again:
            seen = sum(_size(batch) for batch in build(folder))
        if seen != count:
            raise RuntimeError(f"{count} samples in the first epoch, {seen} in the second")
        return cold.report(first=first.wall, cold=cold.wall / count, again=again.wall / count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _size(batch: Any) -> int:
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)


def _checked(build: Build, folder: str) -> Report:
    checks = []
    for _ in range(2):
        found = Found()
        for batch in build(folder):
            found.add(batch)
        checks.append(found.check())
    if checks[0] != checks[1]:
        raise RuntimeError(f"the epochs differ: {checks}")
    return {"check": checks[0]}
