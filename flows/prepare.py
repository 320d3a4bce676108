"""The flow `prepare`: pack, gen_meta and warmup, in order."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from flows.grouped import conclude
from flows.parameters import named, packing_form, run_name


def _name() -> str:
    values = flow_run.parameters
    return named(flow_run.name, run_name("prepare", values["output"], values["config"], values["source"]))


@flow(name="prepare", flow_run_name=_name, persist_result=False)
@packing_form
def prepare(**parameters: Any) -> Any:
    """Pack records, folders, tables or tars as shards, describe and index them: everything before training.

    Run it again at any time: what is done is kept, the rest is done, and the bytes are the same.
    """
    return conclude("prepare", parameters)
