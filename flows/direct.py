"""The work of a step by the workers of its job, without Prefect."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from loader.progress import progress
from tasks.group import Results, Work, run_in_one
from tasks.workforce import Crew

_CHECKED = 1.0  # seconds between two looks at the results so far


class Direct:
    """All items at once, with progress on stderr; see `tasks.group.Run`."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def __call__(
        self, work: Work[Any, Any], n_jobs: int, check: Callable[[list[Any]], None] | None = None
    ) -> Results:
        if not work.items:
            return [], []
        results: list[Any] = []
        checked = time.monotonic()
        with progress(work.kind, len(work.items), work.unit) as shown:

            def on_done(result: Any) -> None:
                nonlocal checked
                if result is None:
                    shown.advance(failed=1)
                    return
                shown.advance(size=0 if work.kept(result) else work.size(result))
                results.append(result)
                if check is not None and time.monotonic() - checked >= _CHECKED:
                    check(results)
                    checked = time.monotonic()

            group = run_in_one(work, self._crew.get(n_jobs, len(work.items)), on_done)
        return group.results, group.failures
