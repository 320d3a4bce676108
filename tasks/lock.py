"""One run for each output: a second one is told so at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator

from filelock import FileLock, Timeout

from loader import storage
from loader.errors import ShardflowError
from loader.pool import leave_if_imported


class OutputBusy(ShardflowError, RuntimeError):
    """Another process of this user is writing to the same output."""


@contextlib.contextmanager
def exclusive(output: str) -> Iterator[None]:
    """Hold the output for this process; OutputBusy if another one does.

    The lock is the kernel's and goes with the process, however it ends; its (empty) file stays, in the user's
    cache folder, since a lock file that is removed can be held twice. Other users and other machines don't
    see it.
    """
    leave_if_imported()  # or it would seem to be two runs
    output = storage.normalise(output)
    name = os.path.realpath(output) if storage.is_local(output) else output
    path = os.path.join(_folder(), hashlib.blake2b(name.encode(), digest_size=16).hexdigest() + ".lock")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise OutputBusy(
            f"another run is packing into {output}: wait until it has ended, or choose another output "
            f"(it holds {path})"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _folder() -> str:
    for folder in (
        os.path.expanduser("~/.cache/shardflow/locks"),
        os.path.join(tempfile.gettempdir(), f"shardflow-locks-{os.getuid()}"),
    ):
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    raise OutputBusy("no folder to keep locks in: neither the home folder nor the temporary one is writable")
