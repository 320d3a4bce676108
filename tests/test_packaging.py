"""The wheel, which is what people install, holds what a checkout does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def run(folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment or None, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel in it, as pip unpacks it; built from a copy, as a build writes into its tree."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("loader", "tasks", "flows", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    run(source, "-c", BUILD, str(source))
    (wheel,) = source.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    return site


def test_every_module_is_in_it(installed: Path) -> None:
    for folder in ("loader", "tasks", "flows"):
        there = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
        assert {path.relative_to(installed / folder) for path in (installed / folder).rglob("*.py")} == there
    assert (installed / "loader/py.typed").exists()


def test_the_demo_finds_its_data(installed: Path, tmp_path: Path) -> None:
    code = (
        "import flows, loader; from flows.photos import make_photos\n"
        "print(flows.__file__, loader.__file__, len(make_photos('photos')))"
    )
    shown = run(tmp_path, "-c", code, PYTHONPATH=str(installed))
    assert shown.split() == [f"{installed}/flows/__init__.py", f"{installed}/loader/__init__.py", "75"]
    assert not (installed / "configs/__init__.py").exists(), "it would hide every other folder of that name"
