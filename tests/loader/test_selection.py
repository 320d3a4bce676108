"""Selections: who takes part, checked when made, small, shared with workers."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.selection import Selection


@st.composite
def kept_of(draw):
    """(samples of each shard, those of each that take part)"""
    samples = draw(st.lists(st.integers(0, 12), max_size=6))
    kept = [
        sorted(draw(st.sets(st.integers(0, count - 1), max_size=count))) if count else [] for count in samples
    ]
    return np.array(samples, np.int64), kept


@settings(deadline=None, max_examples=50)
@given(kept_of())
def test_the_nth_that_takes_part(case):
    samples, kept = case
    selection = Selection.of(kept, samples)
    assert len(selection) == sum(map(len, kept))
    assert selection.counts.tolist() == [len(numbers) for numbers in kept]
    for shard, numbers in enumerate(kept):
        shards, places = np.full(len(numbers), shard), np.arange(len(numbers))
        assert selection.at(shards, places).tolist() == numbers
    for other in (pickle.loads(pickle.dumps(selection)), copy.copy(selection)):
        assert other.digest == selection.digest
        assert other.numbers.dtype == np.uint32 and other.counts.tolist() == selection.counts.tolist()
        assert other.begins.tolist() == selection.begins.tolist()


@settings(deadline=None)
@given(kept_of(), kept_of())
def test_digests_differ_exactly_if_selections_do(one, other):
    same = one[1] == other[1]
    digests = [Selection.of(kept, samples).digest for samples, kept in (one, other)]
    assert (digests[0] == digests[1]) is same


def test_a_boundary_that_moves_is_another_selection():
    samples = np.array([2, 2])
    assert Selection.of([[0, 1], []], samples).digest != Selection.of([[0], [1]], samples).digest


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([[0]], "of 1 shards, where there are 2"),
        ([[0], [0], [0]], "of 3 shards, where there are 2"),
        ([[0, 3], []], "shard 0 has 3 samples: there is no sample 3"),
        ([[0], [-1]], "shard 1 has 2 samples: there is no sample -1"),
        ([[1, 0], []], "must ascend"),
        ([[1, 1], []], "must ascend"),
        ([[0.5], []], "type float64"),
    ],
)
def test_selections_that_cannot_be_meant(kept, message):
    with pytest.raises(ValueError, match=message):
        Selection.of(kept, np.array([3, 2]))


@pytest.mark.parametrize(("counts", "numbers"), [([1, 1], [0]), ([-1, 2], [0]), ([1, 1], [[0], [0]])])
def test_counts_that_do_not_fit(counts, numbers):
    with pytest.raises(ValueError):
        Selection(counts, np.array(numbers), np.array([3, 2]))


def test_it_travels_as_shared_memory():
    selection = Selection.of([np.arange(0, 1000, 2)], np.array([1000]))
    state = selection.__getstate__()
    assert all(tensor.is_shared() for tensor in state.values())
    # This process goes on with the shared copy, instead of holding two.
    assert selection.numbers.ctypes.data == state["numbers"].data_ptr()
    assert selection.at(np.array([0]), np.array([7])).tolist() == [14]
