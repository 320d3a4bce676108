"""The flow `verify`: against a real server and without one, on a good dataset and on damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from running import digests

from flows import server
from flows.direct import Direct
from flows.jobs import perform


@pytest.fixture(scope="module")
def dataset(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verified") / "out"
    assert perform("pack", {"config": str(corpus / "job.yaml"), "output": str(out)}, Direct).ok
    return out


def verify(dataset: Path, **options: Any) -> Any:
    return perform("verify", {"dataset": str(dataset), **options}, Direct)


def test_a_good_dataset_is_good(dataset: Path) -> None:
    before = digests(dataset)
    report = verify(dataset, deep=True)
    assert report.ok, report.message()
    facts = dict(report.steps[0].facts)
    assert (facts["tars"], facts["samples"], facts["problems"]) == ("6, 0 of them can't be read", "59", "0")
    assert digests(dataset) == before


def test_what_is_wrong_is_named_and_repaired(dataset: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    before = digests(copy)
    (copy / "shard-000001.tar.index").write_bytes(b"no index")
    report = verify(copy, n_jobs=1)
    ((step, path, _),) = report.failures
    assert (step, path) == ("verify", "shard-000001.tar.index")
    assert report.rerun == f"shardflow verify {copy} --n-jobs 1"
    repaired = verify(copy, repair=True)
    assert repaired.ok and dict(repaired.steps[0].facts)["problems"] == "0, and 1 repaired"
    assert digests(copy) == before


def test_nothing_there_is_one_problem(tmp_path: Path) -> None:
    report = verify(tmp_path)
    assert not report.ok and str(tmp_path) in report.steps[0].problem


def test_as_a_flow(dataset: Path, api: server.Api, tmp_path: Path) -> None:
    from flows.verify import verify as flow

    state = flow(dataset=str(dataset), return_state=True)
    assert state.is_completed() and state.result(raise_on_failure=False).task_runs >= 1
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    meta = json.loads((copy / "meta.json").read_text())
    next(iter(meta.values()))["num_samples"] += 1
    (copy / "meta.json").write_text(json.dumps(meta))
    state = flow(dataset=str(copy), return_state=True)
    assert state.is_failed() and "shard-000000.tar failed" in str(state.message)
