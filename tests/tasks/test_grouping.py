from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.grouping import SECONDS, next_group


def simulate(slots: int, jobs: int, seconds_each: float) -> list[int]:
    left, done, seconds, last, sizes = slots, 0, 0.0, 0, []
    while left:
        last = next_group(left, done, seconds, jobs, last)
        sizes.append(last)
        left, done = left - last, done + last
        seconds += last * seconds_each / jobs
    return sizes


@given(st.integers(0, 5000), st.integers(1, 64), st.floats(0, 100))
def test_every_slot_once_and_groups_of_the_right_length(slots: int, jobs: int, seconds: float) -> None:
    sizes = simulate(slots, jobs, seconds)
    assert sum(sizes) == slots
    assert all(size > 0 for size in sizes)
    if sizes:
        assert sizes[0] <= 1.25 * jobs  # the rate is not known yet
    for size in sizes:
        assert size <= 1.25 * max(jobs, SECONDS * jobs / seconds if seconds else slots)


def test_they_grow_to_the_target_and_no_further() -> None:
    # half a second a slot by 2 processes: 80 slots in 20 s
    assert simulate(400, 2, 0.5) == [2, 8, 32, 80, 80, 80, 80, 38]
    assert simulate(5, 2, 60.0) == [2, 2, 1]
    assert simulate(9, 8, 60.0) == [9]  # a rest that is no group of its own
    assert simulate(0, 8, 1.0) == []


@pytest.mark.parametrize("wrong", [(-1, 0, 1.0, 1), (1, -1, 1.0, 1), (1, 0, 1.0, 0)])
def test_no_counts(wrong: tuple[int, int, float, int]) -> None:
    with pytest.raises(ValueError, match="counts were expected"):
        next_group(*wrong)
