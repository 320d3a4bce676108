"""Storage: what is there, read and listed, locally and elsewhere (see tests/test_storage_contract.py for stores)."""

from __future__ import annotations

import time

import pytest

from loader import storage

# -- reading


def test_read_whole_and_in_part(anywhere: str) -> None:
    address = storage.join(anywhere, "deep/er/x.bin")
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


def test_a_range_that_comes_short_is_an_error(anywhere: str) -> None:
    address = storage.join(anywhere, "x.bin")
    storage.write_bytes(address, b"0123456789")
    for start, end in ((0, 11), (5, 20), (10, 12)):
        with pytest.raises(EOFError, match=f"{start} to {end}"):
            storage.read_bytes(address, None, start, end)


def test_what_is_not_there(anywhere: str) -> None:
    address = storage.join(anywhere, "none.tar")
    for call in (storage.stat, storage.read_bytes, storage.open_read):
        with pytest.raises(FileNotFoundError, match=r"none\.tar"):
            call(address)  # type: ignore[operator]
    storage.remove(address)
    assert storage.list_files(storage.join(anywhere, "no")) == []
    with pytest.raises(FileNotFoundError, match=r"no/\*\.tar"):
        storage.expand(storage.join(anywhere, "no/*.tar"))


def test_a_folder_is_no_file(anywhere: str) -> None:
    storage.write_bytes(storage.join(anywhere, "a/x.tar"), b"")
    with pytest.raises(IsADirectoryError):
        storage.stat(storage.join(anywhere, "a"))


def test_version_changes_with_the_content(anywhere: str) -> None:
    address = storage.join(anywhere, "x.bin")
    storage.write_bytes(address, b"1")
    before = storage.stat(address).version
    time.sleep(0.02)
    storage.write_bytes(address, b"2")
    assert before and storage.stat(address).version != before


# -- listing


def test_list_and_expand(anywhere: str) -> None:
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
        storage.write_bytes(storage.join(anywhere, path), b"")
    base = storage.normalise(anywhere)

    def seen(addresses: list[str]) -> list[str]:
        return [storage.relative(address, base) for address in addresses]

    tars = ["a-b.tar", "a.tar", "a/z.tar", "b.tar"]
    assert seen(storage.list_files(anywhere, ".tar")) == tars
    assert seen(storage.list_files(anywhere)) == sorted([*tars, "a/c.txt"])
    assert seen(storage.expand(anywhere, ".tar")) == tars
    assert seen(storage.expand(storage.join(anywhere, "b.tar"))) == ["b.tar"]
    assert seen(storage.expand(storage.join(anywhere, "*.tar"))) == ["a-b.tar", "a.tar", "b.tar"]
    assert seen(storage.expand(storage.join(anywhere, "?.tar"))) == ["a.tar", "b.tar"]
    assert seen(storage.expand(storage.join(anywhere, "[ab].tar"))) == ["a.tar", "b.tar"]
    assert seen(storage.expand(storage.join(anywhere, "*/*.tar"))) == ["a/z.tar"]
    assert seen(storage.expand(storage.join(anywhere, "**/*.txt"))) == ["a/c.txt"]
    assert seen(storage.expand(storage.join(anywhere, "*"), ".tar")) == sorted(tars)
    assert seen(storage.expand(storage.join(anywhere, ".h/*.tar"))) == [".h/x.tar"]  # asked for by name


def test_names_that_look_like_globs_are_names_first(anywhere: str) -> None:
    storage.write_bytes(storage.join(anywhere, "a[1].tar"), b"")
    storage.write_bytes(storage.join(anywhere, "a1.tar"), b"")
    (found,) = storage.expand(storage.join(anywhere, "a[1].tar"))
    assert storage.name(found) == "a[1].tar"


def test_the_root_of_a_store() -> None:
    storage.write_bytes("memory://root-of-a-store.txt", b"")
    try:
        assert "memory://root-of-a-store.txt" in storage.list_files("memory://")
        assert storage.expand("memory://root-of-*.txt") == ["memory://root-of-a-store.txt"]
    finally:
        storage.remove("memory://root-of-a-store.txt")
