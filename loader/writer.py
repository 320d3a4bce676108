"""Samples → shards: a tar and its index, written together, byte for byte the same for the same samples."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, BinaryIO

from loader import storage
from loader.checksums import crc32
from loader.index import Entries, index_path, pack_entries
from loader.sample import Groups, split_name, why_no_sample
from loader.storage import StorageOptions
from loader.tar import BLOCK
from loader.tar_writer import TarWriter, headers_for

Members = Sequence[tuple[str, bytes]]  # (what follows the key in the name: ".json", "-0.jpg"; bytes)

_NUMBERED_KEY = re.compile(r"(?s)(.*)-(?:0|[1-9][0-9]*)\Z")
_NUMBERED_SUFFIX = re.compile(r"(?s)-(0|[1-9][0-9]{0,8})(\..*)\Z")
_LONGEST_NAME = 1 << 16
_LONG_KEY = 1 << 12  # characters; a key or suffix that is longer is looked at more closely


@dataclass(frozen=True)
class ShardInfo:
    """One finished shard: what meta.json says of it. `path` is relative to the dataset's root."""

    path: str
    num_samples: int
    size: int
    checksum: int


_PLAIN_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\Z")
_PLAIN_SUFFIX = re.compile(r"(-(0|[1-9][0-9]{0,8}))?(\.[A-Za-z0-9_]+)+\Z")


class Shard:
    """One tar in the writing. `add` samples, then leave the context: tar first, index after it.

    Nothing carries its final name before it is whole; an exception inside the context leaves nothing behind.
    Raises ValueError for a sample that could not be read back as it was given (see `add`). `behind`: see `TarWriter`.
    """

    def __init__(
        self, address: str, storage_options: StorageOptions | None = None, behind: bool = True
    ) -> None:
        self.address = storage.normalise(address)
        self._options = storage_options
        self._stack = contextlib.ExitStack()
        file: BinaryIO = self._stack.enter_context(storage.publish(self.address, storage_options))
        self._tar = TarWriter(file, behind)
        self._entries = Entries()
        self._names: list[str] = []
        self._order: list[int] = []
        self._begins = [0]
        self._keys: dict[str, None] = {}  # in order
        self._torn = False  # while a sample is being written
        # What a reader could take for each other (see `_check_hyphens`): a key with numbered members, one that
        # looks like a numbered member, what precedes the number in all such of one member, and all keys of one
        # .json.
        self._numbered: str | None = None
        self._ambiguous: str | None = None
        self._bases: set[str] = set()
        self._alone: set[str] = set()
        self.info: ShardInfo | None = None

    @property
    def num_samples(self) -> int:
        """Samples so far."""
        return len(self._keys)

    @property
    def size(self) -> int:
        """Bytes of the tar so far; closing adds 1,024."""
        return self._tar.size

    def add(self, key: str, members: Members) -> None:
        """Write one sample: all of it, or none if it is refused.

        A suffix is an extension (``.json``), or a number and an extension (``-0.jpg``); numbers run 0, 1, 2, …
        A key is unique in its shard and has no dot in its base name, since a name splits at its first dot. In a
        shard that holds numbered members, no key ends in a hyphen and a number.
        """
        self._check_whole()
        shape = _shape(tuple([suffix for suffix, _ in members]))
        encoded = self._check(key, members, shape)
        entries, first = self._entries, len(self._names)
        self._torn = True
        for name, (suffix, data) in zip(encoded, members, strict=True):
            entries.offsets.append(self._tar.add(name, data))
            entries.names.append(name)
            entries.sizes.append(len(data))
            if entries.crcs is not None:
                entries.crcs.append(crc32(data))
            self._names.append(key + suffix)
        self._order += [first + place for place in shape.order]
        self._begins.append(len(self._order))
        self._keys[key] = None
        self._torn = False

    def _check_whole(self) -> None:
        """RuntimeError if writing a sample was interrupted by an error, which its caller did not let pass."""
        if self._torn:
            raise RuntimeError(
                f"{self.address}: a sample was written in part, after an error: write the shard again"
            )

    def _check(self, key: str, members: Members, shape: _Shape) -> list[bytes]:
        """The names as bytes; ValueError or TypeError, and nothing has changed, if the sample can't be written."""
        if key in self._keys:
            raise ValueError(f"sample {key!r} comes twice in {self.address}: keys must be unique")
        if shape.problem:
            raise ValueError(f"sample {key!r} {shape.problem}")
        plain = shape.plain and len(key) < _LONG_KEY and _PLAIN_KEY.match(key) is not None
        if not plain:
            for suffix, stem in zip(shape.suffixes, shape.stems, strict=True):
                if not _readable(key + suffix, key + stem):
                    raise ValueError(
                        f"sample {key!r}: the name {key + suffix!r} would not be read back as key and extension. A "
                        "key is relative, not hidden, holds no '..', and no dot in its last component: replace it, "
                        "by '_' say"
                    )
        for suffix, data in members:
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError(f"sample {key!r}: {suffix!r} is a {type(data).__name__}: bytes were expected")
        hyphen = "-" in key[key.rfind("/") + 1 :]
        if hyphen or shape.numbered or shape.alone:
            self._check_hyphens(key, hyphen, shape)
        if plain:
            return [(key + suffix).encode() for suffix in shape.suffixes]
        return [_encoded(key, key + suffix) for suffix in shape.suffixes]

    def _check_hyphens(self, key: str, hyphen: bool, shape: _Shape) -> None:
        """Refuse what a reader would group in another way, by the rule in `loader.sample`."""
        if hyphen and shape.numbered:
            raise ValueError(f"sample {key!r} has several members of one extension, which are numbered behind a "
                             "hyphen: its key can hold none of its own. Replace it, by '_' say")  # fmt: skip
        like = _NUMBERED_KEY.match(key)
        base = like[1] if like and shape.single else None
        alone = shape.alone and not hyphen
        image, sample = (key if like else self._ambiguous), (key if shape.numbered else self._numbered)
        if base in self._alone:
            sample = base
        elif alone and key in self._bases:
            image, sample = f"{key}-…", key
        if image is not None and sample is not None:
            raise ValueError(
                f"{self.address}: the key {image!r} looks like a numbered image beside sample {sample!r}: "
                "replace the hyphen before the number, by '_' say"
            )
        self._numbered, self._ambiguous = sample, image
        if base is not None:
            self._bases.add(base)
        if alone:
            self._alone.add(key)

    def _finish(self) -> ShardInfo:
        self._check_whole()
        self._tar.close()
        entries, tar = self._entries, self._tar
        entries.tar_size, entries.checksum = tar.size, tar.checksum
        entries.first_header, entries.last_header = tar.first_block, tar.last_header
        entries.last_header_at = tar.last_header_at
        # As a reader would group them, who knows the names alone: `add` refuses what he would take otherwise.
        rule = "plain" if self._numbered is None else "numbered"
        groups = Groups(rule, self._names, self._order, self._begins, list(self._keys))
        index = pack_entries(entries, groups)
        # The index of a tar that was here before goes first: equal in size and in its first and last members, it
        # would pass for the new one's if we were killed in between.
        storage.remove(index_path(self.address), self._options)
        self._stack.close()  # the tar appears
        storage.write_bytes(index_path(self.address), index, self._options)
        return ShardInfo(storage.name(self.address), self.num_samples, entries.tar_size, entries.checksum)

    def __enter__(self) -> Shard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self.info = self._finish()
            except BaseException as failure:
                self._tar.abort()
                self._stack.__exit__(type(failure), failure, failure.__traceback__)
                raise
        else:
            self._tar.abort()
            self._stack.__exit__(kind, error, trace)


@dataclass(frozen=True)
class _Shape:
    """What the suffixes of a sample tell, whatever its key is: worked out once for all samples that have them."""

    suffixes: tuple[str, ...]
    stems: tuple[str, ...]  # what of each belongs to the key, as a reader of one name alone splits it
    order: tuple[int, ...]  # members as a reader gets them: numbered ones by their numbers, behind the .json
    numbered: bool
    alone: bool  # a .json and nothing else
    single: bool  # one member that has no number
    plain: bool  # each fits behind any plain key
    problem: str


@lru_cache(maxsize=1024)
def _shape(suffixes: tuple[str, ...]) -> _Shape:
    numbered = [_NUMBERED_SUFFIX.match(suffix) for suffix in suffixes]
    numbers = {int(match[1]): place for place, match in enumerate(numbered) if match}
    own = [suffix for suffix, match in zip(suffixes, numbered, strict=True) if not match]
    problem = ""
    if not suffixes:
        problem = "has no members: give it at least one extension"
    elif len(set(suffixes)) != len(suffixes):
        problem = f"has two members of one name: {sorted(suffixes)}"
    elif numbers and own != [".json"]:
        problem = (
            "has several members of one extension: beside them it must have one '.json', and nothing else"
        )
    elif sorted(numbers) != list(range(len(suffixes) - len(own))):
        found = sorted(int(match[1]) for match in numbered if match)
        problem = f"has members numbered {found[:20]}: each of 0, 1, 2, … was expected once"
    first = [place for place, match in enumerate(numbered) if not match]
    return _Shape(
        suffixes,
        tuple(
            [
                suffix[: match.start(2)] if match else ""
                for suffix, match in zip(suffixes, numbered, strict=True)
            ]
        ),
        (*first, *(numbers[number] for number in sorted(numbers))),
        bool(numbers),
        [suffix.lower() for suffix in suffixes] == [".json"],
        len(own) == 1,
        all(_PLAIN_SUFFIX.match(suffix) and len(suffix) < _LONG_KEY for suffix in suffixes),
        problem,
    )


def _readable(name: str, stem: str) -> bool:
    """Whether a reader splits a name behind that stem."""
    return not (
        split_name(name)[0] != stem or why_no_sample(name) or name[:1] == "/" or ".." in name.split("/")
    )


def _encoded(key: str, name: str) -> bytes:
    try:
        encoded = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"sample {key!r}: the name {name!r} is no text: {error.reason}") from None
    if b"\0" in encoded or len(encoded) > _LONGEST_NAME:
        raise ValueError(f"sample {key[:80]!r}: a name holds no NUL and at most {_LONGEST_NAME} bytes")
    return encoded


def write_shard(
    address: str, samples: Iterable[tuple[str, Members]], storage_options: StorageOptions | None = None
) -> ShardInfo:
    """Write one whole shard: samples are (key, [(suffix, bytes), …]), suffix being ".json" or "-0.jpg"."""
    with Shard(address, storage_options) as shard:
        for key, members in samples:
            shard.add(key, members)
    if shard.info is None:
        raise RuntimeError(f"{address} was left without being finished")
    return shard.info


class ShardWriter:
    """Write samples into as many shards as the limits ask for. Use it as a context manager::

        with ShardWriter("out", max_samples=1000) as writer:
            writer.write({"__key__": "000000001", ".json": {"caption": "a cat"}, ".jpg": open("a.jpg", "rb").read()})

    A value is bytes as they are, or text (UTF-8), or for ``.json`` anything that JSON holds (JSON that is ready
    goes as bytes), for ``.npy`` an array. A list gives numbered members ``key-0.jpg``, ``key-1.jpg``; such a
    sample has a ``.json`` beside them. Entries such as ``__url__``, which webdataset adds, are left out.

    `name` is the pattern of shard names, filled with 0, 1, 2, … from `start`. A shard is closed before it would
    exceed `max_samples` or `max_bytes` (of the tar); a sample larger than that has a shard of its own. Without
    a sample, no shard is written. Existing shards of the same name are replaced. `close` finishes the last
    shard; an exception inside the context discards it and keeps those before. `shards` lists what is finished.
    Not thread-safe.
    """

    def __init__(
        self,
        root: str,
        name: str = "shard-{:06d}.tar",
        max_samples: int = 10_000,
        max_bytes: int = 1 << 30,
        storage_options: StorageOptions | None = None,
        start: int = 0,
    ) -> None:
        if max_samples < 1 or max_bytes < 1:
            raise ValueError(
                f"max_samples={max_samples}, max_bytes={max_bytes}: at least 1 was expected of each"
            )
        self.root = storage.normalise(root)
        try:
            first, second = name.format(0), name.format(1)
            storage.relative(storage.normalise(storage.join(self.root, first)), self.root)
        except (ValueError, LookupError):
            first = second = ""
        if first == second or not first.endswith(".tar"):
            raise ValueError(f"name is {name!r}: a pattern such as 'shard-{{:06d}}.tar' was expected")
        self.shards: list[ShardInfo] = []
        self._name = name
        self._limits = max_samples, max_bytes
        self._options = storage_options
        self._next = start
        self._shard: Shard | None = None

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample; ValueError or TypeError says what about it can't be written, and nothing is."""
        key, members = encode_sample(sample)
        max_samples, max_bytes = self._limits
        if self._shard is not None and self._shard.num_samples > 0:
            size = sum(
                len(headers_for(_encoded(key, key + s), len(d))) + len(d) + -len(d) % BLOCK
                for s, d in members
            )
            full = self._shard.num_samples >= max_samples or self._shard.size + size + 2 * BLOCK > max_bytes
            if full:
                self._close_shard()
        if self._shard is None:
            self._shard = Shard(storage.join(self.root, self._name.format(self._next)), self._options)
            self._next += 1
        self._shard.add(key, members)

    def _close_shard(self, failure: BaseException | None = None) -> None:
        shard, self._shard = self._shard, None
        if shard is None:
            return
        if failure is not None or shard.num_samples == 0:
            reason = failure or ValueError("no sample")
            shard.__exit__(type(reason), reason, reason.__traceback__)
            return
        shard.__exit__(None, None, None)
        if shard.info is not None:
            relative = storage.relative(shard.address, self.root)
            self.shards.append(
                ShardInfo(relative, shard.info.num_samples, shard.info.size, shard.info.checksum)
            )

    def close(self) -> None:
        """Finish the last shard."""
        self._close_shard()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_shard(error)


def encode_sample(sample: Mapping[str, Any]) -> tuple[str, list[tuple[str, bytes]]]:
    """A sample as `ShardWriter.write` takes it → its key and members."""
    key = sample.get("__key__")
    if not isinstance(key, str) or not key:
        raise ValueError(f"a sample's '__key__' is {key!r}: a text was expected")
    members: list[tuple[str, bytes]] = []
    numbered: list[tuple[str, bytes]] = []
    for extension, value in sample.items():
        if not isinstance(extension, str):
            raise TypeError(
                f"sample {key!r}: {extension!r} is no extension: a text such as '.jpg' was expected"
            )
        if extension.startswith("__"):  # "__key__", and what webdataset adds: "__url__", "__local_path__"
            continue
        dotted = extension if extension.startswith(".") else "." + extension
        if isinstance(value, (list, tuple)) and not dotted.lower().endswith(".json"):
            numbered += [(f"-{len(numbered) + i}{dotted}", encode(dotted, v)) for i, v in enumerate(value)]
        else:
            members.append((dotted, encode(dotted, value)))
    return key, members + numbered


def encode(extension: str, value: Any) -> bytes:
    """A value → the bytes of a member of that extension; TypeError names what would have done."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    kind = extension.lower()
    if kind.endswith(".json"):
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            kind_of_error = TypeError if isinstance(error, TypeError) else ValueError
            raise kind_of_error(f"'{extension}': {error}: give what JSON can hold, or bytes") from None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"'{extension}': {error}: give bytes") from None
    if kind.endswith(".npy"):
        import numpy as np

        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        return buffer.getvalue()
    raise TypeError(
        f"'{extension}' holds a {type(value).__name__}: give bytes or text (for .json also dicts and lists, for "
        ".npy an array); pictures as the bytes of a file"
    )
