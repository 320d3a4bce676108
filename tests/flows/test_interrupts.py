"""Ctrl-C is the parent's business: real signals, to a process and to its group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from running import ROOT

CODE = """
import subprocess, sys, threading, time
from flows.interrupts import Interrupts
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # as a library's: it doesn't block the signal
sleep = [sys.executable, "-c", "import time; time.sleep(%s)"]
with Interrupts() as interrupts:
    if %r == "action":
        interrupts.action = lambda: print("told", flush=True)
    child = subprocess.Popen(sleep)
    try:
        print("ready", flush=True)  # within: the signal may come as soon as that is read
        while child.poll() is None:
            time.sleep(0.01)
        print("child", child.returncode, flush=True)
    except KeyboardInterrupt:
        print("interrupted", child.poll(), flush=True)
        child.kill()
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a child of it may be left
        process.communicate()


def start(made: list[subprocess.Popen[str]], seconds: float, kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE % (seconds, kind)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    made.append(process)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_the_first_calls_the_action_and_no_child_sees_it(processes: list[subprocess.Popen[str]]) -> None:
    process = start(processes, 1.5, "action")
    os.killpg(process.pid, signal.SIGINT)
    assert line(process) == "told\n"
    assert line(process) == "child 0\n"
    assert process.wait(30) == 0


def test_the_second_ends_the_process(processes: list[subprocess.Popen[str]]) -> None:
    process = start(processes, 30, "action")
    os.killpg(process.pid, signal.SIGINT)
    assert line(process) == "told\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130


def test_without_an_action_it_is_as_ever(processes: list[subprocess.Popen[str]]) -> None:
    process = start(processes, 0.5, "none")
    os.killpg(process.pid, signal.SIGINT)
    assert line(process).startswith("interrupted")
    assert process.wait(30) == 0
