"""The flows against a real Prefect server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faulty
import pytest
from running import SECRET, digests

from flows import packing, server
from flows.direct import Direct
from flows.jobs import perform
from flows.report import Report

pytestmark = pytest.mark.usefixtures("api")


def run(name: str, **parameters: Any) -> Any:
    """A flow's final state."""
    import importlib

    module = importlib.import_module(f"flows.{name}")
    return getattr(module, name)(**parameters, return_state=True)


def task_runs(state: Any, count: int) -> list[Any]:
    """The task runs of a flow run, as the server has them once it has `count` of them in a final state."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    flow_run = state.state_details.flow_run_id
    mine = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    deadline = time.monotonic() + 60
    while True:
        with get_client(sync_client=True) as client:
            found = client.read_task_runs(flow_run_filter=mine)
        if sum(bool(run.state and run.state.is_final()) for run in found) >= count:
            return sorted(found, key=lambda run: run.expected_start_time)
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def artifacts(state: Any) -> dict[str, Any]:
    """The artifacts of a flow run by key."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        ArtifactFilter,
        ArtifactFilterFlowRunId,
    )

    flow_run = state.state_details.flow_run_id
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
        )
    return {artifact.key: artifact for artifact in found}


def directly(job: str, **parameters: Any) -> Report:
    """The same job without Prefect."""
    return perform(job, parameters, Direct)


@pytest.fixture
def undisturbed(corpus: Path, tmp_path: Path) -> dict[str, str]:
    """What `prepare` makes of the corpus when nothing happens."""
    report = directly("prepare", config=str(corpus / "job.yaml"), output=str(tmp_path / "undisturbed"))
    assert report.ok
    return digests(tmp_path / "undisturbed")


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder that counts faults; retries come at once."""
    from tasks.groups import TASKS

    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv("FAULTS", str(folder))
    for task in TASKS.values():
        monkeypatch.setattr(task, "retry_delay_seconds", [0.05])
    yield folder
    server.flush()


def test_prepare_does_the_three_steps_and_says_so(
    corpus: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "out"
    state = run("prepare", config=str(corpus / "job.yaml"), output=str(out))
    assert state.is_completed(), state.message
    assert digests(out) == undisturbed

    report = state.result()
    assert [step.step for step in report.steps] == ["pack", "gen_meta", "warmup"]
    facts = dict(report.steps[0].facts)
    assert facts["samples"] == "59 of 60 rows"
    assert "errors.jsonl" in facts["left out"] and "row 18" in facts["for example"]

    runs = task_runs(state, report.task_runs)
    assert {run.name.split(" of ")[0] for run in runs} >= {
        "pack slots 1 to 2",
        "gen_meta tars 1 to 2",
        "warmup tars 1 to 2",
    }
    assert all(run.state.is_completed() and run.run_count == 1 for run in runs)
    assert {run.task_key.partition("-")[0] for run in runs} >= {"pack_group"}
    assert not any(run.tags for run in runs), "each would be asked for at the server, before each group"

    made = artifacts(state)
    assert set(made) == {
        "prepare-table",
        "prepare-report",
        "pack-progress",
        "gen-meta-progress",
        "warmup-progress",
    }
    assert made["pack-progress"].type == "progress" and float(made["pack-progress"].data) == 100
    assert made["pack-progress"].description.startswith("pack: 6/6 slots, ")
    assert made["prepare-table"].type == "table" and made["prepare-report"].type == "markdown"
    assert "59 of 60 rows" in made["prepare-report"].data
    rows = json.loads(made["prepare-table"].data)
    assert {"step": "pack", "what": "samples", "value": "59 of 60 rows"} in rows


def test_a_second_run_does_nothing_twice(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("prepare", config=str(corpus / "job.yaml"), output=str(out)).is_completed()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.tar*")}
    report = run("prepare", config=str(corpus / "job.yaml"), output=str(out)).result()
    assert "6 of 6 slots were done before" in dict(report.steps[0].facts)["shards"]
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.tar*")} == before


def test_what_may_pass_is_tried_again(
    corpus: Path, tmp_path: Path, undisturbed: dict[str, str], fault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "pack_slot", faulty.reset_once)
    out = tmp_path / "out"
    state = run("prepare", config=str(corpus / "job.yaml"), output=str(out))
    assert state.is_completed(), state.message
    assert len(list(fault.iterdir())) == 1
    again = [run for run in task_runs(state, state.result().task_runs) if run.run_count > 1]
    assert [run.run_count for run in again] == [2]
    assert again[0].state.is_completed() and again[0].name.startswith("pack ")
    assert digests(out) == undisturbed


def test_killed_workers_are_replaced(
    corpus: Path, tmp_path: Path, undisturbed: dict[str, str], fault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "pack_slot", faulty.killed_four_times)
    out = tmp_path / "out"
    state = run("prepare", config=str(corpus / "job.yaml"), output=str(out))
    assert state.is_completed(), state.message
    assert len(list(fault.iterdir())) == 4
    assert max(run.run_count for run in task_runs(state, state.result().task_runs)) == 2
    assert digests(out) == undisturbed


def test_one_failed_shard_fails_the_flow_and_no_other_shard(
    corpus: Path, tmp_path: Path, undisturbed: dict[str, str], fault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    parameters = {"config": str(corpus / "job.yaml"), "output": str(out)}
    with monkeypatch.context() as patched:
        patched.setattr(packing, "pack_slot", faulty.forbidden)
        state = run("prepare", **parameters)
    assert state.is_failed()
    assert "shard-000002.tar (rows 21 to 30) failed" in state.message
    assert "Permission denied" in state.message
    assert f"shardflow prepare {corpus / 'job.yaml'} --output {out}" in state.message
    report = state.result(raise_on_failure=False)
    assert [step.step for step in report.steps] == ["pack"], "what follows would describe half a dataset"
    assert [item for _, item, _ in report.failures] == ["shard-000002.tar (rows 21 to 30)"]
    failed = [run for run in task_runs(state, report.task_runs) if run.state.is_failed()]
    assert [run.run_count for run in failed] == [1], "what won't pass is not tried again"
    assert sorted(path.name for path in out.glob("*.tar")) == [f"shard-00000{n}.tar" for n in (0, 1, 3, 4, 5)]
    assert not (out / "meta.json").exists()
    assert "shard-000002.tar" in artifacts(state)["prepare-report"].data

    state = run("prepare", **parameters)
    assert state.is_completed(), state.message
    assert "5 of 6 slots were done before" in dict(state.result().steps[0].facts)["shards"]
    assert digests(out) == undisturbed


def test_retries_have_an_end(
    corpus: Path, tmp_path: Path, fault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "pack_slot", faulty.always_reset)
    state = run("pack", config=str(corpus / "job.yaml"), output=str(tmp_path / "out"))
    assert state.is_failed() and "Connection reset by peer" in state.message
    report = state.result(raise_on_failure=False)
    failed = [run for run in task_runs(state, report.task_runs) if run.state.is_failed()]
    assert [run.run_count for run in failed] == [4]
    assert len(list(fault.iterdir())) == 4


def test_a_fault_of_the_program_is_told_by_its_kind(
    corpus: Path, tmp_path: Path, fault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "pack_slot", faulty.program_fault)
    state = run("pack", config=str(corpus / "job.yaml"), output=str(tmp_path / "out"), n_jobs=1)
    assert state.is_failed() and "ZeroDivisionError: division by zero" in state.message


def test_too_many_bad_rows_end_the_run(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    state = run("pack", config=str(corpus / "job.yaml"), output=str(out), max_bad_fraction=0.01)
    assert state.is_failed()
    assert "1 of 60 rows could not be packed" in state.message and "none.jpg" in state.message
    assert (out / "errors.jsonl").exists() and not (out / "meta.json").exists()
    assert not (out / "shard-000005.tar").exists(), "it ends as soon as it is known, not after all the work"


def test_on_error_raise_ends_the_run_at_the_row(corpus: Path, tmp_path: Path) -> None:
    state = run("pack", config=str(corpus / "job.yaml"), output=str(tmp_path / "out"), on_error="raise")
    assert state.is_failed()
    assert "row 18" in state.message and "none.jpg" in state.message


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "source is missing"),
        ({"config": "/nowhere/job.yaml"}, "/nowhere/job.yaml is not there"),
        ({"source": "/nowhere/*.jsonl", "output": "/tmp/x"}, "/nowhere/*.jsonl"),
        ({"source": "s3://key:pass@bucket/x.jsonl", "output": "/tmp/x"}, "source has a password"),
        ({"source": "/nowhere/a.jsonl", "output": "/tmp/x", "on_error": "ignore"}, "on_error"),
        ({"source": "/nowhere/a.jsonl", "output": "/tmp/x", "max_samples": -5}, "max_samples"),
    ],
)
def test_wrong_input_is_refused_with_the_reason(parameters: dict[str, Any], reason: str) -> None:
    state = run("prepare", **parameters)
    assert state.is_failed()
    assert reason in state.message


def test_two_runs_of_one_output_at_once(corpus: Path, tmp_path: Path) -> None:
    from tasks.lock import exclusive

    with exclusive(str(tmp_path / "out")):
        state = run("prepare", config=str(corpus / "job.yaml"), output=str(tmp_path / "out"))
    assert state.is_failed() and "another run" in state.message


def test_nothing_to_pack_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    out = tmp_path / "out"
    state = run("prepare", source=str(tmp_path / "empty.jsonl"), output=str(out))
    assert state.is_completed(), state.message
    assert json.loads((out / "meta.json").read_text()) == {}


def test_gen_meta_and_warmup_alone(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert directly("pack", config=str(corpus / "job.yaml"), output=str(out)).ok
    for index in out.glob("*.index"):
        index.unlink()
    before = digests(out)

    state = run("warmup", patterns=f"{out}/*.tar", n_jobs=1)
    assert state.is_completed() and dict(state.result().steps[0].facts)["indexes"] == "6 built, 0 were there"

    state = run("gen_meta", dataset=str(out), n_jobs=1)
    assert state.is_completed()
    after = digests(out)
    assert after.keys() - before.keys() == {f"shard-00000{n}.tar.index" for n in range(6)}

    (out / "shard-000006.tar").write_bytes((out / "shard-000001.tar").read_bytes()[:3000])
    state = run("gen_meta", dataset=str(out))
    assert state.is_failed() and "shard-000006.tar failed (at byte " in state.message
    assert digests(out)["meta.json"] == after["meta.json"]
    state = run("warmup", patterns=str(out))
    assert state.is_failed() and f"{out}/shard-000006.tar failed" in state.message


def test_no_secret_reaches_prefect(
    corpus: Path,
    tmp_path: Path,
    fault: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not even where an error repeats it: parameters, logs, states and artifacts all end in one database."""
    monkeypatch.setattr(packing, "pack_slot", faulty.tells_secrets)
    state = run("prepare", config=str(corpus / "job.yaml"), output=str(tmp_path / "out"))
    assert state.is_failed()
    assert "wrong password ***" in state.message
    task_runs(state, 2)
    server.flush()
    time.sleep(1.5)
    from prefect.settings import get_current_settings

    database = list(get_current_settings().home.glob("prefect.db*"))
    stored = b"".join(file.read_bytes() for file in database)
    assert b"wrong password ***" in stored
    assert SECRET.encode() not in stored
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err


@pytest.mark.parametrize(("typed", "name"), [("Tuesday's photos", "Tuesday's photos"), (None, "gen-meta d")])
def test_a_name_that_somebody_has_typed_stays(typed: str | None, name: str, tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    from flows.gen_meta import gen_meta
    from loader import ShardWriter

    with ShardWriter(str(tmp_path / "d")) as writer:
        writer.write({"__key__": "a", ".txt": "a"})
    with get_client(sync_client=True) as client:
        made = client.create_flow_run(gen_meta, parameters={"dataset": str(tmp_path / "d")}, name=typed)
        run_flow(gen_meta, flow_run=made, parameters=made.parameters, return_type="state")
        assert client.read_flow_run(made.id).name == name
