"""How cost grows with size: what a test can say of time that holds on any machine, however busy."""

from __future__ import annotations

import time
from collections.abc import Callable


def cost(work: Callable[[], object], repeats: int = 5) -> float:
    """CPU seconds of this process for `work`, at best: what else the machine does makes it slower, never quicker.

    For ratios of two such numbers; never to be compared with a number of seconds.
    """
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return max(best, 1e-6)


def growth(few: Callable[[], object], many: Callable[[], object]) -> float:
    """How many times what `few` costs `many` costs: of n times the work, about n where cost is linear."""
    return cost(many, 3) / cost(few)
