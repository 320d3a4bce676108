"""verify, of a sidecar: compared with what its tar says, and made anew from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loader import storage
from loader.errors import BadConfig, BadSidecar, ShardflowError
from loader.index import Index
from loader.indexing import obtain_index, tar_buffer
from loader.sample_facts import SampleFacts, sample_facts
from loader.sidecar import (
    UNREADABLE_JSON,
    About,
    about,
    columns_in,
    open_sidecar,
    rows_of,
    sidecar_path,
    table,
    write_sidecar,
)
from loader.sidecar_columns import FIXED, columns_of, kinds, plain
from loader.storage import StorageOptions

_KNOWN_TO_THE_PACKER = ("original_path", "outcome", "source", "source_row")  # what no tar says


@dataclass(frozen=True)
class SidecarState:
    """What was found beside one tar: nothing, another tool's, or ours.

    `columns`: those that its samples ask for; `kinds`: those that the file has; `wrong`: what is wrong with it.
    """

    there: bool = False
    ours: bool = False
    columns: Mapping[str, tuple[str, int]] | None = None
    kinds: Mapping[str, str] | None = None
    wrong: str = ""


NO_SIDECAR = SidecarState()


class Rebuild(NamedTuple):
    """A sidecar to be made anew, under the columns of the whole dataset."""

    tar: str
    columns: Mapping[str, tuple[str, int]]


def sidecar_state(
    tar: str, index: Index, samples: Sequence[SampleFacts], options: StorageOptions | None
) -> SidecarState:
    """What the sidecar of a tar says, beside what the tar says."""
    columns = columns_of(sample.document for sample in samples)
    address = sidecar_path(tar)
    if not storage.exists(address, options):
        return SidecarState(columns=columns)
    try:
        with open_sidecar(tar, options) as file:
            form = file.schema_arrow
            said = about(form, address)
            if said is None:
                return SidecarState(there=True, columns=columns)
            found = file.read()
    except (BadSidecar, BadConfig, OSError, ValueError) as error:
        return SidecarState(True, True, columns, None, str(error).removeprefix(f"{address}: "))
    has = columns_in(form)
    if index.checksum is None or said != About(index.tar_size, index.checksum):
        return SidecarState(True, True, columns, has, "stale: it is about another state of the tar")
    return SidecarState(True, True, columns, has, _difference(found, samples, has, said, storage.name(tar)))


def _difference(
    found: Any, samples: Sequence[SampleFacts], has: Mapping[str, str], said: About, name: str
) -> str:
    """What the file says otherwise than the tar; empty if nothing."""
    if found.num_rows != len(samples):
        return f"it has {found.num_rows:,} rows, the tar has {len(samples):,} samples"
    try:
        wanted = table(rows_of(samples, name), {column: (kind, 0) for column, kind in has.items()}, said)
    except (ValueError, TypeError, OverflowError) as error:  # of pyarrow
        return f"its columns can't hold what the samples say ({str(error)[:200]})"
    for column in wanted.column_names:
        if column in _KNOWN_TO_THE_PACKER or found[column].equals(wanted[column]):
            continue
        there, here = (_comparable(column, part[column].to_pylist()) for part in (found, wanted))
        for row, (before, now) in enumerate(zip(there, here, strict=True)):
            if repr(before) != repr(now):
                return f"row {row:,}: {column} is {before!r:.80}, the tar says {now!r:.80}"
    return ""


def _comparable(column: str, values: list[Any]) -> list[Any]:
    if column != "other_images":
        return values
    return [[{**picture, "original_path": None} for picture in row] for row in values]


def rebuild_sidecar(item: Rebuild, options: StorageOptions | None, index_root: str | None) -> str:
    """Write the sidecar of a tar from the tar; returns the tar's address.

    What the tar doesn't say, original paths and outcomes, is taken from the file that was there, where that can be
    read and has the same rows.
    """
    index, _ = obtain_index(item.tar, options, index_root=index_root)
    with tar_buffer(item.tar, options) as buffer:
        rows = rows_of(sample_facts(index, buffer, digests=True), storage.name(item.tar))
    _take_over(item.tar, rows, options)
    if index.checksum is None:
        raise BadSidecar(f"{index.where}: no checksum in it")
    write_sidecar(item.tar, rows, item.columns, About(index.tar_size, index.checksum), options)
    return item.tar


def _take_over(tar: str, rows: dict[str, list[Any]], options: StorageOptions | None) -> None:
    try:
        with open_sidecar(tar, options) as file:
            if about(file.schema_arrow, tar) is None:
                return
            old = file.read(list(FIXED)).to_pydict()
    except (BadSidecar, OSError, ValueError):  # damaged, or none
        return
    if (old["image_id"], old["sha256"]) != (rows["image_id"], rows["sha256"]):
        return
    for row, outcome in enumerate(rows["outcome"]):
        for name in ("original_path", "source", "source_row"):
            rows[name][row] = old[name][row]
        if outcome != UNREADABLE_JSON:
            rows["outcome"][row] = old["outcome"][row]
        for picture, before in zip(rows["other_images"][row], old["other_images"][row], strict=False):
            picture["original_path"] = before["original_path"]


def origins(tar: str, keys: Collection[str], options: StorageOptions | None) -> dict[str, str]:
    """Where samples were packed from, for a person to find, as far as a sidecar says it."""
    try:
        if not storage.exists(sidecar_path(tar), options):
            return {}
        with open_sidecar(tar, options) as file:
            if about(file.schema_arrow, tar) is None:
                return {}
            rows = file.read(["image_id", "source", "source_row"]).to_pydict()
    except (ShardflowError, OSError, ValueError):  # damaged, or no pyarrow here
        return {}
    wanted = {plain(key): key for key in keys}
    return {
        wanted[key]: f"{source}, row {row}"
        for key, source, row in zip(rows["image_id"], rows["source"], rows["source_row"], strict=True)
        if key in wanted and source is not None
    }


def disagree(state: SidecarState, columns: Mapping[str, Any]) -> bool:
    """Whether a sidecar has other columns than the dataset."""
    return state.kinds is not None and dict(state.kinds) != kinds(columns)
