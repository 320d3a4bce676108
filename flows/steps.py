"""The steps of a run, written once: `prepare` is pack, gen_meta and warmup in order. No Prefect in here.

Each is handed a `tasks.group.Run`, which gets the work of many items done: `flows.direct` in one go,
`flows.grouped` as Prefect task runs. What is wrong with an input or a disk ends up in the report; a fault of the program is raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flows.indexing import gen_meta_step, warmup_step
from flows.packing import pack_step, redact_of
from flows.report import StepReport
from flows.verifying import verify_step
from loader import storage
from loader.errors import ShardflowError
from loader.gen_meta import TarReport
from loader.meta import ShardMeta
from loader.registry import load_registry, redactor
from loader.storage import StorageOptions
from loader.warmup import REGISTRY, Target, find_targets
from tasks.claim import metas
from tasks.config import PackConfig
from tasks.group import Run
from tasks.lock import exclusive


def pack(config: PackConfig, run: Run) -> tuple[StepReport, ...]:
    """Records and pictures → shards, indexes, meta.json."""
    return _caught("pack", redact_of(config), lambda: _held(config, lambda: (pack_step(config, run),)))


def prepare(config: PackConfig, run: Run) -> tuple[StepReport, ...]:
    """pack, gen_meta and warmup of what it wrote; a step that fails is the last."""
    return _caught("pack", redact_of(config), lambda: _held(config, lambda: _prepare(config, run)))


def gen_meta(
    root: str,
    run: Run,
    *,
    meta_save_path: str = "",
    n_jobs: int = 0,
    index_root: str = "",
    grouping: str = "auto",
    require_end: bool = True,
    save_bytes: bool = False,
    storage_options: StorageOptions | None = None,
) -> tuple[StepReport, ...]:
    """Indexes, checksums and meta.json of a folder of tars."""

    def body() -> tuple[StepReport, ...]:
        options = (index_root or None, grouping, require_end, save_bytes)
        target = storage.normalise(root)
        return (gen_meta_step(target, run, meta_save_path or None, n_jobs, storage_options, options)[0],)

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
    save_bytes: bool = False,
    storage_options: StorageOptions | None = None,
) -> tuple[StepReport, ...]:
    """The indexes of the tars that comma-separated patterns name, built where they are missing or stale."""
    names: list[Any] = [storage_options]

    def body() -> tuple[StepReport, ...]:
        path = registry or (REGISTRY if os.path.exists(REGISTRY) else "")
        known = load_registry(path) if path else None
        names.extend(entry.storage_options for entry in (known or {}).values())
        targets = find_targets(patterns, known, storage_options)
        return (warmup_step(targets, run, n_jobs, (index_root or None, grouping, require_end, save_bytes)),)

    return _caught("warmup", lambda text: redactor(*names)(text), body)


def verify(
    path: str,
    run: Run,
    *,
    deep: bool = False,
    repair: bool = False,
    n_jobs: int = 0,
    index_root: str = "",
    require_end: bool = True,
    storage_options: StorageOptions | None = None,
) -> tuple[StepReport, ...]:
    """Every tar of a dataset against what stands beside it."""

    def body() -> tuple[StepReport, ...]:
        root, where = storage.normalise(path), index_root or None
        return (verify_step(root, run, n_jobs, storage_options, deep, repair, where, require_end),)

    return _caught("verify", redactor(storage_options), body)


def _prepare(config: PackConfig, run: Run) -> tuple[StepReport, ...]:
    packed = pack_step(config, run)
    if not packed.ok:
        return (packed,)
    options = config.storage_options
    redact = redact_of(config)
    choices = (None, "auto", True, False)
    reports: list[tuple[str, TarReport]] = []  # with the folder of its dataset

    def describe() -> tuple[StepReport, ...]:
        steps = []
        for root in map(storage.parent, metas(config)):  # one, or one for each split
            if not storage.list_files(root, ".tar", options):  # all rows were bad, or there were none
                steps.append(StepReport("gen_meta", (("tars", "none: there is nothing to describe"),)))
                continue
            report, found = gen_meta_step(root, run, None, config.n_jobs, options, choices)
            reports.extend((root, one) for one in found)
            steps.append(report)
        return tuple(steps)

    def warm() -> tuple[StepReport, ...]:
        targets = [
            Target(
                storage.join(root, report.path),
                options,
                ShardMeta(report.num_samples, report.size, report.checksum),
            )
            for root, report in reports
        ]
        return (warmup_step(targets, run, config.n_jobs, choices),)

    done = [packed, *_caught("gen_meta", redact, describe)]
    if all(step.ok for step in done) and reports:
        done += _caught("warmup", redact, warm)
    return tuple(done)


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
