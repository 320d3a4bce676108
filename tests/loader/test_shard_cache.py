"""The disk cache: whole entries or none, one download for all, a limit that holds, whoever dies in between."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import places
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import BadConfig, NoRoom
from loader.shard_cache import CacheStat, Partial, ShardCache


def name(number: int, kind: str = "tar") -> str:
    return f"{number:040x}.{kind}"


def filling(data: bytes, calls: list[bytes] | None = None) -> Callable[[Partial], None]:
    def fill(partial: Partial) -> None:
        if calls is not None:
            calls.append(data)
        partial.reserve(len(data))
        partial.write(data, 0)

    return fill


def content(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    made = ShardCache(str(tmp_path / "cache"))
    made.prepare()
    return made


def files(cache: ShardCache) -> list[str]:
    return sorted(entry for entry in os.listdir(cache.folder) if entry != ".lock")


def age(cache: ShardCache, entry: str, seconds: float) -> None:
    os.utime(os.path.join(cache.folder, entry), times=(time.time() - seconds,) * 2)


# -- entries


def test_what_is_there_is_not_made_again(cache: ShardCache) -> None:
    calls: list[bytes] = []
    for _ in range(3):
        assert content(cache.open(name(1), filling(b"one", calls))) == b"one"
    assert content(cache.open(name(2), filling(b"two", calls))) == b"two"
    assert calls == [b"one", b"two"]
    assert cache.find(name(3)) is None
    assert files(cache) == [name(1), name(2)]


def test_an_entry_of_no_bytes(cache: ShardCache) -> None:
    assert content(cache.open(name(1, "index"), filling(b""))) == b""


@pytest.mark.parametrize("wrong", ["x.tar", "../" + name(1), name(1) + ".part", "", ".lock", name(1, "json")])
def test_only_names_of_entries_are_written(cache: ShardCache, wrong: str) -> None:
    with pytest.raises(ValueError, match="no name of an entry"):
        cache.open(wrong, filling(b"x"))
    assert files(cache) == []


@pytest.mark.parametrize("error", [OSError("cut"), KeyboardInterrupt(), ValueError("bad")])
def test_a_download_that_fails_leaves_nothing(cache: ShardCache, error: BaseException) -> None:
    def fill(partial: Partial) -> None:
        partial.reserve(100)
        partial.write(b"half", 0)
        raise error

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(type(error)):
        cache.open(name(1), fill)
    assert files(cache) == [] and len(os.listdir("/proc/self/fd")) == before
    assert content(cache.open(name(1), filling(b"whole"))) == b"whole"


def test_threads_and_processes_make_it_once(cache: ShardCache, tmp_path: Path) -> None:
    code = """
import os, sys, time
from loader.shard_cache import ShardCache
def fill(partial):
    open(sys.argv[2], "a").write("x")
    partial.reserve(3)
    time.sleep(0.3)
    partial.write(b"one", 0)
descriptor = ShardCache(sys.argv[1]).open(sys.argv[3], fill)
assert os.pread(descriptor, 10, 0) == b"one"
"""
    log = tmp_path / "log"
    children = [places.python(code, cache.folder, log, name(1)) for _ in range(3)]
    for child in children:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
    assert log.read_text() == "x"
    calls: list[bytes] = []

    def slowly(partial: Partial) -> None:
        filling(b"two", calls)(partial)
        time.sleep(0.1)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: content(cache.open(name(2), slowly)), range(8)))
    assert found == [b"two"] * 8 and calls == [b"two"]


def test_whoever_waits_may_give_up(cache: ShardCache) -> None:
    inside, go = threading.Event(), threading.Event()

    def fill(partial: Partial) -> None:
        inside.set()
        go.wait()
        filling(b"one")(partial)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(cache.open, name(1), fill)
        inside.wait()
        with pytest.raises(InterruptedError):
            cache.open(name(1), filling(b"other"), lambda: True)
        go.set()
        assert content(first.result()) == b"one"


def test_a_killed_download_is_taken_over_and_swept(cache: ShardCache) -> None:
    code = """
import sys, time
from loader.shard_cache import ShardCache
def fill(partial):
    partial.reserve(1000)
    partial.write(b"half", 0)
    print("half", flush=True)
    time.sleep(60)
ShardCache(sys.argv[1]).open(sys.argv[2], fill)
"""
    for entry in (name(1), name(2)):
        child = places.python(code, cache.folder, entry)
        assert child.stdout is not None and child.stdout.readline() == "half\n"
        assert cache.stat().downloading == 1000
        child.kill()
        child.communicate()
        assert files(cache)[-1] == entry + ".part"
        if entry == name(1):
            assert content(cache.open(entry, filling(b"whole"))) == b"whole"
    cache.open(name(3), filling(b"three"))
    assert files(cache) == [name(1), name(3)]
    assert cache.stat().downloading == 0


def sleeping_child() -> int:
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_fork_does_not_hold_a_download(cache: ShardCache) -> None:
    """A child that was forked in the middle of one would else keep all others from it, for as long as it lives."""
    children = []

    def fill(partial: Partial) -> None:
        partial.reserve(3)
        children.append(sleeping_child())
        raise OSError("cut")

    try:
        with pytest.raises(OSError, match="cut"):
            cache.open(name(1), fill)
        deadline = time.monotonic() + 20
        assert content(cache.open(name(1), filling(b"one"), lambda: time.monotonic() > deadline)) == b"one"
    finally:
        for child in children:
            end(child)


def test_a_fork_does_not_hold_the_lock(cache: ShardCache) -> None:
    with cache._locked():
        child = sleeping_child()
    try:
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(cache.stat).result(timeout=20).shards == 0
    finally:
        end(child)


# -- the limit


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "c"), 350)
    cache.prepare()
    for number, seconds in ((1, 30), (2, 20), (3, 10)):
        os.close(cache.open(name(number), filling(bytes(100))))
        age(cache, name(number), seconds)
    found = cache.find(name(1))  # used just now
    assert found is not None
    os.close(found)
    os.close(cache.open(name(4), filling(bytes(100))))
    assert files(cache) == [name(1), name(3), name(4)]
    os.close(cache.open(name(5), filling(bytes(350))))
    assert files(cache) == [name(5)]


def test_what_is_open_stays_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "c"), 250)
    cache.prepare()
    descriptors = [cache.open(name(number), filling(bytes([number] * 100))) for number in (1, 2)]
    mapped = mmap.mmap(descriptors[0], 0, access=mmap.ACCESS_READ)
    os.close(descriptors[0])  # the map holds it, as long as it lives
    with pytest.raises(NoRoom, match="max_cache_size=250"):
        cache.open(name(3), filling(bytes(100)))
    assert files(cache) == [name(1), name(2)]
    assert cache.stat() == CacheStat(cache.folder, 2, 0, 200, 2, 0)
    assert cache.clear() == (0, 0)
    mapped.close()
    assert cache.stat().used == 1
    os.close(cache.open(name(3), filling(bytes(100))))
    assert files(cache) == [name(2), name(3)]
    os.close(descriptors[1])


def test_only_what_the_cache_made_is_removed(cache: ShardCache) -> None:
    for stranger in ("photo.tar", "0" * 40, name(1) + "x", name(1) + ".bak", "x" + name(2)):
        Path(cache.folder, stranger).write_bytes(bytes(1000))
    os.makedirs(os.path.join(cache.folder, "folder"))
    os.symlink(os.path.join(cache.folder, "photo.tar"), os.path.join(cache.folder, "link"))
    strangers = files(cache)
    os.close(cache.open(name(9), filling(b"x")))
    assert cache.clear() == (1, 1)
    assert files(cache) == strangers
    assert ShardCache(cache.folder, 10).open(name(9), filling(b"x"))
    assert Path(cache.folder, "photo.tar").exists()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=25))
def test_the_limit_holds_whatever_is_asked(asked: list[tuple[int, bool]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        cache = ShardCache(folder, 1000)
        for number, keep in asked:
            data = bytes([number]) * (number * 90)
            try:
                descriptor = cache.open(name(number), filling(data))
            except NoRoom:
                assert keep or opened._exit_callbacks  # type: ignore[attr-defined]
                continue
            assert os.pread(descriptor, 1000, 0) == data
            if keep:
                opened.callback(os.close, descriptor)
            else:
                os.close(descriptor)
            assert cache.stat().size <= 1000


def test_several_downloads_at_a_time_are_counted(tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "c"), 250)
    cache.prepare()

    def fill(partial: Partial) -> None:
        partial.reserve(100)
        with pytest.raises(NoRoom):
            cache.open(name(2), filling(bytes(200)))
        partial.write(bytes(100), 0)
        os.close(cache.open(name(3), filling(bytes(150))))

    os.close(cache.open(name(1), fill))
    assert files(cache) == [name(1), name(3)]


def test_a_lock_file_that_somebody_removed(cache: ShardCache) -> None:
    os.close(cache.open(name(1), filling(b"one")))
    os.unlink(os.path.join(cache.folder, ".lock"))
    os.close(cache.open(name(2), filling(b"two")))
    assert cache.stat().shards == 2


def test_a_full_disk(tmp_path: Path) -> None:
    """Least recently used entries make place; then NoRoom, and nothing half is left."""
    code = """
import os, sys
from loader.errors import NoRoom
from loader.shard_cache import ShardCache
cache = ShardCache(sys.argv[1])
def fill(data):
    def write(partial):
        partial.reserve(len(data))
        partial.write(data, 0)
    return write
def late(partial):  # where nothing can be reserved, writing says so
    partial.write(bytes(5 << 20), 0)
name = lambda n: f"{n:040x}.tar"
for n in range(5):
    os.close(cache.open(name(n), fill(bytes([n]) * (1 << 20))))
assert cache.stat().shards == 4, cache.stat()
held = [cache.open(name(n), fill(b"")) for n in (1, 2, 3, 4)]
for bad in (fill(bytes(2 << 20)), late):
    try:
        cache.open(name(9), bad)
        raise AssertionError("it fits")
    except NoRoom as error:
        assert "No space left" in str(error)
assert sorted(os.listdir(sys.argv[1])) == [".lock", *map(name, (1, 2, 3, 4))]
assert all(os.pread(d, 2 << 20, 0) == bytes([n]) * (1 << 20) for d, n in zip(held, (1, 2, 3, 4)))
print("as it should be")
"""
    folder = tmp_path / "disk"
    folder.mkdir()
    assert places.in_mounts(places.small_disk(folder, "4m"), code, folder) == "as it should be\n"


# -- the folder


def test_it_is_private(tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "a" / "b"))
    assert cache.stat() == CacheStat(cache.folder) and cache.clear() == (0, 0)
    cache.prepare()
    os.close(cache.open(name(1), filling(b"x")))
    assert os.stat(cache.folder).st_mode & 0o777 == 0o700
    assert os.stat(os.path.join(cache.folder, name(1))).st_mode & 0o777 == 0o600


def test_a_folder_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "c", Path("/proc/nowhere")):
        with pytest.raises(BadConfig, match="SHARDFLOW_CACHE_DIR"):
            ShardCache(str(folder)).prepare()
    folder = tmp_path / "other"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 4711, 4711)
        with pytest.raises(BadConfig, match="belongs to user 4711"):
            ShardCache(str(folder)).prepare()


def test_locks_that_a_disk_lacks(cache: ShardCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network disks refuse them; none is at hand here."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("loader.shard_cache.fcntl.flock", refuse)
    with pytest.raises(BadConfig, match="a local disk was expected"):
        cache.prepare()


def test_hammered_by_processes_that_die(tmp_path: Path) -> None:
    """Readers that are killed at any moment, on a cache of three of eight entries: no wrong byte, limit held."""
    code = """
import mmap, os, random, sys
from loader.errors import NoRoom
from loader.shard_cache import ShardCache
cache, rng = ShardCache(sys.argv[1], 300_000), random.Random(int(sys.argv[2]))
def fill(n):
    def write(partial):
        partial.reserve(100_000)
        for at in range(0, 100_000, 10_000):
            partial.write(bytes([n]) * 10_000, at)
    return write
print("go", flush=True)
held = None
for _ in range(int(sys.argv[3])):
    n = rng.randrange(8)
    try:
        descriptor = cache.open(f"{n:040x}.tar", fill(n))
    except NoRoom:
        continue
    held = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    os.close(descriptor)
    assert held[:] == bytes([n]) * 100_000
    stat = cache.stat()
    assert stat.size + stat.downloading <= 300_000, stat
"""
    folder = tmp_path / "c"
    ShardCache(str(folder)).prepare()
    for seed in range(4):
        child = places.python(code, folder, seed, 10**9)
        assert child.stdout is not None and child.stdout.readline() == "go\n"
        time.sleep(0.05 + 0.03 * seed)
        assert child.poll() is None, child.communicate()
        child.kill()
        child.communicate()
    children: list[subprocess.Popen[str]] = [places.python(code, folder, seed, 150) for seed in range(4)]
    for child in children:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
    stat = ShardCache(str(folder)).stat()
    assert stat.size <= 300_000 and not stat.used and not stat.downloading
