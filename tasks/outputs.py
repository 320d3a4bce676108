"""What belongs to a finished output: its datasets, what they held before, and what is left over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from loader import meta, storage
from loader.contents import Contents
from loader.gen_meta import gen_meta_one, save_meta
from loader.sidecar import conform
from loader.sidecar_columns import union
from loader.tar_report import TarReport
from tasks import manifest
from tasks.claim import Claim, claimed_from
from tasks.config import PackConfig
from tasks.manifest import BadRow, Manifest, PackedShard
from tasks.reasons import by_reason
from tasks.source_options import shard_pattern

_AT_ONCE = 8  # sidecars that are looked at together
_FILES = re.compile(r"(?s)(.*)(\.tar|\.tar\.index|\.parquet)")


def tar_report(shard: PackedShard, root: str) -> TarReport:
    """As gen_meta would find it in the folder `root` of the output, so that it has nothing to add."""
    path = shard.path.removeprefix(f"{root}/") if root else shard.path
    return TarReport(
        path,
        shard.num_samples,
        shard.size,
        shard.checksum,
        "fresh",
        shard.extensions,
        skipped={},
        bytes=shard.bytes,
        contents=Contents.from_value(shard.contents) if shard.contents else None,
    )


def earlier(config: PackConfig, claimed: Claim) -> Iterator[Manifest]:
    """The manifests of the jobs that this one was appended to."""
    options = config.storage_options
    for number in sorted(manifest.slots(config.output, options)):
        if number < claimed.slots and (found := manifest.load(config.output, number, options)):
            yield found


def split_of(found: Manifest) -> str:
    """The split that a slot of an earlier job belongs to, as its shards tell."""
    return found.shards[0].path.rpartition("/")[0] if found.shards else ""


def unify_sidecars(config: PackConfig, shards: Iterable[PackedShard]) -> None:
    """Give all sidecars of a dataset the same columns; splits are datasets."""
    own: dict[str, list[PackedShard]] = {}
    for shard in shards:
        if shard.columns is not None:
            own.setdefault(shard.path.rpartition("/")[0], []).append(shard)
    columns = {folder: union(shard.columns or {} for shard in found) for folder, found in own.items()}

    def one(shard: PackedShard) -> None:
        wanted = columns[shard.path.rpartition("/")[0]]
        conform(storage.join(config.output, shard.path), wanted, config.storage_options)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(one, [shard for found in own.values() for shard in found]))


def describe(
    config: PackConfig,
    claimed: Claim,
    splits: Iterable[str],
    shards: list[PackedShard],
    bad: Mapping[str, list[BadRow]],
) -> set[str]:
    """meta.json and meta_stats.json of each dataset in the output, in one step each; returns the shards that they name.

    What was there before, and was appended to, stays in them. `bad`: the rows that were left out, by split.
    """
    options = config.storage_options
    named: set[str] = set()
    foreign = claimed_from(config)
    for folder in sorted({*splits, *(shard.path.rpartition("/")[0] for shard in shards)}):
        root = storage.join(config.output, folder) if folder else config.output
        own = [shard for shard in shards if shard.path.rpartition("/")[0] == folder]
        reports = {report.path: report for report in (tar_report(shard, folder) for shard in own)}
        for path in foreign.get(folder, ()):
            reports.setdefault(path, gen_meta_one(storage.join(root, path), root, options))
        stats = {"outcomes": _outcomes(own), "skipped_rows": _reasons(bad.get(folder, []))}
        save_meta(root, [reports[path] for path in sorted(reports)], None, options, stats)
        named |= {f"{folder}/{path}" if folder else path for path in reports}
    return named


def _outcomes(shards: Iterable[PackedShard]) -> dict[str, int]:
    """What was done to how many pictures."""
    counts: Counter[str] = Counter()
    for shard in shards:
        counts.update(shard.contents.get("outcomes", {}))
    return dict(sorted(counts.items()))


def _reasons(bad: Iterable[BadRow]) -> dict[str, int]:
    """How many rows were left out for which kind of reason."""
    return {reason.kind: reason.rows for reason in by_reason(bad)}


def remove_leftovers(config: PackConfig, claimed: Claim, shards: set[str], slots: int) -> None:
    """Away with what an earlier run left and nothing refers to any more: shards, manifests, datasets without shards."""
    options = config.storage_options
    pattern = shard_pattern(config)
    stems = {path.removesuffix(".tar") for path in shards}
    used = {storage.parent(f"{config.output}/{path}") for path in shards}
    if not (config.split or config.split_column):
        used.add(config.output)
    emptied = set()
    for file in storage.list_files(config.output, "", options):
        path = storage.relative(file, config.output)
        match = _FILES.fullmatch(path)
        if match is None or match[1] in stems:
            continue
        ours = pattern.fullmatch(match[1] + ".tar")
        if claimed.replaces or (ours and int(ours["index"]) >= claimed.slots):
            storage.remove(file, options)
            emptied.add(storage.parent(file))
    for root in emptied - used:
        storage.remove(meta.meta_address(root), options)
        storage.remove(meta.stats_address(root), options)
    for number in manifest.slots(config.output, options):
        if number >= slots:
            storage.remove(manifest.address(config.output, number), options)
