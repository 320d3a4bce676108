"""The demo as a newcomer runs it: one command, and what it leaves behind."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from running import ROOT

from flows import demo
from loader.meta import ShardMeta, write_meta
from loader.writer import write_shard

COLOURS = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0), (0, 250, 250)]
KINDS = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP"}


def picture(colour: tuple[int, int, int], extension: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(buffer, KINDS[extension])
    return buffer.getvalue()


def nearest(image: Any) -> int:
    """Which of the colours a picture has."""
    pixel = image.getpixel((8, 8))
    return min(range(5), key=lambda n: sum((a - b) ** 2 for a, b in zip(pixel, COLOURS[n], strict=True)))


@pytest.mark.parametrize("mark", ["-", "."])
def test_pictures_come_by_number_whatever_their_kinds(tmp_path: Path, mark: str) -> None:
    """Picture n has colour n, and any kind."""
    chance = random.Random(3)
    samples = []
    for number in range(30):
        members = [(".json", json.dumps({"caption": f"sample {number}"}).encode())]
        for n in range(number % 6):
            extension = chance.choice(list(KINDS))
            members.append((f"{mark}{n}{extension}", picture(COLOURS[n], extension)))
        samples.append((f"{number:09d}", members))
    info = write_shard(str(tmp_path / "shard-000000.tar"), samples)
    write_meta(str(tmp_path), {info.path: ShardMeta(info.num_samples, info.size, info.checksum)})
    read = demo._read_epoch(str(tmp_path))
    cards = {key: (caption, pictures) for key, caption, pictures, _ in demo._cards(read)}
    assert len(cards) == 30
    for number in range(30):
        caption, pictures = cards[f"{number:09d}"]
        assert caption == f"sample {number}"
        assert [nearest(image) for image in pictures] == list(range(number % 6))


def test_the_command_is_one_that_works_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binaries, elsewhere = tmp_path / "my venv/bin", tmp_path / "elsewhere"
    binaries.mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.setattr(sys, "executable", str(binaries / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(elsewhere))
    assert demo.command() == f"'{binaries}/python' -m flows.cli"  # run from a checkout
    for folder in (binaries, elsewhere):
        (folder / "shardflow").write_text("#!/bin/sh\n")
        (folder / "shardflow").chmod(0o755)
    assert demo.command() == "'my venv/bin/shardflow'", "another one is on PATH"
    monkeypatch.chdir(elsewhere)
    assert demo.command() == f"'{binaries}/shardflow'"
    monkeypatch.setenv("PATH", f"{binaries}:{elsewhere}")
    assert demo.command() == "shardflow"


@pytest.mark.slow
def test_the_demo_packs_reads_back_and_shows(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}  # as after `make demo`, with no venv activated
    run = subprocess.run(
        [sys.executable, "-m", "flows.cli", "demo", str(out)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    meta = json.loads((out / "dataset" / "meta.json").read_text())
    assert sum(shard["num_samples"] for shard in meta.values()) == 75
    assert "75 samples in 10 batches" in run.stdout
    sheet = (out / "contact-sheet.html").read_text()
    assert len(re.findall("data:image/", sheet)) >= 71  # a picture for each record that has one
    assert "Eileen Collins" in sheet
    assert "Traceback" not in run.stderr

    whole, one = run.stdout.splitlines()[-2:]
    for command, text in ((whole, "Samples: the first 10 of 20"), (one, "Eileen Collins")):
        shown = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert shown.returncode == 0 and text in shown.stdout, command + shown.stderr
