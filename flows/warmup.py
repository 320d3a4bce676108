"""The flow `warmup`: the indexes of whatever training is about to open."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from flows.grouped import conclude
from flows.parameters import Runner, described, named

_LONGEST = 100  # characters of a run's name


def _name() -> str:
    """The patterns as they are given: of ``demo/*`` no part alone says anything."""
    name = f"warmup {flow_run.parameters['patterns']}"
    return named(flow_run.name, name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")


@flow(name="warmup", flow_run_name=_name, persist_result=False)
@described
def warmup(
    patterns: Annotated[str, Field(min_length=1)],
    registry: str = "",
    n_jobs: Annotated[int, Field(ge=0)] = 0,
    index_root: str = "",
    grouping: Literal["auto", "numbered", "plain"] = "auto",
    no_end_ok: bool = False,
    save_bytes: bool = False,
    runner: Runner = "local",
    dask_address: str = "",
    report: str = "",
    storage_block: str = "",
) -> Any:
    """Build the missing and stale indexes of tars. What is fresh is left alone, so it may run as often as one likes.

    Args:
        patterns: Names of datasets, folders of names or of tars, tars, or globs over them; commas between.
        registry: The registry of datasets, JSON or YAML: a path or a URL. Empty: configs/datasets.json, where there is one.
        n_jobs: At most this many processes, never more than cores or tars. 0: all cores.
        index_root: Keep the indexes under this folder, for a read-only dataset. Empty: beside their tars.
        grouping: Whether k-0.jpg, k-1.jpg are images of sample k (numbered), or samples of their own (plain). Auto: what the names of a tar suggest.
        no_end_ok: Accept tars without the zero blocks at their end, which may have been cut short.
        save_bytes: Of tars in a store, read little more than the headers. Slow where members are small, and without checksums.
    """
    return conclude("warmup", locals())
