from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st


@settings(deadline=None, max_examples=60)
@given(
    total=st.integers(1, 100_000),
    jobs=st.integers(1, 96),
    seconds=st.floats(0.0001, 100),
    kept=st.floats(0, 1),
)
def test_groups_cover_the_work_in_bounded_numbers(total: int, jobs: int, seconds: float, kept: float) -> None:
    """Items cost `seconds` each on one of `jobs` processes; a share was done before and costs next to nothing."""
    from flows.grouped import group_size

    begin = size = groups = made = 0
    took = 0.0
    while begin < total:
        trusted = size and 2 * made >= size
        size = group_size(total - begin, total, size, made, took, jobs)
        assert 1 <= size <= total - begin
        before = max(0, min(size, int(kept * total) - begin))
        made = size - before
        took = -(-made // jobs) * seconds + before * 0.0001
        if not trusted:
            assert size <= 1.25 * max(64, jobs, total // 250 + 1), "on trust, whatever the rate was"
        begin += size
        groups += 1
    assert begin == total
    assert groups <= 1010


def test_groups_find_their_size() -> None:
    from flows.grouped import group_size

    size, took = 0, 0.0
    sizes = []
    for begin in range(0, 4000, 100):
        size = group_size(10_000 - begin, 10_000, size, size, took, 4)
        took = size * 2.0 / 4
        sizes.append(size)
    assert sizes[0] == 10, "a thousandth of all, where one for each process would be too many groups"
    assert set(sizes[3:]) == {40}, "twenty seconds of work for four processes at two seconds each"
