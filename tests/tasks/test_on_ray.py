from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from errands import die, fail, unlucky

pytest.importorskip("ray", reason="there is no Ray for every Python")
from tasks.cluster import WorkersKilled
from tasks.on_ray import NoRay, RayWorkers


@pytest.fixture(scope="module")
def workers() -> Iterator[RayWorkers]:
    """Ray on this machine, for all tests: it takes seconds to start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("RAY_ADDRESS", raising=False)
        patched.setattr("tasks.on_ray._TRIES", 1)
        patched.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        with RayWorkers(2) as started:
            yield started


def test_outcomes_come_home_and_a_killed_worker_costs_nothing(workers: RayWorkers, tmp_path: Path) -> None:
    outcomes = dict(workers.run_all(fail, range(5), 3, {}, then=[5]))
    assert {item: outcome for item, outcome in outcomes.items() if item != 3} == {0: 0, 1: 1, 2: 2, 4: 4}
    assert isinstance(outcomes[3], PermissionError)
    assert dict(workers.run_all(fail, [5, 6], 3, {})) == {5: 5, 6: 6}
    assert dict(workers.run_all(unlucky, range(6), str(tmp_path))) == {item: item for item in range(6)}


def test_an_item_that_kills_its_worker_each_time_ends_as_a_failure(workers: RayWorkers) -> None:
    ((_, outcome),) = workers.run_all(die, [1])
    assert isinstance(outcome, WorkersKilled) and "Ray workers" in str(outcome)


def test_no_cluster_there(workers: RayWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.terminate()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(NoRay, match=r"doesn't answer at 127\.0\.0\.1:9.*RAY_ADDRESS"):
        RayWorkers(2)
