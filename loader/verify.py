"""verify: is a dataset what it says it is? Every tar, read whole, against its index, meta.json, checksum and sidecar.

A repair makes what can be made from the tars alone (indexes, sidecars, meta.json, meta_stats.json), and never
touches a tar.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from loader import storage
from loader.errors import BadMeta
from loader.find_sample import datasets_at
from loader.gen_meta import list_tars, reason, save_meta
from loader.index import index_path
from loader.meta import ShardMeta, meta_address, read_meta, read_stats
from loader.pool import Pool, processes
from loader.progress import command, complain, each, human_size, human_time, listing, progress, table
from loader.sidecar import is_ours, sidecar_path
from loader.sidecar_columns import union
from loader.storage import StorageOptions
from loader.tar_report import TarReport
from loader.verify_sidecar import Rebuild, SidecarState, disagree, rebuild_sidecar
from loader.verify_tar import Found, How, Problem, Tar, verify_tar

NAME = "shardflow verify"
_SHOWN = 40  # problems that a command lists

OnDone = Callable[[Found], None]


class Doer(Protocol):
    """Whoever calls a function for each item, as `loader.workers.Workers.run_all` does."""

    def run_all(
        self, function: Callable[..., Any], items: Sequence[Any], *arguments: Any
    ) -> Iterator[tuple[Any, Any]]:
        """Pairs of an item and what came of it, in any order; an exception is a result."""


@dataclass
class Verdict:
    """What was found. `problems` in the order of their paths; `ok` if none is left that wasn't repaired."""

    root: str
    problems: list[Problem] = field(default_factory=list)
    reports: dict[str, TarReport] = field(default_factory=dict)
    tars: int = 0

    @property
    def left(self) -> list[Problem]:
        """The problems that are still there."""
        return [problem for problem in self.problems if not problem.repaired]

    @property
    def ok(self) -> bool:
        """Whether none is."""
        return not self.left


def verify(
    path: str,
    *,
    deep: bool = False,
    repair: bool = False,
    n_jobs: int = 0,
    storage_options: StorageOptions | None = None,
    index_root: str | None = None,
    require_end: bool = True,
    on_start: Callable[[int], None] = lambda tars: None,
    on_done: OnDone = lambda found: None,
    doer: Doer | None = None,
) -> Verdict:
    """Look at a dataset's folder, or at one tar, on at most `n_jobs` processes (0: all cores), or by way of `doer`.

    A folder without a meta.json of its own, below which others have one, is looked at dataset by dataset. `deep`: decode every member as well. `repair`: write anew what is wrong beside the tars. `on_start` is told how
    many tars there are, `on_done` what each has come to. What is wrong with data is in the verdict; FileNotFoundError
    if there is nothing at `path`.
    """
    address = storage.normalise(path)
    how = How("", deep, repair, storage_options, index_root, require_end, contents=repair)
    verdict = Verdict(address)
    for root in datasets_at(address, storage_options):

        def begun(count: int, before: int = verdict.tars) -> None:
            on_start(before + count)

        found = _verify(root, how, n_jobs, begun, on_done, doer)
        if root == address:
            return found
        folder = storage.relative(root, address)
        verdict.problems += [problem._replace(path=f"{folder}/{problem.path}") for problem in found.problems]
        verdict.reports |= {f"{folder}/{name}": report for name, report in found.reports.items()}
        verdict.tars += found.tars
    return verdict


def _verify(
    address: str,
    how: How,
    n_jobs: int,
    on_start: Callable[[int], None],
    on_done: OnDone,
    doer: Doer | None,
) -> Verdict:
    storage_options, repair = how.storage_options, how.repair
    single = address.endswith(".tar") and not storage.is_dir(address, storage_options)
    root = storage.parent(address) if single else address
    expected, problems = _expected(root, storage_options)
    tars = [address] if single else list_tars(root, storage_options)
    if single:
        storage.stat(address, storage_options)
        problems = []
    verdict = Verdict(root, problems, tars=len(tars))
    how = replace(how, root=root)
    sidecars: dict[str, SidecarState] = {}
    asked = [Tar(tar, (expected or {}).get(storage.relative(tar, root))) for tar in tars]
    on_start(len(asked))
    with contextlib.nullcontext(doer) if doer else Pool(processes(n_jobs, len(asked))) as pool:
        for tar, outcome in pool.run_all(verify_tar, asked, how):
            found = _settled(tar, outcome, root)
            verdict.problems += found.problems
            if found.report is not None:
                verdict.reports[found.path] = found.report
                sidecars[found.path] = found.sidecar
            on_done(found)
        verdict.problems += _of_sidecars(verdict, sidecars, how, pool)
    verdict.reports = dict(sorted(verdict.reports.items()))
    if not single:
        verdict.problems += _of_the_whole(verdict, expected, storage_options)
        if repair:
            _repair_meta(verdict, storage_options)
    verdict.problems.sort()
    return verdict


def _settled(tar: Tar, outcome: Found | Exception, root: str) -> Found:
    if isinstance(outcome, Exception):
        path = storage.relative(tar.address, root)
        return Found(path, (Problem(path, "tar", reason(outcome, tar.address)),), None)
    return outcome


def _expected(root: str, options: StorageOptions | None) -> tuple[dict[str, ShardMeta] | None, list[Problem]]:
    """What meta.json says, and what is wrong with it by itself."""
    try:
        return read_meta(root, options), []
    except BadMeta as error:
        return None, [Problem("meta.json", "meta", reason(error, meta_address(root)))]


def _of_sidecars(verdict: Verdict, states: dict[str, SidecarState], how: How, pool: Doer) -> list[Problem]:
    """What is wrong with sidecars, each by itself and beside the others; repaired where that is asked for."""
    if not any(state.ours for state in states.values()):
        return []
    columns = union(state.columns or {} for state in states.values())
    wrong = {}
    for path, state in states.items():
        if not state.there:
            wrong[path] = "there is none, though other tars have one"
        elif state.ours and (state.wrong or disagree(state, columns)):
            wrong[path] = state.wrong or "its columns are not those of the whole dataset"
    repaired = set()
    if how.repair:
        asked = [Rebuild(storage.join(verdict.root, path), columns) for path in wrong]
        for item, outcome in pool.run_all(rebuild_sidecar, asked, how.storage_options, how.index_root):
            path = storage.relative(item.tar, verdict.root)
            if isinstance(outcome, Exception):
                wrong[path] += f"; it can't be made: {reason(outcome, item.tar)}"
            else:
                repaired.add(path)
    return [
        Problem(sidecar_path(path), "sidecar", why, path in repaired) for path, why in sorted(wrong.items())
    ]


def _of_the_whole(
    verdict: Verdict, expected: dict[str, ShardMeta] | None, options: StorageOptions | None
) -> list[Problem]:
    """What no single tar shows: tars that are missing, or that nobody knows of, and files without a tar."""
    there = {storage.relative(tar, verdict.root) for tar in list_tars(verdict.root, options)}
    problems: list[Problem] = []
    if expected is not None:
        problems += [
            Problem(path, "meta", "meta.json lists it, but there is no such tar")
            for path in sorted(expected.keys() - there)
        ]
        problems += [
            Problem(path, "meta", "not in meta.json: training doesn't read it")
            for path in sorted(there - expected.keys())
        ]
        problems += _stats(verdict.root, expected, options)
    return problems + _left_behind(verdict.root, there, options)


def _left_behind(root: str, there: set[str], options: StorageOptions | None) -> list[Problem]:
    """Indexes and sidecars whose tar is gone."""
    problems = []
    for part, suffix, path_of in (("index", ".tar.index", index_path), ("sidecar", ".parquet", sidecar_path)):
        known = {path_of(path) for path in there}
        for file in storage.list_files(root, suffix, options):
            path = storage.relative(file, root)
            if path not in known and (part == "index" or is_ours(file, options)):
                problems.append(Problem(path, part, "left behind: its tar is gone; delete it"))
    return problems


def _stats(root: str, expected: dict[str, ShardMeta], options: StorageOptions | None) -> list[Problem]:
    try:
        stats = read_stats(root, options)
    except BadMeta as error:
        return [Problem("meta_stats.json", "stats", str(error).partition(". ")[0])]
    totals = {
        "total_samples": sum(shard.num_samples for shard in expected.values()),
        "total_files": len(expected),
    }
    return [
        Problem(
            "meta_stats.json", "stats", f"{name} is {stats.get(name)!r:.40}, meta.json adds up to {total}"
        )
        for name, total in totals.items()
        if stats.get(name) != total
    ]


def _repair_meta(verdict: Verdict, options: StorageOptions | None) -> None:
    """meta.json and its statistics anew, if every tar is good: training trusts them."""
    wrong = [problem.part in ("meta", "stats") for problem in verdict.problems]
    if not any(wrong) or len(verdict.reports) != verdict.tars:
        return
    save_meta(verdict.root, verdict.reports.values(), storage_options=options)
    verdict.problems = [
        problem._replace(repaired=True) if about else problem
        for problem, about in zip(verdict.problems, wrong, strict=True)
    ]


def main(
    paths: Sequence[str],
    deep: bool = False,
    repair: bool = False,
    n_jobs: int = 0,
    index_root: str | None = None,
    no_end_ok: bool = False,
) -> int:
    """The body of ``shardflow verify``: each of `paths`; the status is 1 if something is wrong and not repaired."""

    def one(path: str) -> int:
        return _run(path, deep, repair, n_jobs, index_root, not no_end_ok)

    return command(lambda: each(paths, NAME, one), NAME)


def _run(path: str, deep: bool, repair: bool, n_jobs: int, index_root: str | None, require_end: bool) -> int:
    began = time.monotonic()
    with progress("verify", 0) as shown:

        def on_done(found: Found) -> None:
            bad = any(not problem.repaired for problem in found.problems)
            shown.advance(size=found.report.size if found.report else 0, failed=bad)

        verdict = verify(
            path,
            deep=deep,
            repair=repair,
            n_jobs=n_jobs,
            index_root=index_root,
            require_end=require_end,
            on_start=shown.expect,
            on_done=on_done,
        )
    show_verdict(verdict, deep, time.monotonic() - began)
    return 0 if verdict.ok else 1


def show_verdict(verdict: Verdict, deep: bool, seconds: float) -> None:
    """Print the table that the command ends with, each problem, and on stderr what to do about them."""
    reports, left = verdict.reports.values(), verdict.left
    repaired = len(verdict.problems) - len(left)
    facts = [
        ("dataset", verdict.root),
        ("tars", f"{verdict.tars:,}, {verdict.tars - len(reports):,} of them can't be read"),
        ("samples", f"{sum(report.num_samples for report in reports):,}"),
        ("size", human_size(sum(report.size for report in reports))),
        ("looked at", "every byte, every member decoded" if deep else "every byte"),
        ("problems", f"{len(left):,}" + (f", and {repaired:,} repaired" if repaired else "")),
        ("time", human_time(seconds)),
    ]
    table("", ["verify", ""], facts)
    for title, problems in (
        ("Repaired", [problem for problem in verdict.problems if problem.repaired]),
        ("Problems", left),
    ):
        if problems:
            lines = [f"{problem.path}: {problem.reason}" for problem in problems[:_SHOWN]]
            more = [f"... and {len(problems) - _SHOWN:,} more"] if len(problems) > _SHOWN else []
            listing(title, lines + more)
    if left:
        many = "1 problem" if len(left) == 1 else f"{len(left):,} problems"
        complain(NAME, f"{many} in {verdict.root}: {_advice(left)}")


def _advice(left: Sequence[Problem]) -> str:
    parts = {problem.part for problem in left}
    advice = []
    if parts & {"tar", "member"}:
        advice.append("what is wrong in a tar can only be packed or copied again")
    if parts - {"tar", "member"}:
        advice.append("--repair writes anew what stands beside the tars")
    return "; ".join(advice)
