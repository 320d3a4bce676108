"""The disk cache: files of a store as they lie on this machine, one copy for all processes of a user.

A folder of files, each named by a digest of its address and version, so that new content is a new file. All that
processes must agree on is said by ``flock`` on these files themselves, which the kernel lets go of when a process
dies, however it dies:

- An entry has its name only once it is whole (written as ``.part``, flushed, renamed). Whoever reads it holds it
  *shared*, by the very descriptor that its map is made from: the lock ends with the map.
- Whoever downloads one holds its ``.part`` *exclusively*; others wait, and then find it done, or take over. A ``.part``
  that nobody holds was left by a killed process, and goes with the next download.
- Only what can be held exclusively is removed: never what somebody reads, and never a file of another name. The least
  recently used goes first; its time of change says when that was.
- Room is made and taken under the lock on ``.lock``: a ``.part`` has its final size from then on, so that what
  several processes download at a time is counted too.

So the limit holds at any time, unless somebody removes ``.lock`` while it is held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from loader.errors import BadConfig, NoRoom

KINDS = ("tar", "index")

_ENTRY = re.compile(r"[0-9a-f]{40}\.(tar|index)\Z")
_PARTIAL = re.compile(r"[0-9a-f]{40}\.(tar|index)\.part\Z")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNLOCKABLE = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_LONGEST_NAP = 0.05  # seconds, while another process downloads what this one wants

# Descriptors of this process that hold something exclusively. A forked child has them too, and would hold on to it, when
# its parent has long let go: it closes them at once.
_holding: set[int] = set()


def _let_go() -> None:
    while _holding:
        os.close(_holding.pop())


os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True)
class CacheStat:
    """What is in a cache: `shards` and `indexes` that are whole, `size` in bytes; `used` of them are open somewhere."""

    folder: str
    shards: int = 0
    indexes: int = 0
    size: int = 0
    used: int = 0
    downloading: int = 0


@dataclass(frozen=True)
class Partial:
    """An entry that is being made: a file to write to, once room for all of it is reserved."""

    descriptor: int
    _cache: ShardCache

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes, and take it; NoRoom where that can't be."""
        self._cache.reserve(self.descriptor, size)

    def write(self, data: Any, at: int) -> None:
        """All of these bytes, at that place."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.descriptor, rest, at)
            rest, at = rest[written:], at + written


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    used: float


class ShardCache:
    """The files in `folder`, which is this user's alone; at most `limit` bytes (None: as many as the disk takes).

    Safe with threads, processes and forks; holds nothing open itself.
    """

    def __init__(self, folder: str, limit: int | None = None) -> None:
        self.folder, self.limit = os.path.abspath(os.path.expanduser(folder)), limit

    def prepare(self) -> None:
        """Make the folder where it isn't there; BadConfig where it can't be used."""
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            owner = os.stat(self.folder).st_uid
            with self._locked():
                pass
        except OSError as error:
            raise BadConfig(
                f"the cache folder {self.folder} can't be used ({error.strerror or error}): name another by cache_dir=… or "
                'SHARDFLOW_CACHE_DIR, or read without one: backend="range"'
            ) from error
        if owner != os.geteuid():
            raise BadConfig(
                f"the cache folder {self.folder} belongs to user {owner}: a cache is one user's own, name another folder "
                "by cache_dir=… or SHARDFLOW_CACHE_DIR"
            )

    def open(
        self, name: str, fill: Callable[[Partial], None], abandoned: Callable[[], bool] = lambda: False
    ) -> int:
        """A descriptor of the entry `name`, which nobody removes as long as it, or a map made from it, is open.

        Where it isn't there, `fill` reserves room and writes it; whatever that raises is raised, and nothing is left.
        If another process is at it, this one waits. NoRoom if the limit, or the disk, has no room for it;
        InterruptedError as soon as `abandoned()` is true.
        """
        if not _ENTRY.match(name):
            raise ValueError(f"{name!r} is no name of an entry")
        nap = 0.001
        while True:
            found = self.find(name)
            if found is not None:
                return found
            partial = self._hold(name)
            if partial is None:
                if abandoned():
                    raise InterruptedError(f"{name}: no longer wanted")
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)
                continue
            try:
                found = self.find(name)  # somebody else has finished it just now
                if found is None:
                    return self._make(name, partial, fill)
                self._discard(name, partial)
                return found
            except BaseException:
                self._discard(name, partial)
                raise

    def holds(self, name: str) -> bool:
        """Whether the entry is there now; it may be gone when it is opened."""
        return os.path.exists(os.path.join(self.folder, name))

    def find(self, name: str) -> int | None:
        """A descriptor of the entry, as `open`; None if it isn't there."""
        path = os.path.join(self.folder, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # held exclusively for the moment of its removal alone
            if os.fstat(descriptor).st_nlink:
                os.utime(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def _hold(self, name: str) -> int | None:
        """The ``.part`` of an entry, held exclusively; None if somebody else holds it."""
        path = os.path.join(self.folder, name + ".part")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _holding.add(descriptor)
        if _try_exclusive(descriptor) and _is_at(descriptor, path):
            return descriptor
        _close(descriptor)
        return None

    def _make(self, name: str, descriptor: int, fill: Callable[[Partial], None]) -> int:
        path = os.path.join(self.folder, name)
        try:
            fill(Partial(descriptor, self))
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise NoRoom(f"{self.folder}: {error.strerror}") from error
        with self._locked():  # who counts meanwhile would see both names, or none
            os.rename(path + ".part", path)
        _holding.discard(descriptor)
        # Not one step: who removes it in between, removes the name. What is open stays readable.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def _discard(self, name: str, partial: int) -> None:
        path = os.path.join(self.folder, name + ".part")
        if partial in _holding:
            if _is_at(partial, path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            _close(partial)

    def reserve(self, partial: int, size: int) -> None:
        """See `Partial.reserve`."""
        with self._locked():
            os.ftruncate(partial, 0)
            files, downloading = self._files()
            if self.limit is not None:
                taken = sum(file.size for file in files) + downloading
                missing = taken + size - self.limit
                if missing > 0 and self._evict(files, missing) < missing:
                    raise NoRoom(
                        f"{self.folder}: {size:,} bytes more than fit into max_cache_size={self.limit:,} beside what is "
                        "being read"
                    )
            os.ftruncate(partial, size)
        if not size:
            return
        try:
            os.posix_fallocate(partial, 0, size)
        except OSError as error:
            if error.errno not in _FULL:
                return  # can't be said here beforehand: writing will tell
            with self._locked():
                self._evict(self._files()[0], size)
            os.posix_fallocate(partial, 0, size)

    def _files(self) -> tuple[list[_File], int]:
        """Entries, least recently used first, and the bytes that downloads have reserved; what was left goes."""
        files, downloading = [], 0
        with os.scandir(self.folder) as found:
            for entry in found:
                if not (_ENTRY.match(entry.name) or _PARTIAL.match(entry.name)):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat(follow_symlinks=False)
                    if _ENTRY.match(entry.name):
                        files.append(_File(entry.path, stat.st_size, stat.st_mtime))
                    elif not _remove_unused(entry.path):
                        downloading += stat.st_size
        return sorted(files, key=lambda file: file.used), downloading

    def _evict(self, files: list[_File], wanted: int) -> int:
        """Remove entries until `wanted` bytes are free; returns how many that were."""
        freed = 0
        for file in files:
            if freed >= wanted:
                break
            if _remove_unused(file.path):
                freed += file.size
        return freed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = os.path.join(self.folder, ".lock")
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _holding.add(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_at(descriptor, path):
                    yield
                    return
            except OSError as error:
                if error.errno in _UNLOCKABLE:
                    raise OSError(
                        error.errno, "files can't be locked there: a local disk was expected"
                    ) from error
                raise
            finally:
                _close(descriptor)

    # -- for people

    def stat(self) -> CacheStat:
        """What is in it now."""
        if not os.path.isdir(self.folder):
            return CacheStat(self.folder)
        with self._locked():
            files, downloading = self._files()
            used = sum(not _unused(file.path) for file in files)
        kinds = [file.path.rpartition(".")[2] for file in files]
        size = sum(file.size for file in files)
        return CacheStat(self.folder, kinds.count("tar"), kinds.count("index"), size, used, downloading)

    def clear(self) -> tuple[int, int]:
        """Remove all that nobody reads; returns (files, bytes) that are gone."""
        if not os.path.isdir(self.folder):
            return 0, 0
        with self._locked():
            gone = [file for file in self._files()[0] if _remove_unused(file.path)]
        return len(gone), sum(file.size for file in gone)

    def remove(self, name: str) -> None:
        """Remove one entry; readers keep what they have."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, name))


def _try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: str) -> bool:
    """Whether what is open is still what has that name."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # for a child, too, that was forked before it was noted
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _holding.discard(descriptor)
    os.close(descriptor)


def _unused(path: str, remove: bool = False) -> bool:
    """Whether nobody holds a file; with `remove`, it is removed then."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    _holding.add(descriptor)
    try:
        free = _try_exclusive(descriptor)
        if free and remove and _is_at(descriptor, path):
            os.unlink(path)
        return free
    finally:
        _close(descriptor)


def _remove_unused(path: str) -> bool:
    return _unused(path, remove=True)
