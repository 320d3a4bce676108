"""Pictures: well-formed, repeatable, and with every contender in them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import plot
import pytest
import report


@pytest.mark.parametrize("name", report.read())
def test_a_picture_has_every_peer(name: str) -> None:
    answers = report.answers_of(report.read()[name])
    picture = plot.svg(answers)
    texts = {element.text for element in ElementTree.fromstring(picture).iter() if element.text}
    assert {cell.peer for answer in answers for cell in answer.cells} <= texts
    assert picture == plot.svg(answers)
    with open(f"{report.RESULTS}/{name}.svg") as file:
        assert file.read() == picture, "run benchmarks/run.py, which writes it"


def test_without_answers_it_is_empty() -> None:
    assert ElementTree.fromstring(plot.svg([])) is not None
