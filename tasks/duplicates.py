"""Samples that are there twice: the same pictures, byte for byte as they are stored, in the same order.

A slot is packed without a look at the others, so each notes the digests of its samples in its manifest. When all are
packed, these say which samples are doubles, whoever packed them in which order: the first in the order of the shards
stays. Shards that hold a later one are packed once more, without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from loader import storage
from loader.writer import Members
from tasks.sources.folder_rows import PICTURES

if TYPE_CHECKING:
    from tasks.config import PackConfig
    from tasks.manifest import Manifest, Seen

NAME = "duplicates.jsonl"
_DIGITS = 32  # of a SHA-256: 128 bits tell any number of pictures apart

Manifests = Callable[[], Iterable["Manifest"]]  # to be gone through more than once


def digest_of(members: Members) -> str:
    """SHA-256 of a sample's pictures; of a sample without any, of all that it has."""
    pictures = [data for suffix, data in members if suffix[suffix.rfind(".") :].lower() in PICTURES]
    parts = pictures or [data for _, data in members]
    whole = hashlib.sha256(parts[0])
    if len(parts) > 1:
        whole = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
    return whole.hexdigest()[:_DIGITS]


def find(manifests: Manifests) -> Iterator[tuple[int, Seen, str]]:
    """(slot, sample, key of the first of its kind) of each later one, in the order of the shards."""
    digests = np.array([seen.digest.encode() for found in manifests() for seen in found.seen], f"S{_DIGITS}")
    _, firsts, which = np.unique(digests, return_index=True, return_inverse=True)
    original = firsts[which]
    wanted = set(original[original != np.arange(len(digests))].tolist())
    keys: dict[int, str] = {}
    place = 0
    for found in manifests():
        for seen in found.seen:
            if place in wanted:
                keys[place] = seen.key
            if original[place] != place:
                yield found.slot, seen, keys[int(original[place])]
            place += 1


def to_drop(manifests: Manifests) -> dict[int, tuple[int, ...]]:
    """The rows that a slot must be packed again without, for each slot that holds others than it should."""
    wanted: dict[int, list[int]] = {}
    for slot, seen, _ in find(manifests):
        wanted.setdefault(slot, []).append(seen.number)
    return {
        found.slot: tuple(wanted.get(found.slot, ()))
        for found in manifests()
        if set(found.dropped) != set(wanted.get(found.slot, ()))
    }


def write(config: PackConfig, manifests: Manifests) -> int:
    """duplicates.jsonl, in the order of the shards; how many there are."""
    address = storage.join(config.output, NAME)
    lines = [
        json.dumps(
            {"source": seen.source, "row": seen.row, "key": seen.key, "same_as": first}, ensure_ascii=False
        )
        for _, seen, first in find(manifests)
    ] if config.duplicates != "keep" else []  # fmt: skip
    if lines:
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        storage.write_bytes(address, data, config.storage_options)
    else:
        storage.remove(address, config.storage_options)
    return len(lines)
