"""Remote tars through the cache: downloaded once, checked, kept apart by version, and by ranges where there is no room."""

from __future__ import annotations

import gc
import os
import time
import zlib
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any

import places
import pytest
from fault_proxy import FaultProxy
from s3_server import Place
from stored import caption, open_, pack, packed, picture, sample
from tars import make_tar

from loader import storage
from loader.errors import BadConfig, BadIndex, BadTar, StoreError, TruncatedTar
from loader.index import index_path
from loader.indexed_tar import IndexedTar
from loader.indexed_tar_samples import IndexedTarSamples
from loader.remote import PART, Remote


def entries(remote: Remote) -> list[str]:
    return sorted(name.partition(".")[2] for name in os.listdir(remote.cache.folder) if name != ".lock")


# -- once


def test_a_shard_is_downloaded_once_and_then_read_in_place(
    faulty: Place, faults: FaultProxy, remote: Remote
) -> None:
    packed(faulty, 1, 30)
    faults.reset()
    for _ in range(3):
        with open_(faulty, remote) as samples:
            assert samples.tar.backend == "cache"
            assert list(samples) == [sample(n) for n in range(30)]
    assert (remote.traffic.downloads, remote.traffic.cached) == (1, 2)
    log = faults.stats()["log"]
    assert sum(method == "GET" and path.endswith(".tar") for method, path, _ in log) == 1
    assert sum(method == "GET" and path.endswith(".index") for method, path, _ in log) == 1
    assert entries(remote) == ["index", "tar"]
    copy = next(Path(remote.cache.folder).glob("*.tar")).read_bytes()
    assert copy == storage.read_bytes(faulty.address("00000.tar"), faulty.storage_options)


def test_processes_share_one_download(faulty: Place, faults: FaultProxy, tmp_path: Path) -> None:
    packed(faulty, 1, 30)
    faults.reset(latency=0.02)
    code = """
import sys
from stored import sample
from loader.indexed_tar_samples import IndexedTarSamples
options = {"key": sys.argv[3], "secret": sys.argv[4], "endpoint_url": sys.argv[5]}
with IndexedTarSamples(sys.argv[1], decode=False, storage_options=options, cache_dir=sys.argv[2]) as samples:
    assert list(samples) == [sample(n) for n in range(30)]
"""
    options = faulty.storage_options
    told = (
        faulty.address("00000.tar"),
        tmp_path / "c",
        options["key"],
        options["secret"],
        options["endpoint_url"],
    )
    children = [places.python(code, *told) for _ in range(3)]
    for child in children:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
    log = faults.stats()["log"]
    assert sum(method == "GET" and path.endswith(".tar") for method, path, _ in log) == 1


def test_large_shards_come_in_parts_side_by_side(faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    data = os.urandom(3 * PART + 5000)
    whole = make_tar(f"{remote.cache.folder}-x/x.tar", [("a.bin", data), ("b.bin", b"b")])
    storage.write_bytes(faulty.address("00000.tar"), Path(whole).read_bytes(), faulty.storage_options)
    faults.reset(latency=0.05)
    with open_(faulty, remote) as samples:
        assert samples[0] == {"__key__": "a", ".bin": data}
    stats = faults.stats()
    parts = [asked for method, path, asked in stats["log"] if method == "GET" and path.endswith(".tar")]
    assert len(parts) == 4 and stats["most_at_once"] >= 4


@pytest.mark.parametrize("kind", ["503", "cut", "cut_reset", "reset", "short"])
def test_faults_while_it_is_downloaded(kind: str, faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    packed(faulty, 1, 20)
    faults.reset(rules=(faults.rule(kind, every=2, times=8),))
    with open_(faulty, remote) as samples:
        assert list(samples) == [sample(n) for n in range(20)]
    assert faults.stats()["failed"]


def test_a_download_that_fails_leaves_nothing(faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    packed(faulty, 1, 20)
    faults.reset(rules=(faults.rule("cut", method="GET", path="00000.tar"),))
    place = Place(faulty.root, {**faulty.storage_options, "max_tries": 2})
    with pytest.raises(StoreError):
        open_(place, remote)
    assert "tar" not in entries(remote) and "tar.part" not in entries(remote)
    faults.reset()
    with open_(place, remote) as samples:
        assert samples[3] == sample(3)


# -- checked


@pytest.mark.parametrize("after", [0, 1])
def test_a_byte_that_flipped_in_a_download(
    after: int, faulty: Place, faults: FaultProxy, remote: Remote
) -> None:
    """The index comes first, then the tar."""
    packed(faulty, 1, 20)
    faults.reset(rules=(faults.rule("flip", method="GET", path="00000.tar", after=after, times=1),))
    with open_(faulty, remote) as samples:
        assert list(samples) == [sample(n) for n in range(20)]
    assert faults.stats()["failed"] == 1
    faults.reset(rules=(faults.rule("flip", method="GET", path="00000.tar", after=after),))
    other = Remote(f"{remote.cache.folder}-2")
    impatient = replace(faulty, storage_options={**faulty.storage_options, "max_tries": 2})
    with pytest.raises((BadTar, BadIndex, StoreError)):  # the last is s3fs's own check of a whole file
        open_(impatient, other)
    assert "tar.part" not in entries(other) and (after == 0 or "tar" not in entries(other))
    other.close()


def test_a_new_version_is_a_new_entry(s3: Place, remote: Remote) -> None:
    pack(s3.root, 1, 5, s3.storage_options)
    with open_(s3, remote) as old:
        pack(s3.root, 1, 5, s3.storage_options, start=100)
        later = Remote(remote.cache.folder)
        with open_(s3, later) as new:
            assert list(new) == [sample(n) for n in range(100, 105)]
        later.close()
        assert list(old) == [sample(n) for n in range(5)]  # goes on with what it has
        with open_(s3, remote) as again:  # one who has begun with a version stays with it
            assert list(again) == [sample(n) for n in range(5)]
    assert entries(remote) == ["index", "index", "tar", "tar"]


def test_a_version_is_asked_for_once(faulty: Place, faults: FaultProxy, remote: Remote) -> None:
    packed(faulty, 2, 5)
    gone = faulty.address("gone.tar")
    tars = [faulty.address("00000.tar"), faulty.address("00001.tar"), gone]
    faults.reset(latency=0.05)
    remote.look_up([(tar, faulty.storage_options) for tar in tars])
    stats = faults.stats()
    assert stats["most_at_once"] >= 2 and not shardflow_threads_of(remote)
    for _ in range(2):
        for shard in range(2):
            open_(faulty, remote, shard).close()
    heads = [path for method, path, _ in faults.stats()["log"] if method == "HEAD" and path.endswith(".tar")]
    assert sum("gone" not in path for path in heads) == 2
    with pytest.raises(FileNotFoundError, match=r"gone\.tar"):
        IndexedTarSamples(gone, storage_options=faulty.storage_options, remote=remote)


def test_a_file_that_is_replaced_while_it_is_downloaded(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local one, as on a network drive, of which no version can be asked for: the new one is downloaded."""
    (address,) = pack(str(tmp_path / "d"), 1, 5)
    fetch, replaced = Remote.fetch_part, []

    def replacing(self: Remote, *arguments: Any) -> bytes:
        found = fetch(self, *arguments)
        if not replaced:
            replaced.append(1)
            pack(str(tmp_path / "d"), 1, 5, start=100)
        return found

    monkeypatch.setattr(Remote, "fetch_part", replacing)
    with IndexedTarSamples(address, decode=False, backend="cache", remote=remote) as samples:
        assert list(samples) == [sample(n) for n in range(100, 105)]
    assert entries(remote) == ["index", "tar"]


def shardflow_threads_of(remote: Remote) -> bool:
    return remote._process is not None


@pytest.mark.parametrize("backend", ["cache", "range"])
def test_an_index_of_another_tar_is_not_believed(backend: str, s3: Place, remote: Remote) -> None:
    """Somebody writes a tar, and leaves the index as it was."""
    pack(s3.root, 1, 5, s3.storage_options)
    kept = storage.read_bytes(index_path(s3.address("00000.tar")), s3.storage_options)
    pack(s3.root, 1, 4, s3.storage_options, start=100)
    storage.write_bytes(index_path(s3.address("00000.tar")), kept, s3.storage_options)
    with open_(s3, remote, backend=backend) as samples:
        assert list(samples) == [sample(n) for n in range(100, 104)]
    # It was built, and published, again.
    assert storage.read_bytes(index_path(s3.address("00000.tar")), s3.storage_options) != kept


@pytest.mark.parametrize("backend", ["cache", "range"])
def test_tars_without_an_index(backend: str, s3: Place, remote: Remote, tmp_path: Path) -> None:
    pack(s3.root, 1, 5, s3.storage_options)
    for root in (None, str(tmp_path / "indexes")):
        storage.remove(index_path(s3.address("00000.tar")), s3.storage_options)
        with open_(s3, remote, backend=backend, index_root=root) as samples:
            assert list(samples) == [sample(n) for n in range(5)]
    assert os.listdir(tmp_path / "indexes")


@pytest.mark.parametrize("backend", ["cache", "range"])
def test_another_grouping(backend: str, s3: Place, remote: Remote, tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x" / "x.tar", [("k-0.jpg", b"0"), ("k-1.jpg", b"1"), ("k.json", b"{}")])
    storage.write_bytes(s3.address("00000.tar"), Path(tar).read_bytes(), s3.storage_options)
    for grouping, count in (("numbered", 1), ("plain", 3), ("numbered", 1)):
        with open_(s3, remote, backend=backend, grouping=grouping) as samples:
            assert len(samples) == count


@pytest.mark.parametrize("backend", ["cache", "range"])
def test_what_is_no_tar(backend: str, s3: Place, remote: Remote) -> None:
    with pytest.raises(FileNotFoundError, match=r"00000\.tar"):
        open_(s3, remote, backend=backend)
    for data, error in ((b"", TruncatedTar), (b"x", TruncatedTar), (b"x" * 2000, BadTar)):
        storage.write_bytes(s3.address("00000.tar"), data, s3.storage_options)
        with pytest.raises(error, match=r"00000\.tar"):
            open_(s3, remote, backend=backend)


def test_a_damaged_index_in_the_cache(s3: Place, remote: Remote) -> None:
    pack(s3.root, 1, 5, s3.storage_options)
    open_(s3, remote).close()
    for index in Path(remote.cache.folder).glob("*.index"):
        index.write_bytes(b"no index at all")
    with open_(s3, remote) as samples:
        assert list(samples) == [sample(n) for n in range(5)]


# -- room


def test_a_limit_that_can_not_work(s3: Place, tmp_path: Path) -> None:
    pack(s3.root, 1, 5, s3.storage_options)
    size = storage.stat(s3.address("00000.tar"), s3.storage_options).size
    with pytest.raises(BadConfig, match=rf"max_cache_size is 1,000 bytes.*: {size:,} is the least"):
        open_(s3, Remote(str(tmp_path / "c"), 1000))
    with pytest.raises(BadConfig, match="max_cache_size is 0"):
        Remote(max_cache_size=0)
    with open_(s3, Remote(str(tmp_path / "c"), size)) as samples:
        assert samples.tar.backend == "cache"


def test_without_room_it_is_read_by_ranges(
    s3: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack(s3.root, 3, 5, s3.storage_options)
    size = storage.stat(s3.address("00000.tar"), s3.storage_options).size
    remote = Remote(str(tmp_path / "c"), size + size // 2)
    with open_(s3, remote) as first:
        for shard in (1, 2):
            with open_(s3, remote, shard) as other:
                assert other.tar.backend == "range"
                assert list(other) == [sample(5 * shard + n) for n in range(5)]
        assert list(first) == [sample(n) for n in range(5)]
    assert len([r for r in caplog.records if "is read by ranges" in r.getMessage()]) == 1
    del first
    gc.collect()
    with open_(s3, remote, 1) as other:  # room by now
        assert other.tar.backend == "cache"
    remote.close()


def test_on_a_full_disk_it_is_read_by_ranges(s3: Place, tmp_path: Path) -> None:
    pack(s3.root, 1, 60, s3.storage_options)
    code = """
import os, sys
from stored import sample
from loader.indexed_tar_samples import IndexedTarSamples
options = {"key": sys.argv[3], "secret": sys.argv[4], "endpoint_url": sys.argv[5]}
with IndexedTarSamples(sys.argv[1], decode=False, storage_options=options, cache_dir=sys.argv[2]) as samples:
    print(samples.tar.backend, list(samples) == [sample(n) for n in range(60)])
assert not [name for name in os.listdir(sys.argv[2]) if "tar" in name]
"""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = s3.storage_options
    told = (s3.address("00000.tar"), folder, options["key"], options["secret"], options["endpoint_url"])
    assert places.in_mounts(places.small_disk(folder, "1m"), code, *told) == "range True\n"


def test_local_files_only_when_asked_for(tmp_path: Path, remote: Remote) -> None:
    (address,) = pack(str(tmp_path / "d"), 1, 5)
    with IndexedTarSamples(address, decode=False, remote=remote) as samples:
        assert samples.tar.backend == "mmap"
    assert not os.path.exists(remote.cache.folder)
    for backend in ("cache", "range"):
        with IndexedTarSamples(address, decode=False, backend=backend, remote=remote) as samples:
            assert samples.tar.backend == backend
            assert list(samples) == [sample(n) for n in range(5)]
    assert "tar" in entries(remote)


def test_a_download_that_is_given_up(faulty: Place, faults: FaultProxy, tmp_path: Path) -> None:
    """Neither its thread nor its half of a file stays; who wants it afterwards gets it."""
    whole = make_tar(tmp_path / "x" / "x.tar", [("a.bin", bytes(6 * PART))])
    storage.write_bytes(faulty.address("00000.tar"), Path(whole).read_bytes(), faulty.storage_options)
    faults.reset(latency=0.1)
    remote = Remote(str(tmp_path / "cache"), at_once=1)
    opening = remote.background(open_, faulty, remote)
    deadline = time.monotonic() + 20
    while not remote.traffic.fetched and time.monotonic() < deadline:
        time.sleep(0.01)
    remote.close()
    with pytest.raises((InterruptedError, CancelledError)):
        opening.result(timeout=20)
    assert entries(remote) == []
    with open_(faulty, remote) as samples:
        assert samples[0][".bin"] == bytes(6 * PART)
    remote.close()


def test_the_checksum_of_a_copy_is_that_of_the_tar(s3: Place, remote: Remote) -> None:
    (address,) = pack(s3.root, 1, 5, s3.storage_options)
    with IndexedTar(address, storage_options=s3.storage_options, remote=remote) as tar:
        assert tar.checksum == zlib.adler32(storage.read_bytes(address, s3.storage_options))
        assert tar.by_name("000001.txt") == caption(1) and tar.by_index(0) == picture(0)
