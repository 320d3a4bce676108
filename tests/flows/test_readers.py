"""The commands that read datasets, as people type them; what they do is tested in the loader."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pictures import pairs, write_dataset

from flows import cli

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def root(tmp_path: Path) -> str:
    return write_dataset(tmp_path / "ds", pairs(5), per_shard=3)


def test_stats(shardflow: Command, root: str, tmp_path: Path) -> None:
    done = shardflow("stats", root, "--plot", str(tmp_path / "x.png"), "--n_jobs=1", "--fresh")
    assert (done.returncode, done.stderr) == (0, "") and "samples   5" in done.stdout
    assert (tmp_path / "x.png").exists()


def test_verify(shardflow: Command, root: str) -> None:
    assert shardflow("verify", root, "--repair", "--deep").returncode == 0
    Path(root, "shard-000001.tar.index").unlink()
    done = shardflow("verify", root, "--n-jobs", "1")
    assert done.returncode == 1 and "shard-000001.tar.index: there is none" in done.stdout
    assert shardflow("verify", root, "--repair", f"--index_root={root}.indexes").returncode == 0


def test_extract(shardflow: Command, root: str, tmp_path: Path) -> None:
    done = shardflow("extract", f"{root}#000000003", "-o", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["000000003-0.jpg", "000000003.json"]


@pytest.mark.parametrize(
    "words",
    [["stats"], ["verify"], ["extract", "a#0"], ["stats", "a", "--n-jobs", "-1"], ["verify", "a", "--fix"]],
)
def test_wrong_command_lines(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2 and "usage: shardflow" in capsys.readouterr().err
