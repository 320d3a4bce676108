"""The samples of one open tar, decoded or as bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from mmap import mmap
from os import pread
from typing import Any, BinaryIO, overload

from loader.data_handler import Handler, handler_for, make_handlers
from loader.errors import BadSample, ShardflowError, UnsafePickle
from loader.indexed_tar import Closing, IndexedTar, place
from loader.sample import split_number
from loader.storage import StorageOptions

_AHEAD = 32  # samples, while one after the other is read by ranges


class IndexedTarSamples(Closing):
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
        backend: str = "auto",
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
        if views and (decode or backend in ("read", "range") or arguments.get("verify")):
            raise ValueError(
                'views go with decode=False and a map: neither backend="read", "range" nor verify'
            )
        self._arguments = (handlers, extensions, decode, allow_pickle, views)
        if isinstance(path, IndexedTar):
            if arguments or storage_options or backend != "auto":
                raise ValueError("an IndexedTar is open already: say how it is opened where it is made")
            self.tar = path
        else:
            self.tar = IndexedTar(path, backend, storage_options, **arguments)
        self.decode, self.views = decode, views
        self.handlers = make_handlers(handlers, allow_pickle=allow_pickle)
        self.index = self.tar.index
        self._ranged = self.tar.backend == "range"
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
        return self.index.key(place(i, len(self), self.path, "sample"))

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
        members: Sequence[int] = index.members(place(i, len(self), self.path, "sample"))
        for member in members:
            index.member_extension(member)  # checked here
        if (numbers := self._numbers) is not None:
            members = sorted(members, key=lambda member: numbers[index.extension[member]])
        self.prefetch([i])
        for member in members:
            entry = self._wanted[index.extension[member]]
            if entry is not None:
                found.append((index.member_name(member), entry[0], self.tar.read(member)))
        return found

    def prefetch(self, numbers: Iterable[int]) -> None:
        """These samples, by their numbers from 0 on, will be read soon, each once: where the tar is read by ranges, start
        to fetch what is read of them. All at once makes fewer requests than one by one.
        """
        if not self._ranged:
            return
        codes, wanted = self.index.extension, self._wanted
        self.tar.expect(
            member
            for i in numbers
            for member in self.index.members(i)
            if codes[member] < len(wanted) and wanted[codes[member]] is not None
        )

    def raw(self, i: int) -> dict[str, Any]:
        """Sample `i` with the bytes of its members."""
        return self._sample(place(i, len(self), self.path, "sample"), decode=False)

    def decoded(self, i: int) -> dict[str, Any]:
        """Sample `i` with the values that the handlers make."""
        return self._sample(place(i, len(self), self.path, "sample"), decode=True)

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
        buffer: bytes | mmap | memoryview | None = self.tar.plain
        file = self.tar.plain_file
        if self.views and not decode and buffer is not None:
            buffer = memoryview(buffer)
        if self._ranged:
            self.prefetch([i])
        lists: tuple[str, ...] = ()
        for member in range(first, last):
            code = codes[member]
            if code >= len(wanted):
                index.member_extension(member)  # says what is wrong with it
            entry = wanted[code]
            if entry is None:
                continue
            extension, handler = entry
            start, size = offsets[member], sizes[member]
            value: Any
            if buffer is not None and start + size <= end:
                value = buffer[start : start + size]
            elif file is None or start + size > end or len(value := pread(file.number, size, start)) < size:
                value = self.tar.read(member)  # says what is wrong, if anything is
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
            return [self._sample(i, self.decode) for i in self._each(range(*which.indices(len(self))))]
        if type(which) is int and 0 <= which < self.index.num_samples:
            return self._sample(which, self.decode)
        return self._sample(place(which, len(self), self.path, "sample"), self.decode)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in self._each(range(len(self))):
            yield self._sample(i, self.decode)

    def _each(self, numbers: range) -> Iterable[int]:
        """The numbers; where it is read by ranges, with the next samples on their way."""
        return numbers if not self._ranged else self._prefetched(numbers)

    def _prefetched(self, numbers: range) -> Iterator[int]:
        for at, i in enumerate(numbers):
            if at % _AHEAD == 0:
                self.prefetch(numbers[at : at + 2 * _AHEAD])
            yield i

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
