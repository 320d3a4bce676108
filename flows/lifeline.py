"""A flow's process that `shardflow up` started goes with it, however that ends. No Prefect in here."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

VARIABLE = "SHARDFLOW_UP"  # in the environment of what it starts: its process id
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def hold() -> None:
    """Die with the `shardflow up` that started this process, if one did; at once, if it is gone already."""
    parent = os.environ.pop(VARIABLE, None)  # not for children of this one
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)
