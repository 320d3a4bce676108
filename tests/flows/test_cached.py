"""The command ``shardflow cache``, as it is typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.cli import main


def test_it_is_the_folder_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDFLOW_CACHE_DIR", str(tmp_path / "one"))
    assert main(["cache", "path"]) == 0
    assert main(["cache", "path", "--cache-dir", "two"]) == main(["cache", "path", "--cache_dir=two"]) == 0
    two = os.path.abspath("two")
    assert capsys.readouterr().out.split() == [str(tmp_path / "one"), two, two]
    assert main(["cache", "stat"]) == main(["cache", "clear"]) == 0


@pytest.mark.parametrize("words", [["cache"], ["cache", "empty"], ["cache", "stat", "x"]])
def test_a_wrong_command_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and "usage: shardflow" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cache", "--help"])
    shown = capsys.readouterr().out
    assert "examples:" in shown and "SHARDFLOW_CACHE_DIR" in shown
