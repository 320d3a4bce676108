"""The shards of a dataset: addresses and numbers of samples, in one fixed order, without opening any of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loader import storage
from loader.errors import BadMeta, UnknownDataset
from loader.indexing import ensure_index
from loader.meta import ShardMeta, meta_address, read_meta
from loader.registry import DatasetEntry, load_registry, resolve
from loader.state import fingerprint
from loader.storage import StorageOptions

DEFAULT_REGISTRY = "configs/datasets.json"

_ARRAYS = ("counts", "sizes", "_group_begins", "_name_begins", "_names")

Ints = npt.NDArray[np.int64]
Where = tuple[str, str, StorageOptions | None]  # (label, root, storage options)
Group = tuple[Where, Mapping[str, ShardMeta]]  # shards by their paths relative to the root


class ShardTable:
    """Addresses, samples (`counts`) and bytes (`sizes`), a few dozen bytes a shard.

    Names lie in one block of bytes, so 100,000 shards are three arrays, not 100,000 objects; pickled to spawned
    workers (by torch's own pickler) they travel as shared memory. Immutable; safe with threads and after a fork.
    """

    def __init__(self, groups: Iterable[Group]) -> None:
        """From groups of one root each: ((label, root, storage options), {relative path: what meta.json says})."""
        self._wheres: list[Where] = []
        self._tensors: dict[str, Any] = {}  # the arrays once more, where they are shared
        names: list[bytes] = []
        counts: list[int] = []
        sizes: list[int] = []
        lengths: list[int] = []
        for where, shards in groups:
            self._wheres.append(where)
            lengths.append(len(shards))
            names += [name.encode("utf-8", "surrogateescape") for name in shards]
            counts += [shard.num_samples for shard in shards.values()]
            sizes += [shard.size for shard in shards.values()]
        self.counts: Ints = np.array(counts, np.int64)
        self.sizes: Ints = np.array(sizes, np.int64)
        self._group_begins: Ints = _begins(lengths)
        self._name_begins: Ints = _begins([len(name) for name in names])
        self._names: npt.NDArray[np.uint8] = np.frombuffer(b"".join(names), np.uint8)
        self.fingerprint: str = fingerprint(
            [
                f"{where[0]}/{name.decode('utf-8', 'surrogateescape')}"
                for where, name in self._labelled(names)
            ],
            self.counts,
        )

    def _labelled(self, names: Sequence[bytes]) -> Iterable[tuple[Where, bytes]]:
        for group, where in enumerate(self._wheres):
            for name in names[self._group_begins[group] : self._group_begins[group + 1]]:
                yield where, name

    def __len__(self) -> int:
        return len(self.counts)

    def __getstate__(self) -> dict[str, Any]:
        import torch

        if not self._tensors:  # one copy for all workers, and this process goes on with that one
            for name in _ARRAYS:
                array = torch.from_numpy(np.array(getattr(self, name)))
                self._tensors[name] = shared = array.share_memory_()  # type: ignore[no-untyped-call]
                setattr(self, name, shared.numpy())
        return {key: value for key, value in self.__dict__.items() if key not in (*_ARRAYS, "begins")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, tensor in self._tensors.items():
            setattr(self, name, tensor.numpy())

    @cached_property
    def begins(self) -> Ints:
        """The number, over the whole dataset, of each shard's first sample; and the number of samples."""
        return _begins(self.counts)

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return int(self.begins[-1])

    @property
    def sample_size(self) -> int:
        """Bytes of a sample, on average."""
        return int(self.sizes.sum()) // max(1, self.num_samples)

    def url(self, shard: int) -> str:
        """The address of a shard."""
        first, last = self._name_begins[shard : shard + 2].tolist()
        name = self._names[first:last].tobytes().decode("utf-8", "surrogateescape")
        return storage.join(self._where(shard)[1], name)

    def storage_options(self, shard: int) -> StorageOptions | None:
        """What the shard's store wants to be told."""
        return self._where(shard)[2]

    def _where(self, shard: int) -> Where:
        return self._wheres[int(np.searchsorted(self._group_begins, shard, side="right")) - 1]

    @property
    def remote(self) -> bool:
        """Whether any shard lies in a store."""
        return not all(storage.is_local(root) for _, root, _ in self._wheres)

    def locate(self, number: int) -> tuple[int, int]:
        """The number of a sample over the whole dataset → (shard, sample in it)."""
        shard = int(np.searchsorted(self.begins, number, side="right")) - 1
        return shard, number - int(self.begins[shard])

    def urls(self) -> list[str]:
        """All addresses, in order."""
        return [self.url(shard) for shard in range(len(self))]


def _begins(sizes: Sequence[int] | Ints) -> Ints:
    begins = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(np.asarray(sizes, np.int64), out=begins[1:])
    return begins


def find_shards(
    name: str | os.PathLike[str] | Sequence[str],
    registry: str | Mapping[str, DatasetEntry] | None = None,
    storage_options: StorageOptions | None = None,
    index_root: str | None = None,
) -> ShardTable:
    """The shards that a name means.

    `name`: a pattern of names in the registry; else the address of a dataset's folder (one that has a meta.json),
    of one tar, a glob of tars, or a list of such; a shard that is named twice comes once. `registry`: a file or
    loaded entries; by default ``configs/datasets.json`` where it exists. `storage_options` are for addresses that
    come from no registry.

    UnknownDataset if nothing has that name; BadMeta if a folder has no meta.json, or there are no shards.
    """
    collects = gc.isenabled()
    gc.disable()  # a meta.json of 100,000 shards is as many objects, gone through again and again: half of the time
    try:
        return _find_shards(name, registry, storage_options, index_root)
    finally:
        if collects:
            gc.enable()


def _find_shards(
    name: str | os.PathLike[str] | Sequence[str],
    registry: str | Mapping[str, DatasetEntry] | None,
    storage_options: StorageOptions | None,
    index_root: str | None,
) -> ShardTable:
    if not isinstance(name, (str, os.PathLike)):
        tables = [_by_address(part, storage_options, index_root) for part in name]
        return _table(str(list(name)), [group for groups in tables for group in groups])
    text = os.fspath(name)
    if not text.strip():
        raise UnknownDataset(
            "an empty dataset name: give a name in the registry, or the address of a dataset"
        )
    entries: list[DatasetEntry] = []
    problem = ""
    known = _registry(registry, storage_options)
    if known is not None:
        try:
            entries = resolve(text, known)
        except UnknownDataset as error:
            problem = str(error)  # itself, it would keep the frames of all callers alive, and what they hold
    if entries:
        return _table(text, [_entry_group(entry) for entry in entries])
    try:
        whole = storage.is_local(text) and os.path.exists(
            storage.local_path(text)
        )  # a comma may be part of it
        parts = [text] if whole else [part.strip() for part in text.split(",") if part.strip()]
        groups = [group for part in parts for group in _by_address(part, storage_options, index_root)]
    except FileNotFoundError as error:
        if problem:
            raise UnknownDataset(f"{problem}; and no such file or folder either") from error
        raise UnknownDataset(
            f"{text!r} is neither the address of a dataset or a tar nor a registered name "
            f"(there is no registry {DEFAULT_REGISTRY} here: name one with registry=…)"
        ) from error
    return _table(text, groups)


def _table(what: str, groups: list[Group]) -> ShardTable:
    if len(groups) > 1:  # named twice, in a list or by overlapping patterns: still each sample once
        seen: set[tuple[str, str]] = set()
        for number, ((label, root, options), shards) in enumerate(groups):
            new = {name: shard for name, shard in shards.items() if (root, name) not in seen}
            seen.update((root, name) for name in new)
            groups[number] = (label, root, options), new
    table = ShardTable(groups)
    if not len(table):
        raise BadMeta(f"{what}: no shards in it: pack some, or run gen_meta where there are tars")
    return table


def _registry(
    registry: str | Mapping[str, DatasetEntry] | None, storage_options: StorageOptions | None
) -> Mapping[str, DatasetEntry] | None:
    if registry is None:
        return load_registry(DEFAULT_REGISTRY) if os.path.exists(DEFAULT_REGISTRY) else None
    if isinstance(registry, Mapping):
        return registry
    return load_registry(os.fspath(registry), storage_options)


def _entry_group(entry: DatasetEntry) -> Group:
    shards = read_meta(entry.tar_meta_path, entry.storage_options)
    return (entry.name, entry.dir, entry.storage_options), shards


def _by_address(part: str, options: StorageOptions | None, index_root: str | None) -> list[Group]:
    address = storage.normalise(part)
    if storage.is_dir(address, options):
        shards = read_meta(meta_address(address), options)
        return [(("", address, options), shards)]
    if address.endswith("meta.json"):
        shards = read_meta(address, options)
        return [(("", storage.parent(address), options), shards)]
    groups: dict[str, dict[str, ShardMeta]] = {}
    for tar in storage.expand(part, ".tar", options):
        index, _ = ensure_index(tar, options, index_root=index_root, checksum=False)
        found = ShardMeta(index.num_samples, index.tar_size, index.checksum)
        groups.setdefault(storage.parent(tar), {})[storage.name(tar)] = found
    return [(("", root, options), shards) for root, shards in groups.items()]
