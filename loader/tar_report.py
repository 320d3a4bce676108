"""What is said of one tar when a dataset is described: counts, checksum, and what its samples hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loader.contents import Contents, most_frequent
from loader.errors import BadIndex
from loader.index import Index


@dataclass(frozen=True, slots=True)
class TarReport:
    """What gen_meta found in one tar: small, and the same for every worker that finds it.

    `path` is relative to the dataset. `index` says where the index came from ("fresh", "built", or "unsaved" on
    a read-only place). `extensions` counts members, `bytes` theirs; `skipped` maps a reason to its count and a few
    names. `contents`: what the samples hold, where they were looked into.
    """

    path: str
    num_samples: int
    size: int
    checksum: int | None
    index: str
    extensions: dict[str, int]
    skipped: dict[str, tuple[int, list[str]]]
    bytes: dict[str, int] = field(default_factory=dict)
    contents: Contents | None = None


def describe(path: str, index: Index, state: str) -> TarReport:
    """What an index says of the tar at `path`; BadIndex if it is damaged."""
    return TarReport(
        path=path,
        num_samples=index.num_samples,
        size=index.tar_size,
        checksum=index.checksum,
        index=state,
        extensions=count_extensions(index),
        skipped={why: (entry["count"], entry["names"]) for why, entry in index.skipped.items()},
        bytes=count_bytes(index),
    )


def count_extensions(index: Index) -> dict[str, int]:
    """Members by extension, the most frequent first."""
    counts = np.bincount(_codes(index), minlength=len(index.extensions)).tolist()
    return most_frequent(dict(zip(index.extensions, counts, strict=True)))


def count_bytes(index: Index) -> dict[str, int]:
    """Bytes of members by extension, the largest sum first."""
    sums = np.zeros(len(index.extensions), np.uint64)
    np.add.at(sums, _codes(index), np.frombuffer(index.size, np.uint64))
    return most_frequent(dict(zip(index.extensions, sums.tolist(), strict=True)))


def _codes(index: Index) -> npt.NDArray[np.uint32]:
    codes = np.frombuffer(index.extension, np.uint32)
    if len(codes) and int(codes.max()) >= len(index.extensions):
        raise BadIndex(
            f"{index.where}: damaged: an extension it doesn't list. Delete it, and it is built again"
        )
    return codes
