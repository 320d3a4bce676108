"""How many slots the next group takes: about as many seconds of work as it should. Pure."""

from __future__ import annotations

SECONDS = 20.0  # of a group; an orchestrator's cost for each task run vanishes, and a retry repeats little
_GROWTH = 4  # times the group before it, at most: the first slots may be those that are done already


def next_group(
    left: int, done: int, seconds: float, jobs: int, last: int = 0, target: float = SECONDS
) -> int:
    """Slots for the next group, of `left` ones, after `done` took `seconds` by `jobs` processes.

    The first group is one slot for each process. The later ones are sized by the rate so far, at most four
    times the `last`, in whole rounds of `jobs`; a small rest joins the last group.
    """
    if left < 0 or done < 0 or jobs < 1:
        raise ValueError(f"left={left}, done={done}, jobs={jobs}: counts were expected, and at least one job")
    size = jobs
    if done:
        most = _GROWTH * max(last, jobs)
        size = most if seconds <= 0 else int(min(most, target * done / seconds))
        size = max(1, size // jobs) * jobs
    return left if left <= size * 1.25 else size
