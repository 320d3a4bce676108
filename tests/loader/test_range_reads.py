"""Ranges: which requests they make, how many at once, and that failed ones alone are asked for again."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from hypothesis import given
from hypothesis import strategies as st
from s3_server import Place

from loader import storage
from loader.range_reads import plan, read_in_order, read_ranges

spans = st.tuples(st.integers(0, 500), st.integers(0, 200)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(spans, max_size=20), st.integers(0, 50), st.integers(1, 300))
def test_requests_cover_what_is_asked_for_and_no_gap_beyond_the_limit(
    ranges: list[tuple[int, int]], max_gap: int, largest: int
) -> None:
    planned = plan(ranges, max_gap, largest)
    wanted = {byte for start, end in ranges for byte in range(start, end)}
    fetched = [byte for start, end in planned.requests for byte in range(start, end)]
    assert wanted <= set(fetched)
    assert all(0 < end - start <= largest for start, end in planned.requests)
    for byte in set(fetched) - wanted:  # only between two that are close
        assert any(other in wanted for other in range(byte, byte + max_gap + 1))
    for (start, end), (first, last) in zip(ranges, planned.parts, strict=True):
        own = planned.requests[first : last + 1] if last >= first else []
        assert {byte for a, b in own for byte in range(a, b)} >= set(range(start, end))


def test_close_ranges_share_a_request() -> None:
    assert plan([(30, 40), (0, 10), (12, 20)], max_gap=2).requests == [(0, 20), (30, 40)]
    assert plan([(0, 10), (10, 20)]).requests == [(0, 20)]
    assert plan([(0, 25)], largest=10).requests == [(0, 9), (9, 18), (18, 25)]
    assert plan([(5, 5)]).requests == []
    for wrong in ((5, 4), (-1, 3)):
        with pytest.raises(ValueError, match="0 ≤ start ≤ end was expected"):
            plan([wrong])


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
@pytest.mark.parametrize("pinned", [False, True])
def test_many_are_in_flight(faulty: Place, s3: Place, faults: FaultProxy, client: str, pinned: bool) -> None:
    address, options = faulty.address("x.bin"), {**faulty.storage_options, "client": client}
    storage.write_bytes(s3.address("x.bin"), bytes(100_000), s3.storage_options)
    version = storage.stat(address, options).version if pinned else None
    ranges = [(at, at + 100) for at in range(0, 100_000, 1000)]
    faults.reset(latency=0.05)
    read_ranges(address, ranges, options, version=version)
    assert 24 <= faults.stats()["most_at_once"] <= 32 and faults.stats()["requests"] == 100
    faults.reset(latency=0.05)
    read_ranges(address, ranges[:20], options, in_flight=5, version=version)
    assert 4 <= faults.stats()["most_at_once"] <= 5
    faults.reset()
    read_ranges(address, ranges, options, max_gap=900, version=version)
    assert faults.stats()["requests"] == 1 and faults.stats()["down"] == 99_100


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_failed_ones_alone_are_asked_for_again(
    faulty: Place, s3: Place, faults: FaultProxy, client: str
) -> None:
    data = bytes(range(250)) * 400
    storage.write_bytes(s3.address("x.bin"), data, s3.storage_options)
    ranges = [(at, at + 100) for at in range(0, 100_000, 1000)]
    kinds = ("503", "cut", "reset", "short")
    faults.reset(
        rules=tuple(faults.rule(kind, after=5 * number, times=3) for number, kind in enumerate(kinds))
    )
    found = read_ranges(faulty.address("x.bin"), ranges, {**faulty.storage_options, "client": client})
    assert found == [data[start:end] for start, end in ranges]
    stats = faults.stats()
    assert stats["failed"] == 12 and len([each for each in stats["log"] if each[0] == "GET"]) == 112


def test_one_missing_file_among_many_tries(faulty: Place, s3: Place, faults: FaultProxy) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.bin"):
        read_ranges(faulty.address("none.bin"), [(0, 5), (7, 9)], faulty.storage_options)
    assert faults.stats()["requests"] == 2


def test_in_order_holds_no_more_than_it_says(faulty: Place, s3: Place, faults: FaultProxy) -> None:
    storage.write_bytes(s3.address("x.bin"), bytes(4 << 20), s3.storage_options)
    faults.reset()
    chunks = read_in_order(
        faulty.address("x.bin"), 4 << 20, faulty.storage_options, in_flight=3, largest=256 << 10
    )
    next(chunks)
    while faults.stats()["requests"] < 3:
        time.sleep(0.01)
    time.sleep(0.1)
    assert faults.stats()["requests"] == 3
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    time.sleep(0.1)
    assert faults.stats()["requests"] <= 4
    for thread in threading.enumerate():
        if thread.name.startswith("shardflow-read"):
            thread.join(10)
            assert not thread.is_alive()


def test_local_files(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"0123456789")
    assert read_ranges(str(path), [(8, 10), (0, 3), (4, 4)]) == [b"89", b"012", b""]
    assert b"".join(read_in_order(str(path), 10, largest=3)) == b"0123456789"
