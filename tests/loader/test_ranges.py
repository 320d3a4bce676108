"""The set of positions against Python's own set."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.ranges import Ranges

pairs = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=8
)


def members(given_pairs: list[tuple[int, int]]) -> set[int]:
    return {position for start, stop in given_pairs for position in range(start, stop)}


@settings(deadline=None, max_examples=300)
@given(pairs, pairs, st.integers(0, 80), st.integers(0, 80))
def test_it_is_a_set(one: list[tuple[int, int]], two: list[tuple[int, int]], stop: int, count: int) -> None:
    left, right, plain = Ranges(one), Ranges(two), members(one)
    listed = sorted(plain)
    assert left == Ranges.of(listed) == Ranges.of(listed[::-1] + listed)
    assert hash(left) == hash(Ranges.of(listed))
    assert left.size == len(plain)
    assert bool(left) == bool(plain)
    assert left.stop == (max(plain) + 1 if plain else 0)
    assert left.prefix == next(p for p in range(100) if p not in plain)
    assert members(list(left.union(right))) == plain | members(two)
    assert members(list(left.complement(stop))) == set(range(stop)) - plain
    assert members(list(left.first(count))) == set(listed[:count])
    assert left.contains(np.arange(-1, 90)).tolist() == [p in plain for p in range(-1, 90)]
    assert left.select(np.arange(len(plain))[::-1]).tolist() == listed[::-1]
    assert Ranges([(a, b) for a, b in left.to_list()]) == left
    assert pickle.loads(pickle.dumps(left)) == left
    assert (left == right) == (plain == members(two))


@settings(deadline=None)
@given(pairs)
def test_its_ranges_neither_overlap_nor_touch(one: list[tuple[int, int]]) -> None:
    flat = [edge for pair in Ranges(one) for edge in pair]
    assert flat == sorted(set(flat))
    assert all(type(edge) is int for edge in flat)


def test_it_costs_what_its_gaps_cost() -> None:
    huge = Ranges([(0, 10**15), (10**15 + 1, 10**16)])
    assert huge.size == 10**16 - 1
    assert huge.select([10**15 - 1, 10**15]).tolist() == [10**15 - 1, 10**15 + 1]
    assert len(pickle.dumps(huge)) < 500


def test_it_never_changes_a_given_array() -> None:
    given_pairs = np.array([[5, 6], [0, 3], [2, 5]])
    assert list(Ranges(given_pairs)) == [(0, 6)]
    assert given_pairs.tolist() == [[5, 6], [0, 3], [2, 5]]


@pytest.mark.parametrize("wrong", [[(-1, 2)], [(3, 2)], [(1, 2), (9, 8)]])
def test_it_refuses_what_is_no_range(wrong: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="0 ≤ start ≤ stop was expected"):
        Ranges(wrong)


def test_it_refuses_ordinals_outside() -> None:
    for ordinals in ([-1], [3]):
        with pytest.raises(IndexError, match="of a set of 3 positions"):
            Ranges.until(3).select(ordinals)
    assert Ranges().select([]).size == 0
    with pytest.raises(IndexError):
        Ranges().select([0])


def test_it_shows_itself_shortly() -> None:
    assert repr(Ranges([(0, 3), (5, 6)])) == "Ranges([(0, 3), (5, 6)])"
    assert repr(Ranges.of(np.arange(0, 1000, 2))).endswith("…])")
    assert Ranges() != "nothing"
