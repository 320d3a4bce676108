"""Storage: what is there, read and listed, locally and elsewhere (see tests/test_storage_contract.py for stores)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from loader import storage


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
