"""A Prefect server as a child of this process: started with a socket of its own, watched, and ended with us.

::

    with ServerProcess(environment, "127.0.0.1", 0) as process:
        process.wait_ready(print)
        ...                        # process.url
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from loader.errors import ShardflowError

Say = Callable[[str], None]

START = 120.0  # seconds; 4 to 13 on an idle machine
_PATIENCE = 15.0  # seconds before it is said again what is waited for
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where a server that listens there is found from here


class ServerUnreachable(ShardflowError, ConnectionError):
    """No Prefect API answers, there or from a server of our own."""


class AddressTaken(ShardflowError, OSError):
    """Nothing can listen at a host and port."""


class ServerProcess:
    """The server's process; leaving the context ends it. `advice` says what else can be done if it doesn't start."""

    def __init__(self, environment: dict[str, str], host: str, port: int, advice: str) -> None:
        self.environment = environment
        self.host = host
        self._advice = advice
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.address = _address(_EVERYWHERE.get(host, host), self.port)
        self.url = f"{self.address}/api"
        self._quiet = threading.Event()
        self._said: list[str] = []

    def __enter__(self) -> ServerProcess:
        with self._socket as listening:
            script = str(Path(__file__).with_name("embedded.py"))
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the child keeps it blocked
            try:
                self._child = subprocess.Popen(
                    [sys.executable, script, str(listening.fileno()), str(os.getpid())],
                    env={**os.environ, **self.environment},
                    pass_fds=[listening.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._reader = threading.Thread(target=self._forward, args=(self._child.stderr,), daemon=True)
        self._reader.start()
        return self

    def _forward(self, stream: IO[str]) -> None:
        """What the server complains of, until it is told to stop: what it says then is of no use to anybody."""
        for line in stream:
            self._said.append(line)
            del self._said[:-20]
            if not self._quiet.is_set():
                sys.stderr.write(f"Prefect server: {line}")

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self._child.poll() is not None

    def wait_ready(self, say: Say) -> None:
        """Return when the API answers; ServerUnreachable if the process ends, or takes too long."""
        began = told = time.monotonic()
        while (now := time.monotonic()) < began + START:
            if now - told > _PATIENCE:
                told = now
                say(f"still starting, after {now - began:.0f} s: a busy machine, or the first start of all")
            if self.ended:
                self._reader.join(1)
                last = self._said[-1].strip() if self._said else "it said nothing"
                raise ServerUnreachable(
                    f"Prefect's server ended as it started, with status {self._child.returncode} ({last}). {self._advice}"
                )
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                    if answer.status == 200:
                        return
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(0.1)
        raise ServerUnreachable(f"Prefect's server did not answer within {START:.0f} seconds. {self._advice}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._quiet.set()
        self._child.terminate()
        in_a_hurry = kind is not None and not issubclass(kind, Exception)
        try:
            self._child.wait(0.5 if in_a_hurry else 10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join(1)
        if self._child.stderr:
            self._child.stderr.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; AddressTaken says why it can't be had."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise AddressTaken(
            f"nothing can listen at {_address(host, port)} ({reason}): choose another address with --host, or port "
            "with --port (0: any that is free)"
        ) from error


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
