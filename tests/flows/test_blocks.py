"""Credentials in a Prefect block: they open a real store that checks signatures, and are shown nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from s3_server import KEY, SECRET, Place

from flows import server
from flows.direct import Direct
from flows.jobs import perform
from loader import storage
from loader.errors import BadConfig


def test_only_what_is_said_is_an_option() -> None:
    from flows.blocks import StorageOptions

    assert StorageOptions().options() == {}
    block = StorageOptions(
        endpoint_url="http://x", key=KEY, secret=SECRET, more={"config_kwargs": {"retries": 2}}
    )
    assert block.options() == {
        "endpoint_url": "http://x", "key": KEY, "secret": SECRET, "config_kwargs": {"retries": 2},
    }  # fmt: skip
    assert StorageOptions(anonymous=True).options() == {"anon": True}
    assert SECRET not in repr(block) and SECRET not in str(block)


@pytest.fixture
def block(s3: Place, api: server.Api) -> str:
    from flows.blocks import StorageOptions, register_block

    register_block()
    options = s3.storage_options
    StorageOptions(endpoint_url=options["endpoint_url"], key=options["key"], secret=options["secret"]).save(
        "our-store", overwrite=True
    )
    return "our-store"


def test_each_flow_uses_it_and_shows_only_its_name(
    block: str, s3: Place, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    from flows.gen_meta import gen_meta
    from flows.prepare import prepare
    from flows.verify import verify
    from flows.warmup import warmup

    root = s3.address("photos")
    shown = []
    for flow, parameters in (
        (prepare, {"source": str(corpus / "records.jsonl"), "output": root, "max_samples": 20}),
        (gen_meta, {"dataset": root}),
        (warmup, {"patterns": root}),
        (verify, {"dataset": root}),
    ):
        state = flow(**parameters, storage_block=block, return_state=True)  # type: ignore[call-overload]
        assert state.is_completed(), state.message
        shown.append(recorded(state))
    assert len(storage.list_files(root, ".tar", s3.storage_options)) == 3
    assert block in shown[0] and SECRET not in "".join(shown)


def recorded(state: Any) -> str:
    """Everything that the server shows of a flow run: parameters, state, artifacts."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    run = state.state_details.flow_run_id
    mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(artifact_filter=mine)
        return client.read_flow_run(run).model_dump_json() + json.dumps([str(one.data) for one in artifacts])


def test_a_block_that_is_not_there_is_said(api: server.Api, tmp_path: Path) -> None:
    from flows.gen_meta import gen_meta

    state = gen_meta(dataset=str(tmp_path), storage_block="nobodys", return_state=True)
    assert state.is_failed() and "no block 'Storage options' of that name" in str(state.message)


def test_without_prefect_there_are_none(tmp_path: Path) -> None:
    report = perform("gen-meta", {"dataset": str(tmp_path), "storage_block": "our-store"}, Direct)
    assert "a block of Prefect's" in report.steps[0].problem
    with pytest.raises(BadConfig, match="storage_block"):
        from flows.jobs import no_blocks

        no_blocks("x")
