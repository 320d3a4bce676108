from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loader.pool import Pool
from loader.workers import Workers


class Threads(Workers):
    """The least that workers are."""

    def __init__(self, n_jobs: int, waiting: int) -> None:
        super().__init__(n_jobs, waiting)
        self.executor = ThreadPoolExecutor(n_jobs)
        self.out = self.most = 0
        self.lock = threading.Lock()

    def submit(self, function: Callable[..., Any], item: Any, arguments: tuple[Any, ...]) -> Future[Any]:
        with self.lock:
            self.out += 1
            self.most = max(self.most, self.out)
        future = self.executor.submit(function, item, *arguments)
        future.add_done_callback(self.back)
        return future

    def back(self, future: Future[Any]) -> None:
        with self.lock:
            self.out -= 1

    def run_all(
        self, function: Callable[..., Any], items: Sequence[Any], *arguments: Any, then: Sequence[Any] = ()
    ) -> Iterator[tuple[Any, Any]]:
        for item, future in self.completed(function, items, arguments, then):
            yield item, future.result()

    def terminate(self) -> None:
        self.executor.shutdown(cancel_futures=True)


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 9), max_size=6),
    jobs=st.integers(1, 4),
    waiting=st.integers(0, 5),
    ahead=st.integers(0, 6),
)
def test_each_item_once_whatever_is_begun_beforehand(
    sizes: list[int], jobs: int, waiting: int, ahead: int
) -> None:
    calls: list[int] = []
    items = [object() for _ in range(sum(sizes))]
    with Threads(jobs, waiting) as workers:
        begin = 0
        for size in sizes:
            end = begin + size
            found = list(
                workers.run_all(
                    lambda item, add: calls.append(id(item)) or id(item) + add,
                    items[begin:end],
                    1,
                    then=items[end : end + ahead],
                )
            )
            assert sorted((id(item), value) for item, value in found) == sorted(
                (id(item), id(item) + 1) for item in items[begin:end]
            )
            begin = end
        assert sorted(calls) == sorted(map(id, items))
        assert workers.most <= jobs + waiting
        assert not workers.forget()


def test_idle_workers_begin_what_comes_next() -> None:
    """While the last item of a call is under way."""
    began = {"next": threading.Event()}

    def work(item: str) -> bool:
        if item == "last":
            return began["next"].wait(30)
        began.setdefault(item, threading.Event()).set()
        return True

    with Threads(2, 0) as workers:
        assert list(workers.run_all(work, ["last"], then=["next", "later"])) == [("last", True)]
        assert len(workers.forget()) == 2, "one of them by the worker that the last one has let go"


def nap(item: int, seconds: float) -> int:
    time.sleep(seconds)
    return item


def test_a_pool_drops_what_it_has_begun_when_it_is_ended() -> None:
    with Pool(2) as pool:
        assert list(pool.run_all(nap, [1], 0.3, then=[2, 3])) == [(1, 1)]
        pool.terminate()
        assert list(pool.run_all(nap, [2], 0.0)) == [(2, 2)]
