"""The demo as a newcomer runs it: one command, and what it leaves behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_demo_packs_reads_back_and_shows(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    run = subprocess.run(
        [sys.executable, "-m", "flows.cli", "demo", str(out)], capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stdout + run.stderr
    meta = json.loads((out / "dataset" / "meta.json").read_text())
    assert sum(shard["num_samples"] for shard in meta.values()) == 75
    assert "75 samples in 10 batches" in run.stdout
    sheet = (out / "contact-sheet.html").read_text()
    assert len(re.findall("data:image/", sheet)) >= 71  # a picture for each record that has one
    assert "Eileen Collins" in sheet
    assert "Traceback" not in run.stderr
