"""How far a step is, as an artifact of the flow run that is brought up to date every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from loader.progress import Tally
from tasks.group import Work

EVERY = 10.0  # seconds: each costs the server a request


class ProgressArtifact:
    """A context; tell it of each result (`on_done`). Called in a flow, it belongs to the flow's run.

    Enter it again after `expect`, for more work of the kind. An artifact that can't be stored stops no work: it is
    left as it is then.
    """

    def __init__(
        self, work: Work[Any, Any], every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work, self._every, self._clock = work, every, clock
        self._tally = Tally(0, work.unit, clock)
        self._artifact: UUID | None = None
        self._said: float | None = None

    def expect(self, items: int) -> ProgressArtifact:
        """So many items more."""
        self._tally.total += items
        return self

    def __enter__(self) -> ProgressArtifact:
        if self._said is not None:
            return self
        self._said = self._clock()
        key = f"{self._work.kind}-progress".replace("_", "-")
        self._stored(
            lambda: create_progress_artifact(
                0.0, key=key, description=f"{self._work.kind}: {self._tally.status()}"
            )
        )
        return self

    def on_done(self, result: Any) -> None:
        """One more item is done; None, for one that failed, is counted at the end of its group."""
        if result is None:
            return
        kept = self._work.kept(result)
        self._tally.advance(size=0 if kept else self._work.size(result))
        if self._clock() - (self._said or 0.0) >= self._every:
            self._update()

    def failed(self, items: int) -> None:
        """So many have failed for good."""
        self._tally.advance(items, failed=items)

    def _update(self) -> None:
        self._said = self._clock()
        artifact = self._artifact
        if artifact is not None:
            share = 100.0 * self._tally.done / self._tally.total
            text = f"{self._work.kind}: {self._tally.status()}"
            self._stored(lambda: update_progress_artifact(artifact, share, description=text))

    def _stored(self, store: Callable[[], Any]) -> None:
        self._artifact = None
        try:
            self._artifact = store()
        except Exception as error:  # noqa: BLE001 - of many libraries; the work goes on
            get_run_logger().warning("progress can't be shown any more: %s", error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):  # who is being ended has no time for this
            self._update()
