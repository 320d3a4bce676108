"""The steps of a run, written once: `prepare` is pack, gen_meta and warmup in order. No Prefect in here.

Each is handed a `Run`, which gets the work of many items done: `flows.direct` in one go, `flows.grouped` as
Prefect task runs. What is wrong with an input or a disk ends up in the report; a fault of the program is raised.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from flows.report import StepReport
from loader import storage
from loader.errors import BadConfig, BadSample, ShardflowError
from loader.gen_meta import TarReport, check_writable, gen_meta_one, list_tars, reason, save_meta, untouched
from loader.meta import ShardMeta, meta_address
from loader.pool import Pool, processes
from loader.progress import human_size, human_time
from loader.registry import load_registry, redactor
from loader.storage import StorageOptions
from loader.warmup import REGISTRY, Target, WarmReport, find_targets, warmup_one
from tasks.config import PackConfig
from tasks.group import Work
from tasks.lock import exclusive
from tasks.pack import PackSummary, Plan, check_share, finish_pack, plan, prepare_output, write_errors
from tasks.slot import SlotReport, pack_slot, shard_name
from tasks.source import Slot

Results = tuple[list[Any], list[tuple[Any, Exception]]]


class Run(Protocol):
    """Get the work done on at most `n_jobs` processes (0: all cores): results, and failures as (item, error).

    `check` is called now and then with the results so far, and may raise to end it.
    """

    def __call__(
        self, work: Work[Any, Any], n_jobs: int, check: Callable[[list[Any]], None] | None = None
    ) -> Results: ...


class Pools:
    """One pool of processes for all steps of a job, started when it is first needed. A context manager."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._pool: Pool | None = None

    def get(self, n_jobs: int, items: int) -> Pool:
        """A pool for so many items, on at most `n_jobs` processes (0: all cores)."""
        wanted = processes(n_jobs, items)
        if self._pool is None or self._pool.n_jobs < wanted:
            self._stack.close()
            self._pool = self._stack.enter_context(Pool(wanted))
        return self._pool

    def __enter__(self) -> Pools:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def pack(config: PackConfig, run: Run) -> tuple[StepReport, ...]:
    """JSON records and pictures → shards, indexes, meta.json."""
    return _caught("pack", _redact(config), lambda: _held(config, lambda: (_pack(config, run),)))


def prepare(config: PackConfig, run: Run) -> tuple[StepReport, ...]:
    """pack, gen_meta and warmup of what it wrote; a step that fails is the last."""
    return _caught("pack", _redact(config), lambda: _held(config, lambda: _prepare(config, run)))


def gen_meta(
    root: str,
    run: Run,
    *,
    meta_save_path: str = "",
    n_jobs: int = 0,
    index_root: str = "",
    grouping: str = "auto",
    require_end: bool = True,
    storage_options: StorageOptions | None = None,
) -> tuple[StepReport, ...]:
    """Indexes, checksums and meta.json of a folder of tars."""

    def body() -> tuple[StepReport, ...]:
        options = (index_root or None, grouping, require_end)
        target = storage.normalise(root)
        return (_gen_meta(target, run, meta_save_path or None, n_jobs, storage_options, options)[0],)

    return _caught("gen_meta", redactor(storage_options), body)


def warmup(
    patterns: str,
    run: Run,
    *,
    registry: str = "",
    n_jobs: int = 0,
    index_root: str = "",
    grouping: str = "auto",
    require_end: bool = True,
    storage_options: StorageOptions | None = None,
) -> tuple[StepReport, ...]:
    """The indexes of the tars that comma-separated patterns name, built where they are missing or stale."""
    names: list[Any] = [storage_options]

    def body() -> tuple[StepReport, ...]:
        path = registry or (REGISTRY if os.path.exists(REGISTRY) else "")
        known = load_registry(path) if path else None
        names.extend(entry.storage_options for entry in (known or {}).values())
        targets = find_targets(patterns, known, storage_options)
        return (_warmup(targets, run, n_jobs, (index_root or None, grouping, require_end)),)

    return _caught("warmup", lambda text: redactor(*names)(text), body)


def _prepare(config: PackConfig, run: Run) -> tuple[StepReport, ...]:
    packed = _pack(config, run)
    if not packed.ok:
        return (packed,)
    options = config.storage_options
    redact = _redact(config)
    reports: list[TarReport] = []

    def describe() -> tuple[StepReport, ...]:
        root, choices = config.output, (None, "numbered", True)
        if not storage.list_files(root, ".tar", options):  # all rows were bad, or there were none
            return (StepReport("gen_meta", (("tars", "none: there is nothing to describe"),)),)
        report, found = _gen_meta(root, run, None, config.n_jobs, options, choices)
        reports.extend(found)
        return (report,)

    def warm() -> tuple[StepReport, ...]:
        targets = [
            Target(
                storage.join(config.output, report.path),
                options,
                ShardMeta(report.num_samples, report.size, report.checksum),
            )
            for report in reports
        ]
        return (_warmup(targets, run, config.n_jobs, (None, "numbered", True)),)

    done = [packed, *_caught("gen_meta", redact, describe)]
    if done[-1].ok and reports:
        done += _caught("warmup", redact, warm)
    return tuple(done)


def _pack(config: PackConfig, run: Run) -> StepReport:
    began = time.monotonic()
    job = plan(config)
    prepare_output(config)
    try:
        work = Work(
            kind="pack",
            unit="slots",
            items=job.slots,
            function=pack_slot,
            arguments=(config,),
            label=_slot_label,
            size=lambda report: report.size,
            kept=lambda report: report.kept,
            explain=partial(_explain, redact=_redact(config)),
            fatal=(BadSample, BadConfig),
        )
        results, failures = run(work, config.n_jobs, lambda found: check_share(job, found))
        if failures:
            return _unfinished(
                job, results, [(_slot_label(slot), work.explain(e, slot)) for slot, e in failures]
            )
        return _packed(finish_pack(job, results, time.monotonic() - began))
    finally:
        storage.sweep(config.output)


def _slot_label(slot: Slot) -> str:
    return f"{shard_name(slot.index, 0)} (rows {slot.first_row + 1:,} to {slot.first_row + slot.rows:,})"


def _explain(error: Exception, item: object, redact: Callable[[str], str]) -> str:
    known = isinstance(error, (OSError, ShardflowError))
    return redact((str(error) if known else f"{type(error).__name__}: {error}") or type(error).__name__)


def _packed(summary: PackSummary) -> StepReport:
    made = summary.slots - summary.kept
    facts = [
        ("dataset", summary.output),
        ("samples", f"{summary.samples:,} of {summary.rows:,} rows"),
        ("shards", f"{summary.shards:,}" + (f"; {summary.kept:,} of {summary.slots:,} slots were done before" if summary.kept else "")),
        ("size", human_size(summary.size)),
    ]  # fmt: skip
    if summary.bad:
        facts.append(("left out", f"{summary.bad:,} rows, listed in {summary.errors}"))
        facts += [("for example", str(row)) for row in summary.first_bad]
    facts.append(("time", human_time(summary.seconds)))
    if made and summary.seconds > 0.1 and not summary.kept:
        facts.append(("rate", f"{human_size(summary.size / summary.seconds)}/s"))
    return StepReport("pack", tuple(facts))


def _unfinished(job: Plan, results: Sequence[SlotReport], failures: list[tuple[str, str]]) -> StepReport:
    bad = sum(report.bad for report in results)
    facts = [
        ("dataset", job.config.output),
        ("slots", f"{len(results):,} of {len(job.slots):,} done, {len(failures):,} failed"),
        ("meta", "not written: it would not hold everything"),
    ]
    if bad:
        facts.append(("left out", f"{bad:,} rows, listed in {write_errors(job, [r.slot for r in results])}"))
    return StepReport("pack", tuple(facts), tuple(failures))


def _gen_meta(
    root: str,
    run: Run,
    meta_save_path: str | None,
    n_jobs: int,
    storage_options: StorageOptions | None,
    choices: tuple[str | None, str, bool],  # index_root, grouping, require_end
) -> tuple[StepReport, list[TarReport]]:
    began = time.monotonic()
    redact = redactor(storage_options)
    tars = list_tars(root, storage_options)
    target = meta_address(meta_save_path or root)
    check_writable(target)
    work = Work(
        kind="gen_meta",
        unit="tars",
        items=tars,
        function=gen_meta_one,
        arguments=(root, storage_options, *choices),
        label=lambda address: storage.relative(address, root),
        size=lambda report: report.size,
        kept=lambda report: report.index == "fresh",
        explain=lambda error, address: redact(reason(error, address)),
    )
    results, failures = run(work, n_jobs)
    reports: list[TarReport] = sorted(results, key=lambda report: report.path)
    built = sum(report.index != "fresh" for report in reports)
    unsaved = sum(report.index == "unsaved" for report in reports)
    skipped = sum(count for report in reports for count, _ in report.skipped.values())
    facts = [
        ("dataset", root),
        ("tars", f"{len(reports) + len(failures):,}, {len(failures):,} of them failed"),
        ("samples", f"{sum(report.num_samples for report in reports):,}"),
        ("size", human_size(sum(report.size for report in reports))),
        (
            "indexes",
            f"{built:,} built, {len(reports) - built:,} were there"
            + (f", {unsaved:,} could not be saved: see --index_root" if unsaved else ""),
        ),
    ]
    if skipped:
        facts.append(("in no sample", f"{skipped:,} members: `shardflow show` names them"))
    if failures:
        facts.append(("meta", f"{target}: {untouched(target, storage_options)}"))
    else:
        facts.append(("meta", save_meta(root, reports, meta_save_path, storage_options)))
    facts.append(("time", human_time(time.monotonic() - began)))
    bad = sorted((work.label(address), work.explain(error, address)) for address, error in failures)
    return StepReport("gen_meta", tuple(facts), tuple(bad)), reports


def _warmup(
    targets: Sequence[Target], run: Run, n_jobs: int, choices: tuple[str | None, str, bool]
) -> StepReport:
    began = time.monotonic()
    redact = redactor(*{id(target.storage_options): target.storage_options for target in targets}.values())
    work = Work(
        kind="warmup",
        unit="tars",
        items=targets,
        function=warmup_one,
        arguments=choices,
        label=lambda target: target.address,
        size=lambda report: report.size,
        kept=lambda report: not report.built,
        explain=lambda error, target: redact(reason(error, target.address)),
    )
    results, failures = run(work, n_jobs)
    reports: list[WarmReport] = results
    built = sum(report.built for report in reports)
    facts = (
        ("tars", f"{len(reports) + len(failures):,}, {len(failures):,} of them failed"),
        ("samples", f"{sum(report.num_samples for report in reports):,}"),
        ("indexes", f"{built:,} built, {len(reports) - built:,} were there"),
        ("time", human_time(time.monotonic() - began)),
    )
    bad = sorted((work.label(target), work.explain(error, target)) for target, error in failures)
    return StepReport("warmup", facts, tuple(bad))


def _redact(config: PackConfig) -> Callable[[str], str]:
    return redactor(config.storage_options, config.source_storage_options)


def _held(config: PackConfig, body: Callable[[], tuple[StepReport, ...]]) -> tuple[StepReport, ...]:
    with exclusive(config.output):
        return body()


def _caught(
    step: str, redact: Callable[[str], str], body: Callable[[], tuple[StepReport, ...]]
) -> tuple[StepReport, ...]:
    """What is wrong with an input, a disk or a network is a step's problem, told in one sentence."""
    try:
        return body()
    except (ShardflowError, OSError) as error:
        return (StepReport(step, problem=redact(str(error) or type(error).__name__)),)
