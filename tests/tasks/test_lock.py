from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tasks.lock import OutputBusy, exclusive

ROOT = Path(__file__).parents[2]


def test_one_at_a_time(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    with exclusive(output), exclusive(output + "2"):
        with (
            pytest.raises(OutputBusy, match=f"another run is packing into {output}: wait"),
            exclusive(output),
        ):
            pass
        (tmp_path / "link").symlink_to(tmp_path)
        with pytest.raises(OutputBusy), exclusive(f"{tmp_path}/link/out/"):
            pass
    with exclusive(output):
        pass
    assert not (tmp_path / "out").exists()


def test_it_goes_with_its_process(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    code = f"""
        import time
        from tasks.lock import exclusive
        with exclusive({output!r}):
            print("held", flush=True)
            time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(OutputBusy), exclusive(output):
            pass
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        with exclusive(output):
            pass
    finally:
        child.kill()
        child.communicate()


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "home"
    blocked.write_text("a file, no folder")
    monkeypatch.setenv("HOME", str(blocked))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    with exclusive(str(tmp_path / "out")):
        assert list(tmp_path.glob("shardflow-locks-*/*.lock"))
