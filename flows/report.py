"""What a run has done and what went wrong, for a terminal, for Prefect's artifacts and for a flow's final state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from flows.samples import cell, markdown
from loader.contact_sheet import Sample, Table
from loader.errors import BadConfig
from loader.progress import complain, printable, table

_SHOWN = 10  # failures in a terminal or a message
_LISTED = 1000  # rows in an artifact

Row = tuple[str, str]


class LeftOut(NamedTuple):
    """Rows that were left out for one kind of reason."""

    reason: str
    rows: int
    example: str


@dataclass(frozen=True)
class StepReport:
    """One step: `facts` for people; `failures` are (item, reason); `problem` is why it didn't come to its end.

    `look` gives a few samples of what the step has made.
    """

    step: str
    facts: tuple[Row, ...] = ()
    failures: tuple[Row, ...] = ()
    problem: str = ""
    left_out: tuple[LeftOut, ...] = ()
    look: Callable[[], list[Sample]] | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether everything was done."""
        return not self.failures and not self.problem

    @property
    def brief(self) -> tuple[Row, ...]:
        """The facts without examples, where there is one for each reason."""
        return tuple(fact for fact in self.facts if not (self.left_out and fact[0] == "for example"))


@dataclass(frozen=True)
class Report:
    """A run of one or more steps. `rerun` is the command that does what is missing; `task_runs` counts Prefect's."""

    job: str
    steps: tuple[StepReport, ...]
    rerun: str
    task_runs: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything was done."""
        return all(step.ok for step in self.steps)

    @property
    def failures(self) -> list[tuple[str, str, str]]:
        """(step, item, reason) of each item that failed."""
        return [(step.step, *failure) for step in self.steps for failure in step.failures]

    def message(self) -> str:
        """What failed, in a sentence or two, and how to run only that again."""
        parts = []
        for step in self.steps:
            if step.failures:
                names = ", ".join(item for item, _ in step.failures[:3])
                more = f" and {len(step.failures) - 3:,} more" if len(step.failures) > 3 else ""
                parts.append(f"{step.step}: {names}{more} failed ({step.failures[0][1]})")
            if step.problem:
                parts.append(f"{step.step}: {step.problem}")
        return f"{'. '.join(parts)}. {self.how_to_go_on()}" if parts else "everything is done"

    def how_to_go_on(self) -> str:
        """One sentence."""
        start = "What is done is kept; this does the rest" if self.failures else "Once that is put right"
        return f"{start}: {self.rerun}"

    def samples(self) -> list[Sample]:
        """A few samples to look at, of the last step that has some."""
        looks = [step.look for step in self.steps if step.look is not None]
        return looks[-1]() if looks and self.ok else []

    def tables(self) -> list[Table]:
        """All of it as tables of two columns, for a page."""
        tables: list[Table] = []
        if not self.ok:
            tables.append(("failed", [("what is done is kept; this does the rest", self.rerun)]))
        for step in self.steps:
            problem = [("problem", step.problem)] if step.problem else []
            tables.append((step.step, [*problem, *step.brief]))
            if step.failures:
                rest = len(step.failures) - _LISTED
                more = [("…", f"and {rest:,} more")] if rest > 0 else []
                tables.append(
                    (f"{step.step}: {len(step.failures):,} failed", [*step.failures[:_LISTED], *more])
                )
            if step.left_out:
                rows = [
                    (
                        found.reason,
                        f"{found.rows:,} row{'' if found.rows == 1 else 's'}, such as {found.example}",
                    )
                    for found in step.left_out
                ]
                tables.append((f"{step.step}: left out, by reason", rows))
        return tables

    def markdown(self, samples: Sequence[Sample] = ()) -> str:
        """The report as Prefect shows it, with samples to look at."""
        lines = [f"## {self.job}: {'done' if self.ok else 'failed'}", ""]
        for step in self.steps:
            lines += [f"### {step.step}", "", "| | |", "|---|---|"]
            lines += [f"| {cell(name)} | {cell(value)} |" for name, value in step.brief]
            lines += ["", f"**{cell(step.problem)}**" if step.problem else ""]
            if step.failures:
                lines += [f"**{len(step.failures):,} failed**", "", "| what | why |", "|---|---|"]
                lines += [f"| {cell(item)} | {cell(why)} |" for item, why in step.failures[:_LISTED]]
                if len(step.failures) > _LISTED:
                    lines.append(f"| … and {len(step.failures) - _LISTED:,} more | |")
                lines.append("")
            if step.left_out:
                lines += ["**Left out, by reason**", "", "| reason | rows | for example |", "|---|---:|---|"]
                lines += [
                    f"| {cell(found.reason)} | {found.rows:,} | {cell(found.example)} |"
                    for found in step.left_out
                ]
                lines.append("")
        if not self.ok:
            lines += ["", "What is done is kept. This does the rest:", "", "```", self.rerun, "```", "",
                      "or run the flow again with the same parameters."]  # fmt: skip
        if samples:
            lines += ["", "### Samples", "", markdown(samples)]
        return "\n".join(lines) + "\n"

    def rows(self) -> list[dict[str, str]]:
        """A table of all facts and failures."""
        facts = [
            {"step": step.step, "what": name, "value": value}
            for step in self.steps
            for name, value in step.facts
        ]
        problems = [
            {"step": step.step, "what": "problem", "value": step.problem}
            for step in self.steps
            if step.problem
        ]
        failed = [
            {"step": step, "what": f"failed: {item}", "value": why}
            for step, item, why in self.failures[:_LISTED]
        ]
        return problems + failed + facts


def show(report: Report, command: str) -> int:
    """Print the report as a command ends with it; the exit status."""
    several = len(report.steps) > 1
    rows = [
        (step.step if several and not number else "", name, value) if several else (name, value)
        for step in report.steps
        for number, (name, value) in enumerate(step.facts)
    ]
    if rows:
        table("", [report.job, "", ""] if several else [report.job, ""], rows)
    if failures := report.failures:
        shown: list[Sequence[str]] = list(failures[:_SHOWN])
        if len(failures) > _SHOWN:
            shown.append(("", f"… and {len(failures) - _SHOWN:,} more", ""))
        table("Failed", ["step", "what", "why"], shown)
    for step in report.steps:
        if step.problem:
            first, *others = step.problem.splitlines()
            complain(command, f"{step.step}: {first}" if several else first)
            for line in others:
                sys.stderr.write(f"{printable(line)}\n")
    if report.failures:
        complain(command, report.how_to_go_on())
    return 0 if report.ok else 1


def refuse_credentials(**addresses: str) -> None:
    """BadConfig for an address with a password in it: Prefect stores and shows parameters."""
    for name, address in addresses.items():
        for part in address.split(","):
            if "://" in part and urlsplit(part).password:
                raise BadConfig(
                    f"{name} has a password in its address, where it would be stored and shown: give it by the "
                    "environment, or as storage_options in the config file"
                )
