"""Items that come at their own pace, collected while something else goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class _End:
    """Nothing more comes; or `error` was raised."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def ahead(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """What has come since the last look, as a list; waits where that is nothing. At most so many wait at a time.

    The items are drawn by a thread of their own, which ends with the program if they never do. What they raise is
    raised here, after those before it.
    """
    waiting: queue.Queue[Item | _End] = queue.Queue(most)
    given_up = threading.Event()

    def draw() -> None:
        end = _End()
        try:
            for item in items:
                waiting.put(item)
                if given_up.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again by who takes the items
            end = _End(error)
        waiting.put(end)

    threading.Thread(target=draw, name="source", daemon=True).start()
    try:
        end: _End | None = None
        while end is None:
            found = [waiting.get()]
            while not isinstance(found[-1], _End) and not waiting.empty():
                found.append(waiting.get())
            if isinstance(last := found[-1], _End):
                end = last
            if together := [item for item in found if not isinstance(item, _End)]:
                yield together
        if end.error is not None:
            raise end.error
    finally:
        given_up.set()
        while not waiting.empty():  # so that a thread that waits for room can end
            waiting.get_nowait()
