"""The step `verify`: is a dataset what it says it is? No Prefect in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flows.report import StepReport
from loader import storage
from loader.gen_meta import reason
from loader.progress import human_size, human_time
from loader.registry import redactor
from loader.storage import StorageOptions
from loader.verify import verify
from tasks.group import Run, Work


def verify_step(
    root: str,
    run: Run,
    n_jobs: int,
    storage_options: StorageOptions | None,
    deep: bool,
    repair: bool,
    index_root: str | None,
    require_end: bool,
) -> StepReport:
    """Every tar against what stands beside it; each problem that is left is a failure."""
    began = time.monotonic()
    redact = redactor(storage_options)
    verdict = verify(
        root,
        deep=deep,
        repair=repair,
        storage_options=storage_options,
        index_root=index_root,
        require_end=require_end,
        doer=_Doer(run, n_jobs, redact),
    )
    reports, left = verdict.reports.values(), verdict.left
    repaired = len(verdict.problems) - len(left)
    facts = (
        ("dataset", verdict.root),
        ("tars", f"{verdict.tars:,}, {verdict.tars - len(reports):,} of them can't be read"),
        ("samples", f"{sum(report.num_samples for report in reports):,}"),
        ("size", human_size(sum(report.size for report in reports))),
        ("looked at", "every byte, every member decoded" if deep else "every byte"),
        ("problems", f"{len(left):,}" + (f", and {repaired:,} repaired" if repaired else "")),
        ("time", human_time(time.monotonic() - began)),
    )
    return StepReport("verify", facts, tuple((problem.path, redact(problem.reason)) for problem in left))


class _Doer:
    """Lets a `Run` do what `loader.verify` would have a pool do."""

    def __init__(self, run: Run, n_jobs: int, redact: Callable[[str], str]) -> None:
        self._run, self._n_jobs, self._redact = run, n_jobs, redact

    def run_all(
        self, function: Callable[..., Any], items: Sequence[Any], *arguments: Any
    ) -> Iterator[tuple[Any, Any]]:
        """See `loader.verify.Doer`."""
        work = Work(
            kind="verify",
            unit="tars",
            items=items,
            function=_paired,
            arguments=(function, *arguments),
            label=lambda item: storage.name(_address(item)),
            size=lambda pair: _size(pair[1]),
            kept=lambda pair: False,
            explain=lambda error, item: self._redact(reason(error, _address(item))),
        )
        results, failures = self._run(work, self._n_jobs)
        yield from results
        yield from failures


def _paired(item: Any, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    return item, function(item, *arguments)


def _address(item: Any) -> str:
    """Of a tar that is looked at, or whose sidecar is made again."""
    return str(getattr(item, "address", None) or item.tar)


def _size(outcome: Any) -> int:
    report = getattr(outcome, "report", None)
    return report.size if report else 0
