"""A tar that is walked while it comes gives the index of one that is there, and reads no more than it should."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fault_proxy import FaultProxy
from hypothesis import given, settings
from hypothesis import strategies as st
from places import python
from s3_server import Place
from tarmaker import END, header, member, pax

from loader import arriving, storage
from loader.arriving import Arriving
from loader.errors import BadTar, FileChanged, TruncatedTar
from loader.index import Index
from loader.indexing import build, build_remote, find_fresh, obtain_index

SMALL = {"_WAVE": 32 << 10, "_WORTH": 2 << 10}


@contextlib.contextmanager
def in_memory(data: bytes) -> Iterator[str]:
    address = "memory://arriving/x.tar"
    storage.write_bytes(address, data)
    try:
        yield address
    finally:
        fsspec.filesystem("memory").rm("/arriving", recursive=True)


def tar_of(sizes: list[int], seed: int = 0) -> bytes:
    noise = random.Random(seed)
    return (
        b"".join(
            member(f"{number:05d}.bin".encode(), noise.randbytes(size)) for number, size in enumerate(sizes)
        )
        + END
    )


def outcome(build_it: Any) -> Any:
    try:
        return build_it()
    except (BadTar, TruncatedTar) as error:
        return type(error), str(error)


PIECES = st.one_of(
    st.integers(0, 5000).map(lambda size: member(b"m.bin", b"x" * size)),
    st.integers(0, 3).map(lambda n: member(b"m.bin", b"y" * (100_000 * n))),
    st.integers(1, 60).map(lambda n: pax((b"path", b"long/" * n + b"a.txt")) + member(b"short.txt", b"text")),
    st.just(header(b"folder/", kind=b"5")),
    st.just(header(b"broken", 3)[:-20] + b"1" * 20),
)


@given(
    st.lists(PIECES, max_size=30),
    st.sampled_from((END, b"", END + b"\0" * 9000, END + b"\0" * 2000 + b"rest", b"\0" * 512 + b"x" * 512)),
    st.integers(0, 3) | st.none(),
)
@settings(deadline=None)
def test_all_ways_find_what_a_buffer_holds(pieces: list[bytes], end: bytes, cut: int | None) -> None:
    data = b"".join(pieces) + end
    data = data[: len(data) * cut // 3] if cut is not None else data
    with in_memory(data) as address, pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(arriving, name, value)
        for checksum, save in ((True, False), (False, False), (False, True)):
            wanted = outcome(lambda checksum=checksum: build(data, address, checksum))
            found = outcome(
                lambda checksum=checksum, save=save: build_remote(address, None, checksum, save_bytes=save)
            )
            assert found == wanted


@pytest.mark.parametrize("latency", [0.0, 0.02])
def test_members_larger_than_a_round_trip_is_worth_are_jumped_over(
    faulty: Place, s3: Place, faults: FaultProxy, latency: float
) -> None:
    large, small = tar_of([12 << 20] * 4), tar_of([2 << 10] * 4000)
    for name, data in (("large", large), ("small", small)):
        storage.write_bytes(s3.address(f"{name}.tar"), data, s3.storage_options)
    faults.reset(latency)
    assert build_remote(faulty.address("large.tar"), faulty.storage_options, False) == build(
        large, "x", False
    )
    # At full speed, reading on may be the faster way.
    fetched, requests = faults.stats()["down"], faults.stats()["requests"]
    assert requests < 60 and (fetched < len(large) * 0.7 or not latency)
    faults.reset(latency)
    assert build_remote(faulty.address("small.tar"), faulty.storage_options, False) == build(
        small, "x", False
    )
    assert faults.stats()["requests"] < 30


@pytest.mark.parametrize(("size", "count", "most"), [(100_000, 120, 0.03), (4 << 20, 5, 0.002)])
def test_saving_bytes(
    faulty: Place, s3: Place, faults: FaultProxy, size: int, count: int, most: float
) -> None:
    data = tar_of([size] * count)
    storage.write_bytes(s3.address("x.tar"), data, s3.storage_options)
    faults.reset()
    index, state = obtain_index(faulty.address("x.tar"), faulty.storage_options, save_bytes=True)
    assert state == "built" and index.crc32 is None and index.checksum is None
    stats = faults.stats()
    assert stats["down"] < most * len(data) + 20_000  # answers about the index are XML
    # Whoever asks for checksums later has it built anew, whoever saves bytes takes it as it is.
    assert find_fresh(s3.address("x.tar"), s3.storage_options)[1] == "fresh"
    assert obtain_index(s3.address("x.tar"), s3.storage_options, save_bytes=True)[1] == "fresh"
    again, state = obtain_index(s3.address("x.tar"), s3.storage_options)
    assert state == "built" and again.crc32 is not None
    assert Index(build(data, "x"), "x").metadata == again.metadata


def test_small_members_are_read_on_where_bytes_are_saved(
    faulty: Place, s3: Place, faults: FaultProxy
) -> None:
    data = tar_of([2 << 10] * 4000)
    storage.write_bytes(s3.address("x.tar"), data, s3.storage_options)
    faults.reset()
    build_remote(faulty.address("x.tar"), faulty.storage_options, save_bytes=True, checksum=False)
    assert faults.stats()["requests"] < 40


def test_failing_ranges_are_asked_for_again(faulty: Place, s3: Place, faults: FaultProxy) -> None:
    data = tar_of([100_000] * 100)
    storage.write_bytes(s3.address("x.tar"), data, s3.storage_options)
    faults.reset(
        rules=tuple(faults.rule(kind, method="GET", times=2) for kind in ("503", "cut", "reset", "short"))
    )
    assert build_remote(faulty.address("x.tar"), faulty.storage_options) == build(data, "x")
    assert faults.stats()["failed"] == 8


def test_a_tar_replaced_while_it_is_indexed(s3: Place) -> None:
    address, options = s3.address("x.tar"), s3.storage_options
    storage.write_bytes(address, tar_of([100_000] * 40), options)
    with Arriving(address, storage.stat(address, options), options, every=False, save=True) as coming:
        coming.need(0, 512)
        storage.write_bytes(address, tar_of([100_000] * 40, seed=1), options)
        with pytest.raises(FileChanged, match=r"x\.tar: replaced by another version"):
            coming.need(100_864, 101_376)


def test_an_empty_file(s3: Place) -> None:
    storage.write_bytes(s3.address("x.tar"), b"", s3.storage_options)
    with pytest.raises(TruncatedTar, match="a file of zero bytes"):
        build_remote(s3.address("x.tar"), s3.storage_options)


def test_an_index_of_another_tar_of_that_size_is_stale(s3: Place) -> None:
    address, options = s3.address("x.tar"), s3.storage_options
    storage.write_bytes(address, tar_of([1000, 2000]), options)
    obtain_index(address, options)
    storage.write_bytes(address, tar_of([2000, 1000]), options)
    assert "header of the tar" in find_fresh(address, options)[1]
    assert obtain_index(address, options)[1] == "built"


def test_memory_is_bounded_however_large_the_tar(s3: Place) -> None:
    """300 MiB, of which 200 are one member, with half as much to spare."""
    address, options = s3.address("x.tar"), s3.storage_options
    with storage.publish(address, options) as file:
        for name, size in ((b"a.bin", 200), (b"b.bin", 100)):
            file.write(header(name, size << 20))
            for _ in range(size // 10):
                file.write(bytes(10 << 20))
        file.write(END)
    child = python(
        "import json, resource, sys\n"
        "from loader import storage\n"
        "from loader.indexing import build_remote\n"
        "address, options = sys.argv[1], json.loads(sys.argv[2])\n"
        "storage.stat(address, options)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "build_remote(address, options)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n",
        address,
        json.dumps(options),
    )
    out, err = child.communicate()
    assert not err and int(out) << 10 < 150 << 20
    storage.remove(address, options)
