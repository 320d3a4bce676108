"""Ctrl-C as this process's business alone: its children don't see it, and are told to end in order."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable

from loader.progress import INTERRUPTED


class Interrupts:
    """A context in which a first Ctrl-C calls `action`, and a second one ends this process at once.

    SIGINT is blocked in the main thread and thus in every thread and process that is started inside; one thread
    waits for it. Enter it before any other thread is started. Without an action it is a KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.action: Callable[[], object] = _thread.interrupt_main
        self._over = False

    def __enter__(self) -> Interrupts:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._thread = threading.Thread(target=self._wait, daemon=True, name="interrupts")
        self._thread.start()
        return self

    def _wait(self) -> None:
        signal.sigwait({signal.SIGINT})
        if self._over:
            return
        self.action()
        signal.sigwait({signal.SIGINT})
        if not self._over:
            os._exit(INTERRUPTED)

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self._thread.ident is not None and self._thread.is_alive():
            signal.pthread_kill(self._thread.ident, signal.SIGINT)
            self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
