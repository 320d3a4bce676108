"""Races: many contenders, each run once a round, compared in several respects at once (time, first batch, memory).

A stream's run tells more than one number, and takes seconds; so all contenders run in turn within a round, in
another order each time, and a ratio comes from two runs of one round.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from harness import Answer, Busy, Cell, CheckFailed, Contender, Report, call, verdict

# Level with a peer: within what one run differs from the next.
LEVEL = 0.95


@dataclass(frozen=True)
class Aspect:
    """One number of each report, lower being better, as a table: that of `ours` against those of the others."""

    name: str
    title: str
    key: str
    unit: str
    scale: Callable[[float], float]
    ours: str  # title of a contender
    # title of a contender → ours must be so many times as good; 1: ahead; None: for comparison
    against: Mapping[str, float | None]
    note: str = ""


@dataclass(frozen=True)
class Limit:
    """The median of one number of `ours`, below a limit, both divided by `per` to be shown in `unit`."""

    title: str
    key: str
    limit: float
    per: float
    unit: str


@dataclass(frozen=True)
class Race:
    """The first contender says what is right: all must yield what it does."""

    title: str
    contenders: Sequence[Contender]
    args: Mapping[str, Any]
    aspects: Sequence[Aspect]
    limits: Sequence[Limit] = field(default_factory=tuple)
    before: Callable[[], None] | None = None  # called before each run
    after: Callable[[], Report] | None = None  # called after each run: what it adds to the report

    def ask(self, rounds: int) -> list[Answer]:
        """One answer for each aspect."""
        print(f"{self.title} ...", file=sys.stderr, flush=True)
        checked = self._verify()
        able = [each for each in self.contenders if each.title in checked]
        problems = [
            f"{each.title} could not run here, or yields other samples"
            for each in self.contenders
            if each not in able
        ]
        runs: dict[str, list[Report]] = {each.title: [] for each in able}
        busy = Busy()
        for turn in range(rounds):
            order = list(able)
            random.Random(turn).shuffle(order)
            for each in order:
                try:
                    report = self._run(each, check=False)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    if each.title in self._own:
                        raise
                    print(f"  {each.title}: left out from here on: {error}", file=sys.stderr)
                    problems.append(f"{each.title} failed in round {turn + 1}")
                    able.remove(each)
                    del runs[each.title]
                    continue
                busy.own += report["cpu"]
                runs[each.title].append(report)
        others = busy.others()
        answers = []
        for aspect in self.aspects:
            answer = self._answer(aspect, runs, checked)
            answer.others_cpu, answer.problems = others, problems
            answers.append(answer)
        for limit in self.limits:
            values = [report[limit.key] for report in runs[able[0].title]]
            answers[0].limits.append(
                {
                    "title": limit.title,
                    "bytes": statistics.median(values),
                    "limit": limit.limit,
                    "met": statistics.median(values) < limit.limit,
                    "per": limit.per,
                    "unit": limit.unit,
                    "values": values,
                }
            )
        return answers

    def _run(self, contender: Contender, check: bool) -> Report:
        if self.before is not None:
            self.before()
        report = call(contender, {**self.args, "check": check})
        return report if self.after is None else {**report, **self.after()}

    @property
    def _own(self) -> set[str]:
        """Those of ours: a peer that yields anything else is left out, one of ours ends the run."""
        return {aspect.ours for aspect in self.aspects}

    def _verify(self) -> dict[str, Report]:
        checked: dict[str, Report] = {}
        right: Report | None = None
        for each, report in zip(self.contenders, self._checked(), strict=True):
            if report is None:
                continue
            right = report["check"] if right is None else right
            if report["check"] != right:
                what = f"{self.title}: {each.title} yields {report['check']!r}, expected {right!r}"
                if each.title in self._own:
                    raise CheckFailed(what)
                print(f"  {each.title}: left out: {what}", file=sys.stderr)
                continue
            checked[each.title] = report
        return checked

    def _checked(self) -> list[Report | None]:
        """What each yields, None where it can't run: not timed, so as many at once as there are cores."""

        def check(each: Contender) -> Report | None:
            try:
                return self._run(each, check=True)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"  {each.title}: left out: {error}", file=sys.stderr)
                return None

        at_once = 1 if self.before is not None else os.cpu_count() or 1
        with ThreadPoolExecutor(min(at_once, 4)) as pool:
            return list(pool.map(check, self.contenders))

    def _answer(
        self, aspect: Aspect, runs: Mapping[str, list[Report]], checked: Mapping[str, Report]
    ) -> Answer:
        def shown(title: str) -> str:
            told = checked[title]
            words = [title]
            if "shards" in told:
                words.append(f"{told['shards']:.3g} shards a batch")
            if told.get("twice"):
                words.append(f"{told['twice']} samples twice")
            return ", ".join(words)

        own = runs[aspect.ours]
        answer = Answer(
            aspect.name,
            aspect.title,
            aspect.unit,
            aspect.note,
            shown(aspect.ours),
            aspect.scale(statistics.median(report[aspect.key] for report in own)),
            statistics.median(report["cpu"] for report in own),
        )
        every = [report for reports in runs.values() for report in reports]
        answer.waited = sum(report["waited"] for report in every) / sum(report["wall"] for report in every)
        for title, target in aspect.against.items():
            if title in runs:
                answer.cells.append(_cell(aspect, shown(title), target, own, runs[title]))
        return answer


def _cell(aspect: Aspect, title: str, target: float | None, ours: list[Report], theirs: list[Report]) -> Cell:
    our, their = ([report[aspect.key] for report in reports] for reports in (ours, theirs))
    ratios = [b / a for a, b in zip(our, their, strict=True)]
    ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
    return Cell(
        title,
        target,
        ratio,
        low,
        high,
        verdict(Contender("", "", "", target, ahead=target == 1), ratio, low, high),
        "wall" if any(report["workers"] for report in theirs) else "seconds",
        our,
        their,
        statistics.median(report["cpu"] for report in ours),
        statistics.median(report["cpu"] for report in theirs),
        aspect.scale(statistics.median(their)),
        {},
        ratios,
    )
