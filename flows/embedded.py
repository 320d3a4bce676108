"""The process of Prefect's embedded server: run as a script by `flows.server`, which hands it a listening socket.

Prefect would start such a server by itself, but that one dies of the Ctrl-C that its flow should still report
to it, and lives on when its flow is killed. This one starts with Ctrl-C blocked and dies with its parent. It
imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(descriptor: int, parent: int) -> None:
    """Serve on the socket until SIGTERM, or until the process `parent` is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        return
    # A script's own folder comes first: our modules, and their names, are not for Prefect to find.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]

    import uvicorn

    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
