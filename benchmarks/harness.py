"""Run contenders in processes of their own, in turn with ours, and turn their times into ratios.

A pair is always measured side by side: A B A B …, so that whatever else the machine does hits both alike, and
each ratio comes from neighbours in time. What counts is the median of these ratios; their spread is shown.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
WORK = os.path.join(HERE, "work")
PEERS_PYTHON = os.path.join(WORK, "peers", "bin", "python")
CONTENDER_SECONDS = 1200  # none takes that long: a hung one ends the run

Args = Mapping[str, Any]
Report = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """One way to do the job. `file` is the script under contenders/, `function` what it calls there."""

    title: str
    file: str
    function: str
    target: float | None = None  # ours must be at least so many times as fast; None: shown for comparison
    # Whether ours must only be ahead of it: the target is 1, and a tie counts as not met.
    ahead: bool = False


@dataclass(frozen=True)
class Question:
    """One table: ours against each peer, in one unit, on one corpus."""

    name: str
    title: str
    ours: Contender
    peers: Sequence[Contender]
    unit: str  # what `scale` makes of seconds: "µs a member", "MB/s"
    scale: Callable[[float], float]
    args: Mapping[str, Any]
    # Limits in bytes on extra values that ours reports: (title, key, limit).
    limits: Sequence[tuple[str, str, float]] = ()
    note: str = ""
    # Called with the arguments before each run: fresh output folders.
    fresh: Callable[[Args], Args] | None = None


@dataclass
class Cell:
    """Ours against one peer: a ratio above 1 means that ours is so many times as fast."""

    peer: str
    target: float | None
    ratio: float
    low: float
    high: float
    verdict: str
    clock: str  # "seconds" without waiting for a core, or "wall" where that can't be told
    ours_seconds: list[float]
    peer_seconds: list[float]
    ours_cpu: float
    peer_cpu: float
    peer_value: float
    peer_extra: dict[str, float]
    ratios: list[float]


@dataclass
class Answer:
    """What a question came to."""

    name: str
    title: str
    unit: str
    note: str
    ours: str
    ours_value: float
    ours_cpu: float
    cells: list[Cell] = field(default_factory=list)
    limits: list[dict[str, Any]] = field(default_factory=list)
    others_cpu: float = 0.0  # share of one core that other processes took meanwhile
    waited: float = 0.0  # share of all wall time that was waiting for a core
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Answer:
        return cls(**{**value, "cells": [Cell(**cell) for cell in value["cells"]]})


class CheckFailed(RuntimeError):
    """A contender's output differs from the reference: its time would mean nothing."""


def call(contender: Contender, args: Args) -> Report:
    """Run one contender in a fresh process and return its report."""
    python = PEERS_PYTHON if contender.file.startswith("peers") else sys.executable
    script = os.path.join(HERE, "contenders", contender.file)
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(HERE), "PYTHONDONTWRITEBYTECODE": ""}
    # Telemetry and update checks of the peers would wait for a network that may not be there.
    environment |= {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "LITDATA_DISABLE_VERSION_CHECK": "1"}
    done = subprocess.run(
        [python, script, contender.function, json.dumps(dict(args))],
        capture_output=True,
        text=True,
        timeout=CONTENDER_SECONDS,
        env=environment,
        cwd=WORK,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{contender.title}: exit status {done.returncode}\n{done.stderr[-3000:]}")
    report: Report = json.loads(done.stdout.rstrip().rsplit("\n", 1)[-1])
    return report


def run_once(question: Question, contender: Contender, check: bool) -> Report:
    args = {**question.args, "check": check}
    if question.fresh is not None:
        args = dict(question.fresh(args))
    return call(contender, args)


def verify(question: Question) -> list[Contender]:
    """Run each contender once, untimed; all must agree. Returns the peers that can run here."""
    reference = run_once(question, question.ours, check=True)["check"]
    able = []
    for peer in question.peers:
        try:
            report = run_once(question, peer, check=True)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"  {peer.title}: left out: {error}", file=sys.stderr)
            continue
        for key, value in report.get("check", {}).items():
            if reference.get(key) != value:
                raise CheckFailed(
                    f"{question.title}: {key} of {peer.title} is {value!r}, of {question.ours.title} "
                    f"{reference.get(key)!r}"
                )
        able.append(peer)
    return able


def ask(question: Question, rounds: int) -> Answer:
    """Check all contenders, then measure each pair `rounds` times in turn."""
    print(f"{question.title} ...", file=sys.stderr, flush=True)
    peers = verify(question)
    ours: dict[str, list[Report]] = {peer.title: [] for peer in peers}
    theirs: dict[str, list[Report]] = {peer.title: [] for peer in peers}
    busy = Busy()
    for turn in range(rounds):
        for peer in peers:
            pair = [(question.ours, ours), (peer, theirs)]
            # Who goes first alternates too.
            for contender, reports in pair if turn % 2 == 0 else reversed(pair):
                report = run_once(question, contender, check=False)
                busy.own += report["cpu"]
                reports[peer.title].append(report)
    everyone = [report for reports in ours.values() for report in reports]
    answer = Answer(
        question.name,
        question.title,
        question.unit,
        question.note,
        question.ours.title,
        question.scale(statistics.median(report["seconds"] for report in everyone)),
        statistics.median(report["cpu"] for report in everyone),
        others_cpu=busy.others(),
    )
    reports = everyone + [report for each in theirs.values() for report in each]
    answer.waited = sum(report["waited"] for report in reports) / sum(report["wall"] for report in reports)
    answer.cells = [_cell(question, peer, ours[peer.title], theirs[peer.title]) for peer in peers]
    missing = {peer.title for peer in question.peers} - {peer.title for peer in peers}
    answer.problems = [f"{title} could not run here" for title in sorted(missing)]
    for title, key, limit in question.limits:
        worst = max(report[key] for report in everyone)
        answer.limits.append({"title": title, "bytes": worst, "limit": limit, "met": worst < limit})
    return answer


def _cell(question: Question, peer: Contender, ours: list[Report], theirs: list[Report]) -> Cell:
    # What waiting for a core cost is taken off on both sides or on none.
    clock = "wall" if any(report["workers"] for report in ours + theirs) else "seconds"
    ratios = [their[clock] / our[clock] for our, their in zip(ours, theirs, strict=True)]
    ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
    extra = {
        key: statistics.median(report[key] for report in theirs)
        for key in ("peak", "private")
        if all(key in report for report in theirs)
    }
    return Cell(
        peer.title,
        1.0 if peer.ahead else peer.target,
        ratio,
        low,
        high,
        verdict(peer, ratio, low, high),
        clock,
        [report[clock] for report in ours],
        [report[clock] for report in theirs],
        statistics.median(report["cpu"] for report in ours),
        statistics.median(report["cpu"] for report in theirs),
        question.scale(statistics.median(report[clock] for report in theirs)),
        extra,
        ratios,
    )


def verdict(peer: Contender, ratio: float, low: float, high: float) -> str:
    if peer.ahead or peer.target is not None:
        target = 1.0 if peer.target is None else peer.target
        met = ratio > target if peer.ahead else ratio >= target
        word = "met" if met else "NOT MET"
        # The rounds don't all fall on one side: the machine's noise is larger than the margin.
        return f"{word} (within noise)" if low < target < high else word
    return "within noise" if low < 1 < high else ""


class Busy:
    """CPU seconds that other processes took since this object was made, from /proc/stat."""

    def __init__(self) -> None:
        self.own = 0.0
        self._start = _machine_cpu()
        self._wall = os.times()

    def others(self) -> float:
        """Share of one core, on average. What the harness itself and process starts take is in it too."""
        now = os.times()
        wall = now.elapsed - self._wall.elapsed
        used = _machine_cpu() - self._start
        # Children include the contenders with their imports and checks: all of it is ours.
        mine = sum(now[:4]) - sum(self._wall[:4])
        return max(0.0, used - mine) / wall if wall else 0.0


def _machine_cpu() -> float:
    """Busy seconds of all cores, stolen ones included."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
