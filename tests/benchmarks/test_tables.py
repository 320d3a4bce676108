"""The pages say what benchmarks/results say, and nobody types a ratio."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import report
import tables

ROOT = Path(tables.ROOT)


def test_every_page_says_what_the_results_say() -> None:
    stale = [path for path, (is_now, should_be) in tables.pages().items() if is_now != should_be]
    assert not stale, "run benchmarks/tables.py"


@pytest.mark.parametrize("page", tables.PAGES)
def test_no_ratio_stands_outside_a_block(page: str) -> None:
    typed = tables._BLOCK.sub("", (ROOT / page).read_text())
    assert not re.findall(r".*\d\s*×.*", typed), (
        "ratios come from benchmarks/results alone: put them into a block"
    )
    assert not re.findall(r".*\b\d+(?:\.\d+)? times as (?:fast|small|many).*", typed)


def test_every_block_is_shown_somewhere() -> None:
    shown = {
        name for page in tables.PAGES for _, name, _, _ in tables._BLOCK.findall((ROOT / page).read_text())
    }
    assert shown == set(tables.BLOCKS)


def test_a_block_follows_the_results(tmp_path: Path) -> None:
    cell = {
        "peer": "wids, 1.1 shards a batch",
        "target": 2.0,
        "ratio": 3.25,
        "low": 3.0,
        "high": 3.5,
        "verdict": "met",
        "clock": "seconds",
        "ours_seconds": [1.0],
        "peer_seconds": [3.25],
        "ours_cpu": 1.0,
        "peer_cpu": 3.0,
        "peer_value": 3.25,
        "peer_extra": {},
        "ratios": [3.25],
    }
    answer = {
        "name": "stream A 0",
        "title": "Stream",
        "unit": "s",
        "note": "",
        "ours": "ours",
        "ours_value": 1.0,
        "ours_cpu": 1.0,
        "cells": [cell],
    }
    results = tables.Results({"stream": {"answers": [answer]}})
    assert list(tables.BLOCKS["stream-A"](results)) == [
        "| ours against | shards a batch " + "".join(f"| {head} " for head, _ in tables.STREAM) + "|",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| wids | 1.1 | 3.25 × | – | – | – | – | – |",
    ]
    assert list(tables.BLOCKS["decode"](results)) == ["*Not measured yet.*"]


def test_the_page_of_results_is_what_is_written_of_them() -> None:
    assert (Path(report.RESULTS) / "README.md").read_text() == report.markdown(report.read())
