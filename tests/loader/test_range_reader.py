"""Members by ranges: few requests, hardly a byte beside what is wanted, and each byte as it was packed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from fault_proxy import FaultProxy
from hypothesis import given, settings
from hypothesis import strategies as st
from s3_server import Place
from stored import PICTURE, caption, packed, picture, sample

from loader import storage
from loader.errors import BadSample, CorruptMember, FileChanged, StoreError
from loader.indexed_tar import IndexedTar
from loader.indexed_tar_samples import IndexedTarSamples
from loader.range_reader import WASTE, coalesce
from loader.remote import Remote

spans = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 300)).map(lambda s: (s[0], s[0] + s[1])), max_size=12
)


def union(ranges: list[tuple[int, int]]) -> int:
    return len(set(itertools.chain.from_iterable(range(*each) for each in ranges)))


@settings(deadline=None, max_examples=300)
@given(spans, st.sampled_from([0.0, 0.02, 0.5, 10.0]), st.sampled_from([50, 400, 10_000]))
def test_ranges_hold_all_and_little_beside(wanted: list[tuple[int, int]], waste: float, piece: int) -> None:
    ranges = coalesce(wanted, waste, piece)
    asked = union(wanted)
    assert ranges == sorted(ranges) and all(start < end for start, end in ranges)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    assert sum(end - start for start, end in ranges) <= asked * (1 + waste)
    covered = set(itertools.chain.from_iterable(range(*each) for each in ranges))
    assert all(set(range(*each)) <= covered for each in wanted)
    for start, end in wanted:  # each span lies in one of them
        assert start == end or sum(a <= start and end <= b for a, b in ranges) == 1


@settings(deadline=None, max_examples=200)
@given(spans, st.sampled_from([0.0, 0.02, 0.5]))
def test_no_fewer_requests_would_do(wanted: list[tuple[int, int]], waste: float) -> None:
    """Of as little waste: any choice of as many gaps costs more than is allowed."""
    apart = coalesce(wanted, 0.0)
    gaps = sorted(b[0] - a[1] for a, b in itertools.pairwise(apart))
    left, closed = waste * union(wanted), 0
    while closed < len(gaps) and gaps[closed] <= left:
        left -= gaps[closed]
        closed += 1
    assert len(coalesce(wanted, waste)) == len(apart) - closed


@pytest.fixture
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    made = Remote(str(tmp_path_factory.mktemp("cache")))
    yield made
    made.close()


def open_(place: Place, remote: Remote, **options: object) -> IndexedTarSamples:
    return IndexedTarSamples(
        place.address("00000.tar"), backend="range", decode=False, storage_options=place.storage_options, remote=remote,
        **options,
    )  # fmt: skip


def test_each_byte_as_it_was_packed(faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    packed(faulty, 1, 40)
    with open_(faulty, remote) as samples:
        faults.reset()
        assert list(samples) == [sample(n) for n in range(40)]
        assert samples[7] == sample(7) and samples[-1] == sample(39)
        assert samples[5:9] == [sample(n) for n in range(5, 9)]
        assert [samples.raw(n) for n in (3, 1)] == [sample(3), sample(1)]
        assert samples.members(2)[0][2] == picture(2)
        stats = faults.stats()
    wanted = remote.traffic.wanted
    assert wanted == sum(len(picture(n)) + len(caption(n)) for n in [*range(40), 7, 39, 5, 6, 7, 8, 3, 1, 2])
    assert stats["down"] <= (1 + WASTE) * wanted
    assert stats["requests"] == stats["methods"]["GET"] <= 2 * 49
    assert not remote.bytes_ahead


def test_captions_leave_pictures_alone(faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    packed(faulty, 1, 60)
    with open_(faulty, remote, extensions=["txt"]) as samples:
        faults.reset()
        samples.prefetch(range(60))
        assert [samples[n][".txt"] for n in range(60)] == [caption(n) for n in range(60)]
        stats = faults.stats()
    assert stats["down"] <= (1 + WASTE) * sum(len(caption(n)) for n in range(60)) < 0.01 * PICTURE * 60
    assert stats["most_at_once"] > 4


def test_what_is_announced_comes_side_by_side_and_once(
    faulty: Place, faults: FaultProxy, remote: Remote
) -> None:
    packed(faulty, 1, 30)
    with open_(faulty, remote) as samples:
        faults.reset(latency=0.02)
        for _ in range(3):
            samples.prefetch(range(30))
        assert remote.bytes_ahead == sum(len(picture(n)) + len(caption(n)) for n in range(30))
        assert [samples[n] for n in range(30)] == [sample(n) for n in range(30)]
        stats = faults.stats()
        assert stats["most_at_once"] >= 10 and stats["requests"] <= 60
    with open_(faulty, remote) as samples:  # what was announced to one that is closed comes to the next
        requests = remote.traffic.requests
        samples.prefetch([3])
        samples.close()
    with open_(faulty, remote) as samples:
        assert samples[3] == sample(3)
        assert remote.traffic.requests <= requests + 2, "a request for each member, and none again"


def test_a_byte_that_flipped_on_its_way(faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    packed(faulty, 1, 10)
    flip = faults.rule("flip", method="GET", path="00000.tar")
    with open_(faulty, remote) as samples:
        faults.reset(rules=({**flip, "path": "00000.tar", "times": 1},))
        assert samples[4] == sample(4)
        assert faults.stats()["failed"] == 1 and remote.traffic.repeated == 1
        faults.reset(rules=(flip,))  # each time
        with pytest.raises(
            CorruptMember, match=r"00000\.tar: member '000005\.jpg' at byte \d+: its bytes have changed"
        ):
            samples[5]
        assert issubclass(CorruptMember, BadSample)
        faults.reset()
        assert samples[5] == sample(5)


@pytest.mark.parametrize("kind", ["503", "reset", "cut", "short", "cut_reset"])
def test_faults_of_a_moment(kind: str, faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    packed(faulty, 1, 12)
    with open_(faulty, remote) as samples:
        faults.reset(rules=(faults.rule(kind, method="GET", every=4, times=8),))
        samples.prefetch(range(12))
        assert [samples[n] for n in range(12)] == [sample(n) for n in range(12)]
        assert faults.stats()["failed"] > 0


def test_a_store_that_fails_for_good_is_no_bad_sample(
    faulty: Place, faults: FaultProxy, remote: Remote
) -> None:
    packed(faulty, 1, 3)
    options = {**faulty.storage_options, "max_tries": 2}
    with open_(Place(faulty.root, options), remote) as samples:
        faults.reset(rules=(faults.rule("503"),))
        with pytest.raises(StoreError, match=r"00000\.tar.* 2 times"):
            samples[1]
        faults.reset()
        assert samples[1] == sample(1)


def test_a_tar_that_is_replaced_is_not_mixed(s3: Place, remote: Remote) -> None:
    packed(s3, 1, 4)
    with open_(s3, remote) as samples:
        assert samples[0] == sample(0)
        other = packed(s3.__class__(s3.address("other"), s3.storage_options), 1, 4)
        data = storage.read_bytes(other.address("00000.tar"), s3.storage_options)
        storage.write_bytes(s3.address("00000.tar"), data + bytes(1024), s3.storage_options)
        with pytest.raises(FileChanged, match="replaced by another version"):
            samples[1]


def test_parts_and_checksum(s3: Place, remote: Remote) -> None:
    packed(s3, 1, 4)
    whole = storage.read_bytes(s3.address("00000.tar"), s3.storage_options)
    with IndexedTar(s3.address("00000.tar"), "range", s3.storage_options, remote=remote) as tar:
        assert tar.part(100, 900) == whole[100:900]
        known = tar.checksum
        tar.index.checksum = None
        assert tar.checksum == known
        with pytest.raises(ValueError, match="nowhere whole"):
            _ = tar.buffer
    with pytest.raises(ValueError, match="is closed"):
        tar.by_index(0)


def test_members_of_no_bytes(s3: Place, remote: Remote) -> None:
    from loader.writer import write_shard

    write_shard(
        s3.address("00000.tar"),
        [("a", [(".txt", b""), (".cls", b"1")]), ("b", [(".txt", b"")])],
        storage_options=s3.storage_options,
    )
    with open_(s3, remote) as samples:
        samples.prefetch(range(2))
        assert list(samples) == [{"__key__": "a", ".txt": b"", ".cls": b"1"}, {"__key__": "b", ".txt": b""}]


def test_one_address_at_two_endpoints(s3: Place, faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    """They are two tars, for all that anybody knows."""
    packed(s3, 1, 3)
    with open_(s3, remote) as direct, open_(faulty, remote) as other:
        direct.prefetch(range(3))
        faults.reset()
        assert other[1] == sample(1) and faults.stats()["requests"] > 0
        assert list(direct) == [sample(n) for n in range(3)]
