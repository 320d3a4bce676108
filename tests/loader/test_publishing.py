"""Files appear whole or not at all: on disk, in a store whose every call is watched, and in S3 when it fails."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fault_proxy import FaultProxy
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from places import in_mounts, python, read_only, small_disk
from s3_server import Place

from loader import storage
from loader.errors import StoreError, WriteConflict


def test_a_file_appears_whole_at_the_end(anywhere: str) -> None:
    address = storage.join(anywhere, "new/x.tar")
    with storage.publish(address) as file:
        file.write(b"abc")
        file.write(memoryview(b"def"))
        assert not storage.exists(address)
        assert storage.list_files(anywhere) == []
    assert storage.read_bytes(address) == b"abcdef"
    assert storage.list_files(anywhere) == [storage.normalise(address)]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_leaves_nothing_or_what_was_there(anywhere: str, error: type[BaseException]) -> None:
    address = storage.join(anywhere, "x.tar")
    for before in (None, b"before"):
        if before:
            storage.write_bytes(address, before)
        with pytest.raises(error), storage.publish(address) as file:
            file.write(b"half")
            raise error
        gc.collect()
        assert storage.exists(address) == (before is not None)
        assert before is None or storage.read_bytes(address) == before
    if storage.is_local(anywhere):
        assert os.listdir(storage.local_path(anywhere)) == ["x.tar"]


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "x.tar").mkdir()
    with pytest.raises(OSError, match=r"x\.tar"):
        storage.write_bytes(str(tmp_path / "x.tar"), b"abc")
    assert os.listdir(tmp_path) == ["x.tar"]


def test_published_files_have_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    storage.write_bytes(str(tmp_path / "x.tar"), b"")
    assert (tmp_path / "x.tar").stat().st_mode == (tmp_path / "usual").stat().st_mode


class Upload(AbstractBufferedFile):  # type: ignore[misc]
    """An upload as object stores have it: parts, then complete or abort."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.fs.calls.append("part")
        if self.fs.failing == "part":
            raise OSError("part refused")
        self.parts.append(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        self.fs.calls.append("commit")
        if self.fs.failing == "commit":
            raise OSError("commit refused")
        self.fs.store[self.path] = b"".join(self.parts)

    def discard(self) -> None:
        self.fs.calls.append("discard")


class Store(AbstractFileSystem):  # type: ignore[misc]
    protocol = "teststore"
    cachable = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []
        self.store: dict[str, bytes] = {}
        self.failing: str | None = None

    def _open(
        self, path: str, mode: str = "rb", autocommit: bool = True, block_size: int = 5, **options: Any
    ) -> Upload:
        return Upload(self, path, mode, block_size=block_size, autocommit=autocommit, cache_options=None)


@pytest.fixture
def store() -> Iterator[Store]:
    fsspec.register_implementation("teststore", Store, clobber=True)
    fs, _ = storage.filesystem("teststore://x")
    fs.calls, fs.store, fs.failing = [], {}, None
    yield fs


def test_an_upload_is_committed_once_at_the_end(store: Store) -> None:
    storage.write_bytes("teststore://b/x.tar", b"abc")
    assert store.store == {"b/x.tar": b"abc"}
    assert store.calls == ["part", "commit"]
    gc.collect()
    assert not any(issubclass(type(thing), Upload) for thing in gc.get_objects())  # not one a shard for hours


def test_an_upload_is_aborted(store: Store) -> None:
    with pytest.raises(KeyError), storage.publish("teststore://b/x.tar") as file:
        file.write(b"x" * 100)
        raise KeyError
    del file
    gc.collect()
    assert store.store == {} and store.calls == ["discard"]
    assert not any(issubclass(type(thing), Upload) for thing in gc.get_objects())


@pytest.mark.parametrize("failing", ["part", "commit"])
def test_an_upload_that_fails_is_aborted(store: Store, failing: str) -> None:
    store.failing = failing
    with pytest.raises(OSError, match=f"{failing} refused"):
        storage.write_bytes("teststore://b/x.tar", b"abc")
    gc.collect()
    assert store.store == {} and store.calls[-1] == "discard"


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    # A raw file takes the bytes that still fit, and says so only in its return value.
    code = """
import os, sys
from loader import storage
from loader.writer import ShardWriter
folder = sys.argv[1]
storage.write_bytes(folder + "/kept.bin", bytes(100_000))
for big in (bytes(1_500_000), bytes(10_000_000)):
    try:
        storage.write_bytes(folder + "/x.bin", big)
    except OSError as error:
        print(error.errno)
try:
    with ShardWriter(folder, max_samples=4) as writer:
        for n in range(2000):
            writer.write({"__key__": f"{n:06d}", ".bin": bytes(100_000)})
except OSError as error:
    print(error.errno)
print(sorted(os.listdir(folder)))
"""
    lines = in_mounts(small_disk(tmp_path, "1200k"), code, tmp_path).splitlines()
    assert lines[:3] == ["28"] * 3  # ENOSPC
    assert lines[3] == (
        "['kept.bin', 'shard-000000.tar', 'shard-000000.tar.index', 'shard-000001.tar', 'shard-000001.tar.index']"
    )


def test_a_read_only_folder(tmp_path: Path) -> None:
    code = """
import sys
from loader import storage
try:
    storage.write_bytes(sys.argv[1] + "/x.bin", b"abc")
except OSError as error:
    print(error.errno, error.filename.startswith(sys.argv[1]))
"""
    assert in_mounts(read_only(tmp_path), code, tmp_path).split() == ["30", "True"]  # EROFS


def test_names_as_long_as_a_folder_takes_them(tmp_path: Path) -> None:
    for name in ("n" * 251 + ".tar", "日" * 83 + ".tar", "x" + "日" * 83 + ".tar"):
        storage.write_bytes(str(tmp_path / name), b"x")
        assert (tmp_path / name).read_bytes() == b"x"
    with pytest.raises(KeyError), storage.publish(str(tmp_path / ("m" * 255))):
        assert len(os.listdir(tmp_path)) == 4
        assert len(storage.list_files(str(tmp_path))) == 3
        raise KeyError
    assert storage.sweep(str(tmp_path)) == []


# -- S3, and what it fails


def few(place: Place, **options: Any) -> dict[str, Any]:
    """Options with which a failing store is given up soon."""
    return {**place.storage_options, "max_tries": 3, **options}


def uploads(place: Place) -> list[str]:
    return storage.sweep_uploads(place.root, place.storage_options, 0)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("503", 100), ("500", 100), ("reset", 100), ("reset_upload", 100), ("lost_reply", 100),
        ("503", 17 << 20), ("reset_upload", 17 << 20), ("lost_reply", 17 << 20),
    ],
)  # fmt: skip
def test_a_passing_failure_is_not_noticed(
    faulty: Place, s3: Place, faults: FaultProxy, kind: str, size: int
) -> None:
    faults.reset(rules=(faults.rule(kind, method="PUT|POST", times=2),))
    address = faulty.address("x.bin")
    storage.write_bytes(address, bytes(size), few(faulty, max_tries=4))
    assert faults.stats()["failed"] == 2
    assert storage.stat(address, s3.storage_options).size == size
    # Of an upload that was begun and whose name was lost, nobody but a sweep knows.
    assert uploads(s3) == [] or (kind == "lost_reply" and size > 100)


@pytest.mark.parametrize(
    ("kind", "size", "after"),
    [
        ("503", 100, 0), ("403", 100, 0), ("reset", 100, 0),
        ("503", 17 << 20, 0), ("403", 17 << 20, 1), ("503", 17 << 20, 1), ("403", 17 << 20, 2), ("503", 17 << 20, 2),
    ],
)  # fmt: skip
def test_a_lasting_one_leaves_nothing(
    faulty: Place, s3: Place, faults: FaultProxy, kind: str, size: int, after: int
) -> None:
    """The small file by one request; the large one when it is begun, in a part, and when it is completed."""
    storage.write_bytes(s3.address("x.bin"), b"old", s3.storage_options)
    faults.reset(rules=(faults.rule(kind, method="PUT|POST", after=after),))
    with pytest.raises(OSError, match=r"^s3://\S+x\.bin: ") as caught:
        storage.write_bytes(faulty.address("x.bin"), bytes(size), few(faulty, max_tries=2))
    assert isinstance(caught.value, PermissionError if kind == "403" else StoreError)
    if kind == "503":
        assert "writing failed 2 times" in str(caught.value) and "SlowDown" in str(caught.value)
    gc.collect()
    assert storage.read_bytes(s3.address("x.bin"), s3.storage_options) == b"old"
    assert uploads(s3) == []


def test_a_lost_reply_is_no_conflict(faulty: Place, s3: Place, faults: FaultProxy) -> None:
    """The request was done, and is sent again: what it finds there is its own."""
    address = faulty.address("x.json")
    faults.reset(rules=(faults.rule("lost_reply", method="PUT", times=1),))
    storage.write_bytes(address, b"mine", few(faulty), if_absent=True)
    version = storage.stat(address, s3.storage_options).version
    faults.reset(rules=(faults.rule("lost_reply", method="PUT", times=1),))
    storage.write_bytes(address, b"mine too", few(faulty), if_match=version)
    with pytest.raises(WriteConflict):
        storage.write_bytes(address, b"other", few(faulty), if_absent=True)
    assert storage.read_bytes(address, s3.storage_options) == b"mine too"


def test_a_process_that_ends_in_an_upload_ends(s3: Place) -> None:
    """A file that nobody closes would hang at exit, or appear cut short."""
    code = (
        "import json, sys\n"
        "from loader import storage\n"
        "context = storage.publish(sys.argv[1], json.loads(sys.argv[2]))\n"
        "file = context.__enter__()\n"
        "file.write(bytes(17 << 20))\n"
        "sys.exit(3)\n"
    )
    with python(code, s3.address("x.tar"), json.dumps(s3.storage_options)) as child:
        assert child.wait(timeout=60) == 3
    assert not storage.exists(s3.address("x.tar"), s3.storage_options)


def test_memory_is_bounded_by_parts(s3: Place) -> None:
    code = (
        "import json, resource, sys\n"
        "from loader import storage\n"
        "address, options = sys.argv[1], json.loads(sys.argv[2])\n"
        "storage.write_bytes(address, b'', options)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with storage.publish(address, options) as file:\n"
        "    for _ in range(150):\n"
        "        file.write(bytes(1 << 20))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    out, err = python(code, s3.address("x.bin"), json.dumps(s3.storage_options)).communicate()
    assert not err and int(out) << 10 < 100 << 20
    storage.remove(s3.address("x.bin"), s3.storage_options)
