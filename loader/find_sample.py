"""Addresses as commands take them: which datasets, which sample of which tar. Only reads; no index is written."""

from __future__ import annotations

from loader import storage
from loader.errors import BadAddress, BadMeta, TruncatedTar
from loader.index import Index
from loader.indexing import build, find_fresh, tar_buffer
from loader.meta import META_NAME, meta_address, read_meta, read_stats
from loader.storage import StorageOptions


def find_sample(
    address: str, which: str, storage_options: StorageOptions | None = None
) -> tuple[str, Index, int]:
    """(tar, its index, sample in it): of a tar, or over all shards of a dataset, by number or by key."""
    if storage.is_dir(address, storage_options) or address.endswith(".json"):
        return _find_in_dataset(address, which, storage_options)
    index, _ = index_of(address, storage_options)
    return address, index, _find(index, which, address)


def split_address(path: str, storage_options: StorageOptions | None) -> tuple[str, str | None]:
    """``PATH#sample`` → (address, sample); a ``#`` that is part of an existing path is left in it."""
    whole = storage.normalise(path)
    if "#" not in path or storage.exists(whole, storage_options):
        return whole, None
    pieces = path.split("#")
    for count in range(len(pieces) - 1, 0, -1):
        head = "#".join(pieces[:count])
        if head and storage.exists(address := storage.normalise(head), storage_options):
            return address, "#".join(pieces[count:])
    return storage.normalise(pieces[0]), "#".join(pieces[1:])


def dataset_root(address: str, storage_options: StorageOptions | None) -> str:
    """The folder of a dataset, given it or its meta.json, which may lie elsewhere: the statistics beside it say."""
    if not address.endswith(".json"):
        return address
    folder = storage.parent(address)
    try:
        said = read_stats(address, storage_options).get("dataset_path")
    except BadMeta:
        return folder
    if not isinstance(said, str) or not said:
        return folder
    root = storage.normalise(storage.join(folder, said))
    return root if storage.is_local(root) == storage.is_local(folder) else folder


def index_of(tar: str, storage_options: StorageOptions | None) -> tuple[Index, str]:
    """The index of a tar without writing any: its own if that is fresh, else one made in memory."""
    index, state = find_fresh(tar, storage_options)
    if index is not None:
        return index, state
    with tar_buffer(tar, storage_options) as buffer:
        try:
            return Index(build(buffer, tar, checksum=False), tar), f"{state} (read from the tar)"
        except TruncatedTar as error:  # cut between two members, what is left can be looked at
            return Index(build(buffer, tar, checksum=False, require_end=False), tar), str(error)


def _find(index: Index, which: str, where: str) -> int:
    """A sample's number from what stands after the ``#``: digits without leading zeros are a number."""
    number = _number(which)
    if number is not None and -index.num_samples <= number < index.num_samples:
        return number % index.num_samples
    for sample in range(index.num_samples):
        if index.key(sample) == which:
            return sample
    raise _nothing(which, where, index.num_samples)


def datasets_at(address: str, storage_options: StorageOptions | None) -> list[str]:
    """The datasets that are meant: the one at the address, or those in folders below, if it has no meta.json and they have.

    So it is with the splits of a packing job.
    """
    if address.endswith((".tar", ".json")) or storage.exists(meta_address(address), storage_options):
        return [address]
    files = storage.list_files(address, META_NAME, storage_options)
    roots = [storage.parent(file) for file in files if storage.name(file) == META_NAME]
    tars = storage.list_files(address, ".tar", storage_options)
    covered = all(any(tar.startswith(f"{root}/") for root in roots) for tar in tars)
    return roots if roots and covered else [address]


def _find_in_dataset(
    address: str, which: str, storage_options: StorageOptions | None
) -> tuple[str, Index, int]:
    """(tar, its index, sample in it) of a sample that is numbered over all shards, or has a key."""
    root = dataset_root(address, storage_options)
    tars: dict[str, int | None] = {}
    if storage.exists(meta_address(address), storage_options):
        shards = read_meta(address, storage_options)
        tars = {storage.join(root, path): shard.num_samples for path, shard in shards.items()}
    else:
        tars = dict.fromkeys(storage.list_files(root, ".tar", storage_options))
    counted = {
        tar: index_of(tar, storage_options)[0].num_samples if count is None else count
        for tar, count in tars.items()
    }
    total, number = sum(counted.values()), _number(which)
    if number is not None and -total <= number < total:
        number %= total
        for tar, count in counted.items():
            if number < count:
                index, _ = index_of(tar, storage_options)
                if index.num_samples != count:
                    raise BadMeta(
                        f"{tar}: {index.num_samples} samples, meta.json says {count}: run gen_meta {root}"
                    )
                return tar, index, number
            number -= count
    for tar in counted:
        index, _ = index_of(tar, storage_options)
        for sample in range(index.num_samples):
            if index.key(sample) == which:
                return tar, index, sample
    raise _nothing(which, address, total)


def _number(which: str) -> int | None:
    digits = which.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and len(digits) < 19
    return int(which) if plain and (digits == "0" or digits[0] != "0") else None


def _nothing(which: str, where: str, count: int) -> BadAddress:
    what = (
        f"sample {which}, nor one of that key"
        if _number(which) is not None
        else f"sample with the key {which!r}"
    )
    return BadAddress(f"{where} holds {count:,} samples: there is no {what}")
