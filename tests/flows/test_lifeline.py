"""Flows die with the `shardflow up` that started them: real processes, a real kill."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from running import ROOT

CHILD = "from flows import lifeline; lifeline.hold(); print('held', flush=True); import time; time.sleep(60)"
PARENT = f"""
import os, subprocess, sys
os.environ["SHARDFLOW_UP"] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline(), flush=True)
child.wait()
"""


def alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_flow_goes_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        child, held = parent.stdout.readline().split()
        assert held == "held" and alive(int(child))
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 20
        while alive(int(child)):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    code = "import os; from flows import lifeline; lifeline.hold(); print(os.environ.get('SHARDFLOW_UP'))"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_one_whose_parent_is_gone_already_ends_at_once() -> None:
    done = run(SHARDFLOW_UP="1")
    assert (done.returncode, done.stdout) == (1, "")


def test_others_are_left_alone_and_children_are_not_told() -> None:
    assert run().stdout == "None\n"
    assert run(SHARDFLOW_UP=str(os.getpid())).stdout == "None\n"
