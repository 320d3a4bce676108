"""What a command shows: progress on stderr, a table on stdout, errors in one line, an orderly end on Ctrl-C.

On a terminal progress is a bar; elsewhere (a log, a pipe) it is a line every few seconds. Texts that come from
tars and files pass through `printable`: a name must not be able to drive the terminal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TextIO
from unicodedata import category

from rich import box
from rich import progress as rich_progress
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from loader.errors import ShardflowError

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_WIDE = 1000  # columns of a table that no terminal shows: nothing is folded or cut


def human_size(size: float) -> str:
    """Bytes with three digits: ``512 bytes``, ``1.50 MiB``."""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def human_time(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str) -> str:
    r"""`text` with each character that a terminal could obey, or can't show, as an escape such as ``\x1b``.

    Control, format (writing direction, zero width) and unassigned characters, line breaks, lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or category(character) == "Zs" else ascii(character)[1:-1]
        for character in text
    )


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], stream: TextIO | None = None
) -> None:
    """Print a table; numbers stand right-aligned, texts are shown as they are (no markup) and harmless."""
    stream = stream or sys.stdout
    body = [list(row) for row in rows]
    right = [bool(body) and all(_is_count(row[number]) for row in body) for number in range(len(columns))]
    shown = Table(
        *(Column(Text(name), justify="right" if side else "left", overflow="fold")
          for name, side in zip(columns, right, strict=True)),
        box=box.SIMPLE_HEAD if stream.isatty() else None,
        padding=(0, 2, 0, 0),
    )  # fmt: skip
    for row in body:
        shown.add_row(*(Text(_cell(value)) for value in row))
    screen = console(stream)
    if title:
        screen.print()
        screen.print(Text(printable(title)))
    screen.print(shown)


def listing(title: str, lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print a title and indented lines, harmless as in a table; for texts too long for its columns."""
    screen = console(stream or sys.stdout)
    screen.print()
    screen.print(Text(printable(title)))
    for line in lines:
        screen.print(Text(f"  {printable(line)}"))


def _is_count(value: object) -> bool:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or (
        isinstance(value, str) and value[:1].isdigit() and value.split(" ")[-1] in _UNITS
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Called where the error is handled: hand it on to `command` instead of ending the process."""
        raise  # noqa: PLE0704 - there is one


def console(stream: TextIO) -> Console:
    """A rich console on a stream that never fails for a character that it can't encode."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    terminal = stream.isatty()
    return _Console(file=stream, highlight=False, markup=False, emoji=False, width=None if terminal else _WIDE,
                   soft_wrap=not terminal, force_terminal=None if terminal else False)  # fmt: skip


class Tally:
    """Counts what is done of `total` units of work, and says how it goes."""

    def __init__(self, total: int, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.unit = total, unit
        self.done = self.failed = self.size = 0
        self._clock = clock
        self._began = clock()

    def advance(self, items: int = 1, size: int = 0, failed: int = 0) -> None:
        """`items` more are finished, `failed` of them not well; `size` bytes went through."""
        self.done += items
        self.size += size
        self.failed += failed

    def status(self) -> str:
        """``12/40 tars, 3.10 GiB, 402 MiB/s, 1 failed, 0:21 left``."""
        elapsed = self._clock() - self._began
        parts = [f"{self.done:,}/{self.total:,} {self.unit}"]
        if self.size:
            parts.append(human_size(self.size))
        if elapsed > 0.5 and self.done:
            rate = f"{human_size(self.size / elapsed)}/s" if self.size else f"{self.done / elapsed:.1f}/s"
            parts.append(rate)
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if elapsed > 0.5 and 0 < self.done < self.total:
            parts.append(f"{human_time(elapsed * (self.total - self.done) / self.done)} left")
        return ", ".join(parts)


class Progress(Tally):
    """A tally that is shown; made by `progress`. Use it from one thread."""

    def __init__(
        self,
        label: str,
        total: int,
        unit: str,
        stream: TextIO,
        every: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(total, unit, clock)
        self.label = label
        self._stream, self._every = stream, every
        self._said = self._began
        self._said_done = -1
        self._bar: rich_progress.Progress | None = None
        if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._bar = rich_progress.Progress(
                rich_progress.TextColumn("{task.description}", markup=False),
                rich_progress.BarColumn(),
                rich_progress.TextColumn("{task.fields[status]}", markup=False),
                rich_progress.TimeElapsedColumn(),
                console=console(stream),
                transient=True,
            )
            self._task = self._bar.add_task(printable(label), total=total, status=self.status())

    def advance(self, items: int = 1, size: int = 0, failed: int = 0) -> None:
        """Count, and show it now and then."""
        super().advance(items, size, failed)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, status=self.status())
        elif self._clock() - self._said >= self._every:
            self._line()

    def expect(self, total: int) -> None:
        """There are `total` units of work, which was not known at first."""
        self.total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def _line(self) -> None:
        self._said, self._said_done = self._clock(), self.done
        print(f"{printable(self.label)}: {self.status()}", file=self._stream, flush=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._said_done not in (-1, self.done):
            self._line()  # who has seen lines sees the last one too


def progress(label: str, total: int, unit: str = "tars", stream: TextIO | None = None) -> Progress:
    """A context that shows `total` units of work as they are done (`Progress.advance`), on stderr."""
    return Progress(label, total, unit, stream or sys.stderr)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that temporary files are removed and children ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def command(body: Callable[[], int], name: str) -> int:
    """Run a command's body and return its exit status; what is wrong with the input is one line on stderr.

    130 after Ctrl-C. Any other exception is a fault of this program and keeps its traceback.
    """
    try:
        with _terminable():
            status = body()
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        complain(name, "interrupted; what is finished stays, run it again to go on")
        return INTERRUPTED
    except BrokenPipeError:
        # `... | head` has seen enough. Point stdout elsewhere, or the interpreter complains as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ShardflowError, OSError) as error:
        complain(name, str(error) or type(error).__name__)
        return 1


def each(paths: Iterable[str], name: str, act: Callable[[str], int]) -> int:
    """Do something with each path; one that is bad is a line on stderr, and doesn't hide the others. The worst status."""
    status = 0
    for path in paths:
        try:
            status = max(status, act(path))
        except BrokenPipeError:  # noqa: PERF203
            raise
        except (ShardflowError, OSError) as error:
            complain(name, _told(error))
            status = 1
    return status


def _told(error: Exception) -> str:
    """An error in a sentence, without the number that the system gives it."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def complain(name: str, text: str) -> None:
    """One line on stderr: the command's name, and what is wrong."""
    sys.stderr.write(f"{name}: {printable(text)}\n")
