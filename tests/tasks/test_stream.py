from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tasks.stream import ahead


def test_all_come_once_and_in_order() -> None:
    assert [item for items in ahead(range(1000), 7) for item in items] == list(range(1000))
    assert list(ahead([], 7)) == []


def test_what_is_there_comes_while_the_rest_is_waited_for() -> None:
    more = threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        more.wait()
        yield 2

    batches = ahead(slow(), 7)
    assert next(batches) == [1]
    more.set()
    assert list(batches) == [[2]]


def test_an_error_comes_after_what_was_before_it() -> None:
    def broken() -> Iterator[int]:
        yield from range(5)
        raise LookupError("gone")

    found: list[int] = []
    with pytest.raises(LookupError, match="gone"):
        for items in ahead(broken(), 2):
            found += items
    assert found == list(range(5))


def test_no_more_wait_than_are_allowed_and_a_stop_ends_the_thread() -> None:
    drawn: list[int] = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            drawn.append(number)
            yield number
            number += 1

    batches = ahead(endless(), 3)
    next(batches)
    time.sleep(0.05)
    batches.close()  # type: ignore[attr-defined]
    waited = 0.0
    while any(thread.name == "source" for thread in threading.enumerate()) and waited < 10:
        time.sleep(0.01)
        waited += 0.01
    assert not any(thread.name == "source" for thread in threading.enumerate())
    assert len(drawn) < 20
