"""What Dask and Ray have in common: calls are handed out one by one, and outcomes come back as values.

An error that a cluster saw would end up in its logs, together with the arguments of the call, and these may hold
secrets. So it is told of none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from loader.errors import ShardflowError
from loader.workers import Workers, portable

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkersKilled(ShardflowError, RuntimeError):
    """Each worker that got an item died of it: others would, too."""


@dataclass(frozen=True)
class Failed:
    """What a call came to that raised `error`."""

    error: Exception


def attempt(function: Callable[..., Result], item: Any, arguments: tuple[Any, ...]) -> Result | Failed:
    """Runs on the worker."""
    try:
        return function(item, *arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to judge
        return Failed(portable(error))


class Cluster(Workers):
    """Workers whose deaths are somebody else's care: a call is given to another worker then."""

    name: str

    @abstractmethod
    def died(self, failure: BaseException) -> bool:
        """Whether a call failed since each worker that got it died."""

    def run_all(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        *arguments: Any,
        then: Sequence[Item] = (),
    ) -> Iterator[tuple[Item, Result | Exception]]:
        """Outcomes as they come: `Workers.run_all`."""
        try:
            for item, future in self.completed(function, items, arguments, then):
                yield item, self._outcome(future)
        except BaseException:
            self.terminate()
            raise

    def _outcome(self, future: Future[Any]) -> Any:
        if future.cancelled():
            return ConnectionError(f"{self.name} has let go of it: the connection is lost")
        failure = future.exception()
        if failure is None:
            outcome = future.result()
            return outcome.error if isinstance(outcome, Failed) else outcome
        if self.died(failure):
            return WorkersKilled(
                f"the {self.name} workers that worked on it were killed, one after another: out of memory?"
            )
        if not isinstance(failure, Exception):
            raise failure
        return failure
