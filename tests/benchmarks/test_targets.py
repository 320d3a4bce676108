"""Every target is on the page, and each that is missed says why."""

from __future__ import annotations

from pathlib import Path

import report
import run
import targets


def test_what_is_missed_has_a_reason() -> None:
    assert targets.without_reason(report.read()) == []


def test_every_question_with_a_target_belongs_to_an_area() -> None:
    named = [question for area in targets.told()["areas"] for question in area.get("questions", ())]
    assert len(named) == len(set(named))
    with_targets = {
        name
        for name, result in report.read().items()
        if any(list(targets.targets_of(answer)) for answer in report.answers_of(result))
    }
    assert with_targets <= set(named), "say in benchmarks/targets.yaml where they belong"


def test_areas_name_tests_that_exist() -> None:
    for area in targets.told()["areas"]:
        for each in area.get("tests", ()):
            assert (Path(report.HERE).parent / each["test"]).exists()


def test_all_questions_are_on_the_page_of_results() -> None:
    assert set(report.ORDER) == set(run.QUESTIONS)
