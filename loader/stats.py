"""stats: what a dataset holds, counted. From its meta_stats.json where that says all, else from sidecars and tars."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader import storage
from loader.contents import Contents, Histogram, caption_length, most_frequent
from loader.errors import BadMeta, ShardflowError
from loader.find_sample import dataset_root, datasets_at, index_of
from loader.gen_meta import list_tars, reason, summed_up
from loader.index import Index
from loader.indexing import tar_buffer
from loader.meta import meta_address, read_meta, read_stats
from loader.pool import Pool, processes
from loader.progress import command, complain, each, human_size, human_time, progress, table
from loader.sample_facts import contents_of, sample_facts
from loader.sidecar import About, about, open_sidecar, sidecar_path
from loader.storage import StorageOptions
from loader.tar_report import TarReport, count_bytes, count_extensions

NAME = "shardflow stats"
_BAR = 40  # characters
_SHOWN = 20  # rows of a table


@dataclass
class Stats:
    """A dataset, or one tar, counted. `source` says from what; `failures` maps the path of a tar to what is wrong with it."""

    path: str
    source: str
    samples: int
    tars: int
    size: int
    extensions: dict[str, int]
    bytes: dict[str, int]
    contents: Contents
    outcomes: dict[str, int] = field(default_factory=dict)
    skipped_rows: dict[str, int] = field(default_factory=dict)
    skipped_members: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def stats(
    path: str,
    *,
    n_jobs: int = 0,
    fresh: bool = False,
    storage_options: StorageOptions | None = None,
    on_start: Callable[[int], None] = lambda tars: None,
    on_done: Callable[[TarReport | None], None] = lambda report: None,
) -> Stats:
    """Count a dataset's folder (or its meta.json), a folder of datasets, or one tar. Nothing is written.

    `fresh`: whatever meta_stats.json says, count again, on at most `n_jobs` processes (0: all cores). `on_start` is told
    how many tars there are to count, `on_done` what each holds (None for one that can't be read).
    """
    address = storage.normalise(path)
    found: Stats | None = None
    for root in datasets_at(address, storage_options):

        def begun(count: int, before: int = found.tars if found else 0) -> None:
            on_start(before + count)

        one = _stats(root, n_jobs, fresh, storage_options, begun, on_done)
        if root == address:
            return one
        one.path, folder = address, storage.relative(root, address)
        one.failures = {f"{folder}/{tar}": why for tar, why in one.failures.items()}
        found = one if found is None else _both(found, one)
    assert found is not None
    return found


def _both(first: Stats, second: Stats) -> Stats:
    first.contents.add(second.contents)
    summed: dict[str, Any] = {
        name: dict(Counter(getattr(first, name)) + Counter(getattr(second, name)))
        for name in ("extensions", "bytes", "outcomes", "skipped_rows", "skipped_members")
    }
    return Stats(
        path=first.path,
        source=first.source if first.source == second.source else "the tars",
        samples=first.samples + second.samples,
        tars=first.tars + second.tars,
        size=first.size + second.size,
        contents=first.contents,
        failures=first.failures | second.failures,
        **{
            **summed,
            "extensions": most_frequent(summed["extensions"]),
            "bytes": most_frequent(summed["bytes"]),
        },
    )


def _stats(
    address: str,
    n_jobs: int,
    fresh: bool,
    storage_options: StorageOptions | None,
    on_start: Callable[[int], None],
    on_done: Callable[[TarReport | None], None],
) -> Stats:
    known = {} if address.endswith(".tar") else _known(address, storage_options)
    if known and not fresh and (found := _from_known(address, known)):
        return found
    if address.endswith(".tar") and not storage.is_dir(address, storage_options):
        root, tars = storage.parent(address), [address]
        storage.stat(address, storage_options)
    else:
        root = dataset_root(address, storage_options)
        tars = _tars(address, root, storage_options)
    on_start(len(tars))
    reports, failures = {}, {}
    with Pool(processes(n_jobs, len(tars))) as pool:
        for tar, outcome in pool.run_all(count_tar, tars, root, storage_options):
            relative = storage.relative(tar, root)
            if isinstance(outcome, Exception):
                failures[relative] = reason(outcome, tar)
            else:
                reports[relative] = outcome
            on_done(None if isinstance(outcome, Exception) else outcome)
    ordered = [reports[relative] for relative in sorted(reports)]
    summed = {**known, **summed_up(ordered)}
    return Stats(
        path=address,
        source="the tars",
        samples=sum(report.num_samples for report in ordered),
        tars=len(tars),
        size=sum(report.size for report in ordered),
        extensions=summed["extensions"],
        bytes=summed["bytes"],
        contents=Contents.from_value(summed),
        outcomes=_counts(known.get("outcomes")),
        skipped_rows=_counts(known.get("skipped_rows")),
        skipped_members=_counts(summed.get("skipped_members")),
        failures=dict(sorted(failures.items())),
    )


def _tars(address: str, root: str, options: StorageOptions | None) -> list[str]:
    if storage.exists(meta_address(address), options):
        return [storage.join(root, path) for path in read_meta(address, options)]
    return list_tars(root, options)


def _known(address: str, options: StorageOptions | None) -> dict[str, Any]:
    """What meta_stats.json says, if it is about what meta.json says."""
    try:
        shards, found = read_meta(address, options), read_stats(address, options)
    except BadMeta:
        return {}
    samples = sum(shard.num_samples for shard in shards.values())
    size = sum(shard.size for shard in shards.values())
    told = (found.get("total_samples"), found.get("total_files"), found.get("total_size"))
    return found if told == (samples, len(shards), size) else {}


def _from_known(address: str, known: Mapping[str, Any]) -> Stats | None:
    """None if it doesn't say all, or says what can't be meant."""
    try:
        return Stats(
            path=address,
            source="meta_stats.json",
            samples=known["total_samples"],
            tars=known["total_files"],
            size=known["total_size"],
            extensions=_counts(known["extensions"]),
            bytes=_counts(known["bytes"]),
            contents=Contents.from_value(known),
            outcomes=_counts(known.get("outcomes")),
            skipped_rows=_counts(known.get("skipped_rows")),
            skipped_members=_counts(known.get("skipped_members")),
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _counts(value: Any) -> dict[str, int]:
    return {str(name): int(count) for name, count in (value or {}).items()}


def count_tar(tar: str, root: str, storage_options: StorageOptions | None = None) -> TarReport:
    """What one tar holds, by its sidecar where there is one; no index is written."""
    index, state = index_of(tar, storage_options)
    contents = _by_sidecar(tar, index, storage_options)
    if contents is None:
        with tar_buffer(tar, storage_options) as buffer:
            contents = contents_of(sample_facts(index, buffer, digests=False))
    return TarReport(
        path=storage.relative(tar, root),
        num_samples=index.num_samples,
        size=index.tar_size,
        checksum=index.checksum or 0,
        index=state,
        extensions=count_extensions(index),
        skipped={why: (entry["count"], entry["names"]) for why, entry in index.skipped.items()},
        bytes=count_bytes(index),
        contents=contents,
    )


def _by_sidecar(tar: str, index: Index, options: StorageOptions | None) -> Contents | None:
    if index.checksum is None or not storage.exists(sidecar_path(tar), options):
        return None
    try:
        with open_sidecar(tar, options) as file:
            if about(file.schema_arrow, tar) != About(index.tar_size, index.checksum):
                return None
            rows = file.read(["width", "height", "caption", "num_images", "other_images"]).to_pydict()
    except (ShardflowError, OSError, ValueError):  # damaged, or no pyarrow here: the tar itself is looked at
        return None
    sizes = [
        size
        for width, height, count, others in zip(
            rows["width"], rows["height"], rows["num_images"], rows["other_images"], strict=True
        )
        for size in [(width, height)][:count] + [(other["width"], other["height"]) for other in others]
    ]
    whole = [(width, height) for width, height in sizes if width is not None and height is not None]
    return Contents(
        Histogram.of(width for width, _ in whole),
        Histogram.of(height for _, height in whole),
        Histogram.of(caption_length(caption) for caption in rows["caption"] if caption is not None),
        len(sizes) - len(whole),
    )


def main(paths: Sequence[str], plot: str | None = None, fresh: bool = False, n_jobs: int = 0) -> int:
    """The body of ``shardflow stats``: print each of `paths`, draw them; the status is 1 if one of them is bad."""

    drawn: list[Stats] = []

    def one(path: str) -> int:
        drawn.append(_run(path, fresh, n_jobs))
        return bool(drawn[-1].failures)

    def body() -> int:
        from loader import plot as plotting

        if plot:
            plotting.check(plot)
        status = each(paths, NAME, one)
        if plot and drawn:
            plotting.draw(plot, drawn)
        return status

    return command(body, NAME)


def _run(path: str, fresh: bool, n_jobs: int) -> Stats:
    began = time.monotonic()
    with progress("stats", 0) as shown:
        found = stats(
            path,
            n_jobs=n_jobs,
            fresh=fresh,
            on_start=shown.expect,
            on_done=lambda report: shown.advance(size=report.size if report else 0, failed=report is None),
        )
    show_stats(found, time.monotonic() - began)
    return found


def show_stats(found: Stats, seconds: float) -> None:
    """Print the tables, and on stderr which tars could not be counted."""
    images, captions = found.contents.widths, found.contents.captions
    facts = [
        ("dataset", found.path),
        ("tars", f"{found.tars:,}"),
        ("samples", f"{found.samples:,}"),
        ("size", human_size(found.size)),
        ("pictures", f"{images.count + found.contents.unreadable:,}" + (
            f", {found.contents.unreadable:,} of them can't be read" if found.contents.unreadable else "")),
        ("captions", f"{captions.count:,}" + (f", {captions.total / captions.count:.0f} characters on average" if captions.count else "")),
        ("counted", f"from {found.source}"),
        ("time", human_time(seconds)),
    ]  # fmt: skip
    table("", ["stats", ""], facts)
    rows = [
        (extension, count, human_size(found.bytes.get(extension, 0)), human_size(found.bytes.get(extension, 0) / max(1, count)))
        for extension, count in list(found.extensions.items())[:_SHOWN]
    ]  # fmt: skip
    if rows:
        table("Extensions", ["extension", "members", "bytes", "on average"], rows)
    for title, unit, histogram in histograms(found.contents):
        table(title, [f"from {unit}", "count", ""], bars(histogram))
    for title, what, counts in counted(found):
        table(title, [what, "count"], list(counts.items())[:_SHOWN])
    for path, why in found.failures.items():
        complain(NAME, f"{path}: {why}")


def histograms(contents: Contents) -> Iterable[tuple[str, str, Histogram]]:
    """(title, unit, numbers) of what was counted and is there."""
    every = (
        ("Width of pictures", "pixels", contents.widths),
        ("Height of pictures", "pixels", contents.heights),
        ("Length of captions", "characters", contents.captions),
    )
    return [entry for entry in every if entry[2].count]


def counted(found: Stats) -> Iterable[tuple[str, str, dict[str, int]]]:
    """(title, what, counts) of what was counted and is there."""
    every = (
        ("Pictures as packed", "what was done", found.outcomes),
        ("Rows that were left out", "why", found.skipped_rows),
        ("Members that are no sample's", "why", found.skipped_members),
    )
    return [(title, what, dict(Counter(counts).most_common())) for title, what, counts in every if counts]


def bins(histogram: Histogram) -> list[tuple[int, int]]:
    """(lower end, count) of each bin from the first to the last that holds anything, empty ones between included."""
    low, high = min(histogram.bins), max(histogram.bins)
    found, at = [], low
    while at <= high:
        found.append((at, histogram.bins.get(at, 0)))
        at = _next_bin(at)
    return found


def _next_bin(low: int) -> int:
    if low < 2:
        return low + 1
    power = 1 << (low.bit_length() - 1)
    return power + power // 2 if low == power and power > 1 else 2 * power


def bars(histogram: Histogram) -> list[tuple[str, int, str]]:
    """Rows of a table that shows it."""
    most = max(histogram.bins.values())
    return [
        (f"{low:,}", count, "#" * -(-count * _BAR // most) if count else "") for low, count in bins(histogram)
    ]
