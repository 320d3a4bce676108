"""Tars of ours: equal bytes for equal members, read back by our own walk and by tarfile."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import threading
import zlib
from pathlib import Path

import pytest
import tarmaker
from checks import walked
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import ODD_NAMES, payloads
from tarmaker import BLOCK

from loader import tar_writer


def members(data: bytes) -> list[tuple[str, int, int]]:
    return walked(data, True)[0]


def written(content: list[tuple[bytes, bytes]]) -> tuple[bytes, tar_writer.TarWriter]:
    file = io.BytesIO()
    writer = tar_writer.TarWriter(file)
    offsets = [writer.add(name, data) for name, data in content]
    writer.close()
    result = file.getvalue()
    assert [result[at : at + len(data)] for at, (_, data) in zip(offsets, content, strict=True)] == [
        data for _, data in content
    ]
    return result, writer


names_as_bytes = st.one_of(
    st.sampled_from(ODD_NAMES).map(os.fsencode),
    st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name),
    st.lists(st.binary(min_size=1, max_size=90).filter(lambda n: b"\0" not in n and b"/" not in n), min_size=2, max_size=5)
    .map(b"/".join),
)  # fmt: skip


@given(st.lists(st.tuples(names_as_bytes, payloads(3000)), max_size=6))
@settings(deadline=None, max_examples=150)
def test_what_is_written_is_read(content: list[tuple[bytes, bytes]]) -> None:
    data, writer = written(content)
    found = members(data)
    assert [os.fsencode(name) for name, _, _ in found] == [name for name, _ in content]
    assert [data[at : at + size] for _, at, size in found] == [payload for _, payload in content]
    assert writer.size == len(data) and writer.checksum == zlib.adler32(data)
    assert writer.first_block == data[:BLOCK]
    assert writer.last_header == data[writer.last_header_at :][:BLOCK]
    if all(not name.endswith(b"/") for name, _ in content):  # tarfile strips these
        assert found == tarmaker.members_of(data)
    assert written(content)[0] == data


def test_a_pax_record_only_where_it_is_needed() -> None:
    for name, blocks in (
        (b"a.jpg", 1),
        (b"n" * 100, 1),
        (b"p" * 155 + b"/" + b"n" * 100, 1),
        (b"n" * 101, 3),
        (b"p" * 156 + b"/" + b"n" * 100, 3),
        (b"p" * 155 + b"/" + b"n" * 101, 3),
        (b"n" * 512, 4),
    ):
        assert len(tar_writer.headers_for(name, 0)) == blocks * BLOCK, name
    assert len(tar_writer.headers_for(b"a.jpg", 8**11 - 1)) == BLOCK
    assert len(tar_writer.headers_for(b"a.jpg", 8**11)) == 3 * BLOCK


def test_headers_say_nothing_of_clock_or_user() -> None:
    info = tarfile.TarInfo.frombuf(tar_writer.headers_for(b"a.jpg", 5), "utf-8", "strict")
    assert (info.mtime, info.mode, info.uid, info.gid, info.uname, info.gname) == (
        946684800,
        0o644,
        0,
        0,
        "",
        "",
    )


def test_sizes_over_8_gib_are_read_by_tarfile() -> None:
    head = tar_writer.headers_for(b"n" * 101 + b".jpg", 9 << 30)
    with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as file:
        info = file.next()
    assert info is not None and (info.size, info.name) == (9 << 30, "n" * 101 + ".jpg")


@pytest.mark.parametrize("name", [b"", b"a\0b.jpg"])
def test_names_that_no_tar_holds(name: bytes) -> None:
    with pytest.raises(ValueError, match="name"):
        tar_writer.headers_for(name, 0)


class Stingy(io.RawIOBase):
    """A file that takes a few bytes at a time, as a raw one may."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:  # type: ignore[override]
        piece = bytes(data[:1000])  # type: ignore[index]
        self.taken += piece
        return len(piece)


def test_a_file_that_takes_less_than_it_is_given() -> None:
    content = [(b"a.jpg", b"a" * 3_000_000), (b"b.jpg", b"b")]
    file = Stingy()
    writer = tar_writer.TarWriter(file)  # type: ignore[arg-type]
    for name, data in content:
        writer.add(name, memoryview(data))
    writer.close()
    assert bytes(file.taken) == written(content)[0]


def test_large_members_are_not_collected_in_memory() -> None:
    class Largest(io.RawIOBase):
        def __init__(self) -> None:
            self.count, self.largest = 0, 0

        def write(self, data: object) -> int:  # type: ignore[override]
            self.count, self.largest = self.count + 1, max(self.largest, len(data))  # type: ignore[arg-type]
            return len(data)  # type: ignore[arg-type]

    file = Largest()
    writer = tar_writer.TarWriter(file)  # type: ignore[arg-type]
    for n in range(3000):
        writer.add(b"%d.txt" % n, b"x" * 1000)
    writer.close()
    assert 2 <= file.count < 20 and file.largest < 2 << 20


def writing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tar-writer")]


def test_an_error_of_the_file_is_told_and_leaves_no_thread() -> None:
    class Full(io.RawIOBase):
        def write(self, data: object) -> int:  # type: ignore[override]
            raise OSError(28, "No space left on device")

    writer = tar_writer.TarWriter(Full())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space left"):
        for n in range(10):
            writer.add(b"%d.bin" % n, bytes(1 << 20))
        writer.close()
    writer.abort()
    assert not writing_threads()


def test_a_writer_that_is_given_up_leaves_no_thread() -> None:
    writer = tar_writer.TarWriter(io.BytesIO())
    for n in range(5):
        writer.add(b"%d.bin" % n, bytes(1 << 20))
    assert writing_threads()
    writer.abort()
    assert not writing_threads()


def test_a_small_tar_needs_no_thread() -> None:
    writer = tar_writer.TarWriter(io.BytesIO())
    writer.add(b"a.txt", b"x" * 1000)
    assert not writing_threads()
    writer.close()


class Unreliable(io.BytesIO):
    """A file whose third write fails, and no other."""

    count = 0

    def write(self, data: object) -> int:  # type: ignore[override]
        self.count += 1
        if self.count == 3:
            raise OSError(5, "Input/output error")
        return super().write(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("members", [4, 20])
def test_a_write_that_failed_is_never_forgotten(members: int) -> None:
    writer = tar_writer.TarWriter(Unreliable())
    for n in range(members):
        with contextlib.suppress(OSError):  # as one does who skips samples that fail
            writer.add(b"%d.bin" % n, bytes(tar_writer._FLUSH_BEHIND + 1))
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            writer.close()
    writer.abort()


@pytest.mark.parametrize("members", [4, 20])
def test_a_write_in_between_that_failed_is_never_forgotten(members: int, tmp_path: Path) -> None:
    with open(tmp_path / "a.tar", "wb") as file, open("/dev/full", "wb", buffering=0) as full:
        writer = tar_writer.TarWriter(file, behind=False)
        own = os.dup(file.fileno())
        for n in range(members):
            os.dup2(full.fileno() if n == 2 else own, file.fileno())
            with contextlib.suppress(OSError):  # as one does who skips samples that fail
                writer.add(b"%d.bin" % n, bytes(tar_writer._FLUSH + 1))
        os.close(own)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                writer.close()
    assert not writing_threads()


def test_a_payload_that_its_owner_changes_afterwards() -> None:
    data = bytearray(b"before")
    file = io.BytesIO()
    writer = tar_writer.TarWriter(file)
    at = writer.add(b"a.txt", data)
    data[:] = b"after!"
    writer.close()
    assert file.getvalue()[at : at + 6] == b"before"
    assert writer.checksum == zlib.adler32(file.getvalue())
