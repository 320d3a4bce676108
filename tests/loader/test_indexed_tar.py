"""One open tar: members and samples, by number and by name, wherever it lies and whoever shares it."""

from __future__ import annotations

import gc
import io
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from strategies import tar_members
from tarmaker import END, by_tarfile, member

from loader import storage
from loader.data_handler import read_bytes
from loader.errors import (
    BadAddress,
    BadIndex,
    BadSample,
    BadTar,
    CorruptMember,
    ShardflowError,
    StaleIndex,
    TruncatedTar,
)
from loader.index import Index, index_path
from loader.indexed_tar import IndexedTar
from loader.indexed_tar_samples import IndexedTarSamples
from loader.indexing import build, ensure_index
from loader.sample import group

MEMBERS = [
    ("a.jpg", b"a-jpg"),
    ("a.txt", b"a text"),
    ("README", b"no sample"),
    ("b.txt", b"b text"),
    ("./d/c.JPG", b"c-jpg"),
    ("d/c.txt", b"c text"),
    ("b.jpg", b"b-jpg"),
]
TAR = by_tarfile(MEMBERS, "ustar")
NAMES = ["a.jpg", "a.txt", "b.txt", "b.jpg", "d/c.JPG", "d/c.txt"]
CONTENT = [b"a-jpg", b"a text", b"b text", b"b-jpg", b"c-jpg", b"c text"]


def jpeg(color: tuple[int, int, int] = (200, 10, 10)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), color).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "x.tar").write_bytes(TAR)
    return str(tmp_path / "x.tar")


@pytest.fixture(params=["mmap", "memory", "memory://", "stream"])
def tar(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexedTar]:
    if request.param == "stream":
        opened = IndexedTar(io.BytesIO(TAR), backend="memory")
    elif request.param == "memory://":
        storage.write_bytes(f"memory://{tmp_path.name}/x.tar", TAR)
        opened = IndexedTar(f"memory://{tmp_path.name}/x.tar", backend="memory")
    else:
        (tmp_path / "x.tar").write_bytes(TAR)
        opened = IndexedTar(tmp_path / "x.tar", backend=request.param)
    with opened:
        yield opened
    if request.param == "memory://":
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


# -- members


def test_members_by_number_and_by_name(tar: IndexedTar) -> None:
    assert len(tar) == 6 and tar.names() == NAMES and list(tar) == list(zip(NAMES, CONTENT, strict=True))
    for number, (name, data) in enumerate(zip(NAMES, CONTENT, strict=True)):
        for i in (number, number - 6, np.int64(number)):
            assert tar.by_index(i) == data and tar.name(i) == name and tar[i] == (name, data)
        assert tar.by_name(name) == data and tar[name] == (name, data) and name in tar
    assert tar["./a.jpg"] == tar["/a.jpg"] == ("a.jpg", b"a-jpg")
    assert type(tar.by_index(0)) is bytes


def test_slices(tar: IndexedTar) -> None:
    everything = list(zip(NAMES, CONTENT, strict=True))
    for which in (
        slice(None),
        slice(1, 3),
        slice(-2, None),
        slice(None, None, -2),
        slice(5, 100),
        slice(3, 1),
    ):
        assert tar[which] == everything[which]


def test_what_is_not_there(tar: IndexedTar) -> None:
    for i in (6, -7, 10**20, -(10**20)):
        for call in (tar.by_index, tar.name, tar.__getitem__):
            with pytest.raises(IndexError, match=r"6 members: there is no member"):
                call(i)
    for name in ("README", "c.jpg", "d/c.jpg", "", "../a.jpg", "\ud800"):
        assert name not in tar
        for call in (tar.by_name, tar.__getitem__):
            with pytest.raises(KeyError, match="holds no member"):
                call(name)  # type: ignore[arg-type]
    assert 5 not in tar
    with pytest.raises(TypeError):
        tar.by_index(1.5)  # type: ignore[arg-type]


def test_size_and_checksum(tar: IndexedTar) -> None:
    assert tar.size == len(TAR)
    assert tar.checksum == tar.checksum == zlib.adler32(TAR)


def test_closed(tar: IndexedTar) -> None:
    assert "6 members" in repr(tar) and tar.path in repr(tar)
    samples = IndexedTarSamples(tar)
    tar.close()
    tar.close()
    for call in (
        lambda: tar.by_index(0),
        lambda: tar.by_name("a.jpg"),
        lambda: tar[0],
        lambda: list(tar),
        lambda: samples[0],
    ):
        with pytest.raises(ValueError, match="is closed"):
            call()
    assert "closed" in repr(tar)


@given(tar_members(unique=False), st.sampled_from(("gnu", "pax")))
@settings(deadline=None, max_examples=60)
def test_any_tar_by_any_way(content: list[tuple[str, bytes]], form: str) -> None:
    groups = group([name for name, _ in content])
    with IndexedTar(io.BytesIO(by_tarfile(content, form)), backend="memory") as tar:
        assert tar.names() == [groups.names[n] for n in groups.order]
        assert [data for _, data in tar] == [content[n][1] for n in groups.order]
        assert all(tar.by_name(name) == data for name, data in tar)
        found = IndexedTarSamples(tar, decode=False)
        assert [found.key(i) for i in range(len(found))] == groups.keys == [s["__key__"] for s in found]


# -- opening


def test_a_missing_index_is_built_and_a_stale_one_again(path: str) -> None:
    IndexedTar(path).close()
    assert os.path.exists(index_path(path))
    Path(path).write_bytes(by_tarfile([("q.jpg", b"q")], "ustar"))
    with IndexedTar(path) as tar:
        assert tar.names() == ["q.jpg"]


@pytest.mark.parametrize("backend", ["mmap", "memory"])
def test_files_that_are_no_tar(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "x.tar"
    with pytest.raises(FileNotFoundError, match=r"x\.tar"):
        IndexedTar(path, backend)
    for data, error in (
        (b"", TruncatedTar),
        (b"x", TruncatedTar),
        (b"x" * 2000, BadTar),
        (TAR[:700], TruncatedTar),
    ):
        path.write_bytes(data)
        with pytest.raises(error, match=r"x\.tar"):
            IndexedTar(path, backend)
    assert os.listdir(tmp_path) == ["x.tar"]


def test_streams_that_are_no_tar() -> None:
    for data in (b"", b"x", TAR[:1024], TAR[:700]):
        with pytest.raises(BadTar, match="<stream>"):
            IndexedTar(io.BytesIO(data), backend="memory")
    with pytest.raises(BadTar, match="nowhere"):
        IndexedTar(type("Named", (io.BytesIO,), {"name": "nowhere"})(b"x"), backend="memory")


def test_mmap_says_what_to_use_instead() -> None:
    for source in ("memory://x/x.tar", "s3://bucket/x.tar"):
        with pytest.raises(BadAddress, match='leave backend to "auto"'):
            IndexedTar(source, backend="mmap")
    for backend in ("mmap", "read", "cache", "range"):
        with pytest.raises(BadAddress, match='say backend="memory"'):
            IndexedTar(io.BytesIO(TAR), backend=backend)
    with IndexedTar(io.BytesIO(TAR)) as tar:
        assert tar.names() == NAMES
    with pytest.raises(ValueError, match="one of auto, mmap, read, memory, cache, range"):
        IndexedTar("x.tar", backend="rnage")


@pytest.mark.parametrize("source", [TAR, 5, None, io.StringIO("x"), ["x.tar"]])
def test_what_is_no_source(source: Any) -> None:
    with pytest.raises(TypeError, match="binary mode"):
        IndexedTar(source, backend="memory")


def test_end_blocks_and_grouping_and_index_root(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"k.json", b"{}") + member(b"k-0.jpg", b"0"))
    with pytest.raises(TruncatedTar):
        IndexedTar(path)
    with IndexedTarSamples(path, require_end=False, index_root=str(tmp_path / "i"), decode=False) as tar:
        assert list(tar) == [{"__key__": "k", ".json": b"{}", ".jpg": b"0"}]
    with IndexedTarSamples(
        path, require_end=False, index_root=str(tmp_path / "i"), grouping="plain", decode=False
    ) as tar:
        assert [sample["__key__"] for sample in tar] == ["k", "k-0"]
    assert sorted(os.listdir(tmp_path)) == ["i", "x.tar"]


def test_an_index_that_is_open_already(path: str) -> None:
    index, _ = ensure_index(path)
    os.unlink(index_path(path))
    for backend in ("mmap", "memory"):
        with IndexedTar(path, backend, index=index) as tar:
            assert tar.names() == NAMES
    with IndexedTar(io.BytesIO(TAR), "memory", index=index) as tar:
        assert tar.by_index(3) == b"b-jpg"
    assert not os.path.exists(index_path(path))
    for data in (TAR[:-512], by_tarfile([("z.jpg", b"a-jpg"), *MEMBERS[1:]], "ustar"), END):
        Path(path).write_bytes(data)
        with pytest.raises(StaleIndex):
            IndexedTar(path, index=index)


def test_a_range_of_the_wrong_tar_is_never_read(path: str) -> None:
    # An index that claims more than there is: an error that says so, when it is met.
    good = build(TAR, path)
    length = int.from_bytes(good[:8], "little")
    damaged = bytearray(good)
    damaged[8 + length : 16 + length] = (len(TAR) - 3).to_bytes(8, "little")  # the first offset
    with IndexedTar(path, index=Index(bytes(damaged), "x.index")) as tar:
        with pytest.raises(BadIndex, match=r"x\.index: damaged: member 0 claims"):
            tar.by_index(0)
        assert tar.by_index(1) == b"a text"
    with pytest.raises(BadIndex, match="have changed"):
        IndexedTar(path, index=Index(bytes(damaged), "x.index"), verify=True)


def test_verify_finds_a_flipped_byte(path: str) -> None:
    ensure_index(path)
    at = TAR.index(b"b text")
    Path(path).write_bytes(TAR[:at] + b"B" + TAR[at + 1 :])
    with IndexedTar(path) as tar:
        assert tar.by_name("b.txt") == b"B text"
    with IndexedTar(path, verify=True) as tar:
        assert tar.by_name("a.txt") == b"a text"
        with pytest.raises(CorruptMember, match=rf"x\.tar: member 'b\.txt' at byte {at}"):
            tar.by_name("b.txt")
        with pytest.raises(CorruptMember):
            IndexedTarSamples(tar)[1]
    with IndexedTarSamples(path, verify=True, extensions=["jpg"], decode=False) as found:
        assert found[1] == {"__key__": "b", ".jpg": b"b-jpg"}


def test_concurrent_memory_reads_do_not_touch_the_store_again(tmp_path: Path) -> None:
    address = f"memory://{tmp_path.name}-gone/x.tar"
    storage.write_bytes(address, TAR)
    tar = IndexedTar(address, "memory")
    storage.remove(address)
    storage.remove(index_path(address))
    assert [data for _, data in tar] == CONTENT


# -- other processes, threads


def shout(data: bytes) -> str:
    return data.decode().upper()


def first_texts(tar: IndexedTarSamples) -> list[str]:
    return [sample[".txt"] for sample in tar]


def members_of(tar: IndexedTar) -> list[bytes]:
    return [data for _, data in tar]


def test_pickles_are_small_and_open_themselves(tmp_path: Path) -> None:
    path = str(tmp_path / "x.tar")
    Path(path).write_bytes(by_tarfile([(f"{n:05d}.txt", b"text" * 100) for n in range(3000)], "ustar"))
    with IndexedTar(path, verify=True) as tar:
        data = pickle.dumps(tar)
        assert len(data) < 1000
        with pickle.loads(data) as again:
            assert again.by_index(2999) == tar.by_index(2999) and again._verify
    with IndexedTarSamples(path, handlers={".txt": shout}, extensions=["txt"]) as found:
        data = pickle.dumps(found)
        assert len(data) < 1000
        with pickle.loads(data) as again:
            assert again[0] == found[0] == {"__key__": "00000", ".txt": "TEXT" * 100}
            assert again.extensions == (".txt",)
    with pytest.raises(TypeError, match="file object"):
        pickle.dumps(IndexedTar(io.BytesIO(TAR), "memory"))
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork:DeprecationWarning"
)  # of Python 3.12, for any fork
def test_another_process_reads_it(path: str, method: str) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool, IndexedTar(path) as tar:
        assert pool.submit(members_of, tar).result() == CONTENT
        with IndexedTarSamples(path, extensions=["txt"]) as found:
            assert pool.submit(first_texts, found).result() == ["a text", "b text", "c text"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_shares_the_map(path: str) -> None:
    with IndexedTarSamples(path, decode=False) as tar:
        wanted = list(tar)
        child = os.fork()
        if child == 0:
            os._exit(0 if list(tar) == wanted else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(tar) == wanted


def test_threads_share_one(tmp_path: Path) -> None:
    path = str(tmp_path / "x.tar")
    content = [(f"{n:05d}.txt", b"%d" % n * (n % 50)) for n in range(500)]
    Path(path).write_bytes(by_tarfile(content, "ustar"))
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for n in itertools.chain(range(start, 500), range(start)):
                assert tar[n][".txt"] == content[n][1]
                assert tar.tar.by_name(content[n][0]) == content[n][1]
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    with IndexedTarSamples(path, decode=False) as tar:
        threads = [threading.Thread(target=work, args=(60 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


# -- leaks


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_open(path: str, tmp_path: Path) -> None:
    IndexedTar(path).close()
    before = open_files()
    for _ in range(30):
        with IndexedTarSamples(path, decode=False) as tar:
            assert len(list(tar)) == 3
        del tar
        IndexedTar(path)  # dropped
    (tmp_path / "bad.tar").write_bytes(TAR[:900])
    for _ in range(30):
        with pytest.raises(TruncatedTar):
            IndexedTar(tmp_path / "bad.tar")
    assert open_files() == before


def test_close_with_a_view_still_held(path: str) -> None:
    tar = IndexedTar(path)
    view = memoryview(tar.buffer)[512:517]
    tar.close()
    with pytest.raises(ValueError, match="closed"):
        tar.by_index(0)
    assert bytes(view) == b"a-jpg"


def test_memory_stays_flat(tmp_path: Path) -> None:
    path = str(tmp_path / "x.tar")
    Path(path).write_bytes(by_tarfile([(f"{n:05d}.bin", bytes(10_000)) for n in range(2000)], "ustar"))
    code = """
import resource, sys
from loader.indexed_tar_samples import IndexedTarSamples
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])
with IndexedTarSamples(sys.argv[1], decode=False) as tar:
    marks = []
    for _ in range(4):
        for sample in tar:
            pass
        marks.append(peak())
print(marks[-1] - marks[0])
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, path], cwd=root, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2000  # kB


# -- damage


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_damaged_tar_gives_clear_errors_or_what_it_holds(data: st.DataObject) -> None:
    damaged = bytearray(TAR)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(TAR) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    whole = bytes(damaged[: data.draw(st.just(len(TAR)) | st.integers(0, len(TAR)))])
    try:
        with IndexedTarSamples(io.BytesIO(whole), backend="memory", handlers={".jpg": read_bytes}) as tar:
            for i in range(len(tar)):
                try:
                    sample = tar[i]
                except BadSample:  # a text that is none any more
                    sample = tar.raw(i)
                assert sample["__key__"] == tar.key(i)
    except ShardflowError:
        pass
