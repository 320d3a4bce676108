"""verify, of one tar: read whole, and compared with everything that says something about it.

The tar alone is believed. What is written beside it (index, sidecar) is made anew in memory and compared; a repair
publishes what was made. The tar itself is opened for reading and never otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from loader import storage
from loader.data_handler import default_handlers, handler_for
from loader.errors import BadIndex, BadTar, ShardflowError, UnknownIndexVersion, UnsafePickle
from loader.gen_meta import reason
from loader.index import Entries, Index, index_path, pack_entries
from loader.indexing import scan, tar_buffer
from loader.meta import ShardMeta
from loader.sample import Groups, check_name, group
from loader.sample_facts import contents_of, sample_facts
from loader.sidecar import sidecar_path
from loader.storage import StorageOptions
from loader.tar import BLOCK, Buffer
from loader.tar_report import TarReport, describe
from loader.verify_sidecar import NO_SIDECAR, SidecarState, origins, sidecar_state

_MOST = 100  # members of one tar that are told one by one


class Problem(NamedTuple):
    """What is wrong: with which file (relative to the dataset), which part of it, why, and whether it still is.

    `part` is one of tar, member, index, sidecar, meta, stats.
    """

    path: str
    part: str
    reason: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}{' (repaired)' if self.repaired else ''}"


class Tar(NamedTuple):
    """A tar to look at; `expected` is what meta.json says of it, where it says anything."""

    address: str
    expected: ShardMeta | None = None


@dataclass(frozen=True)
class How:
    """What is asked for: see `loader.verify.verify`. `contents`: count what the samples hold."""

    root: str
    deep: bool = False
    repair: bool = False
    storage_options: StorageOptions | None = None
    index_root: str | None = None
    require_end: bool = True
    contents: bool = False


@dataclass(frozen=True)
class Found:
    """Of one tar: its problems, what gen_meta would say of it (None for a tar that is none), and its sidecar."""

    path: str
    problems: tuple[Problem, ...]
    report: TarReport | None
    sidecar: SidecarState = NO_SIDECAR


def verify_tar(tar: Tar, how: How) -> Found:
    """Everything about one tar. Never raises for what is wrong with data."""
    path = storage.relative(tar.address, how.root)
    try:
        with tar_buffer(tar.address, how.storage_options) as buffer:
            entries = scan(buffer, tar.address, True, how.require_end)
            names = [
                check_name(name, tar.address, at - BLOCK)
                for name, at in zip(entries.names, entries.offsets, strict=True)
            ]
            index, problem = _index(tar, how, path, entries, names)
            problems = [problem] if problem else []
            report = describe(path, index, "built" if problem else "fresh")
            if how.deep:
                problems += _members(buffer, index, tar, how, path)
            sidecar, report = _samples(tar, how, index, buffer, report)
    except (BadTar, OSError) as error:
        return Found(path, (Problem(path, "tar", reason(error, tar.address)),), None)
    return Found(path, (*problems, *_meta(tar.expected, report)), report, sidecar)


def _samples(
    tar: Tar, how: How, index: Index, buffer: Buffer, report: TarReport
) -> tuple[SidecarState, TarReport]:
    """What the sidecar says beside what the samples say, and the report with what they hold."""
    there = storage.exists(sidecar_path(tar.address), how.storage_options)
    if not (there or how.contents):
        return SidecarState(), report
    samples = list(sample_facts(index, buffer, digests=there))
    report = replace(report, contents=contents_of(samples))
    return sidecar_state(tar.address, index, samples, how.storage_options), report


def _index(tar: Tar, how: How, path: str, entries: Entries, names: list[str]) -> tuple[Index, Problem | None]:
    """The index that the tar asks for, and what is wrong with the one that is there."""
    where = index_path(tar.address, how.index_root)
    options = how.storage_options if how.index_root is None else None
    groups, made, wrong, replaceable = group(names), b"", "", True
    try:
        data = storage.read_bytes(where, options)
        old = Index(data, where)
        groups = _as_grouped(names, old.grouping)
        made = pack_entries(entries, groups)
        if data not in (made, _without_checksums(entries, groups)):
            wrong = _difference(old, Index(made, where))
    except FileNotFoundError:
        wrong = "there is none: a reader builds it as it opens the tar"
    except UnknownIndexVersion as error:
        wrong, replaceable = reason(error, where), False
    except (BadIndex, ValueError) as error:
        wrong = reason(error, where).partition(". Delete it")[0]
    made = made or pack_entries(entries, groups)
    if not wrong:
        return Index(made, where), None
    if how.repair and replaceable:
        storage.write_bytes(where, made, options)
    name = f"{path}.index"
    return Index(made, where), Problem(name, "index", wrong, how.repair and replaceable)


def _as_grouped(names: list[str], grouping: str) -> Groups:
    """Grouped as an index says that it was; BadIndex if these names can't be."""
    try:
        return group(names, grouping)
    except ValueError as error:
        raise BadIndex(f"it says {grouping!r} of the names in the tar: {error}") from None


def _without_checksums(entries: Entries, groups: Groups) -> bytes:
    """The index as whoever has read no payload writes it."""
    crcs, checksum = entries.crcs, entries.checksum
    entries.crcs, entries.checksum = None, None
    try:
        return pack_entries(entries, groups)
    finally:
        entries.crcs, entries.checksum = crcs, checksum


def _difference(old: Index, new: Index) -> str:
    try:
        old.verify()
    except BadIndex:
        return "damaged: its bytes have changed since it was written"
    for what, before, now in (
        ("bytes", old.tar_size, new.tar_size),
        ("samples", old.num_samples, new.num_samples),
        ("members", old.num_members, new.num_members),
    ):
        if before != now:
            return f"stale: it says {before} {what}, the tar has {now}"
    for member, (before, now) in enumerate(zip(old.crc32 or (), new.crc32 or (), strict=False)):
        if before != now:
            return f"the bytes of {new.member_name(member)!r} have changed since they were indexed (CRC-32)"
    return "stale: it describes another tar"


def _members(buffer: Buffer, index: Index, tar: Tar, how: How, path: str) -> Iterator[Problem]:
    """The members that their decoders refuse. What has no decoder is bytes, which the checksums have covered."""
    bad: list[tuple[str, str, str]] = []  # key, name, reason
    count = 0
    with memoryview(buffer) as view:
        for sample in range(index.num_samples):
            for member in index.members(sample):
                start, end = index.span(member)
                why = _undecodable(index.member_extension(member), bytes(view[start:end]))
                if why is not None:
                    count += 1
                    if count <= _MOST:
                        bad.append((index.key(sample), index.member_name(member), why))
    came_from = origins(tar.address, {key for key, _, _ in bad}, how.storage_options) if bad else {}
    for key, name, why in bad:
        where = f" (packed from {came_from[key]})" if key in came_from else ""
        yield Problem(path, "member", f"{name!r}: {why}{where}")
    if count > _MOST:
        yield Problem(path, "member", f"and {count - _MOST:,} more members that can't be decoded")


def _undecodable(extension: str, data: bytes) -> str | None:
    try:
        handler_for(extension, default_handlers)(data)
    except UnsafePickle:  # opening it would run code
        return None
    except Exception as error:  # noqa: BLE001 - decoders fed with anything raise anything
        return str(error) if isinstance(error, ShardflowError) else f"{type(error).__name__}: {error}"
    return None


def _meta(expected: ShardMeta | None, report: TarReport) -> Iterator[Problem]:
    if expected is None:
        return
    for what, said, found in (
        ("num_samples", expected.num_samples, report.num_samples),
        ("size", expected.size, report.size),
        ("checksum", expected.checksum, report.checksum),
    ):
        if said != found and said is not None:  # no checksum: gen_meta was told to save bytes
            yield Problem(report.path, "meta", f"meta.json says {what} {said}, the tar has {found}")
