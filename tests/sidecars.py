"""Sidecars for tests, made from the tars as a repair makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loader.indexing import find_fresh, tar_buffer
from loader.sample_facts import SampleFacts, sample_facts
from loader.sidecar import open_sidecar
from loader.sidecar_columns import Columns, columns_of, union
from loader.verify_sidecar import Rebuild, rebuild_sidecar


def facts(tar: Path | str) -> list[SampleFacts]:
    """Of an indexed tar."""
    index, _ = find_fresh(str(tar))
    assert index is not None
    with tar_buffer(str(tar)) as buffer:
        return list(sample_facts(index, buffer, digests=True))


def add_sidecars(root: Path | str, columns: Columns | None = None) -> list[Path]:
    """One for each tar of an indexed dataset; returns their paths."""
    tars = sorted(Path(root).rglob("*.tar"))
    wanted = columns or union(columns_of(sample.document for sample in facts(tar)) for tar in tars)
    for tar in tars:
        rebuild_sidecar(Rebuild(str(tar), wanted), None, None)
    return [tar.with_suffix(".parquet") for tar in tars]


def rows(sidecar: Path | str) -> list[dict[str, Any]]:
    """What it holds."""
    with open_sidecar(str(sidecar)) as file:
        found: list[dict[str, Any]] = file.read().to_pylist()
    return found
