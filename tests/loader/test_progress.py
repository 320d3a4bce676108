from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import BadMeta
from loader.progress import Progress, command, human_size, human_time, printable, progress, table

ROOT = str(Path(__file__).parents[2])


def on_terminal(code: str, **environment: str) -> tuple[str, str]:
    """(what the program showed on a terminal as stderr and stdout, what a person would see last)."""
    leader, follower = pty.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            cwd=ROOT, stdin=follower, stdout=follower, stderr=follower,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment},
        )  # fmt: skip
        os.close(follower)
        shown = b""
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:  # EIO: the other side is closed
                break
            if not chunk:
                break
            shown += chunk
        assert child.wait() == 0
    finally:
        os.close(leader)
    text = shown.decode()
    return text, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "0.98 KiB"),
        (1023, "1.00 KiB"),
        (1024, "1.00 KiB"),
        (10_240, "10.0 KiB"),
        (102_400, "100 KiB"),
        (1 << 20, "1.00 MiB"),
        (9 << 30, "9.00 GiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (1 << 80, "1048576 EiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert human_size(size) == text


@given(st.integers(0, 1 << 63))
def test_sizes_are_short(size: int) -> None:
    assert len(human_size(size)) <= len("1023 bytes")


def test_times() -> None:
    assert [human_time(t) for t in (0, 6.6, 59.7, 754, 3723, 360_000)] == [
        "0:00", "0:07", "1:00", "12:34", "1:02:03", "100:00:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 猫 🐈", "plain é 猫 🐈"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud83d", r"\ud83d"),
        ("a\u3000b\u00a0c", "a\u3000b\u00a0c"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_printable_holds_nothing_to_obey(text: str) -> None:
    shown = printable(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert printable(shown) == shown


def lines(every: float, steps: int, seconds_a_step: float, total: int | None = None) -> list[str]:
    now = [100.0]
    stream = io.StringIO()
    with Progress("gen_meta", total or steps, "tars", stream, every, lambda: now[0]) as shown:
        for _ in range(steps):
            now[0] += seconds_a_step
            shown.advance(size=1 << 20)
    return stream.getvalue().splitlines()


def test_in_a_log_a_line_every_few_seconds() -> None:
    found = lines(every=5, steps=100, seconds_a_step=0.2)
    assert len(found) == 4
    assert found[0] == "gen_meta: 25/100 tars, 25.0 MiB, 5.00 MiB/s, 0:15 left"
    assert found[-1] == "gen_meta: 100/100 tars, 100 MiB, 5.00 MiB/s"


def test_in_a_log_the_last_line_is_the_end() -> None:
    assert [line.split(",")[0] for line in lines(5, 30, 0.2)] == [
        "gen_meta: 25/30 tars",
        "gen_meta: 30/30 tars",
    ]


def test_short_work_leaves_no_line() -> None:
    assert lines(every=5, steps=10_000, seconds_a_step=0.0001) == []


def test_failures_and_rates_without_bytes() -> None:
    now = [0.0]
    shown = Progress("x\x1b", 10, "files", io.StringIO(), 5, lambda: now[0])
    assert shown.status() == "0/10 files"
    now[0] = 4.0
    shown.advance(items=2, failed=1)
    assert shown.status() == "2/10 files, 0.5/s, 1 failed, 0:16 left"


def test_stderr_is_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("x\x1b[2J", 2) as shown:
        shown._every = 0
        shown.advance()
        shown.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(",")[0] for line in err.splitlines()] == [r"x\x1b[2J: 1/2 tars", r"x\x1b[2J: 2/2 tars"]


def test_on_a_terminal_a_bar_that_goes_away() -> None:
    raw, text = on_terminal(
        """
        import time
        from loader.progress import progress, table
        with progress("gen_meta [bold]", 4) as shown:
            for _ in range(4):
                shown.advance(size=1000)
                time.sleep(0.15)
        table("", ["tar"], [["end"]])
        """
    )
    assert "gen_meta [bold]" in text
    assert "4/4 tars" in text
    assert "━" in text
    assert "\x1b[?25h" in raw  # the cursor is back


def test_on_a_dumb_terminal_no_bar() -> None:
    raw, _ = on_terminal(
        """
        from loader.progress import progress
        with progress("x", 1) as shown:
            shown._every = 0
            shown.advance()
        """,
        TERM="dumb",
    )
    assert raw.replace("\r\n", "\n") == "x: 1/1 tars\n"


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    table(
        "Tars \x1b[31m",
        ["tar", "samples", "size"],
        [["[bold]a[/bold].tar", 12_345, "1.00 MiB"], ["b\n\x1b]0;title\x07.tar", None, "12 bytes"]],
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    found = [line.strip() for line in out.splitlines() if line.strip()]
    assert found[0] == r"Tars \x1b[31m"
    assert re.split(r"\s{2,}", found[2]) == ["[bold]a[/bold].tar", "12,345", "1.00 MiB"]
    assert re.split(r"\s{2,}", found[3]) == [r"b\n\x1b]0;title\x07.tar", "-", "12 bytes"]


def test_a_piped_table_is_neither_cut_nor_folded(capsys: pytest.CaptureFixture[str]) -> None:
    name = "very-long/" * 60 + "x.tar"
    table("", ["tar", "samples"], [[name, 1]])
    assert name in capsys.readouterr().out


def test_a_table_on_a_terminal_fits_it() -> None:
    _, text = on_terminal(
        """
        from loader.progress import table
        table("T", ["tar", "samples"], [["x" * 300, 1]])
        """
    )
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("x") >= 300


def test_a_stream_that_cannot_encode() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from loader.progress import table; table('猫', ['é'], [['🐈']])"],
        cwd=ROOT, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True,
    )  # fmt: skip
    assert rb"\U0001f408" in done.stdout


# -- command


def raising(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BadMeta("meta.json: \x1b[2J"), "x: meta.json: \\x1b[2J\n"),
        (FileNotFoundError(2, "No such file", "/a"), "x: [Errno 2] No such file: '/a'\n"),
        (OSError(), "x: OSError\n"),
    ],
)
def test_what_is_wrong_with_the_input_is_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, said: str
) -> None:
    assert command(raising(error), "x") == 1
    assert capsys.readouterr().err == said


def test_status_interrupt_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(lambda: 7, "x") == 7
    assert command(raising(KeyboardInterrupt()), "x") == 130
    assert "x: interrupted" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        command(raising(ZeroDivisionError()), "x")


def test_sigterm_unwinds() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned: list[str] = []

    def body() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append("yes")
        return 0

    with pytest.raises(SystemExit) as caught:
        command(body, "x")
    assert caught.value.code == 143
    assert cleaned == ["yes"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_reader_that_has_seen_enough() -> None:
    code = """
        import sys
        from loader.progress import command, table
        def body():
            for _ in range(2000):
                table("", ["x"], [["y" * 100]])
            return 0
        sys.exit(command(body, "x"))
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 141
