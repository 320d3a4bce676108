"""A sidecar in place of its tar: what filters ask of samples, from the columns that answer it and no others."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from loader import storage
from loader.data_handler import IMAGE_EXTENSIONS
from loader.errors import BadConfig, BadSample, BadSidecar, ShardflowError
from loader.filters import Rules, Size
from loader.indexing import find_fresh
from loader.sidecar import (
    UNREADABLE_JSON,
    About,
    about,
    columns_in,
    open_sidecar,
    sidecar_path,
)
from loader.sidecar_columns import MOST, field_of
from loader.storage import StorageOptions

logger = logging.getLogger(__name__)


class SidecarReader:
    """The samples of one tar, as far as the rules look at them. `read` and `size` answer as reading the tar would."""

    def __init__(self, file: Any, rules: Rules) -> None:
        columns = columns_in(file.schema_arrow)
        paths = rules.paths
        heads = {path.partition(".")[0] for path in paths}
        self._whole = len(columns) >= MOST  # there may be fields that have no column
        self._fields = [
            (column, name, top, kind)
            for column, kind in columns.items()
            for name, top in [field_of(column)]
            if not self._whole and _looked_at(name if top else f"metadata.{name}", paths)
        ]
        texts = ["metadata", "other"] if self._whole else ["other"]
        wanted = {
            *texts, "outcome", "num_images", *({"caption", "caption_all"} & heads), *(field[0] for field in self._fields),
            *(("width", "height", "other_images") if rules.measures else ()),
        }  # fmt: skip
        self._rows: dict[str, list[Any]] = file.read(sorted(wanted)).to_pydict()
        self._paths = [*_full_names(columns), *(["caption"] if "caption" in wanted else [])]

    def expect(self, samples: Iterable[int]) -> None:
        """These will be read: they have been."""

    def read(self, i: int) -> tuple[dict[str, Any], Sequence[Any]]:
        """A sample's JSON as far as rules look at it, and something for each of its pictures."""
        rows = self._rows
        if rows["outcome"][i] == UNREADABLE_JSON:
            raise BadSample("no JSON")
        other = rows["other"][i]
        try:
            if other is not None and other[:1] != "{":
                document: Any = json.loads(other)
            else:
                document = json.loads(other) if other is not None and self._whole else {}
                self._fill(document, i)
        except (ValueError, RecursionError) as error:  # as it never is where a sidecar was written by us
            raise BadSample(f"no JSON in the sidecar: {error}") from error
        return {".json": document}, range(i, i + rows["num_images"][i])

    def _fill(self, document: dict[str, Any], i: int) -> None:
        rows = self._rows
        if rows.get("caption") and rows["caption"][i] is not None:
            document.setdefault("caption", rows["caption"][i])
        if rows.get("caption_all") and rows["caption_all"][i] is not None:
            document["caption_all"] = json.loads(rows["caption_all"][i])
        if self._whole and rows["metadata"][i] is not None:
            document["metadata"] = json.loads(rows["metadata"][i])
        for column, name, top, kind in self._fields:
            value = rows[column][i]
            if value is not None:
                place = document if top else document.setdefault("metadata", {})
                place[name] = json.loads(value) if kind == "json" else value

    def sizes(self, i: int) -> list[Size]:
        """Height and width of each picture of a sample; BadSample if one has none."""
        rows = self._rows
        if not rows["num_images"][i]:
            return []
        sizes = [(rows["height"][i], rows["width"][i])]
        sizes += [(picture["height"], picture["width"]) for picture in rows["other_images"][i]]
        if any(height is None or width is None for height, width in sizes):
            raise BadSample("a picture whose header is damaged")
        return sizes

    def known(self, sample: dict[str, Any]) -> list[str]:
        """The paths that there are."""
        return self._paths


def _looked_at(field: str, paths: set[str]) -> bool:
    return any(path == field or path.startswith(field + ".") for path in paths)


def _full_names(columns: dict[str, str]) -> list[str]:
    return [name if top else f"metadata.{name}" for name, top in map(field_of, columns)]


def read_sidecar(
    tar: str,
    rules: Rules,
    pictures: tuple[str, ...],
    samples: int,
    storage_options: StorageOptions | None = None,
    index_root: str | None = None,
) -> SidecarReader | None:
    """The sidecar of a tar, if it can say all that the rules ask; None if the tar has to be read.

    It must be about the tar as it is now, which a fresh index with a checksum tells.
    """
    address = sidecar_path(tar)
    if pictures != IMAGE_EXTENSIONS or not storage.exists(address, storage_options):
        return None
    index, _ = find_fresh(tar, storage_options, index_root)
    if index is None or index.checksum is None or index.num_samples != samples:
        return None
    if not rules.texts & set(index.extensions) <= {".json"}:
        return None
    try:
        with open_sidecar(tar, storage_options) as file:
            if about(file.schema_arrow, address) != About(index.tar_size, index.checksum):
                return None
            return SidecarReader(file, rules) if file.metadata.num_rows == samples else None
    except BadConfig:  # there is no pyarrow here
        return None
    except (BadSidecar, OSError, ValueError) as error:
        known = isinstance(error, ShardflowError)
        logger.warning("%s: not used (%s)", address, error if known else f"{type(error).__name__}: {error}")
        return None
