"""warmup_data: the indexes of whatever training is about to open, built where they are missing or stale.

A local tar's headers are read, not its payloads, so this is quick; checksums are gen_meta's part. A tar in an
object store has to be read whole anyway, and gets its checksums on the way.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader import storage
from loader.errors import BadMeta, ShardflowError, UnknownDataset
from loader.gen_meta import N_JOBS, add_common, list_tars, reason, show_failures
from loader.indexing import obtain_index
from loader.meta import ShardMeta, read_meta
from loader.pool import Pool, processes
from loader.progress import command, complain, human_size, human_time, progress, table
from loader.registry import DatasetEntry, load_registry, matching, redactor, resolve
from loader.storage import StorageOptions

REGISTRY = "configs/datasets.json"  # taken if it is there
_PATHS = ("/", "./", "../", "~")  # what begins so is no dataset name


@dataclass(frozen=True, slots=True)
class Target:
    """A tar to warm up; `expected` is what its dataset's meta.json says, where that is known."""

    address: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    expected: ShardMeta | None = None


@dataclass(frozen=True, slots=True)
class WarmReport:
    """One tar that is ready: `built` says whether its index was missing or stale."""

    address: str
    built: bool
    num_samples: int
    size: int


@dataclass
class Outcome:
    """A finished warmup; `failures` maps an address to what is wrong with it."""

    reports: dict[str, WarmReport] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def warmup_one(
    target: Target,
    index_root: str | None = None,
    grouping: str = "auto",
    require_end: bool = True,
    save_bytes: bool = False,
) -> WarmReport:
    """Make sure that one tar has a fresh index. BadTar, BadIndex, BadMeta or OSError if it can't be had."""
    index, state = obtain_index(
        target.address,
        target.storage_options,
        index_root=index_root,
        checksum=not storage.is_local(target.address),
        grouping=grouping,
        require_end=require_end,
        save_bytes=save_bytes,
    )
    if state == "unsaved":
        raise PermissionError(f"{index.where} can't be written: keep indexes elsewhere with --index_root")
    expected = target.expected
    if expected is not None and (index.num_samples, index.tar_size) != (expected.num_samples, expected.size):
        raise BadMeta(
            f"{index.num_samples} samples in {index.tar_size} bytes, but meta.json says {expected.num_samples} in "
            f"{expected.size}: run gen_meta on its dataset"
        )
    return WarmReport(target.address, state == "built", index.num_samples, index.tar_size)


def find_targets(
    patterns: str,
    registry: Mapping[str, DatasetEntry] | None = None,
    storage_options: StorageOptions | None = None,
) -> list[Target]:
    """The tars that comma-separated patterns name, each once, in the order of the patterns.

    A pattern is looked up among the names of the registry first, then as a tar, a folder or a glob over either.
    `storage_options` are for what the registry doesn't name.
    UnknownDataset, FileNotFoundError or BadMeta if one of them leads to no tar.
    """
    parts = [part for text in patterns.split(",") if (part := text.strip())]
    if not parts:
        raise UnknownDataset(f"{patterns!r} names nothing: give dataset names, folders of tars, or globs")
    found: dict[str, Target] = {}
    for part in parts:
        for target in _named(part, registry or {}) or _on_disk(part, registry, storage_options):
            found.setdefault(target.address, target)
    return list(found.values())


def _named(part: str, registry: Mapping[str, DatasetEntry]) -> list[Target]:
    """The tars of the datasets of that name: those that meta.json lists, where there is one."""
    if part.startswith(_PATHS) or "://" in part or not matching(part.rstrip("/"), registry):
        return []
    targets: list[Target] = []
    for entry in resolve(part, registry):
        options = entry.storage_options
        if storage.exists(entry.tar_meta_path, options):
            shards = read_meta(entry.tar_meta_path, options)
            targets += [
                Target(storage.join(entry.dir, path), options, shard) for path, shard in shards.items()
            ]
        else:
            targets += [Target(address, options) for address in list_tars(entry.dir, options)]
    return targets


def _on_disk(
    part: str, registry: Mapping[str, DatasetEntry] | None, options: StorageOptions | None
) -> list[Target]:
    try:
        return [Target(address, options) for address in storage.expand(part, ".tar", options)]
    except FileNotFoundError as error:
        if part.startswith(_PATHS) or "://" in part:
            raise
        if registry is None:
            raise FileNotFoundError(
                f"{error}. If it is a dataset's name: there is no {REGISTRY} here, say where with --registry"
            ) from error
        try:
            resolve(part, registry)
        except UnknownDataset as unknown:
            raise UnknownDataset(f"{unknown}. Nor is it a tar, a folder of tars or a glob") from error
        raise


def warmup(
    targets: Sequence[Target],
    n_jobs: int = N_JOBS,
    *,
    index_root: str | None = None,
    grouping: str = "auto",
    require_end: bool = True,
    save_bytes: bool = False,
    on_done: Callable[[WarmReport | None], None] = lambda report: None,
) -> Outcome:
    """See to the indexes of all targets, on at most `n_jobs` processes (0: one a core).

    A bad tar is a failure in the outcome, not an exception. `save_bytes`: see `gen_meta`. `on_done` is called after
    each, with None for a bad one.
    """
    outcome = Outcome()
    redact = redactor(*{id(target.storage_options): target.storage_options for target in targets}.values())
    with Pool(processes(n_jobs, len(targets))) as pool:
        for target, result in pool.run_all(
            warmup_one, targets, index_root, grouping, require_end, save_bytes
        ):
            if isinstance(result, Exception):
                outcome.failures[target.address] = redact(reason(result, target.address))
                on_done(None)
            else:
                outcome.reports[target.address] = result
                on_done(result)
    outcome.reports = dict(sorted(outcome.reports.items()))
    outcome.failures = dict(sorted(outcome.failures.items()))
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``warmup_data``."""
    options = _parser().parse_args(arguments)
    return command(lambda: _run(options), "warmup_data")


def _run(options: argparse.Namespace) -> int:
    began = time.monotonic()
    path = options.registry or (REGISTRY if os.path.exists(REGISTRY) else None)
    registry = load_registry(path) if path else None
    try:
        targets = find_targets(options.patterns, registry)
    except (ShardflowError, OSError) as error:
        secrets = [entry.storage_options for entry in (registry or {}).values()]
        complain("warmup_data", redactor(*secrets)(str(error)))
        return 1
    with progress("warmup_data", len(targets)) as shown:
        outcome = warmup(
            targets,
            options.n_jobs,
            index_root=options.index_root,
            grouping=options.grouping,
            require_end=not options.no_end_ok,
            save_bytes=options.save_bytes,
            on_done=lambda report: shown.advance(failed=report is None),
        )
    show_outcome(outcome, time.monotonic() - began)
    return 1 if outcome.failures else 0


def show_outcome(outcome: Outcome, seconds: float) -> None:
    """Print the short tables that a command ends with, and on stderr what to do about failures."""
    reports, failed = outcome.reports.values(), len(outcome.failures)
    built = Counter(report.built for report in reports)
    facts = [
        ("tars", f"{len(reports) + failed:,}, {failed:,} of them failed"),
        ("samples", f"{sum(report.num_samples for report in reports):,}"),
        ("size", human_size(sum(report.size for report in reports))),
        ("indexes", f"{built[True]:,} built, {built[False]:,} were there"),
        ("time", human_time(seconds)),
    ]
    table("", ["warmup_data", ""], facts)
    show_failures(outcome.failures)
    if failed:
        complain(
            "warmup_data",
            f"{failed} of {len(reports) + failed} tars failed. Repair them and run it again: what is done is kept",
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmup_data",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Build the missing and stale indexes of the tars that training is about to open.",
        epilog="""examples:
  warmup_data "text2image/*,edit/OmniEdit"     datasets by their names in configs/datasets.json
  warmup_data "/data/*" --n_jobs 0             every tar in the folders under /data, on all cores
  warmup_data a.tar,b.tar
  warmup_data s3://bucket/photos --index_root /local/indexes

A pattern is looked up in the registry first, then as a path. The exit status is 1 if a tar could not be
indexed; the others are finished.""",
    )
    parser.add_argument(
        "patterns", metavar="PATTERNS",
        help="dataset names, folders of names or of tars, tars, or globs over them; commas between",
    )  # fmt: skip
    parser.add_argument(
        "--registry", metavar="FILE",
        help=f"the registry of datasets, JSON or YAML (default: {REGISTRY}, if it is there)",
    )  # fmt: skip
    add_common(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
