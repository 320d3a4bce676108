"""Storage: one spelling of an address, whole files or none, locally and elsewhere."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from places import in_mounts, python, read_only, small_disk

from loader import storage
from loader.errors import BadAddress, ShardflowError


@pytest.fixture(params=["local", "file://", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty folder, as `normalise` spells it (but for the one with file://)."""
    if request.param == "memory":
        address = f"memory://{tmp_path.name}"
        yield address
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True) if storage.exists(
            address
        ) else None
    else:
        yield str(tmp_path) if request.param == "local" else f"file://{tmp_path}"


# -- addresses


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ("/a/b/", "/a/b"),
        ("/a//b/../c", "/a/c"),
        ("/", "/"),
        ("file:///a/b/", "/a/b"),
        ("local:///a/b", "/a/b"),
        ("~/x", os.path.expanduser("~/x")),
        ("x.tar", os.path.abspath("x.tar")),
        (Path("/a/b"), "/a/b"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket"),
        ("s3://", "s3://"),
        ("memory://", "memory://"),
        ("memory:///a/b", "memory://a/b"),
        ("/odd/a://b", "/odd/a:/b"),  # no protocol holds a slash
    ],
)
def test_one_spelling(given_: str, wanted: str) -> None:
    assert storage.normalise(given_) == wanted
    assert storage.normalise(wanted) == wanted


@pytest.mark.parametrize("address", ["", "zip::s3://bucket/x.zip", "simplecache::s3://b/x.tar"])
def test_no_addresses(address: str) -> None:
    with pytest.raises(BadAddress):
        storage.normalise(address)


def test_an_unknown_protocol() -> None:
    with pytest.raises(BadAddress, match="nosuch://"):
        storage.stat("nosuch://x/y.tar")
    with pytest.raises(BadAddress, match="not on this machine"):
        storage.local_path("s3://bucket/x.tar")


@given(st.text("/.:ab~*", max_size=8), st.sampled_from(("", "/", "s3://b/", "memory://", "memory:///")))
@settings(deadline=None)
def test_spelling_once_is_enough(text: str, start: str) -> None:
    try:
        once = storage.normalise(start + text)
    except BadAddress:
        return
    assert storage.normalise(once) == once


@pytest.mark.parametrize(
    ("address", "parent", "name"),
    [
        ("/a/b.tar", "/a", "b.tar"),
        ("/b.tar", "/", "b.tar"),
        ("s3://bucket/a/b.tar", "s3://bucket/a", "b.tar"),
        ("s3://bucket/b.tar", "s3://bucket", "b.tar"),
        ("memory://b.tar", "memory://", "b.tar"),
    ],
)
def test_parent_and_name_make_the_address_again(address: str, parent: str, name: str) -> None:
    assert (storage.parent(address), storage.name(address)) == (parent, name)
    assert storage.join(parent, name) == address
    assert storage.relative(address, parent) == name


def test_join_and_relative() -> None:
    assert storage.join("/a", "b", "c.tar") == "/a/b/c.tar"
    assert storage.join("/a", "/b", "c.tar") == "/b/c.tar"
    assert storage.join("s3://b/a", "memory://x", "y") == "memory://x/y"
    assert storage.relative("/a/b/c.tar", "/a/") == "b/c.tar"
    assert storage.relative("/a.tar", "/") == "a.tar"
    for elsewhere in ("/ab/c.tar", "/a", "s3://a/b"):
        with pytest.raises(BadAddress, match="does not lie under"):
            storage.relative(elsewhere, "/a")


# -- reading


def test_read_whole_and_in_part(root: str) -> None:
    address = storage.join(root, "deep/er/x.bin")
    assert not storage.exists(address) and not storage.is_dir(storage.parent(address))
    storage.write_bytes(address, b"0123456789")
    assert storage.exists(address) and storage.is_dir(storage.parent(address)) and not storage.is_dir(address)
    assert storage.stat(address).size == 10
    assert storage.read_bytes(address) == b"0123456789"
    assert storage.read_bytes(address, None, 3) == b"3456789"
    assert storage.read_bytes(address, None, 3, 5) == b"34"
    assert storage.read_bytes(address, None, 0, 10) == b"0123456789"
    assert storage.read_bytes(address, None, 20, 20) == b""
    with storage.open_read(address) as file:
        assert file.read(4) + file.read() == b"0123456789"


def test_a_range_that_comes_short_is_an_error(root: str) -> None:
    address = storage.join(root, "x.bin")
    storage.write_bytes(address, b"0123456789")
    for start, end in ((0, 11), (5, 20), (10, 12)):
        with pytest.raises(EOFError, match=f"{start} to {end}"):
            storage.read_bytes(address, None, start, end)


def test_what_is_not_there(root: str) -> None:
    address = storage.join(root, "none.tar")
    for call in (storage.stat, storage.read_bytes, storage.open_read):
        with pytest.raises(FileNotFoundError, match=r"none\.tar"):
            call(address)  # type: ignore[operator]
    storage.remove(address)
    assert storage.list_files(storage.join(root, "no")) == []
    with pytest.raises(FileNotFoundError, match=r"no/\*\.tar"):
        storage.expand(storage.join(root, "no/*.tar"))


def test_a_folder_is_no_file(root: str) -> None:
    storage.write_bytes(storage.join(root, "a/x.tar"), b"")
    with pytest.raises(IsADirectoryError):
        storage.stat(storage.join(root, "a"))


def test_version_changes_with_the_content(root: str) -> None:
    address = storage.join(root, "x.bin")
    storage.write_bytes(address, b"1")
    before = storage.stat(address).version
    time.sleep(0.02)
    storage.write_bytes(address, b"2")
    assert before and storage.stat(address).version != before


# -- listing


def test_list_and_expand(root: str) -> None:
    for path in (
        "b.tar",
        "a/z.tar",
        "a-b.tar",
        "a/c.txt",
        "a.tar",
        ".hidden.tar",
        ".h/x.tar",
        "a/.h/x.tar",
        "a/._z.tar",
    ):
        storage.write_bytes(storage.join(root, path), b"")
    base = storage.normalise(root)

    def seen(addresses: list[str]) -> list[str]:
        return [storage.relative(address, base) for address in addresses]

    tars = ["a-b.tar", "a.tar", "a/z.tar", "b.tar"]
    assert seen(storage.list_files(root, ".tar")) == tars
    assert seen(storage.list_files(root)) == sorted([*tars, "a/c.txt"])
    assert seen(storage.expand(root, ".tar")) == tars
    assert seen(storage.expand(storage.join(root, "b.tar"))) == ["b.tar"]
    assert seen(storage.expand(storage.join(root, "*.tar"))) == ["a-b.tar", "a.tar", "b.tar"]
    assert seen(storage.expand(storage.join(root, "?.tar"))) == ["a.tar", "b.tar"]
    assert seen(storage.expand(storage.join(root, "[ab].tar"))) == ["a.tar", "b.tar"]
    assert seen(storage.expand(storage.join(root, "*/*.tar"))) == ["a/z.tar"]
    assert seen(storage.expand(storage.join(root, "**/*.txt"))) == ["a/c.txt"]
    assert seen(storage.expand(storage.join(root, "*"), ".tar")) == sorted(tars)
    assert seen(storage.expand(storage.join(root, ".h/*.tar"))) == [".h/x.tar"]  # asked for by name


def test_names_that_look_like_globs_are_names_first(root: str) -> None:
    storage.write_bytes(storage.join(root, "a[1].tar"), b"")
    storage.write_bytes(storage.join(root, "a1.tar"), b"")
    (found,) = storage.expand(storage.join(root, "a[1].tar"))
    assert storage.name(found) == "a[1].tar"


def test_the_root_of_a_store() -> None:
    storage.write_bytes("memory://root-of-a-store.txt", b"")
    try:
        assert "memory://root-of-a-store.txt" in storage.list_files("memory://")
        assert storage.expand("memory://root-of-*.txt") == ["memory://root-of-a-store.txt"]
    finally:
        storage.remove("memory://root-of-a-store.txt")


# -- publishing


def test_a_file_appears_whole_at_the_end(root: str) -> None:
    address = storage.join(root, "new/x.tar")
    with storage.publish(address) as file:
        file.write(b"abc")
        file.write(memoryview(b"def"))
        assert not storage.exists(address)
        assert storage.list_files(root) == []
    assert storage.read_bytes(address) == b"abcdef"
    assert storage.list_files(root) == [storage.normalise(address)]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_leaves_nothing_or_what_was_there(root: str, error: type[BaseException]) -> None:
    address = storage.join(root, "x.tar")
    for before in (None, b"before"):
        if before:
            storage.write_bytes(address, before)
        with pytest.raises(error), storage.publish(address) as file:
            file.write(b"half")
            raise error
        gc.collect()
        assert storage.exists(address) == (before is not None)
        assert before is None or storage.read_bytes(address) == before
    if storage.is_local(root):
        assert os.listdir(storage.local_path(root)) == ["x.tar"]


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


WRITER = """
import sys
from loader import storage
with storage.publish(sys.argv[1]) as file:
    file.write(bytes(1_000_000))
    print("half", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_leaves_only_what_sweep_removes(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    odd = folder / "x\n.tar"
    with python(WRITER, odd, stdin=-1) as child:
        assert child.stdout is not None and child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
    (left,) = folder.iterdir()
    assert left != odd and left.name.startswith(".")
    assert storage.list_files(str(tmp_path)) == []
    keep = [
        folder / name
        for name in (".x.part", ".x.tar.1234567g.part", "x.tar.12345678.part", ".DS_Store", "y.tar")
    ]
    for path in keep:
        path.write_bytes(b"")
    assert storage.sweep(str(tmp_path), older_than=3600) == []
    assert storage.sweep(str(tmp_path)) == [str(left)]
    assert sorted(folder.iterdir()) == sorted(keep)
    assert storage.sweep(str(tmp_path)) == storage.sweep(str(tmp_path / "none")) == []
    assert storage.sweep("memory://x") == []


def test_names_as_long_as_a_folder_takes_them(tmp_path: Path) -> None:
    for name in ("n" * 251 + ".tar", "日" * 83 + ".tar", "x" + "日" * 83 + ".tar"):
        storage.write_bytes(str(tmp_path / name), b"x")
        assert (tmp_path / name).read_bytes() == b"x"
    with pytest.raises(KeyError), storage.publish(str(tmp_path / ("m" * 255))):
        assert len(os.listdir(tmp_path)) == 4
        assert len(storage.list_files(str(tmp_path))) == 3
        raise KeyError
    assert storage.sweep(str(tmp_path)) == []


def test_errors_are_of_one_tree() -> None:
    assert issubclass(BadAddress, ShardflowError) and issubclass(BadAddress, ValueError)
