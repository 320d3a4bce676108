"""Every target of speed and memory, what was measured, met or not, and why not: results/TARGETS.md.

targets.yaml says which questions a promise of the project is held against, which tests keep the rest, and the reasons of
what is missed. Targets and verdicts come from the results alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from harness import HERE, Answer
from report import answers_of, judged, number

UNCLEAR = "Some runs meet it, some don't: the machine's noise is larger than what is missing."
Result = Mapping[str, Any]
_HEAD = """# Targets

Written by `benchmarks/tables.py` from the results beside it and [`targets.yaml`](../targets.yaml): every target of speed and memory,
met or not, and the reason. A ratio says how many times as fast (or as small) ours is; *within noise*: the runs don't all fall on the same
side of the target. [README.md](README.md) has the tables with processor time, the pictures, the machine and the versions.
"""


@dataclass(frozen=True)
class Target:
    """One thing that is promised, measured as `answer`, against a `peer` or a limit of that title."""

    answer: str
    title: str
    peer: str
    target: str
    measured: str
    spread: str
    verdict: str

    @property
    def name(self) -> str:
        """What a reason is filed under."""
        return f"{self.answer} / {self.peer}"

    @property
    def missed(self) -> bool:
        return self.verdict.startswith("NOT MET")

    def why(self, reasons: Mapping[str, str]) -> str:
        """Why it is missed; "" where nobody has said so, or it isn't."""
        if not self.missed:
            return ""
        told = " ".join(reasons.get(self.name, "").split())
        return told or (UNCLEAR if "within noise" in self.verdict else "")


def told() -> dict[str, Any]:
    with open(os.path.join(HERE, "targets.yaml")) as file:
        content: dict[str, Any] = yaml.safe_load(file)
    return content


def targets_of(answer: Answer) -> Iterator[Target]:
    for cell in answer.cells:
        if cell.target is not None:
            yield Target(
                answer.name,
                answer.title,
                cell.peer.partition(", ")[0] if " shards a batch" in cell.peer else cell.peer,
                "ahead" if cell.target == 1 else f"{cell.target:.3g} ×",
                f"{number(cell.ratio)} ×",
                f"{number(cell.low)} – {number(cell.high)}",
                judged(cell),
            )
    for limit in answer.limits:
        per, unit = limit.get("per", 1e6), limit.get("unit", "MB")
        value, most = (f"{number(limit[key] / per)} {unit}".rstrip() for key in ("bytes", "limit"))
        word = "met" if limit["met"] else "NOT MET"
        yield Target(answer.name, answer.title, limit["title"], f"< {most}", value, "", word)


def _all(results: Mapping[str, Result]) -> Iterator[Target]:
    for result in results.values():
        for answer in answers_of(result):
            yield from targets_of(answer)


def without_reason(results: Mapping[str, Result]) -> list[str]:
    """The names of those that are missed and have no reason in targets.yaml."""
    reasons = told()["reasons"]
    return [target.name for target in _all(results) if target.missed and not target.why(reasons)]


def summary(answers: Mapping[str, Answer]) -> str:
    every = [target for answer in answers.values() for target in targets_of(answer)]
    missed = sum(target.missed for target in every)
    return f"{len(every) - missed} of {len(every)} targets that have been measured are met."


def page(results: Mapping[str, Result]) -> str:
    content = told()
    parts = [_HEAD]
    for area in content["areas"]:
        parts += [f"## {area['name']}", ""]
        rows = []
        for question in area.get("questions", ()):
            if question not in results:
                rows.append(f"| *`run.py {question}`: not measured yet* | | | | | | |")
                continue
            for answer in answers_of(results[question]):
                rows += [_row(target, content["reasons"]) for target in targets_of(answer)]
        if rows:
            parts += ["| what | ours against | target | measured | spread | | why not |"]
            parts += ["| --- | --- | ---: | ---: | ---: | --- | --- |", *rows, ""]
        for each in area.get("tests", ()):
            parts.append(f"- {each['what']}: kept by `{each['test']}`.")
        parts += [""] if area.get("tests") else []
    return "\n".join(parts).rstrip() + "\n"


def _row(target: Target, reasons: Mapping[str, str]) -> str:
    cells = (
        target.title,
        target.peer,
        target.target,
        target.measured,
        target.spread,
        target.verdict,
        target.why(reasons),
    )
    return "| " + " | ".join(cells) + " |"
