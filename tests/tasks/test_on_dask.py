"""A real cluster: a scheduler and two worker processes, which are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import DaskCluster, dask_cluster
from errands import die, fail, flag, unlucky
from running import SECRET

from tasks.cluster import WorkersKilled
from tasks.group import may_pass
from tasks.on_dask import DaskWorkers, NoCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as started:
        yield started


@pytest.fixture
def workers(cluster: DaskCluster) -> Iterator[DaskWorkers]:
    while len([worker for worker in cluster.workers if worker.poll() is None]) < 2:
        cluster.add_worker()
    with DaskWorkers(0, cluster.address) as found:
        assert found._client is not None
        found._client.wait_for_workers(2, timeout=60)
        yield found


def test_outcomes_come_home(workers: DaskWorkers, cluster: DaskCluster) -> None:
    outcomes = dict(workers.run_all(fail, range(5), 3, {"secret": SECRET}, then=[5]))
    assert {item: outcome for item, outcome in outcomes.items() if item != 3} == {0: 0, 1: 1, 2: 2, 4: 4}
    assert isinstance(outcomes[3], PermissionError)
    assert dict(workers.run_all(fail, [5, 6], 3, {})) == {5: 5, 6: 6}
    assert SECRET not in cluster.log(), "errors are told with the arguments of the call"


def test_a_killed_worker_costs_nothing(workers: DaskWorkers, cluster: DaskCluster, tmp_path: Path) -> None:
    victim = None
    outcomes: dict[int, object] = {}
    for item, outcome in workers.run_all(flag, range(12), str(tmp_path)):
        outcomes[item] = outcome
        if victim is None:
            victim = next(worker for worker in cluster.workers if worker.poll() is None)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
    assert outcomes == {item: item for item in range(12)}


def test_an_item_that_kills_its_worker_each_time_ends_as_a_failure(cluster: DaskCluster) -> None:
    """Dask gives it to one worker after another, and then up: here the last one is spared."""
    while len([worker for worker in cluster.workers if worker.poll() is None]) < 3:
        cluster.add_worker()
    with DaskWorkers(1, cluster.address) as workers:
        assert workers.n_jobs == 1
        assert workers._client is not None
        workers._client.wait_for_workers(3, timeout=60)
        ((_, outcome),) = workers.run_all(die, [1])
        assert isinstance(outcome, WorkersKilled) and not may_pass(outcome)
        assert "Dask workers" in str(outcome)


def test_no_scheduler_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.on_dask._PATIENCE", 0.5)
    with pytest.raises(
        NoCluster, match=r"no Dask cluster is ready at tcp://127\.0\.0\.1:9 .*correct dask_address"
    ):
        DaskWorkers(2, "tcp://127.0.0.1:9")


def test_a_cluster_of_its_own_goes_with_it(tmp_path: Path) -> None:
    with DaskWorkers(2) as workers:
        assert 1 <= workers.n_jobs <= 2
        run = workers.run_all(unlucky, range(6), str(tmp_path))
        outcomes = dict(run)
        assert outcomes == {item: item for item in range(6)}, "one of them was killed, once"
        pids = {int(file.name.partition("-")[2]) for file in tmp_path.glob("pid-*")}
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
