"""A small packed corpus in a store, whose bytes follow from its numbers."""

from __future__ import annotations

import random
from typing import Any

from s3_server import Place

from loader import storage
from loader.indexed_tar_samples import IndexedTarSamples
from loader.meta import ShardMeta, write_meta
from loader.remote import Remote
from loader.storage import StorageOptions
from loader.writer import write_shard

PICTURE = 20_000  # bytes


def picture(number: int) -> bytes:
    """The .jpg of a sample."""
    return random.Random(number).randbytes(PICTURE + number % 100)


def caption(number: int) -> bytes:
    """The .txt of a sample."""
    return f"{number} is what this picture shows".encode()


def sample(number: int) -> dict[str, Any]:
    """A sample of the corpus, as bytes."""
    return {"__key__": f"{number:06d}", ".jpg": picture(number), ".txt": caption(number)}


def pack(
    root: str, shards: int, samples: int, options: StorageOptions | None = None, start: int = 0
) -> list[str]:
    """Write `shards` tars of `samples` samples each, indexes and meta.json; returns the addresses of the tars."""
    entries, addresses = {}, []
    for shard in range(shards):
        numbers = range(start + shard * samples, start + (shard + 1) * samples)
        name = f"{shard:05d}.tar"
        members = [(f"{n:06d}", [(".jpg", picture(n)), (".txt", caption(n))]) for n in numbers]
        addresses.append(storage.join(root, name))
        info = write_shard(addresses[-1], members, storage_options=options)
        entries[name] = ShardMeta(info.num_samples, info.size, info.checksum, {})
    write_meta(root, entries, options)
    return addresses


def packed(place: Place, shards: int, samples: int) -> Place:
    """As `pack`; returns the place."""
    pack(place.root, shards, samples, place.storage_options)
    return place


def open_(place: Place, remote: Remote, shard: int = 0, **options: object) -> IndexedTarSamples:
    return IndexedTarSamples(
        place.address(f"{shard:05d}.tar"), decode=False, storage_options=place.storage_options, remote=remote, **options
    )  # fmt: skip
