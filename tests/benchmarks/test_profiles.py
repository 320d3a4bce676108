"""Processor time is put down to the line that takes it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import profiles


def test_a_busy_line_gets_the_time(monkeypatch) -> None:
    monkeypatch.setattr(profiles, "TICK", 0.001)
    with profiles.Sampler() as sampler:
        until = time.process_time() + 0.4
        while time.process_time() < until:
            pass
    (file, _, function), _ = sampler.lines.most_common(1)[0]
    assert (Path(file).name, function.rpartition(".")[2]) == (
        Path(__file__).name,
        "test_a_busy_line_gets_the_time",
    )
    assert abs(sum(sampler.shares().values()) - 1) < 1e-9


def test_owners() -> None:
    assert profiles._owner(os.path.join(profiles.ROOT, "loader", "tar.py"), 1) == "ours"
    assert profiles._owner("/x/site-packages/PIL/Image.py", 1) == "Pillow"
    assert profiles._owner("/x/site-packages/torch/nn/functional.py", 1) == "torch"
    assert profiles._owner("/x/site-packages/filelock/_api.py", 1) == "others"
    assert profiles._owner(os.__file__, 1) == "Python"
