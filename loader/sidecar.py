"""The sidecar: one Parquet file a tar, beside it, with one row a sample (docs/format.md).

Its bytes follow from the rows and the columns of the whole dataset alone. It names the tar that it is about by size
and checksum, so that a reader knows one that was left behind. pyarrow comes with the extra `parquet`, and is imported
where it is used.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader import storage
from loader.errors import BadConfig, BadSidecar
from loader.sample_facts import UNREADABLE, PictureFacts, SampleFacts
from loader.sidecar_columns import FIXED, as_kind, kinds, named, parts, plain, text
from loader.storage import StorageOptions

if TYPE_CHECKING:
    import pyarrow

FORMAT = "shardflow.sidecar"
VERSION = 1
_ROWS = 1000  # of a row group: what is read at least for one row, and what statistics are kept for
UNREADABLE_JSON = "unreadable JSON"


@dataclass(frozen=True)
class About:
    """The tar that a sidecar is about."""

    size: int
    checksum: int


def sidecar_path(tar: str) -> str:
    """Where the sidecar of a tar lies."""
    return tar if tar.endswith(".parquet") else tar.removesuffix(".tar") + ".parquet"


def parquet() -> Any:
    """The module pyarrow.parquet; BadConfig where it isn't installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BadConfig(
            "sidecars need pyarrow, which is not installed: pip install 'shardflow[parquet]'"
        ) from error
    return pyarrow.parquet


def rows_of(samples: Iterable[SampleFacts], tar: str) -> dict[str, list[Any]]:
    """The fixed columns of samples; `tar` is the name of the file that they lie in."""
    rows: dict[str, list[Any]] = {name: [] for name in FIXED}
    for sample in samples:
        for name, value in zip(FIXED, _row(sample, tar), strict=True):
            rows[name].append(value)
    return rows


def _row(sample: SampleFacts, tar: str) -> tuple[Any, ...]:
    document = sample.document
    metadata, others = parts(document)
    caption_all = document.get("caption_all") if isinstance(document, dict) else None
    if not isinstance(caption_all, dict):
        caption_all = None
    has_metadata = isinstance(document, dict) and isinstance(document.get("metadata"), dict)
    other = others if isinstance(document, dict) else document
    outcome = UNREADABLE_JSON if document is UNREADABLE else sample.outcome
    first, *more = sample.pictures or (PictureFacts("", None, None, None, None, 0, None),)
    pictured = bool(sample.pictures)
    return (
        plain(sample.key),
        plain(tar),
        plain(first.name) if pictured else None,
        plain(first.path),
        first.width,
        first.height,
        first.format,
        first.bytes if pictured else None,
        plain(sample.caption),
        first.sha256,
        plain(text(metadata)) if has_metadata else None,
        plain(text(caption_all)) if caption_all is not None else None,
        plain(text(other)) if document is not UNREADABLE and (other or not isinstance(document, dict)) and document is not None else None,
        outcome,
        plain(sample.source),
        sample.row,
        len(sample.pictures),
        [_other(picture) for picture in more],
    )  # fmt: skip


def _other(picture: PictureFacts) -> dict[str, Any]:
    return {
        "member_name": plain(picture.name),
        "original_path": plain(picture.path),
        "width": picture.width,
        "height": picture.height,
        "format": picture.format,
        "bytes": picture.bytes,
        "sha256": picture.sha256,
    }


def documents_of(rows: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The samples' JSON from the fixed columns: all of it that says anything."""
    return [
        _document(*values)
        for values in zip(
            rows["caption"],
            rows["caption_all"],
            rows["metadata"],
            rows["other"],
            rows["outcome"],
            strict=True,
        )
    ]


def _document(
    caption: str | None, caption_all: str | None, metadata: str | None, other: str | None, outcome: str | None
) -> Any:
    if outcome == UNREADABLE_JSON:
        return UNREADABLE
    others = json.loads(other) if other else {}
    if not isinstance(others, dict):
        return others
    document = {"caption": caption} if caption is not None else {}
    if caption_all is not None:
        document["caption_all"] = json.loads(caption_all)
    if metadata is not None:
        document["metadata"] = json.loads(metadata)
    return {**document, **others}


def schema(columns: Mapping[str, Any], about: About | None = None) -> pyarrow.Schema:
    """Fixed columns first, then those of the dataset by name; what the file is about stands in its metadata."""
    import pyarrow as pa

    picture = [
        ("member_name", pa.string()),
        ("original_path", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("format", pa.string()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
    ]
    types = {"width": pa.int32(), "height": pa.int32(), "bytes": pa.int64(), "num_images": pa.int32(), "source_row": pa.int64(),
             "other_images": pa.list_(pa.struct(picture))}  # fmt: skip
    own = {"bool": pa.bool_(), "int": pa.int64(), "long": pa.int64(), "float": pa.float64()}
    fields = [pa.field(name, types.get(name, pa.string())) for name in FIXED]
    fields += [
        pa.field(plain(name), own.get(kind, pa.string()), metadata={"kind": kind})
        for name, kind in kinds(columns).items()
    ]
    said = {"format": FORMAT, "version": str(VERSION)}
    if about is not None:
        said |= {"tar_size": str(about.size), "tar_adler32": str(about.checksum)}
    return pa.schema(fields, metadata=said)


def table(rows: Mapping[str, Sequence[Any]], columns: Mapping[str, Any], about: About) -> pyarrow.Table:
    """The rows of one shard under the columns of the whole dataset."""
    import pyarrow as pa

    wanted = kinds(columns)
    found: dict[str, list[Any]] = {name: [None] * len(rows["image_id"]) for name in wanted}
    if wanted:
        for number, document in enumerate(documents_of(rows)):
            for name, value in named(document):
                if name in wanted:
                    kept = as_kind(value, wanted[name])
                    found[name][number] = plain(kept) if isinstance(kept, str) else kept
    form = schema(columns, about)
    arrays = [
        pa.array(rows.get(field.name, values), field.type)
        for field, values in zip(form, [*([[]] * len(FIXED)), *found.values()], strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=form)


def write_sidecar(
    tar: str,
    rows: Mapping[str, Sequence[Any]],
    columns: Mapping[str, Any],
    about: About,
    storage_options: StorageOptions | None = None,
) -> None:
    """Publish the sidecar of the tar at that address."""
    buffer = io.BytesIO()
    parquet().write_table(
        table(rows, columns, about),
        buffer,
        row_group_size=_ROWS,
        compression="zstd",
        write_page_index=True,
        use_dictionary=["tar_file", "format", "outcome", "source"],
        version="2.6",
    )
    storage.write_bytes(sidecar_path(tar), buffer.getvalue(), storage_options)


@contextlib.contextmanager
def open_sidecar(tar: str, storage_options: StorageOptions | None = None) -> Iterator[Any]:
    """The sidecar of a tar as a `pyarrow.parquet.ParquetFile`, its footer read.

    FileNotFoundError if there is none, BadSidecar if it is damaged. It may be another tool's: see `about`.
    """
    address = sidecar_path(tar)
    with storage.open_read(address, storage_options) as file:
        try:
            opened = parquet().ParquetFile(file)
        except (OSError, ValueError) as error:  # pyarrow's own errors are both
            if isinstance(error, BadConfig):
                raise
            raise BadSidecar(
                f"{address}: no readable Parquet file ({str(error).partition('. ')[0]})"
            ) from error
        with opened:
            yield opened


def about(form: pyarrow.Schema, where: str) -> About | None:
    """The tar that a sidecar with that schema is about; None for one that some other tool wrote.

    BadSidecar for a later version of the format, or one that says nothing that can be meant.
    """
    said = {key.decode("utf-8", "replace"): value for key, value in (form.metadata or {}).items()}
    if said.get("format") != FORMAT.encode():
        return None
    if said.get("version") != str(VERSION).encode():
        raise BadSidecar(f"{where}: version {said.get('version')!r} of the sidecar; {VERSION} was expected")
    try:
        found = About(int(said["tar_size"]), int(said["tar_adler32"]))
    except (KeyError, ValueError) as error:
        raise BadSidecar(f"{where}: damaged: it doesn't say which tar it is about") from error
    wanted = schema({})
    for number, field in enumerate(wanted):
        if number >= len(form) or (form.field(number).name, form.field(number).type) != (
            field.name,
            field.type,
        ):
            raise BadSidecar(f"{where}: damaged: column {number} is not {field.name!r} of type {field.type}")
    return found


def is_about(tar: str, wanted: About, storage_options: StorageOptions | None = None) -> bool:
    """Whether a tar has a sidecar that is about this state of it."""
    try:
        with open_sidecar(tar, storage_options) as file:
            return about(file.schema_arrow, tar) == wanted
    except (BadSidecar, FileNotFoundError):
        return False


def is_ours(address: str, storage_options: StorageOptions | None = None) -> bool:
    """Whether the Parquet file at that address is a sidecar of this format, of whatever state."""
    try:
        with open_sidecar(address, storage_options) as file:
            return about(file.schema_arrow, address) is not None
    except (BadSidecar, BadConfig):  # damaged, or no pyarrow here
        return False


def columns_in(form: pyarrow.Schema) -> dict[str, str]:
    """The columns of a sidecar beside the fixed ones, with their kinds."""
    return {
        field.name: (field.metadata or {}).get(b"kind", b"").decode("ascii", "replace")
        for field in list(form)[len(FIXED) :]
    }


def conform(tar: str, columns: Mapping[str, Any], storage_options: StorageOptions | None = None) -> bool:
    """Give a sidecar the columns of the whole dataset, if it has others; returns whether it had."""
    with open_sidecar(tar, storage_options) as file:
        form = file.schema_arrow
        said = about(form, sidecar_path(tar))
        if said is None:
            raise BadSidecar(f"{sidecar_path(tar)}: some other tool's")
        if columns_in(form) == kinds(columns):
            return False
        try:
            rows = file.read(list(FIXED)).to_pydict()
        except (OSError, ValueError) as error:  # of pyarrow
            where = sidecar_path(tar)
            raise BadSidecar(f"{where}: damaged ({error}): remove it, and it is made again") from error
    write_sidecar(tar, rows, columns, said, storage_options)
    return True
