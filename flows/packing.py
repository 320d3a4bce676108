"""The step `pack`: Records and pictures → shards, indexes, meta.json. No Prefect in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from flows.report import LeftOut, StepReport
from flows.samples import look
from loader import storage
from loader.contact_sheet import Sample
from loader.errors import BadConfig, BadSample, ShardflowError
from loader.progress import human_size, human_time
from loader.registry import redactor
from tasks.config import PackConfig
from tasks.group import Run, Work
from tasks.pack import (
    PackSummary,
    Plan,
    check_share,
    finish_pack,
    plans,
    prepare_output,
    settle,
    without_duplicates,
    write_errors,
)
from tasks.slot import SlotReport, pack_slot, shard_name
from tasks.source import Slot


def pack_step(config: PackConfig, run: Run) -> StepReport:
    """Pack, and say what has become of it. The caller holds the output."""
    began = shown = time.monotonic()
    results: list[SlotReport] = []
    failures: list[tuple[Slot, Exception]] = []
    try:
        for number, job in enumerate(plans(config)):
            if not number:
                prepare_output(config)
            work = Work(
                kind="pack",
                unit="slots",
                items=job.fresh,
                function=pack_slot,
                arguments=(config,),
                label=partial(_slot_label, config=config),
                size=lambda report: report.size,
                kept=lambda report: report.kept,
                explain=partial(_explain, redact=redact_of(config)),
                fatal=(BadSample, BadConfig),
            )
            found, failed = run(work, config.n_jobs, partial(check_share, job) if job.whole else None)
            results, failures = results + found, failures + failed
            if not failed:
                shown = settle(job, shown)
        if not failures and (again := without_duplicates(job, results)):
            others, failures = run(replace(work, items=again), config.n_jobs)
            packed = {report.slot for report in others}
            results = [*others, *(report for report in results if report.slot not in packed)]
        if failures:
            return _unfinished(
                job, results, [(work.label(slot), work.explain(e, slot)) for slot, e in failures]
            )
        summary = finish_pack(job, results, time.monotonic() - began)
        shards = [storage.join(config.output, shard) for report in sorted(results) for shard in report.shards]
        return _packed(summary, cache(partial(look, shards, config.storage_options)), redact_of(config))
    finally:
        storage.sweep(config.output)


def _slot_label(slot: Slot, config: PackConfig) -> str:
    return f"{shard_name(slot, config)} (rows {slot.first_row + 1:,} to {slot.first_row + slot.rows:,})"


def _explain(error: Exception, item: object, redact: Callable[[str], str]) -> str:
    known = isinstance(error, (OSError, ShardflowError))
    return redact((str(error) if known else f"{type(error).__name__}: {error}") or type(error).__name__)


def _packed(
    summary: PackSummary, samples: Callable[[], list[Sample]], redact: Callable[[str], str]
) -> StepReport:
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
    if summary.filtered:
        facts.append(("filtered", f"{summary.filtered:,} rows, by the recipe"))
    if summary.duplicates:
        facts.append(("duplicates", f"{summary.duplicates:,} samples, listed in duplicates.jsonl"))
    if summary.oversized:
        facts.append(
            (
                "warning",
                f"{summary.oversized:,} samples are larger than max_bytes: each has a shard of its own",
            )
        )
    facts.append(("time", human_time(summary.seconds)))
    if made and summary.seconds > 0.1 and not summary.kept:
        facts.append(("rate", f"{human_size(summary.size / summary.seconds)}/s"))
    left_out = tuple(
        LeftOut(redact(found.kind), found.rows, redact(found.example)) for found in summary.reasons
    )
    return StepReport("pack", tuple(facts), left_out=left_out, look=samples)


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


def redact_of(config: PackConfig) -> Callable[[str], str]:
    """Takes the secrets of a config out of a text."""
    return redactor(config.storage_options, config.source_storage_options)
