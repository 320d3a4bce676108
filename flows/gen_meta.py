"""The flow `gen-meta`: the indexes, checksums and meta.json of a folder of tars."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from flows.grouped import conclude
from flows.parameters import Runner, described, named, run_name


def _name() -> str:
    return named(flow_run.name, run_name("gen-meta", flow_run.parameters["dataset"]))


@flow(name="gen-meta", flow_run_name=_name, persist_result=False)
@described
def gen_meta(
    dataset: Annotated[str, Field(min_length=1)],
    meta_save_path: str = "",
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
    """Write meta.json, meta_stats.json and the missing indexes of a folder of tars.

    Run it again at any time: what is done is kept. If a tar is bad, the others are finished, and meta.json is
    left as it was.

    Args:
        dataset: Folder of the tars, sub-folders included: a path or a URL.
        meta_save_path: Where meta.json goes: a folder, or a file that ends in .json. Empty: into the dataset's folder.
        n_jobs: At most this many processes, never more than cores or tars. 0: all cores.
        index_root: Keep the indexes under this folder, for a read-only dataset. Empty: beside their tars.
        grouping: Whether k-0.jpg, k-1.jpg are images of sample k (numbered), or samples of their own (plain). Auto: what the names of a tar suggest.
        no_end_ok: Accept tars without the zero blocks at their end, which may have been cut short.
        save_bytes: Of tars in a store, read little more than the headers. Slow where members are small, and without checksums.
    """
    return conclude("gen-meta", locals())
