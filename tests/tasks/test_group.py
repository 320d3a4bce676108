from __future__ import annotations

import asyncio
import errno
import http.client
import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from loader.errors import BadConfig, BadTar, StoreError, TruncatedTar
from loader.pool import Pool
from tasks.group import BACKOFF, JITTER, RETRIES, Group, Work, delay, may_pass, run_in_one


class _Library(Exception):
    """Stands for an exception of a network library, which is known by its module and name."""


def of_library(module: str, name: str) -> Exception:
    kind = type("Derived", (type(name, (_Library,), {"__module__": module}),), {})
    error: Exception = kind("no answer")
    return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "reset"),
        OSError(errno.EBUSY, "SlowDown"),
        OSError(errno.EREMOTEIO, "InternalError"),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ESTALE, "Stale file handle"),
        OSError("a store that gives no number"),
        TimeoutError("late"),
        asyncio.TimeoutError(),
        EOFError("asked for bytes 0 to 10, got 3 of them"),
        http.client.IncompleteRead(b"abc", 10),
        BrokenProcessPool("killed"),
        StoreError("s3://bucket/a.tar: read failed 6 times within 60 s: SlowDown"),
        of_library("aiohttp.client_exceptions", "ClientError"),
        of_library("botocore.exceptions", "HTTPClientError"),
        of_library("urllib3.exceptions", "HTTPError"),
    ],
    ids=repr,
)
def test_what_may_pass(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize(
    "error",
    [
        BadConfig("max_samples is 0"),
        BadTar("no tar"),
        TruncatedTar("cut short: an EOFError too, but the file stays as it is"),
        PermissionError(errno.EACCES, "Permission denied"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        IsADirectoryError(errno.EISDIR, "Is a directory"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EROFS, "Read-only file system"),
        ValueError("wrong"),
        ZeroDivisionError("a fault of the program"),
        of_library("botocore.exceptions", "NoCredentialsError"),
    ],
    ids=repr,
)
def test_what_will_not_pass(error: Exception) -> None:
    assert not may_pass(error)


def test_delays_grow_and_differ() -> None:
    for retry in range(RETRIES):
        waits = {delay(retry) for _ in range(50)}
        assert len(waits) > 40
        middle = BACKOFF * 2**retry
        assert middle * (1 - JITTER) <= min(waits) < middle < max(waits) <= middle * (1 + JITTER)


def flaky(item: str, folder: str) -> str:
    """Fails as the item's name says, each time with a note of it; `twice` fails two times."""
    calls = len(list(Path(folder).glob(f"{item}.*")))
    (Path(folder) / f"{item}.{calls}.{os.getpid()}").touch()
    if item.startswith("never"):
        raise FileNotFoundError(errno.ENOENT, "No such file", item)
    if item.startswith("twice") and calls < 2:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    if item.startswith("always"):
        raise TimeoutError("late")
    if item.startswith("config"):
        raise BadConfig("this can't be meant")
    return item


def work(items: list[str], folder: Path) -> Work[str, str]:
    return Work(
        kind="pack",
        unit="slots",
        items=items,
        function=flaky,
        arguments=(str(folder),),
        label=lambda item: item,
        size=lambda result: 1 << 20,
        kept=lambda result: result.startswith("kept"),
        explain=lambda error, item: type(error).__name__,
        fatal=(BadConfig,),
    )


def calls(folder: Path) -> dict[str, int]:
    names = [path.name.split(".")[0] for path in folder.iterdir()]
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_second_attempt_does_what_is_left_and_may_pass(tmp_path: Path, jobs: int) -> None:
    waited: list[float] = []
    seen: list[str | None] = []
    with Pool(jobs) as pool:
        job = work(["a", "never", "twice", "b", "always"], tmp_path)
        group = run_in_one(job, pool, seen.append, waited.append)
    assert sorted(group.results) == ["a", "b", "twice"]
    assert [(item, type(error)) for item, error in sorted(group.failures)] == [
        ("always", TimeoutError),
        ("never", FileNotFoundError),
    ]
    assert calls(tmp_path) == {"a": 1, "b": 1, "never": 1, "twice": 3, "always": 1 + RETRIES}
    assert len(waited) == RETRIES
    assert sorted(map(str, seen)) == ["None", "None", "None", "a", "b"], (
        "once for each item, in the first attempt"
    )


def test_nothing_left_means_no_waiting(tmp_path: Path) -> None:
    waited: list[float] = []
    with Pool(1) as pool:
        group = run_in_one(work(["a", "never"], tmp_path), pool, wait=waited.append)
    assert not waited and not group.worth_retrying


def test_a_fatal_error_ends_it(tmp_path: Path) -> None:
    group = Group(work(["a", "config", "b"], tmp_path), 0, ["a", "config", "b"])
    with Pool(1) as pool, pytest.raises(BadConfig, match="can't be meant"):
        group.attempt(pool)
    assert calls(tmp_path) == {"a": 1, "config": 1}


def test_an_interrupted_attempt_is_taken_up(tmp_path: Path) -> None:
    group = Group(work(["a", "b", "c"], tmp_path), 0, ["a", "b", "c"])

    def stop(result: Any) -> None:
        if result == "b":
            raise KeyboardInterrupt

    with Pool(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            group.attempt(pool, stop)
        assert group.worth_retrying
        group.attempt(pool)
    assert group.results == ["a", "b", "c"]
    assert calls(tmp_path) == {"a": 1, "b": 1, "c": 1}


def test_what_a_group_says_of_itself(tmp_path: Path) -> None:
    items = [f"x{n}" for n in range(10)] + ["kept", "never"]
    group = Group(work(items, tmp_path), 10, items[10:])
    with Pool(1) as pool:
        group.attempt(pool)
    assert group.name == "pack slots 11 to 12 of 12"
    assert group.line(2.0) == "1 were done before, 1 failed"
    assert group.complaint() == "1 of 2 slots failed; never: FileNotFoundError"
    group = Group(work(items, tmp_path), 3, items[3:4])
    with Pool(1) as pool:
        group.attempt(pool)
    assert group.name == "pack slots 4 of 12"
    assert group.line(2.0) == "1 done, 1.00 MiB, 512 KiB/s"
