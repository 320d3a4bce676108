"""Situations that a test can't get by writing files: a read-only folder, a full disk, a killed process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def python(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    """A child that runs `code` with the project on its path; stdout and stderr are pipes."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **{"env": environment(), **options},  # type: ignore[call-overload]
    )


def environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}


def in_mounts(mounts: str, code: str, *arguments: object) -> str:
    """The output of `code` in a mount namespace of its own, where the shell commands `mounts` were run before.

    Skips the test where this machine allows no such thing.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    start = [unshare, "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
    if subprocess.run([*start, "sh", "-ec", mounts], capture_output=True, check=False).returncode:
        pytest.skip("no mounts here")
    done = subprocess.run(
        [*start, "sh", "-ec", f'{mounts}\nexec "$@"', "sh", sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_only(folder: Path) -> str:
    """The mounts that make a folder read-only, for root too."""
    return f"mount --bind '{folder}' '{folder}' && mount -o remount,ro,bind '{folder}'"


def small_disk(folder: Path, size: str) -> str:
    """The mounts that put an empty disk of that size at a folder."""
    return f"mount -t tmpfs -o size={size} none '{folder}'"
