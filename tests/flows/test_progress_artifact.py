from __future__ import annotations

from typing import Any

import pytest

from tasks.group import Work

pytestmark = pytest.mark.usefixtures("api")


def work(items: int) -> Work[int, int]:
    return Work(
        kind="gen_meta", unit="tars", items=range(items), function=abs, arguments=(), label=str,
        size=lambda result: result << 20, kept=lambda result: result == 0, explain=lambda error, item: str(error),
    )  # fmt: skip


def stored(artifact: Any) -> tuple[float, str]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterId

    with get_client(sync_client=True) as client:
        (found,) = client.read_artifacts(artifact_filter=ArtifactFilter(id=ArtifactFilterId(any_=[artifact])))
    assert found.key == "gen-meta-progress" and found.type == "progress" and found.flow_run_id is not None
    return float(found.data), found.description


def test_it_is_brought_up_to_date_every_few_seconds() -> None:
    from prefect import flow

    from flows.progress_artifact import ProgressArtifact

    now = [0.0]
    seen: list[tuple[float, str]] = []

    @flow
    def measured() -> None:
        progress = ProgressArtifact(work(4), every=10.0, clock=lambda: now[0])
        with progress.expect(4) as shown:
            seen.append(stored(shown._artifact))
            for result, seconds in ((0, 4.0), (1, 4.0), (None, 1.0), (2, 3.0)):
                now[0] += seconds
                shown.on_done(result)
                seen.append(stored(shown._artifact))
            shown.failed(1)
            artifact = shown._artifact
        seen.append(stored(artifact))
        with progress.expect(4) as shown:
            assert shown._artifact == artifact, "more of the same kind is no second artifact"
        seen.append(stored(artifact))

    measured()
    start = (0.0, "gen_meta: 0/4 tars")
    assert seen == [
        start,
        start,
        start,
        start,
        (75.0, "gen_meta: 3/4 tars, 3.00 MiB, 256 KiB/s, 0:04 left"),
        (100.0, "gen_meta: 4/4 tars, 3.00 MiB, 256 KiB/s, 1 failed"),
        (50.0, "gen_meta: 4/8 tars, 3.00 MiB, 256 KiB/s, 1 failed, 0:12 left"),
    ]


def test_one_that_cannot_be_stored_stops_no_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect import flow

    from flows import progress_artifact

    def broken(*arguments: Any, **named: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(progress_artifact, "update_progress_artifact", broken)

    @flow
    def measured() -> str:
        with progress_artifact.ProgressArtifact(work(3), every=0.0).expect(3) as shown:
            for result in range(3):
                shown.on_done(result)
        return "done"

    assert measured() == "done"
    assert caplog.text.count("progress can't be shown any more: nobody there") == 1
