"""Verdicts, and what a table says of a cell."""

from __future__ import annotations

import dataclasses

import pytest
import report
from harness import Cell, Contender, verdict


def cell(ratio: float, low: float, high: float, target: float | None = None) -> Cell:
    word = verdict(Contender("", "", "", target, ahead=target == 1), ratio, low, high)
    return Cell(
        "peer", target, ratio, low, high, word, "wall", [1.0], [ratio], 1.0, ratio, ratio, {}, [ratio]
    )


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((2.0, 1.9, 2.1), ""),
        ((1.1, 0.9, 1.2), "within noise"),
        ((1.1, 1.05, 1.3), "spread above difference"),
        ((2.0, 1.9, 2.1, 1.5), "met"),
        ((2.0, 1.9, 2.1, 3.0), "NOT MET"),
        ((2.0, 1.4, 2.1, 1.5), "met (within noise)"),
        ((2.0, 1.6, 2.9, 1.5), "met; spread above difference"),
        ((1.0, 1.0, 1.0, 1), "NOT MET"),
    ],
)
def test_what_is_said_of_a_cell(numbers: tuple[float, ...], said: str) -> None:
    assert report.judged(cell(*numbers)) == said


def test_a_miss_ends_the_run_with_an_error_unless_it_is_noise() -> None:
    answers = report.answers_of(next(iter(report.read().values())))[:1]
    missed = dataclasses.replace(answers[0], cells=[cell(2.0, 1.9, 2.1, 3.0), cell(2.9, 2.8, 3.1, 3.0)])
    clear, unclear = report.unmet([missed])
    assert clear.endswith("NOT MET") and unclear.endswith("NOT MET (within noise)")
