"""The folder that Prefect keeps its records in, held by one `shardflow up` at a time. No Prefect in here.

Whoever runs a flow on the same home finds its server by `running`: two servers on one database would be in each
other's way.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from loader.errors import ShardflowError

_LOCK = "shardflow-up.lock"
_NOTE = "shardflow-up.json"


class HomeBusy(ShardflowError, RuntimeError):
    """Another `shardflow up` holds the folder."""


class Home:
    """A folder that is held; `announce` tells others where its API is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def announce(self, url: str) -> None:
        """Say where the API is, to `running`."""
        part = self.folder / f"{_NOTE}.part"
        part.write_text(json.dumps({"url": url, "pid": os.getpid()}))
        part.replace(self.folder / _NOTE)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Home]:
    """Hold the folder; HomeBusy if it is held. The lock is the kernel's, and goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        note = _note(folder)
        there = (
            f" as process {note['pid']}, with its pages at {note['url'].removesuffix('/api')}" if note else ""
        )
        raise HomeBusy(
            f"it runs already on {folder}{there}: stop that one with Ctrl-C, or take another folder with --home "
            "and another port with --port"
        ) from error
    (folder / _NOTE).unlink(missing_ok=True)  # of one that was killed
    try:
        yield Home(folder)
    finally:
        (folder / _NOTE).unlink(missing_ok=True)
        lock.release()


def running(folder: Path) -> str | None:
    """The API of the `shardflow up` that holds the folder."""
    if not (note := _note(folder)):
        return None
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return note["url"]
    except OSError:  # read-only, say: nobody holds it
        return None
    lock.release()
    return None


def _note(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / _NOTE).read_text())
        return {"url": str(found["url"]), "pid": str(found["pid"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
