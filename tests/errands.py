"""Functions for workers of all kinds, which import this module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def fail(item: int, on: int, options: dict[str, str]) -> int:
    """Fails for one item, with what it was told in confidence."""
    if item == on:
        raise PermissionError(f"wrong password {options.get('secret')}")
    return item


def flag(item: int, folder: str) -> int:
    """Takes a moment."""
    (Path(folder) / f"began-{item}").touch()
    time.sleep(0.1)
    return item


def die(item: int) -> int:
    """Ends its process, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def unlucky(item: int, folder: str) -> int:
    """The first process that gets item 3 is killed."""
    (Path(folder) / f"pid-{os.getpid()}").touch()
    mark = Path(folder) / "struck"
    if item == 3 and not mark.exists():
        mark.touch()
        die(item)
    return item
