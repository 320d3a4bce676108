"""Ctrl-C as this process's business alone: its children don't see it, and are told to end in order."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from loader.progress import INTERRUPTED


class Interrupts:
    """A context in which a first Ctrl-C calls `action`, and a second one ends this process at once.

    SIGINT is blocked in the main thread and thus in every process that it starts; one thread waits for it. Without
    an action it is a KeyboardInterrupt. `action` is called in any thread.
    """

    def __init__(self) -> None:
        self.action: Callable[[], object] | None = None
        self._count = 0
        self._over = False

    def __enter__(self) -> Interrupts:
        # Threads that libraries have started before don't block it: what they catch ends up in a handler.
        self._handler = signal.signal(signal.SIGINT, self._handle)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._thread = threading.Thread(target=self._wait, daemon=True, name="interrupts")
        self._thread.start()
        return self

    def _wait(self) -> None:
        while True:
            signal.sigwait({signal.SIGINT})
            if self._over:
                return
            if self.action is None:
                _thread.interrupt_main()  # calls `_handle` there
            else:
                self._interrupted()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._interrupted()

    def _interrupted(self) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(INTERRUPTED)
        if self.action is None:
            raise KeyboardInterrupt
        self.action()

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self._thread.ident is not None:
            signal.pthread_kill(self._thread.ident, signal.SIGINT)
        self._thread.join()
        signal.signal(signal.SIGINT, self._handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
