"""The steps `gen_meta` and `warmup`: what is beside the tars. No Prefect in here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, partial

from flows.report import StepReport
from flows.samples import look
from loader import storage
from loader.gen_meta import TarReport, check_writable, gen_meta_one, list_tars, reason, save_meta, untouched
from loader.meta import meta_address
from loader.progress import human_size, human_time
from loader.registry import redactor
from loader.storage import StorageOptions
from loader.warmup import Target, WarmReport, warmup_one
from tasks.group import Run, Work

Choices = tuple[str | None, str, bool, bool]  # index_root, grouping, require_end, save_bytes


def gen_meta_step(
    root: str,
    run: Run,
    meta_save_path: str | None,
    n_jobs: int,
    storage_options: StorageOptions | None,
    choices: Choices,
) -> tuple[StepReport, list[TarReport]]:
    """Indexes, checksums and meta.json; also what was found of each tar."""
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
    seconds = time.monotonic() - began
    facts.append(("time", human_time(seconds)))
    if reports and built == len(reports) and seconds > 0.1:
        facts.append(("rate", f"{human_size(sum(report.size for report in reports) / seconds)}/s"))
    bad = sorted((work.label(address), work.explain(error, address)) for address, error in failures)
    addresses = [storage.join(root, report.path) for report in reports]
    samples = cache(partial(look, addresses, storage_options, choices[0]))
    return StepReport("gen_meta", tuple(facts), tuple(bad), look=samples), reports


def warmup_step(targets: Sequence[Target], run: Run, n_jobs: int, choices: Choices) -> StepReport:
    """The indexes of these tars."""
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
