"""A race goes on without a peer that fails, and says so; not without ours."""

from __future__ import annotations

from typing import Any

import pytest
import races
from harness import Contender
from races import Aspect, Race

REPORT = {"check": 1, "cpu": 1.0, "wall": 1.0, "waited": 0.0, "workers": False, "seconds": 1.0}


def race(monkeypatch: pytest.MonkeyPatch, fails: str) -> Race:
    calls: dict[str, int] = {}

    def call(contender: Contender, args: Any) -> dict[str, Any]:
        calls[contender.title] = calls.get(contender.title, 0) + 1
        if contender.title == fails and calls[fails] == 3:  # a check, and a round, went well
            raise RuntimeError("Relative sample index 766 is not present")
        return REPORT

    monkeypatch.setattr(races, "call", call)
    contenders = [Contender(title, "x.py", "x") for title in ("ours", "good", "flaky")]
    aspect = Aspect(
        "x", "X", "seconds", "s", lambda seconds: seconds, "ours", dict.fromkeys(("good", "flaky"), 1.0)
    )
    return Race("X", contenders, {}, [aspect])


def test_a_peer_that_fails_in_a_round_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (answer,) = race(monkeypatch, "flaky").ask(3)
    assert [cell.peer for cell in answer.cells] == ["good"] and len(answer.cells[0].ratios) == 3
    assert answer.problems == ["flaky failed in round 2"]


def test_ours_that_fails_ends_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="766"):
        race(monkeypatch, "ours").ask(3)
