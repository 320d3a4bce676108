"""What every store must do alike, whatever client reads it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import emulators
import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import python
from s3_server import Place, S3Server

from loader import storage
from loader.errors import FileChanged, WriteConflict

# Azurite comes with npm alone: its tests are there where it is.
KINDS = ("local", "memory", "s3", "obstore", "gcs", *(("azure",) if emulators.AZURITE else ()))
S3 = ("s3", "obstore")
PART = 16 << 20  # what goes up at a time

# Of aiohttp's, about what the clients of Google and Azure do.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


@pytest.fixture(scope="module")
def _gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with emulators.gcs(tmp_path_factory.mktemp("gcs")) as place:
        yield place


@pytest.fixture(scope="module")
def _azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with emulators.azure(tmp_path_factory.mktemp("azure")) as place:
        yield place


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty folder of each kind."""
    if kind == "local":
        yield Place(str(tmp_path), {})
    elif kind == "memory":
        yield Place(f"memory://{tmp_path.name}", {})
        with contextlib.suppress(FileNotFoundError):
            fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)
    elif kind in S3:
        server: S3Server = request.getfixturevalue("s3_server")
        place = server.place()
        yield Place(
            place.root, {**place.storage_options, "client": "obstore" if kind == "obstore" else "fsspec"}
        )
    else:
        yield emulators.folder_of(request.getfixturevalue(f"_{kind}"))


def put(store: Place, path: str, data: bytes = b"x") -> str:
    address = store.address(path)
    storage.write_bytes(address, data, store.storage_options)
    return address


# -- what is there


def test_stat(store: Place) -> None:
    options = store.storage_options
    address = put(store, "deep/er/x.bin", b"0123456789")
    assert storage.stat(address, options).size == 10
    assert storage.exists(address, options) and not storage.is_dir(address, options)
    assert storage.is_dir(store.address("deep"), options) and storage.exists(store.address("deep"), options)
    missing = store.address("deep/no.bin")
    assert not storage.exists(missing, options) and not storage.is_dir(missing, options)
    for call in (storage.stat, storage.read_bytes, storage.open_read):
        with pytest.raises(FileNotFoundError, match=r"deep/no\.bin"):
            call(missing, options)  # type: ignore[operator]
    with pytest.raises(FileNotFoundError, match=r"deep/no\.bin"):
        storage.read_bytes(missing, options, 3, 5)
    with pytest.raises(IsADirectoryError):
        storage.stat(store.address("deep"), options)


NAMES = ["a b.tar", "c+~#,;=&%20.tar", "é/日本.tar", "a/b/c.tar", "a.tar", "a-b.tar", "[x].tar", "q?.tar"]


def test_list(store: Place, kind: str) -> None:
    names = [
        name for name in NAMES if kind != "gcs" or "%" not in name
    ]  # which the emulator takes for a code
    for name in (*names, ".hidden.tar", "h/.x/y.tar", "a/other.txt"):
        put(store, name, name.encode())
    found = storage.list_files(store.root, ".tar", store.storage_options)
    assert [storage.relative(address, store.root) for address in found] == sorted(names)
    for address in found:
        name = storage.relative(address, store.root).encode()
        assert storage.read_bytes(address, store.storage_options) == name
        assert storage.read_bytes(address, store.storage_options, 0, len(name)) == name
    assert storage.list_files(store.address("none"), "", store.storage_options) == []
    globbed = storage.expand(store.address("a/*/*.tar"), "", store.storage_options)
    assert globbed == [store.address("a/b/c.tar")]


@pytest.mark.parametrize("kind", ["s3", "memory"], indirect=True)
def test_a_listing_of_several_pages(store: Place) -> None:
    fs, path = storage.filesystem(store.root, store.storage_options)
    names = [f"{number:04d}.tar" for number in range(1100)]
    fs.pipe({f"{path}/{name}": b"1" for name in names})
    found = storage.list_files(store.root, ".tar", store.storage_options)
    assert found == [store.address(name) for name in names]


# -- reading


DATA = bytes(range(256)) * 400


@given(
    ranges=st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 3000)), max_size=40),
    max_gap=st.sampled_from((0, 100, 10_000)),
    largest=st.sampled_from((100, 5000, 1 << 20)),
    in_flight=st.integers(1, 40),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranges(
    store: Place, ranges: list[tuple[int, int]], max_gap: int, largest: int, in_flight: int
) -> None:
    address = store.address("ranges.bin")
    if not storage.exists(address, store.storage_options):
        storage.write_bytes(address, DATA, store.storage_options)
    asked = [(start, min(start + size, len(DATA))) for start, size in ranges]
    found = storage.read_ranges(
        address, asked, store.storage_options, max_gap=max_gap, largest=largest, in_flight=in_flight
    )
    assert found == [DATA[start:end] for start, end in asked]
    assert all(type(data) is bytes for data in found)


def test_a_range_beyond_the_end(store: Place) -> None:
    address = put(store, "x.bin", b"0123456789")
    for start, end in ((0, 11), (5, 20), (10, 12), (15, 20)):
        with pytest.raises(EOFError, match=rf"x\.bin: asked for bytes {start} to {end} of a file of 10"):
            storage.read_ranges(address, [(0, 4), (start, end)], store.storage_options)
    assert storage.read_ranges(address, [(20, 20), (3, 3)], store.storage_options) == [b"", b""]
    assert storage.read_bytes(address, store.storage_options, 4) == b"456789"


def test_whole_files_in_order_and_here_and_there(store: Place) -> None:
    data = os.urandom(3 << 20)
    address, options = put(store, "x.bin", data), store.storage_options
    chunks = list(storage.read_in_order(address, len(data), options, start=100, largest=300_000))
    assert b"".join(chunks) == data[100:] and max(map(len, chunks)) <= 300_000
    early = storage.read_in_order(address, len(data), options, smallest=1000, largest=1 << 20)
    assert next(early) == data[:1000]
    early.close()  # type: ignore[attr-defined]
    with storage.open_read(address, options) as file:
        assert file.read(5) == data[:5] and file.seek(-7, os.SEEK_END) == len(data) - 7
        assert file.read() == data[-7:] and file.read(1) == b""
        assert file.seek(1 << 20) and file.read(3) == data[1 << 20 : (1 << 20) + 3]
    assert put(store, "empty", b"") and storage.read_bytes(store.address("empty"), options) == b""


@pytest.mark.parametrize("kind", S3, indirect=True)
def test_one_version_alone(store: Place) -> None:
    address, options = put(store, "x.bin", b"old old old"), store.storage_options
    version = storage.stat(address, options).version
    assert storage.read_bytes(address, options, 0, 3, version=version) == b"old"
    put(store, "x.bin", b"new new new")
    with pytest.raises(FileChanged, match=r"x\.bin: replaced by another version"):
        storage.read_ranges(address, [(0, 3), (4, 7)], options, version=version)


# -- writing


@pytest.mark.parametrize("size", [10, PART + (6 << 20)])
def test_a_file_appears_whole(store: Place, size: int) -> None:
    address, options = store.address("new/x.bin"), store.storage_options
    data = os.urandom(1 << 20) * (size >> 20) or b"0123456789"
    with storage.publish(address, options) as file:
        for start in range(0, len(data), 5 << 20):
            file.write(data[start : start + (5 << 20)])
        assert not storage.exists(address, options)
        assert storage.list_files(store.root, "", options) == []
    assert storage.read_bytes(address, options) == data


@pytest.mark.parametrize("size", [10, PART + (1 << 20)])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_or_not_at_all(store: Place, kind: str, size: int, error: type[BaseException]) -> None:
    if kind == "gcs" and size > PART:
        pytest.skip("the emulator can't abort an upload")
    options = store.storage_options
    old = put(store, "old.bin", b"old")
    for address in (old, store.address("new.bin")):
        with pytest.raises(error), storage.publish(address, options) as file:
            file.write(bytes(size))
            raise error
    assert storage.read_bytes(old, options) == b"old"
    assert not storage.exists(store.address("new.bin"), options)
    assert storage.sweep_uploads(store.root, options, 0) == []


def test_overwriting(store: Place) -> None:
    address, options = put(store, "x.bin", b"1"), store.storage_options
    first = storage.stat(address, options)
    put(store, "x.bin", b"22")
    second = storage.stat(address, options)
    assert second.size == 2 and first.version and second.version != first.version
    assert storage.read_bytes(address, options) == b"22"
    storage.remove(address, options)
    storage.remove(address, options)
    assert not storage.exists(address, options)


def test_only_if_there_is_none(store: Place, kind: str) -> None:
    if kind == "gcs":
        pytest.skip("the emulator ignores conditions")
    address, options = store.address("x.json"), store.storage_options
    storage.write_bytes(address, b"first", options, if_absent=True)
    with pytest.raises(WriteConflict, match=r"x\.json: there already"):
        storage.write_bytes(address, b"second", options, if_absent=True)
    with pytest.raises(FileExistsError), storage.publish(address, options, if_absent=True) as file:
        file.write(b"third")
    assert storage.read_bytes(address, options) == b"first"
    assert storage.list_files(store.root, "", options) == [address]


@pytest.mark.parametrize("kind", ["local", "memory", *S3], indirect=True)
def test_only_if_it_is_still_the_same(store: Place) -> None:
    address, options = put(store, "x.json", b"1"), store.storage_options
    version = storage.stat(address, options).version
    storage.write_bytes(address, b"22", options, if_match=version)
    with pytest.raises(WriteConflict, match=r"x\.json: changed since it was read"):
        storage.write_bytes(address, b"3", options, if_match=version)
    assert storage.read_bytes(address, options) == b"22"
    with pytest.raises(WriteConflict):
        storage.write_bytes(store.address("none.json"), b"4", options, if_match=version)


def test_one_of_many_writers_wins(store: Place, kind: str) -> None:
    if kind == "gcs":
        pytest.skip("the emulator ignores conditions")
    address, start = store.address("x.json"), threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait()
        try:
            storage.write_bytes(address, str(number).encode(), store.storage_options, if_absent=True)
        except WriteConflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert won.count(True) == 1
    assert storage.read_bytes(address, store.storage_options) == str(won.index(True)).encode()


def test_many_threads(store: Place) -> None:
    address, options = put(store, "x.bin", DATA), store.storage_options

    def read(number: int) -> bool:
        spans = [(number * 100 + n, number * 100 + 2 * n) for n in range(1, 20)]
        return storage.read_ranges(address, spans, options) == [DATA[start:end] for start, end in spans]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(read, range(48)))


# -- processes

READ = """
import json, sys
from loader import storage
print(storage.read_bytes(sys.argv[1], json.loads(sys.argv[2]), 2, 5).decode())
"""


def test_another_process(store: Place, kind: str) -> None:
    if kind == "memory":
        pytest.skip("memory:// is one process's own")
    address = put(store, "x.bin", b"0123456789")
    child = python(READ, address, json.dumps(store.storage_options), env={**os.environ, **places()})
    out, err = child.communicate()
    assert (out, err) == ("234\n", "")


def places() -> dict[str, str]:
    from places import environment

    return dict(environment())


def _child(address: str, options: dict[str, object], queue: multiprocessing.Queue[object]) -> None:
    try:
        found: object = storage.read_ranges(address, [(0, 3), (5, 8)], options)
        storage.write_bytes(address + ".child", b"child", options)
    except Exception as error:  # noqa: BLE001 - what it was is what is asked for
        found = repr(error)
    queue.put(found)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("memory", "obstore")], indirect=True)
def test_a_child_has_a_client_of_its_own(store: Place, method: str) -> None:
    """The parent uses its client before, meanwhile and after."""
    address, options = put(store, "x.bin", b"0123456789"), store.storage_options
    assert storage.read_bytes(address, options, 0, 4) == b"0123"
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            storage.read_bytes(address, options, 0, 4)

    busy = threading.Thread(target=go_on)
    busy.start()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    try:
        child = context.Process(target=_child, args=(address, options, queue))
        child.start()
        assert queue.get(timeout=60) == [b"012", b"567"]
        child.join()
    finally:
        stop.set()
        busy.join()
    assert storage.read_bytes(address + ".child", options) == b"child"


def test_what_travels_is_what_was_given(store: Place) -> None:
    """Using options leaves them as they are: nothing that was looked up, and no connection, is put into them."""
    before = pickle.dumps(store.storage_options)
    put(store, "x.bin")
    storage.read_bytes(store.address("x.bin"), store.storage_options)
    assert pickle.dumps(store.storage_options) == before
