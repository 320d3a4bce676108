"""The flow `prepare`: pack, gen_meta and warmup, in order."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from flows.grouped import conclude
from flows.parameters import CONFIGURED, described, run_name


def _name() -> str:
    values = flow_run.parameters
    return run_name("prepare", values["output"], values["config"], values["source"])


@flow(name="prepare", flow_run_name=_name, persist_result=False)
@described
def prepare(
    config: str = "",
    source: str = "",
    output: str = "",
    recipe: str = "",
    image_root: str = "",
    max_samples: Annotated[int, Field(ge=0)] = 0,
    max_bytes: Annotated[int, Field(ge=0)] = 0,
    on_error: Literal["as configured", "skip", "raise"] = CONFIGURED,
    max_bad_fraction: Annotated[float, Field(ge=-1, le=1)] = -1.0,
    key_prefix: str = "",
    image_names: Literal["as configured", "numbered", "extension"] = CONFIGURED,
    n_jobs: Annotated[int, Field(ge=-1)] = -1,
    recipe_folder: str = "",
) -> Any:
    """Pack JSON records and their pictures as shards, describe and index them: everything before training.

    Run it again at any time: what is done is kept, the rest is done, and the bytes are the same.
    """
    return conclude("prepare", locals())
