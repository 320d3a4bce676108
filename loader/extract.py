"""extract: the members of single samples as files. Names come from archives, and never lead out of the folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

from loader import storage
from loader.checksums import crc32
from loader.errors import BadAddress, CorruptMember
from loader.find_sample import find_sample, split_address
from loader.progress import command, each, human_size, listing
from loader.sample import clean_name
from loader.storage import StorageOptions

NAME = "shardflow extract"


def extract(
    path: str,
    folder: str,
    storage_options: StorageOptions | None = None,
    folder_options: StorageOptions | None = None,
) -> dict[str, int]:
    """Write the members of the sample ``PATH#number`` or ``PATH#key`` under a folder; addresses → bytes.

    Each has its name in the tar, folders included, and appears whole or not at all; files of these names are replaced.
    All names are looked at before anything is written: BadAddress for one that would leave the folder, by itself or by a
    link that lies there. CorruptMember if the bytes are not those that were indexed.
    """
    address, which = split_address(path, storage_options)
    if which is None:
        raise BadAddress(f"{path} names no sample: give one, such as {path}#17 or {path}#KEY")
    tar, index, number = find_sample(address, which, storage_options)
    root = storage.normalise(folder)
    members = index.members(number)
    targets = [_target(root, index.member_name(member), tar) for member in members]
    if len(set(targets)) != len(targets):
        raise BadAddress(f"{tar}: sample {index.key(number)!r} has two members of one name")
    written = {}
    for member, target in zip(members, targets, strict=True):
        start, end = index.span(member)
        data = storage.read_bytes(tar, storage_options, start, end)
        if index.crc32 is not None and crc32(data) != index.crc32[member]:
            raise CorruptMember(
                f"{tar}: member {index.member_name(member)!r} has changed since it was indexed (CRC-32)"
            )
        storage.write_bytes(target, data, folder_options)
        written[target] = len(data)
    return written


def _target(root: str, name: str, tar: str) -> str:
    """Where a member goes."""
    try:
        clean = clean_name(name)
    except ValueError as error:
        raise BadAddress(f"{tar}: {error}") from None
    if not clean or "\0" in clean or "://" in clean or "" in clean.split("/"):
        raise BadAddress(f"{tar}: the name {name!r} can't be a file's")
    target = storage.join(root, clean)
    if not storage.is_local(root):
        return target
    # A link that lies in the folder could lead out of it; the last component is replaced, never followed.
    inside = os.path.realpath(storage.local_path(root))
    parent = os.path.realpath(os.path.dirname(os.path.join(storage.local_path(root), clean)))
    if parent != inside and not parent.startswith(inside.rstrip("/") + "/"):
        raise BadAddress(f"{tar}: {name!r} would be written to {parent}, which lies outside of {inside}")
    if os.path.isdir(target):
        raise BadAddress(f"{tar}: {name!r} would replace the folder {target}")
    return target


def main(paths: Sequence[str], output: str) -> int:
    """The body of ``shardflow extract``: each of `paths`; returns the exit status, 1 if one of them is bad."""

    def one(path: str) -> int:
        written = extract(path, output)
        listing(path, [f"{target}  {human_size(size)}" for target, size in written.items()])
        return 0

    return command(lambda: each(paths, NAME, one), NAME)
