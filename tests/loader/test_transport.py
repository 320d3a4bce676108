"""Batches through shared slots: the same as through a pipe, whatever they hold, and never overwritten too early."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.transport import SMALLEST, Whole, make_slots


class Pair(NamedTuple):
    left: Any
    right: Any


leaves = (
    st.binary(max_size=50)
    | st.integers(SMALLEST - 2, SMALLEST + 200).map(
        lambda n: bytes(range(256)) * (n // 256) + b"x" * (n % 256)
    )
    | st.text(max_size=5)
    | st.none()
    | st.builds(
        lambda dtype, rows: np.arange(rows * 1500).reshape(rows, 1500).T.astype(dtype),  # no C order
        st.sampled_from(["u1", "<f4", "?", "<U3", "O", ">i8"]),
        st.integers(1, 4),
    )
)
batches = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool(np.all(one == other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@settings(deadline=None, max_examples=150)
@given(st.lists(batches, max_size=5))
def test_what_is_taken_is_what_was_put(sent: list[Any]) -> None:
    (slots,) = make_slots(1, 2)
    for batch in sent:
        through_pipe = pickle.loads(pickle.dumps(slots.put(batch, "iteration")))
        assert same(slots.take(through_pipe), batch)


def test_large_parts_do_not_go_through_the_pipe() -> None:
    (slots,) = make_slots(1, 2)
    batch = [{".jpg": bytes(1 << 20), ".npy": np.zeros((512, 512))}]
    assert len(pickle.dumps(slots.put(batch, 1))) < 500


def test_a_slot_is_free_only_after_its_batch_was_taken() -> None:
    (slots,) = make_slots(1, 1)  # two slots
    values = [bytes([n]) * SMALLEST for n in range(4)]
    put = [slots.put(value, "it") for value in values]
    assert [type(batch) is Whole for batch in put] == [False, False, True, True]
    assert [slots.take(batch) for batch in put] == values
    assert type(slots.put(values[0], "it")) is not Whole


def test_a_new_iteration_forgets_what_the_old_one_had_on_its_way() -> None:
    (slots,) = make_slots(1, 1)
    for _ in range(3):
        slots.put(b"x" * SMALLEST, "old")
    batch = slots.put(b"y" * SMALLEST, "new")
    assert type(batch) is not Whole
    assert slots.take(batch) == b"y" * SMALLEST


def _work(slots: Any, queue: Any) -> None:
    for number in range(20):
        queue.put(slots.put([bytes([number]) * (SMALLEST + number)], "it"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)  # Python 3.12 on fork
def test_across_processes(method: str) -> None:
    context = multiprocessing.get_context(method)
    (slots,) = make_slots(1, 2)
    queue = context.Queue()
    worker = context.Process(target=_work, args=(slots, queue))
    worker.start()
    for number in range(20):
        assert slots.take(queue.get(timeout=60)) == [bytes([number]) * (SMALLEST + number)]
    worker.join()
    assert worker.exitcode == 0
