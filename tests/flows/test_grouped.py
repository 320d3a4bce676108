from __future__ import annotations

from pathlib import Path

import pytest
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


@pytest.mark.usefixtures("api")
def test_a_global_limit_bounds_the_workers_and_is_held(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

    from flows.pack import pack
    from flows.progress_artifact import ProgressArtifact
    from tasks.groups import LIMIT, reading_limit

    def in_use() -> int:
        with get_client(sync_client=True) as client:
            return client.read_global_concurrency_limit_by_name(LIMIT).active_slots

    held: list[int] = []
    whole = ProgressArtifact.on_done

    def on_done(self: ProgressArtifact, result: object) -> None:
        held.append(in_use())
        whole(self, result)

    monkeypatch.setattr(ProgressArtifact, "on_done", on_done)
    assert reading_limit() == 0
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=1))
    try:
        assert reading_limit() == 1
        state = pack(config=str(corpus / "job.yaml"), output=str(tmp_path / "out"), return_state=True)
        assert state.is_completed(), state.message
        assert held == [1] * 6, "one worker, where two were asked for"
        assert in_use() == 0
    finally:
        with get_client(sync_client=True) as client:
            client.delete_global_concurrency_limit_by_name(LIMIT)
