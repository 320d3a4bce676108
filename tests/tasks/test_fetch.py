from __future__ import annotations

import os
import time
from pathlib import Path

import fsspec
import pytest

from loader.errors import BadSample
from tasks import fetch


def refused(path: str) -> str:
    with pytest.raises(BadSample) as caught:
        fetch.read_local(path)
    return str(caught.value)


def no_options(address: str) -> None:
    return None


def test_where_a_reference_leads() -> None:
    assert fetch.locate("a/b.jpg", "/data/x") == "/data/x/a/b.jpg"
    assert fetch.locate("/a.jpg", "/data") == "/a.jpg"
    assert fetch.locate("file:///a.jpg", "/data") == "/a.jpg"
    assert fetch.locate("a.jpg", "s3://bucket/x") == "s3://bucket/x/a.jpg"
    assert fetch.locate("s3://other/a.jpg", "/data") == "s3://other/a.jpg"


def test_a_local_file_and_its_stamp(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(b"x" * 100_000)
    data, stamp = fetch.read_local(str(file))
    assert data == b"x" * 100_000
    assert stamp == fetch.stamp(str(file))
    os.utime(file, ns=(1, 1))
    assert fetch.stamp(str(file)) != stamp


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refused(str(tmp_path / "gone.jpg"))
    assert "a folder" in refused(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in refused(str(tmp_path / "pipe"))  # and does not wait for a writer
    assert "no regular file" in refused("/dev/zero")
    assert "null byte" in refused("a\0b")
    assert "File name too long" in refused("/" + "a" * 5000)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "symbolic links" in refused(str(tmp_path / "loop"))
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(str(tmp_path / "file" / "a.jpg"))
    for path in ("gone.jpg", "loop", "a\0b"):
        assert fetch.stamp(str(tmp_path / path)) == fetch.NO_STAMP


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch(mode=0)
    assert "Permission denied" in refused(str(tmp_path / "a.jpg"))


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_PICTURE", 10)
    (tmp_path / "a.jpg").write_bytes(bytes(11))
    assert "11 bytes, more than 10" in refused(str(tmp_path / "a.jpg"))


def test_remote_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/fetch/a[1].jpg", b"one")
    fs.pipe_file("/fetch/b*.jpg", b"two")
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    addresses = [f"memory://fetch/{name}" for name in ("a[1].jpg", "b*.jpg", "gone.jpg", "a[1].jpg")]
    found = fetch.read_remote([*addresses, "nosuch://x/a.jpg", "memory://::x"], no_options)
    assert list(map(found.get, addresses[:2])) == [b"one", b"two"]
    assert isinstance(found[addresses[2]], BadSample)
    assert "gone.jpg" in str(found[addresses[2]])
    assert "nosuch://x/a.jpg: no way to open nosuch://" in str(found["nosuch://x/a.jpg"])
    assert waits == []  # nothing of this gets better by waiting


def test_a_store_that_says_slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/fetch/c.jpg", b"three")
    answers: list[Exception | None] = [OSError("503 SlowDown"), OSError("503 SlowDown"), None]
    good = type(fs).cat_file

    def cat_file(self: object, path: str, start: int | None = None, end: int | None = None) -> bytes:
        error = answers.pop(0)
        if error is not None:
            raise error
        return bytes(good(fs, path, start, end))

    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(type(fs), "cat_file", cat_file)
    assert fetch.read_remote(["memory://fetch/c.jpg"], no_options) == {"memory://fetch/c.jpg": b"three"}
    assert waits == [0.5, 1.0]
    answers[:] = [OSError("503 SlowDown")] * 3
    assert "503 SlowDown" in str(
        fetch.read_remote(["memory://fetch/c.jpg"], no_options)["memory://fetch/c.jpg"]
    )
