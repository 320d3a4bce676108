"""gen_meta: meta.json, meta_stats.json and the indexes of a folder of tars.

Each tar is read once, for its index (with CRC-32s) and its adler32 together; a fresh index that already knows
them is taken as it is. meta.json is what training trusts, so it is written when every tar is good, and left as
it was when one is not: the indexes that were made stay, and a rerun goes straight to the bad ones.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader import storage
from loader.arguments import not_negative
from loader.contents import Contents, most_frequent
from loader.errors import BadMeta
from loader.indexing import obtain_index
from loader.meta import TOTALS, ShardMeta, meta_address, read_meta, read_stats, write_meta
from loader.pool import Pool, processes
from loader.progress import command, complain, human_size, human_time, listing, progress, table
from loader.storage import StorageOptions
from loader.tar_report import TarReport as TarReport
from loader.tar_report import describe

N_JOBS = 64  # at most this many processes, unless said otherwise
_ABANDONED = 3600.0  # seconds after which a temporary file has no writer any more
_SHOWN = 20  # lines of failures, or of what was left out


@dataclass
class Outcome:
    """A finished gen_meta: reports by path; `failures` maps a path to what is wrong with it.

    `untouched` says what has become of meta.json where some failed: see there.
    """

    root: str
    meta: str
    untouched: str = ""
    reports: dict[str, TarReport] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def written(self) -> bool:
        """Whether meta.json was written: only if no tar failed."""
        return not self.failures


def gen_meta_one(
    address: str,
    root: str,
    storage_options: StorageOptions | None = None,
    index_root: str | None = None,
    grouping: str = "auto",
    require_end: bool = True,
    save_bytes: bool = False,
) -> TarReport:
    """Index one tar under `root` if need be, and say what it holds. BadTar, BadIndex or OSError if it can't be."""
    index, state = obtain_index(
        address,
        storage_options,
        index_root=index_root,
        checksum=True,
        grouping=grouping,
        require_end=require_end,
        save_bytes=save_bytes,
    )
    return describe(storage.relative(address, root), index, state)


def list_tars(root: str, storage_options: StorageOptions | None = None) -> list[str]:
    """Addresses of the tars under a dataset folder, sub-folders included; FileNotFoundError if there are none."""
    root = storage.normalise(root)
    found = storage.list_files(root, ".tar", storage_options)
    if not found:
        if not storage.exists(root, storage_options):
            what = "there is no such folder"
        else:
            what = "no .tar files in it" if storage.is_dir(root, storage_options) else "a file"
        raise FileNotFoundError(f"{root}: {what}; give the folder that holds a dataset's tars")
    return found


def save_meta(
    root: str,
    reports: Iterable[TarReport],
    meta_save_path: str | None = None,
    storage_options: StorageOptions | None = None,
    stats: Mapping[str, Any] | None = None,
) -> str:
    """Write meta.json and meta_stats.json from the reports on all tars of a dataset; returns the former's address.

    `stats`: more for the latter. Keys that another tool has put beside a shard stay as long as the shard is the same;
    so does all that meta_stats.json says and these reports don't, as long as all shards are.
    """
    target = meta_save_path or root
    try:
        before = read_meta(target, storage_options)
    except BadMeta:  # none yet, or one that nobody can read: it is written anew
        before = {}
    shards, kept = {}, []
    for report in reports:
        kept.append(report)
        shard = ShardMeta(report.num_samples, report.size, report.checksum)
        old = before.get(report.path)
        if old is not None and (old.num_samples, old.size, old.checksum) == (
            shard.num_samples,
            shard.size,
            shard.checksum,
        ):
            shard = old
        shards[report.path] = shard
    known = _known_stats(target, storage_options) if shards == before else {}
    write_meta(root, shards, storage_options, meta_save_path, {**known, **summed_up(kept), **(stats or {})})
    return meta_address(target)


def _known_stats(target: str, storage_options: StorageOptions | None) -> dict[str, Any]:
    try:
        found = read_stats(target, storage_options)
    except BadMeta:
        return {}
    return {name: value for name, value in found.items() if name not in TOTALS}


def summed_up(reports: Sequence[TarReport]) -> dict[str, Any]:
    """What meta_stats.json says beside the totals."""
    extensions, sizes, skipped = Counter[str](), Counter[str](), Counter[str]()
    contents = Contents()
    for report in reports:
        extensions.update(report.extensions)
        sizes.update(report.bytes)
        skipped.update({why: count for why, (count, _) in report.skipped.items()})
        if report.contents is not None:
            contents.add(report.contents)
    found: dict[str, Any] = {"extensions": most_frequent(extensions), "bytes": most_frequent(sizes)}
    if skipped:
        found["skipped_members"] = dict(sorted(skipped.items()))
    if all(report.contents is not None for report in reports):
        found |= contents.value()
    return found


def gen_meta(
    root: str,
    meta_save_path: str | None = None,
    n_jobs: int = N_JOBS,
    storage_options: StorageOptions | None = None,
    *,
    index_root: str | None = None,
    grouping: str = "auto",
    require_end: bool = True,
    save_bytes: bool = False,
    tars: Sequence[str] | None = None,
    on_done: Callable[[TarReport | None], None] = lambda report: None,
) -> Outcome:
    """Index all tars under `root` and write its meta.json, on at most `n_jobs` processes (0: one a core).

    `save_bytes`: of tars in a store, read little more than the headers; their checksums stay unknown. `tars`: their
    addresses, where they are known. `on_done` is called after each tar, with None for a failed one.
    A bad tar is a failure in the outcome, not an exception; FileNotFoundError if there are no tars at all.
    """
    root = storage.normalise(root)
    tars = list_tars(root, storage_options) if tars is None else tars
    outcome = Outcome(root, meta_address(meta_save_path or root))
    arguments = (root, storage_options, index_root, grouping, require_end, save_bytes)
    with Pool(processes(n_jobs, len(tars))) as pool:
        for address, result in pool.run_all(gen_meta_one, tars, *arguments):
            path = storage.relative(address, root)
            if isinstance(result, Exception):
                outcome.failures[path] = reason(result, address)
            else:
                outcome.reports[path] = result
            on_done(None if isinstance(result, Exception) else result)
    outcome.reports = dict(sorted(outcome.reports.items()))
    outcome.failures = dict(sorted(outcome.failures.items()))
    if outcome.written:
        save_meta(root, outcome.reports.values(), meta_save_path, storage_options)
    else:
        outcome.untouched = untouched(outcome.meta, storage_options)
    return outcome


def untouched(meta: str, storage_options: StorageOptions | None = None) -> str:
    """What has become of the meta.json at `meta` when tars failed."""
    return "left as it was" if storage.exists(meta, storage_options) else "not written"


def reason(error: Exception, address: str) -> str:
    """What went wrong with one tar, without the address, which stands beside it."""
    text = str(error).removeprefix(f"{address}: ") or type(error).__name__
    if text.startswith(f"{address}.index"):
        text = "its index" + text.removeprefix(f"{address}.index")
    # What is no error of ours or of the system is a fault in the program: its kind says more than its text.
    known = isinstance(error, (OSError, ValueError, RuntimeError))
    return text if known else f"{type(error).__name__}: {text}"


def check_writable(meta: str) -> None:
    """PermissionError, before hours of reading, if a local meta.json could not be written in the end."""
    if not storage.is_local(meta):
        return
    folder = os.path.dirname(storage.local_path(meta))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(
            f"{meta} can't be written: {folder} is read-only. Put it elsewhere with --meta_save_path, and the "
            "indexes with --index_root"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``gen_meta``."""
    options = _parser().parse_args(arguments)
    return command(lambda: _run(options), "gen_meta")


def _run(options: argparse.Namespace) -> int:
    began = time.monotonic()
    root = storage.normalise(options.dir)
    tars = list_tars(root)
    check_writable(meta_address(options.meta_save_path or root))
    with contextlib.suppress(PermissionError):
        storage.sweep(root, _ABANDONED)
    with progress("gen_meta", len(tars)) as shown:

        def on_done(report: TarReport | None) -> None:
            size = report.size if report is not None and report.index != "fresh" else 0
            shown.advance(size=size, failed=report is None)

        outcome = gen_meta(
            root,
            options.meta_save_path,
            options.n_jobs,
            index_root=options.index_root,
            grouping=options.grouping,
            require_end=not options.no_end_ok,
            save_bytes=options.save_bytes,
            tars=tars,
            on_done=on_done,
        )
    show_outcome(outcome, time.monotonic() - began)
    return 0 if outcome.written else 1


def show_outcome(outcome: Outcome, seconds: float) -> None:
    """Print the short tables that a command ends with, and on stderr what to do about failures."""
    reports = outcome.reports.values()
    indexes = Counter(report.index for report in reports)
    unsaved = f", {indexes['unsaved']:,} could not be saved: see --index_root" if indexes["unsaved"] else ""
    extensions = Counter[str]()
    for report in reports:
        extensions.update(report.extensions)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in list(most_frequent(extensions).items())[:8])
    facts = [
        ("dataset", outcome.root),
        ("tars", f"{len(reports) + len(outcome.failures):,}, {len(outcome.failures):,} of them failed"),
        ("samples", f"{sum(report.num_samples for report in reports):,}"),
        ("members", kinds or "none"),
        ("size", human_size(sum(report.size for report in reports))),
        (
            "indexes",
            f"{indexes['built'] + indexes['unsaved']:,} built, {indexes['fresh']:,} were there{unsaved}",
        ),
        ("meta", outcome.meta if outcome.written else f"{outcome.meta}: {outcome.untouched}"),
        ("time", human_time(seconds)),
    ]
    table("", ["gen_meta", ""], facts)
    _show_skipped(reports)
    show_failures(outcome.failures)
    if outcome.failures:
        complain(
            "gen_meta",
            f"{len(outcome.failures)} of {len(reports) + len(outcome.failures)} tars failed, so meta.json was "
            f"{outcome.untouched}. Repair or remove them and run gen_meta again: what is done is kept",
        )


def _show_skipped(reports: Iterable[TarReport]) -> None:
    """What is in the tars, but in no sample."""
    counts: Counter[str] = Counter()
    tars: Counter[str] = Counter()
    example: dict[str, str] = {}
    for report in reports:
        for why, (count, names) in report.skipped.items():
            counts[why] += count
            tars[why] += 1
            example.setdefault(why, f"{report.path}: {', '.join(map(repr, names))}" if names else report.path)
    if counts:
        rows = [(why, count, tars[why], example[why]) for why, count in counts.most_common(_SHOWN)]
        table("Left out of the samples", ["why", "count", "tars", "for example"], rows)


def show_failures(failures: Mapping[str, str]) -> None:
    """The first failures, if there are any."""
    if failures:
        lines = [f"{path}: {why}" for path, why in list(failures.items())[:_SHOWN]]
        if len(failures) > _SHOWN:
            lines.append(f"... and {len(failures) - _SHOWN:,} more")
        listing("Failed", lines)


def add_common(parser: argparse.ArgumentParser) -> None:
    """The arguments that gen_meta and warmup_data share."""
    parser.add_argument(
        "--n_jobs", "--n-jobs", type=not_negative, default=N_JOBS, metavar="N",
        help="at most this many processes, never more than cores or tars; 0: all cores (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--index_root", "--index-root", metavar="P",
        help="keep the indexes under this folder instead of beside their tars (for read-only datasets)",
    )  # fmt: skip
    parser.add_argument(
        "--grouping", choices=("auto", "numbered", "plain"), default="auto",
        help="whether k-0.jpg, k-1.jpg are images of sample k (numbered), or samples of their own (plain); "
        "default: what the names of a tar suggest",
    )  # fmt: skip
    parser.add_argument(
        "--no_end_ok", "--no-end-ok", action="store_true",
        help="accept tars without the zero blocks at their end, which may have been cut short",
    )  # fmt: skip
    parser.add_argument(
        "--save_bytes", "--save-bytes", action="store_true",
        help="of tars in a store, read little more than the headers: slow where members are small, and without checksums",
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gen_meta",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Write meta.json, meta_stats.json and the missing indexes of a dataset: a folder of tars.",
        epilog="""examples:
  gen_meta /data/photos                           indexes, /data/photos/meta.json and meta_stats.json
  gen_meta s3://bucket/photos --n_jobs 0          on all cores; credentials as for any AWS tool
  gen_meta /mnt/ro --index_root /tmp/idx --meta_save_path /tmp/photos.json
                                                  a read-only dataset

Run it again at any time: what is done is skipped. If a tar is bad, the others are finished, meta.json is left
as it was, and the exit status is 1.""",
    )
    parser.add_argument("dir", metavar="DIR", help="folder of the tars (sub-folders too): a path or a URL")
    parser.add_argument(
        "--meta_save_path", "--meta-save-path", metavar="P",
        help="where meta.json goes: a folder, or a file that ends in .json (default: DIR/meta.json)",
    )  # fmt: skip
    add_common(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
