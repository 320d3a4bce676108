"""One open tar with its index: members by name and number, samples decoded or as bytes."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar, overload

from loader import storage
from loader.checksums import adler32, crc32
from loader.data_handler import Handler, handler_for, make_handlers
from loader.errors import (
    BadAddress,
    BadSample,
    CorruptMember,
    ShardflowError,
    TruncatedTar,
    UnsafePickle,
)
from loader.index import Index
from loader.indexing import build, check_fresh, ensure_index
from loader.sample import clean_name, split_number
from loader.storage import StorageOptions
from loader.tar import TarMap

BACKENDS = ("mmap", "read", "memory")

Self = TypeVar("Self", bound="_Closing")


class _Closing:
    """Context manager over `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class IndexedTar(_Closing):
    """The members of one tar, by number and by name, as bytes.

    Members are those that belong to samples, in sample order (see `loader.sample`); what is left out is told by
    ``index.skipped``. A missing or stale index is built when the tar is opened.

    `path`: a local path, any fsspec address, or (``memory`` only) a binary file object. `backend`: ``"mmap"``
    reads a local file in place; ``"read"`` reads each member of it by one call, which maps nothing and is a little
    slower; ``"memory"`` holds the whole tar in memory. `index`: an Index that is already
    open. `index_root`: where indexes lie if not beside their tars. `grouping` and `require_end`: see
    `loader.sample` and `loader.tar`. `verify`: check every byte of the index now, and compare each member that is
    read with its CRC-32, where the index holds it; CorruptMember if it differs.

    Threads may share one, and it works after a fork. A pickle holds the arguments alone, and opens the tar
    again when it is loaded. Raises FileNotFoundError, BadAddress, BadTar, BadIndex.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        backend: str = "mmap",
        storage_options: StorageOptions | None = None,
        *,
        index: Index | None = None,
        index_root: str | None = None,
        grouping: str = "auto",
        require_end: bool = True,
        verify: bool = False,
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend is {backend!r}: one of {', '.join(BACKENDS)} was expected")
        self._arguments: dict[str, Any] = {
            "backend": backend,
            "storage_options": storage_options,
            "index_root": index_root,
            "grouping": grouping,
            "require_end": require_end,
            "verify": verify,
        }
        self._verify = verify
        self._file: _File | None = None
        self._buffer: bytes | mmap.mmap | None = None
        with contextlib.ExitStack() as opened:
            if isinstance(path, (str, os.PathLike)):
                self.path = storage.normalise(path)
                self._buffer = self._load(backend, storage_options, opened)
            elif hasattr(path, "read"):
                self.path = str(getattr(path, "name", "<stream>"))
                self._arguments = {}
                if backend != "memory":
                    raise BadAddress('a file object can\'t be mapped: say backend="memory"')
                self._buffer = path.read()
            else:
                self.path = ""
            if not isinstance(self._buffer, (bytes, mmap.mmap)):
                raise TypeError(
                    f"{path!r:.80}: an address, or a file object opened in binary mode, was expected"
                )
            if index is not None:
                check_fresh(index, self.path, buffer=self._buffer)
            elif self._arguments:
                index, _ = ensure_index(
                    self.path,
                    storage_options,
                    index_root=index_root,
                    checksum=False,
                    grouping=grouping,
                    require_end=require_end,
                    buffer=self._buffer,
                )
            else:
                index = Index(build(self._buffer, self.path, False, grouping, require_end), self.path)
        if verify:
            index.verify()
        self.index = index
        if backend == "read":
            self._buffer = None

    def _load(
        self, backend: str, storage_options: StorageOptions | None, opened: contextlib.ExitStack
    ) -> bytes | mmap.mmap:
        """The tar, in memory or mapped; a file that is mapped stays open until `opened` ends."""
        if backend == "memory":
            return storage.read_bytes(self.path, storage_options)
        if not storage.is_local(self.path):
            raise BadAddress(
                f'{self.path} is not on this machine, and can\'t be mapped: say backend="memory" to read it whole, '
                "or copy it here first"
            )
        file = opened.enter_context(storage.open_read(self.path))
        if os.fstat(file.fileno()).st_size == 0:
            raise TruncatedTar(f"{self.path}: a file of zero bytes is no tar: write it again")
        buffer = TarMap(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer.file = file.fileno()
        opened.callback(setattr, buffer, "file", None)
        if backend == "read":
            self._file = _File(self.path, os.dup(file.fileno()))
        return buffer

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
        return mmap.mmap(self._file.number, 0, access=mmap.ACCESS_READ)

    @property
    def size(self) -> int:
        """Bytes of the tar."""
        return self.index.tar_size

    @property
    def checksum(self) -> int:
        """adler32 of the tar: from the index where it is known, else of the bytes."""
        if self.index.checksum is None:
            view, total = memoryview(self.buffer), 1
            for start in range(0, len(view), 8 << 20):
                total = adler32(view[start : start + (8 << 20)], total)
            view.release()
            self.index.checksum = total
        return self.index.checksum

    def __len__(self) -> int:
        return self.index.num_members

    def names(self) -> list[str]:
        """The names of all members, cleaned of a leading ``/`` or ``./``."""
        return self.index.names()

    def name(self, i: int) -> str:
        """The name of member `i`."""
        return self.index.member_name(_place(i, len(self), self.path, "member"))

    def by_index(self, i: int) -> bytes:
        """The bytes of member `i`; IndexError if there is none."""
        return self.read(_place(i, len(self), self.path, "member"))

    def by_name(self, name: str) -> bytes:
        """The bytes of the member `name`; KeyError if there is none."""
        try:
            member = self.index.find_name(clean_name(name))
        except (KeyError, ValueError):  # no member's name holds ".."
            raise KeyError(f"{self.path} holds no member {name!r}") from None
        return self.read(member)

    def plain(self, view: bool = False) -> bytes | mmap.mmap | memoryview | None:
        """What members may be sliced from, without a check of each; None: go by `read`."""
        if self._verify:
            return None
        return memoryview(self.buffer) if view else self._buffer

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
        if self._verify and self.index.crc32 is not None and crc32(data) != self.index.crc32[member]:
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
        member = _place(which, len(self), self.path, "member")
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
        if isinstance(buffer, mmap.mmap):
            with contextlib.suppress(BufferError):  # somebody holds a view: closed when the last one goes
                buffer.close()


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


def _place(i: int, length: int, path: str, what: str) -> int:
    """A number that may count from the end → one that counts from the start; IndexError outside."""
    place = i + length if i < 0 else i
    if not 0 <= place < length:
        raise IndexError(f"{path} has {length} {what}s: there is no {what} {i}")
    return place


class IndexedTarSamples(_Closing):
    """The samples of one tar: ``samples[i]`` → ``{"__key__": …, ".jpg": …, ".json": …}``.

    One entry for each extension (lower case); several members of one extension give a list, in the order of
    their numbers, one gives the value itself.

    `handlers` add to or replace `data_handler.default_handlers` for this object alone. `extensions`: read only
    these members (``[".txt"]`` never touches a picture); ``.jpg`` also means ``.0.jpg``, ``.1.jpg``, …, which keep
    their names, and never ``.seg.jpg``. `decode=False` gives bytes. `allow_pickle`: let
    ``.pickle`` and object arrays load, which runs code from the tar. `views`: with ``decode=False``, give memoryviews
    into the map in place of bytes: nothing is copied, and the map stays as long as one of them. Other arguments as
    for `IndexedTar`.

    BadSample, naming shard, key and extension, for what can't be decoded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | BinaryIO | IndexedTar,
        handlers: Mapping[str, Handler] | None = None,
        extensions: Sequence[str] | None = None,
        backend: str = "mmap",
        storage_options: StorageOptions | None = None,
        *,
        decode: bool = True,
        allow_pickle: bool = False,
        views: bool = False,
        **arguments: Any,
    ) -> None:
        if isinstance(extensions, str):
            raise ValueError(
                f"extensions is the text {extensions!r}: a list such as [{extensions!r}] was expected"
            )
        if views and (decode or backend == "read" or arguments.get("verify")):
            raise ValueError('views go with decode=False and a map: neither backend="read" nor verify')
        self._arguments = (handlers, extensions, decode, allow_pickle, views)
        if isinstance(path, IndexedTar):
            if arguments or storage_options or backend != "mmap":
                raise ValueError("an IndexedTar is open already: say how it is opened where it is made")
            self.tar = path
        else:
            self.tar = IndexedTar(path, backend, storage_options, **arguments)
        self.decode, self.views = decode, views
        self.handlers = make_handlers(handlers, allow_pickle=allow_pickle)
        self.index = self.tar.index
        self.selected = None if extensions is None else tuple(_dotted(e) for e in extensions)
        table = self.index.extensions
        # extension number → (extension, handler), None where it isn't wanted: looked up once, not a sample
        self._wanted: list[tuple[str, Handler] | None] = [
            (extension, handler_for(extension, self.handlers))
            if self.selected is None
            or extension in self.selected
            or split_number(extension)[1] in self.selected
            else None
            for extension in table
        ]
        # extension number → the number that it begins with, or -1; None if there is nothing to put in order, as where
        # names are numbered the other way, "k-0.jpg": then the index has them in order
        numbers = [split_number(extension)[0] for extension in table]
        ordered = self.index.grouping == "numbered" or max(numbers, default=-1) < 0
        self._numbers = None if ordered else numbers

    def __reduce__(self) -> tuple[Callable[..., IndexedTarSamples], tuple[Any, ...]]:
        return _reopen_samples, (self.tar, *self._arguments)

    @property
    def path(self) -> str:
        """The address of the tar."""
        return self.tar.path

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that occur in the tar and are read, in the order of their first appearance."""
        return tuple(entry[0] for entry in self._wanted if entry is not None)

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.index.num_samples

    def __len__(self) -> int:
        return self.index.num_samples

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {len(self)} samples of {', '.join(self.extensions)}>"

    def key(self, i: int) -> str:
        """The key of sample `i`."""
        return self.index.key(_place(i, len(self), self.path, "sample"))

    def keys(self) -> Iterator[str]:
        """The keys of all samples, in order."""
        return iter(self.index.keys())

    def find(self, key: str) -> int:
        """The number of the sample with that key; KeyError if there is none."""
        try:
            return self.index.find_key(key)
        except KeyError:
            raise KeyError(f"{self.path} holds no sample {key!r}") from None

    def members(self, i: int) -> list[tuple[str, str, bytes]]:
        """(name, extension, bytes) of the wanted members of a sample: its own first, then images by number."""
        index, found = self.index, []
        members: Sequence[int] = index.members(_place(i, len(self), self.path, "sample"))
        for member in members:
            index.member_extension(member)  # checked here
        if (numbers := self._numbers) is not None:
            members = sorted(members, key=lambda member: numbers[index.extension[member]])
        for member in members:
            entry = self._wanted[index.extension[member]]
            if entry is not None:
                found.append((index.member_name(member), entry[0], self.tar.read(member)))
        return found

    def raw(self, i: int) -> dict[str, Any]:
        """Sample `i` with the bytes of its members."""
        return self._sample(_place(i, len(self), self.path, "sample"), decode=False)

    def decoded(self, i: int) -> dict[str, Any]:
        """Sample `i` with the values that the handlers make."""
        return self._sample(_place(i, len(self), self.path, "sample"), decode=True)

    def _sample(self, i: int, decode: bool) -> dict[str, Any]:
        # The hot path: one look-up of each array, and one slice, for each member; no call that can be spared.
        index, wanted = self.index, self._wanted
        codes, offsets, sizes, end = index.extension, index.offset, index.size, index.tar_size
        first, last = index.sample_begin[i], index.sample_begin[i + 1]
        if not first < last <= index.num_members:
            index.members(i)  # says what is wrong
        at = index.name_begin[first]
        sample: dict[str, Any] = {
            "__key__": str(index.name[at : at + index.key_size[i]], "utf-8", "surrogateescape")
        }
        buffer = self.tar.plain(self.views and not decode)
        lists: tuple[str, ...] = ()
        for member in range(first, last):
            code = codes[member]
            if code >= len(wanted):
                index.member_extension(member)  # says what is wrong with it
            entry = wanted[code]
            if entry is None:
                continue
            extension, handler = entry
            start = offsets[member]
            stop = start + sizes[member]
            value: Any = self.tar.read(member) if buffer is None or stop > end else buffer[start:stop]
            if decode:
                value = self._decode(handler, value, i, member)
            if extension not in sample:
                sample[extension] = value
            elif extension in lists:
                sample[extension].append(value)
            else:
                sample[extension] = [sample[extension], value]
                lists = (*lists, extension)
        return sample

    def _decode(self, handler: Handler, data: bytes, i: int, member: int) -> Any:
        try:
            return handler(data)
        except UnsafePickle as error:
            raise UnsafePickle(f"{self._whose(i, member)}: {error}") from error
        except Exception as error:
            # A handler, perhaps the caller's own, may raise anything: which sample it was is known here alone.
            reason = str(error) if isinstance(error, ShardflowError) else f"{type(error).__name__}: {error}"
            raise BadSample(f"{self._whose(i, member)}: {reason}") from error

    def _whose(self, i: int, member: int) -> str:
        start, _ = self.index.span(member)
        return f"{self.path}: sample {self.index.key(i)!r}, member {self.index.member_name(member)!r} at byte {start}"

    @overload
    def __getitem__(self, which: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, which: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, which: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(which, slice):
            return [self._sample(i, self.decode) for i in range(*which.indices(len(self)))]
        if type(which) is int and 0 <= which < self.index.num_samples:
            return self._sample(which, self.decode)
        return self._sample(_place(which, len(self), self.path, "sample"), self.decode)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in range(len(self)):
            yield self._sample(i, self.decode)

    def close(self) -> None:
        """Let go of the tar."""
        self.tar.close()


def _reopen_samples(
    tar: IndexedTar,
    handlers: Mapping[str, Handler] | None,
    extensions: Sequence[str] | None,
    decode: bool,
    allow_pickle: bool,
    views: bool,
) -> IndexedTarSamples:
    return IndexedTarSamples(tar, handlers, extensions, decode=decode, allow_pickle=allow_pickle, views=views)


def _dotted(extension: str) -> str:
    return (extension if extension.startswith(".") else "." + extension).lower()
