"""Steps with faults, for tests. Worker processes import this module; what has happened is kept in files.

The folder named by ``FAULTS`` holds one file for each time that a fault struck.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from tasks.config import PackConfig
from tasks.slot import SlotReport, pack_slot
from tasks.source import Slot

BAD_SLOT = 2


def _strikes(slot: Slot, times: int) -> bool:
    """Whether the fault strikes: on the bad slot, so many times."""
    folder = Path(os.environ["FAULTS"])
    before = len(list(folder.iterdir()))
    if slot.index != BAD_SLOT or before >= times:
        return False
    (folder / str(before)).touch()
    return True


def reset_once(slot: Slot, config: PackConfig) -> SlotReport:
    """The connection is lost, once."""
    if _strikes(slot, 1):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    return pack_slot(slot, config)


def killed_four_times(slot: Slot, config: PackConfig) -> SlotReport:
    """The worker is killed, as it is when memory runs out: more often than the pool alone puts up with.

    Once it may be at the slot beforehand, in the time of the group before.
    """
    if _strikes(slot, 4):
        os.kill(os.getpid(), signal.SIGKILL)
    return pack_slot(slot, config)


def forbidden(slot: Slot, config: PackConfig) -> SlotReport:
    """Not allowed, now or later."""
    if _strikes(slot, 1000):
        raise PermissionError(errno.EACCES, "Permission denied", "/data/secret-garden.jpg")
    return pack_slot(slot, config)


def always_reset(slot: Slot, config: PackConfig) -> SlotReport:
    """The connection is lost every time."""
    if _strikes(slot, 1000):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    return pack_slot(slot, config)


def program_fault(slot: Slot, config: PackConfig) -> SlotReport:
    """A mistake in the program."""
    if _strikes(slot, 1000):
        raise ZeroDivisionError("division by zero")
    return pack_slot(slot, config)


def tells_secrets(slot: Slot, config: PackConfig) -> SlotReport:
    """An error that repeats what it was told in confidence."""
    if _strikes(slot, 1000):
        raise PermissionError(f"wrong password {(config.storage_options or {})['secret']}")
    return pack_slot(slot, config)
