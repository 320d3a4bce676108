"""The step `pack` beyond a plan that is known from the start: splits, duplicates, functions that go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.direct import Direct
from flows.report import StepReport
from flows.steps import pack, prepare
from loader.meta import read_meta
from tasks.config import PackConfig
from tasks.workforce import Crew


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackConfig:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    lines = [json.dumps({"text": f"text {n % 17}"}) for n in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    return PackConfig(str(tmp_path / "a.jsonl"), str(tmp_path / "out"), max_samples=5, n_jobs=1)


def run(step: Any, config: PackConfig, **changes: Any) -> tuple[StepReport, ...]:
    with Crew() as crew:
        done: tuple[StepReport, ...] = step(PackConfig(**{**vars(config), **changes}), Direct(crew))
    assert all(report.ok for report in done), done
    return done


def test_each_split_is_described_and_warmed_up(config: PackConfig) -> None:
    done = run(prepare, config, split="train=0.75, test=0.25")
    assert [report.step for report in done] == ["pack", "gen_meta", "gen_meta", "warmup"]
    datasets = [dict(report.facts).get("dataset") for report in done[1:3]]
    assert datasets == [f"{config.output}/test", f"{config.output}/train"]
    assert [dict(report.facts)["indexes"] for report in done[1:]] == [
        "0 built, 1 were there", "0 built, 3 were there", "0 built, 4 were there",
    ]  # fmt: skip


def test_duplicates_are_dropped_in_a_second_round(config: PackConfig) -> None:
    (report,) = run(pack, config, duplicates="drop")
    facts = dict(report.facts)
    assert facts["samples"] == "17 of 20 rows"
    assert facts["duplicates"] == "3 samples, listed in duplicates.jsonl"
    assert sum(shard.num_samples for shard in read_meta(config.output).values()) == 17


def test_a_function_is_packed_as_it_comes(config: PackConfig, tmp_path: Path) -> None:
    (tmp_path / "flow_source.py").write_text(
        "import os, time\n"
        f"first = {config.output!r} + '/.shardflow/slot-000000.json'\n"
        "def records():\n"
        "    for n in range(12):\n"
        "        while n == 6 and not os.path.exists(first):\n"
        "            time.sleep(0.01)\n"
        "        yield {'text': str(n)}\n"
    )
    (report,) = run(pack, config, source="flow_source:records", recipe_folder=str(tmp_path), max_bytes=3000)
    facts = dict(report.facts)
    assert facts["samples"] == "12 of 12 rows"
    assert "warning" not in facts
    assert not any((tmp_path / "out/.shardflow/sources").iterdir())


def test_what_is_too_large_or_filtered_is_told(config: PackConfig, tmp_path: Path) -> None:
    (tmp_path / "flow_recipe.py").write_text(
        "from tasks.recipes import default\ndef odd(raw):\n    return default(raw) if raw['text'] != 'text 3' else None\n"
    )
    with Path(config.source).open("a") as file:
        file.write('\n{"text": "' + "x" * 9000 + '"}\n')
    (report,) = run(pack, config, max_bytes=8000, recipe="flow_recipe:odd", recipe_folder=str(tmp_path))
    facts = dict(report.facts)
    assert facts["filtered"] == "1 rows, by the recipe"
    assert facts["warning"] == "1 samples are larger than max_bytes: each has a shard of its own"
