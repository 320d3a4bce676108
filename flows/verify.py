"""The flow `verify`: is a dataset what it says it is?"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from flows.grouped import conclude
from flows.parameters import Runner, described, named, run_name


def _name() -> str:
    return named(flow_run.name, run_name("verify", flow_run.parameters["dataset"]))


@flow(name="verify", flow_run_name=_name, persist_result=False)
@described
def verify(
    dataset: Annotated[str, Field(min_length=1)],
    deep: bool = False,
    repair: bool = False,
    n_jobs: Annotated[int, Field(ge=0)] = 0,
    index_root: str = "",
    no_end_ok: bool = False,
    runner: Runner = "local",
    dask_address: str = "",
    report: str = "",
    storage_block: str = "",
) -> Any:
    """Compare every tar of a dataset with its index, checksum, sidecar and meta.json.

    It fails if anything is wrong, and its report names each problem. No tar is ever changed.

    Args:
        dataset: Folder of a dataset, or one tar: a path or a URL.
        deep: Decode every member as well: finds pictures that are damaged inside, and takes much longer.
        repair: Write anew what is wrong beside the tars: indexes, sidecars, meta.json.
        n_jobs: At most this many processes, never more than cores or tars. 0: all cores.
        index_root: Where the indexes are, if not beside their tars. Empty: beside their tars.
        no_end_ok: Accept tars without the zero blocks at their end, which may have been cut short.
    """
    return conclude("verify", locals())
