"""One open tar with its index: members by name and by number, wherever it lies."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Literal, TypeVar, get_args, overload

from loader import storage
from loader.checksums import adler32, crc32
from loader.errors import BadAddress, BadConfig, CorruptMember, NoRoom, TruncatedTar
from loader.index import Index
from loader.indexing import build, check_fresh, ensure_index
from loader.range_reader import RangeReader
from loader.remote import How, Remote
from loader.sample import clean_name
from loader.storage import StorageOptions
from loader.tar import TarMap

Backend = Literal["auto", "mmap", "read", "memory", "cache", "range"]

_REMOTE = ("cache", "range")

Self = TypeVar("Self", bound="Closing")


class Closing:
    """Context manager over `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_backend(backend: str) -> None:
    """BadConfig unless there is such a backend."""
    if backend not in get_args(Backend):
        raise BadConfig(f"backend is {backend!r}: one of {', '.join(get_args(Backend))} was expected")


def chosen(backend: str, address: str) -> str:
    """What "auto" means for an address."""
    if backend != "auto":
        return backend
    return "mmap" if storage.is_local(address) else "cache"


class IndexedTar(Closing):
    """The members of one tar, by number and by name, as bytes.

    Members are those that belong to samples, in sample order (see `loader.sample`); what is left out is told by
    ``index.skipped``. A missing or stale index is built when the tar is opened.

    `path`: a local path, any fsspec address, or a binary file object, which is read whole. `backend`:

    - ``"auto"``: local files in place, all else through the cache;
    - ``"mmap"`` reads a local file in place; ``"read"`` reads each member of it by one call, which maps nothing and
      is a little slower;
    - ``"cache"`` downloads the tar once a machine, and reads the copy in place; while the cache has no room
      for it, by ranges;
    - ``"range"`` asks the store for each member that is read, and nothing else, and compares it with its CRC-32;
    - ``"memory"`` holds the whole tar in memory.

    `cache_dir`, `max_cache_size`: see docs/remote.md; or `remote`, to share one `Remote` with others. `index`: an Index
    that is already open. `index_root`: where indexes lie if not beside their tars. `grouping` and `require_end`: see
    `loader.sample` and `loader.tar`. `verify`: check every byte of the index now, and compare each member that is
    read with its CRC-32, where the index holds it; CorruptMember if it differs.

    Threads may share one, and it works after a fork. A pickle holds the arguments alone, and opens the tar
    again when it is loaded. Raises FileNotFoundError, BadAddress, BadTar, BadIndex, StoreError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        backend: str = "auto",
        storage_options: StorageOptions | None = None,
        *,
        cache_dir: str | None = None,
        max_cache_size: int | None = None,
        remote: Remote | None = None,
        index: Index | None = None,
        index_root: str | None = None,
        grouping: str = "auto",
        require_end: bool = True,
        verify: bool = False,
    ) -> None:
        check_backend(backend)
        self._arguments: dict[str, Any] = {
            "backend": backend,
            "storage_options": storage_options,
            "cache_dir": cache_dir,
            "max_cache_size": max_cache_size,
            "remote": remote,
            "index_root": index_root,
            "grouping": grouping,
            "require_end": require_end,
            "verify": verify,
        }
        self._verify = verify
        self._file: _File | RangeReader | None = None
        self._buffer: bytes | mmap.mmap | None = None
        # What members may be sliced or read from without a check of each, at most one of them; else go by `read`.
        self.plain: bytes | mmap.mmap | None = None
        self.plain_file: _File | None = None
        self._own_remote: Remote | None = None
        how = How(index_root, grouping, require_end)
        if isinstance(path, (str, os.PathLike)):
            self.path = storage.normalise(path)
            self.backend = chosen(backend, self.path)
        else:
            self._read_object(path, backend)
        if self.backend in _REMOTE:
            if remote is None:
                remote = self._own_remote = Remote(cache_dir, max_cache_size)
            self.index = self._open_remote(remote, storage_options, how, index)
        else:
            self.index = self._open_local(storage_options, how, index)
        if verify:
            self.index.verify()
        if not self._verify:
            self.plain = self._buffer

    def _read_object(self, file: Any, backend: str) -> None:
        """A file object, whole."""
        if hasattr(file, "read"):
            if backend not in ("auto", "memory"):
                raise BadAddress('a file object can only be read whole: say backend="memory"')
            self.path, self.backend = str(getattr(file, "name", "<stream>")), "memory"
            self._arguments, self._buffer = {}, file.read()
        if not isinstance(self._buffer, bytes):
            raise TypeError(f"{file!r:.80}: an address, or a file object opened in binary mode, was expected")

    def _open_local(self, storage_options: StorageOptions | None, how: How, index: Index | None) -> Index:
        """Have the tar in memory or mapped, and its index."""
        with contextlib.ExitStack() as opened:
            if self._buffer is None:
                self._buffer = self._load(storage_options, opened)
            if index is not None:
                check_fresh(index, self.path, buffer=self._buffer)
            elif self._arguments:
                index, _ = ensure_index(
                    self.path,
                    storage_options,
                    index_root=how.index_root,
                    checksum=False,
                    grouping=how.grouping,
                    require_end=how.require_end,
                    buffer=self._buffer,
                )
            else:
                data = build(self._buffer, self.path, False, how.grouping, how.require_end)
                index = Index(data, self.path)
        if self.backend == "read":
            self._buffer = None
        return index

    def _load(
        self, storage_options: StorageOptions | None, opened: contextlib.ExitStack
    ) -> bytes | mmap.mmap:
        """The tar, in memory or mapped; a file that is mapped stays open until `opened` ends."""
        if self.backend == "memory":
            return storage.read_bytes(self.path, storage_options)
        if not storage.is_local(self.path):
            raise BadAddress(
                f'{self.path} is not on this machine, and can\'t be mapped: leave backend to "auto", which caches it'
            )
        file = opened.enter_context(storage.open_read(self.path))
        if os.fstat(file.fileno()).st_size == 0:
            raise TruncatedTar(f"{self.path}: a file of zero bytes is no tar: write it again")
        buffer = TarMap(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer.file = file.fileno()
        opened.callback(setattr, buffer, "file", None)
        if self.backend == "read":
            self._file = _File(self.path, os.dup(file.fileno()))
            self.plain_file = None if self._verify else self._file
        return buffer

    def _open_remote(
        self, remote: Remote, storage_options: StorageOptions | None, how: How, index: Index | None
    ) -> Index:
        """Have the tar's copy in the cache mapped, or be ready to read ranges of it; and its index."""
        if self.backend == "cache":
            try:
                self._buffer, found = remote.open_cached(self.path, storage_options, how)
            except NoRoom as error:
                remote.full(self.path, error)
                self.backend = "range"
        if self.backend == "range":
            self._file, found = remote.open_range(self.path, storage_options, how)
            self._verify = True
        if index is None:
            return found
        check_fresh(index, self.path, storage_options, self._buffer)
        return index

    def __reduce__(self) -> tuple[Callable[..., IndexedTar], tuple[str, dict[str, Any]]]:
        if not self._arguments:
            raise TypeError(f"{self!r} was made from a file object, which can't be opened again elsewhere")
        return _reopen, (self.path, self._arguments)

    def __repr__(self) -> str:
        closed = self._buffer is None and self._file is None
        state = "closed" if closed else f"{len(self)} members"
        return f"<{type(self).__name__} {self.path}: {state}>"

    @property
    def buffer(self) -> bytes | mmap.mmap:
        """The whole tar, read-only (mapped anew where the backend is "read"); ValueError once closed."""
        if self._buffer is not None:
            return self._buffer
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        if isinstance(self._file, RangeReader):
            raise ValueError(f"{self.path} is read by ranges, and is nowhere whole")
        return mmap.mmap(self._file.number, 0, access=mmap.ACCESS_READ)

    @property
    def size(self) -> int:
        """Bytes of the tar."""
        return self.index.tar_size

    @property
    def checksum(self) -> int:
        """adler32 of the tar: from the index where it is known, else of the bytes."""
        if self.index.checksum is None:
            total = 1
            for start in range(0, self.size, 8 << 20):
                total = adler32(self.part(start, min(start + (8 << 20), self.size)), total)
            self.index.checksum = total
        return self.index.checksum

    def part(self, start: int, end: int) -> bytes:
        """Bytes ``[start, end)`` of the tar, as they are."""
        if isinstance(self._file, RangeReader):
            return self._file.part(start, end)
        return self.buffer[start:end]

    def __len__(self) -> int:
        return self.index.num_members

    def names(self) -> list[str]:
        """The names of all members, cleaned of a leading ``/`` or ``./``."""
        return self.index.names()

    def name(self, i: int) -> str:
        """The name of member `i`."""
        return self.index.member_name(place(i, len(self), self.path, "member"))

    def by_index(self, i: int) -> bytes:
        """The bytes of member `i`; IndexError if there is none."""
        return self.read(place(i, len(self), self.path, "member"))

    def by_name(self, name: str) -> bytes:
        """The bytes of the member `name`; KeyError if there is none."""
        try:
            member = self.index.find_name(clean_name(name))
        except (KeyError, ValueError):  # no member's name holds ".."
            raise KeyError(f"{self.path} holds no member {name!r}") from None
        return self.read(member)

    def expect(self, members: Iterable[int]) -> None:
        """These members will be read soon, each once: where it is read by ranges, start to fetch them."""
        if isinstance(self._file, RangeReader):
            self._file.expect(map(self.index.span, members))

    def read(self, member: int) -> bytes:
        """The bytes of member ``0 <= member < len(self)``; CorruptMember where `verify` finds them changed."""
        index, buffer = self.index, self._buffer
        start = index.offset[member]
        end = start + index.size[member]
        if end > index.tar_size or (buffer is None and self._file is None):
            buffer, (start, end) = self.buffer, index.span(member)  # one of them says what is wrong
        if buffer is None and self._file is not None:
            data = self._file.read(start, end - start)
        else:
            data = self.buffer[start:end]
        return self._checked(data, member, start) if self._verify else data

    def _checked(self, data: bytes, member: int, start: int) -> bytes:
        """A member's bytes, as they were indexed; what has changed on its way is fetched once more."""
        if self.index.crc32 is None:
            return data
        wanted = self.index.crc32[member]
        if crc32(data) != wanted and isinstance(self._file, RangeReader):
            data = self._file.again(start, len(data))
        if crc32(data) != wanted:
            raise CorruptMember(
                f"{self.path}: member {self.index.member_name(member)!r} at byte {start}: its bytes have changed "
                "since it was indexed: fetch or write the tar again"
            )
        return data

    @overload
    def __getitem__(self, which: int | str) -> tuple[str, bytes]: ...
    @overload
    def __getitem__(self, which: slice) -> list[tuple[str, bytes]]: ...
    def __getitem__(self, which: int | str | slice) -> tuple[str, bytes] | list[tuple[str, bytes]]:
        if isinstance(which, slice):
            return [self[i] for i in range(*which.indices(len(self)))]
        if isinstance(which, str):
            data = self.by_name(which)
            return clean_name(which), data
        member = place(which, len(self), self.path, "member")
        return self.index.member_name(member), self.read(member)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for member in range(len(self)):
            yield self.index.member_name(member), self.read(member)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self.index.find_name(clean_name(name))
        except (KeyError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Let go of the tar; reading it after this raises ValueError."""
        buffer, self._buffer, self._file = self._buffer, None, None
        self.plain, self.plain_file = None, None
        if isinstance(buffer, mmap.mmap):
            with contextlib.suppress(BufferError):  # somebody holds a view: closed when the last one goes
                buffer.close()
        if self._own_remote is not None:
            self._own_remote.close()


class _File:
    """The descriptor of an open file, closed when it is let go. Threads may share one, and it works after a fork."""

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = path, number

    def __del__(self) -> None:
        number, self.number = getattr(self, "number", -1), -1
        if number >= 0:
            os.close(number)

    def read(self, start: int, size: int) -> bytes:
        """Exactly so many bytes; TruncatedTar if the file ends before."""
        data = os.pread(self.number, size, start)
        while len(data) < size:  # more than 2 GB, or a signal came in between
            more = os.pread(self.number, size - len(data), start + len(data))
            if not more:
                raise TruncatedTar(
                    f"{self.path}: ends at byte {start + len(data)}, although {start + size} were there when it was "
                    "opened: fetch or write it again"
                )
            data += more
        return data


def _reopen(path: str, arguments: dict[str, Any]) -> IndexedTar:
    return IndexedTar(path, **arguments)


def place(i: int, length: int, path: str, what: str) -> int:
    """A number that may count from the end → one that counts from the start; IndexError outside."""
    number = i + length if i < 0 else i
    if not 0 <= number < length:
        raise IndexError(f"{path} has {length} {what}s: there is no {what} {i}")
    return number
