"""One `shardflow up` a home, and how others find it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

from flows.home import HomeBusy, held, running


def test_a_home_is_held_once_and_found(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    assert running(home) is None
    with held(home) as place:
        assert running(home) is None, "not yet"
        place.announce("http://127.0.0.1:1/api")
        assert running(home) == "http://127.0.0.1:1/api"
        with (
            pytest.raises(
                HomeBusy, match=rf"as process {os.getpid()}, with its pages at http://127.0.0.1:1:"
            ),
            held(home),
        ):
            pass  # fmt: skip
        assert running(home) == "http://127.0.0.1:1/api"
    assert running(home) is None
    with held(home):
        pass


def test_one_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from flows.home import held\n"
        "with held(pathlib.Path(sys.argv[1])) as home: home.announce('http://127.0.0.1:1/api'); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert running(tmp_path) is None
    with held(tmp_path):
        assert running(tmp_path) is None, "what it left is no news"


@pytest.mark.parametrize("note", ["", "[]", "{", '{"url": 1}'])
def test_a_damaged_note_is_none(note: str, tmp_path: Path) -> None:
    (tmp_path / "shardflow-up.json").write_text(note)
    assert running(tmp_path) is None
