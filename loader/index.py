"""The ``.index`` of a tar as a document: its layout, opened and written.

The file is a safetensors container (named little-endian arrays behind a JSON header, see
https://github.com/huggingface/safetensors#format), so it can be opened without running code, is used where it
lies in the page cache, and any safetensors reader can look into it. docs/format.md lists the arrays.

It is written here rather than by the safetensors package, whose metadata comes in random order: equal tars shall
give equal bytes. Opening reads the header alone; each entry is checked when it is used, so a hostile index costs
an error, never a read outside of its tar. Whether it is what was written, to the byte, `Index.verify` tells.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from loader import storage
from loader.checksums import crc32
from loader.errors import BadAddress, BadIndex, StaleIndex, UnknownIndexVersion
from loader.sample import Groups, split_name
from loader.storage import StorageOptions
from loader.tar import BLOCK

FORMAT = "shardflow.index"
VERSION = 1

_LONGEST_HEADER = 4 << 20
_DTYPES = {"U64": ("<u8", "Q", 8), "U32": ("<u4", "I", 4), "U8": ("u1", "B", 1)}
# name → (dtype, optional); docs/format.md says what each holds
_ARRAYS = {
    "offset": "U64",
    "size": "U64",
    "name_begin": "U64",
    "sample_begin": "U64",
    "extension_begin": "U64",
    "name_crc32": "U32",
    "name_member": "U32",
    "extension": "U32",
    "key_size": "U32",
    "crc32": "U32",
    "name": "U8",
    "extension_name": "U8",
}
_OPTIONAL = {"crc32"}
_EXAMPLES = 5  # names kept for each reason why a member is no sample's


def index_path(address: str, index_root: str | None = None) -> str:
    """Where the index of a tar lies: beside it, or mirrored under `index_root` (for read-only datasets)."""
    if index_root is None:
        return address + ".index"
    mirrored = storage.normalise(address).replace("://", "/").lstrip("/")
    if ".." in mirrored.split("/"):
        raise BadAddress(f"{address} holds '..': give the address itself to keep its index elsewhere")
    return storage.join(storage.normalise(index_root), mirrored + ".index")


class Index:
    """A tar's members in sample order, as arrays that are mapped, not parsed.

    Member i lies at ``offset[i]``, ``size[i]``; sample s is members ``sample_begin[s]`` to
    ``sample_begin[s + 1]``. The arrays index like tuples of int (memoryviews in place). Threads may share one;
    it survives a fork, and is not pickled (open the file again).
    """

    def __init__(self, buffer: bytes | mmap.mmap, where: str) -> None:
        """Take an index from its bytes; BadIndex if they are none of ours (see `foreign`)."""
        self.where, self.buffer = where, buffer
        self.metadata, arrays = _parse(buffer, where)
        self.offset, self.size = arrays["offset"], arrays["size"]
        self.sample_begin, self.key_size = arrays["sample_begin"], arrays["key_size"]
        self.name_begin, self.name = arrays["name_begin"], arrays["name"]
        self.extension = arrays["extension"]
        self.crc32 = arrays.get("crc32")
        self._arrays = arrays
        self.num_members = len(self.offset)
        self.num_samples = len(self.sample_begin) - 1
        self.extensions: tuple[str, ...] = tuple(
            self._texts(arrays["extension_begin"], arrays["extension_name"])
        )
        self.tar_size = _number(self.metadata, "tar_size", where)
        self.checksum = (
            _number(self.metadata, "tar_adler32", where) if "tar_adler32" in self.metadata else None
        )
        self.grouping = self.metadata.get("grouping", "plain")

    @property
    def skipped(self) -> dict[str, dict[str, Any]]:
        """Reason → {"count": n, "names": the first few}: members that are no sample's."""
        try:
            skipped = json.loads(self.metadata.get("skipped", "{}"))
            return {
                str(reason): {"count": int(told["count"]), "names": [str(name) for name in told["names"]]}
                for reason, told in skipped.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise self._damaged("what it says of skipped members is unreadable") from None

    def members(self, sample: int) -> range:
        """The member numbers of one sample, ``0 <= sample < num_samples``."""
        first, last = self.sample_begin[sample], self.sample_begin[sample + 1]
        if not first < last <= self.num_members:
            raise self._damaged(f"sample {sample} claims members {first} to {last} of {self.num_members}")
        return range(first, last)

    def span(self, member: int) -> tuple[int, int]:
        """(first byte, byte after the last) of a member's payload, checked to lie inside the tar."""
        start = self.offset[member]
        end = start + self.size[member]
        if end > self.tar_size:
            raise self._damaged(f"member {member} claims bytes {start} to {end} of a tar of {self.tar_size}")
        return start, end

    def member_name(self, member: int) -> str:
        """The cleaned name of a member; bytes that are no UTF-8 become surrogates."""
        first, last = self.name_begin[member], self.name_begin[member + 1]
        if not first <= last <= len(self.name):
            raise self._damaged(f"member {member} claims bytes {first} to {last} of the names")
        return str(self.name[first:last], "utf-8", "surrogateescape")

    def names(self) -> list[str]:
        """The cleaned names of all members."""
        return self._texts(self.name_begin, self.name)

    def keys(self) -> list[str]:
        """The keys of all samples."""
        sizes, begins = self.key_size, self.name_begin
        firsts = [begins[self.members(sample)[0]] for sample in range(self.num_samples)]
        if sum(sizes) > len(self.name):  # else overlapping ones could take far more memory than the file
            raise self._damaged("the keys are longer than the names")
        return [
            str(self.name[first : first + size], "utf-8", "surrogateescape")
            for first, size in zip(firsts, sizes, strict=True)
        ]

    def _texts(self, begins: memoryview, data: memoryview) -> list[str]:
        numbers = np.asarray(begins)
        if (numbers[:-1] > numbers[1:]).any():  # each byte is in one text: memory is bounded by the file
            raise self._damaged("the texts don't lie one after the other")
        whole = bytes(data)
        return [
            whole[a:b].decode("utf-8", "surrogateescape") for a, b in itertools.pairwise(numbers.tolist())
        ]

    def member_extension(self, member: int) -> str:
        """The extension of a member, lower case, with its dot."""
        code = self.extension[member]
        if code >= len(self.extensions):
            raise self._damaged(f"member {member} claims extension {code} of {len(self.extensions)}")
        return self.extensions[code]

    def key(self, sample: int) -> str:
        """The key of a sample."""
        first = self.name_begin[self.members(sample)[0]]
        return str(self.name[first : first + self.key_size[sample]], "utf-8", "surrogateescape")

    def find_name(self, name: str) -> int:
        """The number of the member of that (cleaned) name; KeyError if there is none."""
        try:
            wanted = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # no name of a member is spelled like that
            raise KeyError(name) from None
        code, begins = crc32(wanted), self.name_begin
        codes = np.asarray(self._arrays["name_crc32"])
        numbers = self._arrays["name_member"]
        for place in range(int(np.searchsorted(codes, np.uint32(code))), len(numbers)):
            if codes[place] != code:
                break
            member = numbers[place]
            if member >= self.num_members:
                raise self._damaged(f"the name table claims member {member} of {self.num_members}")
            first, last = begins[member], begins[member + 1]
            if last - first == len(wanted) and self.name[first:last] == wanted:
                return int(member)
        raise KeyError(name)

    def find_key(self, key: str) -> int:
        """The number of the sample of that key; KeyError if there is none."""
        for extension in self.extensions:
            try:  # its first member, as a rule, is the key and an extension as they stand here
                member = self.find_name(key + extension)
            except KeyError:
                continue
            sample = int(np.searchsorted(np.asarray(self.sample_begin), np.uint64(member), "right")) - 1
            if 0 <= sample < self.num_samples and self.key(sample) == key:
                return sample
        try:
            return self.keys().index(key)
        except ValueError:
            raise KeyError(key) from None

    def verify(self) -> None:
        """BadIndex unless every byte is what was written. Reads all of it; opening doesn't."""
        metadata = {key: value for key, value in self.metadata.items() if key != "digest"}
        if _digest(metadata, self._arrays) != self.metadata.get("digest"):
            raise self._damaged("its bytes have changed since it was written")

    def _damaged(self, what: str) -> BadIndex:
        return BadIndex(f"{self.where}: damaged: {what}. Delete it, and it is built again")

    def check_fresh(self, tar_size: int, head: bytes, read: Any) -> None:
        """StaleIndex unless the tar has the recorded size, and its first and last headers match.

        `read(start, end)` gives bytes of the tar; `head` are its first 512.
        """
        if tar_size != self.tar_size:
            raise StaleIndex(f"{self.where}: made for a tar of {self.tar_size} bytes, not of {tar_size}")
        last = _number(self.metadata, "last_header_at", self.where)
        if last + BLOCK > tar_size:
            raise self._damaged(f"the last header at {last} of a tar of {tar_size}")
        for which, header in (("first", head), ("last", read(last, last + BLOCK))):
            if _fingerprint(header) != self.metadata.get(which + "_header"):
                raise StaleIndex(f"{self.where}: the {which} header of the tar is another one by now")


def _number(metadata: Mapping[str, str], key: str, where: str) -> int:
    value = metadata.get(key, "")
    if not (value.isascii() and value.isdigit()) or len(value) > 19:
        raise BadIndex(f"{where}: damaged: {key} is {value[:40]!r}. Delete it, and it is built again")
    return int(value)


def _fingerprint(header: bytes) -> str:
    return hashlib.sha256(header).hexdigest()[:32]


def _digest(metadata: Mapping[str, str], arrays: Mapping[str, Any]) -> str:
    """BLAKE2b of all that an index says: the metadata as JSON, then each array's name, length and bytes."""
    digest = hashlib.blake2b(json.dumps(dict(sorted(metadata.items()))).encode(), digest_size=16)
    for name, dtype in _ARRAYS.items():
        if name in arrays:
            digest.update(f"{name} {len(arrays[name])} ".encode())
            digest.update(np.ascontiguousarray(arrays[name], _DTYPES[dtype][0]).data)
    return digest.hexdigest()


# -- the container


def foreign(head: bytes) -> str | None:
    """What else a file called ``.index`` may be, by its first bytes; None if it could be ours."""
    # Ours is looked for first: a header of 1,152 bytes begins with 80 04, as pickles do.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _LONGEST_HEADER:
        return None
    if head[:1] == b"\x80" and len(head) > 1 and head[1] < 6:
        return "a pickle, left by some other tool (it is never loaded)"
    return "no index of ours"


def _parse(buffer: bytes | mmap.mmap, where: str) -> tuple[dict[str, str], dict[str, memoryview]]:
    def bad(what: str) -> BadIndex:
        return BadIndex(f"{where}: {what}. Delete it, and it is built again")

    total = len(buffer)
    problem = foreign(buffer[:16])
    if problem:
        raise bad(problem)
    length = int.from_bytes(buffer[:8], "little")
    if 8 + length > total:
        raise bad(f"cut short: a header of {length} bytes in a file of {total}")
    try:
        header = json.loads(buffer[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise bad(f"its header is no JSON ({error})") from None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise bad("a safetensors file, but no index of ours")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise bad("its metadata holds something else than text")
    if metadata.get("version") != str(VERSION):
        raise UnknownIndexVersion(
            f"{where}: version {metadata.get('version')!r} of the index format; this Shardflow reads version "
            f"{VERSION}: upgrade Shardflow, or delete the file to have it built again"
        )
    view = memoryview(buffer)[8 + length :]
    arrays = {}
    for name, wanted in _ARRAYS.items():
        entry = header.get(name)
        if entry is None and name in _OPTIONAL:
            continue
        arrays[name] = _array(entry, wanted, view, bad, name)
    members, samples = len(arrays["offset"]), len(arrays["sample_begin"]) - 1
    lengths = {
        "size": members,
        "name_begin": members + 1,
        "name_crc32": members,
        "name_member": members,
        "extension": members,
        "key_size": samples,
        "crc32": members,
    }
    for name, expected in lengths.items():
        if name in arrays and len(arrays[name]) != expected:
            raise bad(f"damaged: {name} has {len(arrays[name])} entries, {expected} were expected")
    for begin, end in (
        ("sample_begin", members),
        ("name_begin", len(arrays["name"])),
        ("extension_begin", len(arrays["extension_name"])),
    ):
        if not len(arrays[begin]) or arrays[begin][0] != 0 or arrays[begin][-1] != end:
            raise bad(f"damaged: {begin} doesn't run from 0 to {end}")
    return metadata, arrays


def _array(entry: Any, wanted: str, view: memoryview, bad: Any, name: str) -> memoryview:
    dtype, code, width = _DTYPES[wanted]
    try:
        start, end = entry["data_offsets"]
        (count,) = entry["shape"]
        fits = entry["dtype"] == wanted and all(type(n) is int for n in (start, end, count))
    except (TypeError, KeyError, ValueError):
        fits = False
    if not fits or not 0 <= start <= end <= len(view) or end - start != count * width:
        raise bad(f"damaged: the array {name!r} is missing or doesn't fit the file")
    if sys.byteorder == "little":
        return cast("memoryview[int]", view[start:end].cast(code))  # type: ignore[call-overload]
    swapped: Any = np.frombuffer(view[start:end], dtype).astype(code)
    return memoryview(swapped)


def _container(metadata: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    at = 0
    chunks = []
    for name, dtype in _ARRAYS.items():  # widest first, so that each is aligned
        if name not in arrays:
            continue
        data = arrays[name].astype(_DTYPES[dtype][0]).tobytes()
        header[name] = {"dtype": dtype, "shape": [len(arrays[name])], "data_offsets": [at, at + len(data)]}
        at += len(data)
        chunks.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *chunks))


# -- making one


@dataclass
class Entries:
    """A tar's members in tar order, as the writer or the walk saw them, to make an index from."""

    names: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    crcs: list[int] | None = field(default_factory=list)
    skipped: list[tuple[str, bytes]] = field(default_factory=list)
    first_header: bytes = b""
    last_header: bytes = b""
    last_header_at: int = 0
    tar_size: int = 0
    checksum: int | None = None
    trailing: int = 0


def pack_entries(entries: Entries, groups: Groups) -> bytes:
    """The bytes of an index file: a pure function of what the tar holds."""
    order = np.array(groups.order, np.int64)
    names = [groups.names[number] for number in groups.order]
    encoded = [name.encode("utf-8", "surrogateescape") for name in names]
    extensions: dict[str, int] = {}
    codes = [extensions.setdefault(split_name(name)[1].lower(), len(extensions)) for name in names]
    extension_names = [extension.encode("utf-8", "surrogateescape") for extension in extensions]
    hashes = np.fromiter((crc32(name) for name in encoded), np.uint32, len(encoded))
    by_hash = np.argsort(hashes, kind="stable")
    key_sizes = [len(key.encode("utf-8", "surrogateescape")) for key in groups.keys]
    arrays: dict[str, npt.NDArray[Any]] = {
        "offset": np.array(entries.offsets, np.uint64)[order],
        "size": np.array(entries.sizes, np.uint64)[order],
        "name_begin": _begins(encoded),
        "name_crc32": hashes[by_hash],
        "name_member": by_hash,
        "extension": np.array(codes, np.uint32),
        "extension_begin": _begins(extension_names),
        "sample_begin": np.array(groups.begins, np.uint64),
        "key_size": np.array(key_sizes, np.uint32),
        "name": np.frombuffer(b"".join(encoded), np.uint8),
        "extension_name": np.frombuffer(b"".join(extension_names), np.uint8),
    }
    if entries.crcs is not None:
        arrays["crc32"] = np.array(entries.crcs, np.uint32)[order]
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "grouping": groups.rule,
        "tar_size": str(entries.tar_size),
        "first_header": _fingerprint(entries.first_header),
        "last_header": _fingerprint(entries.last_header),
        "last_header_at": str(entries.last_header_at),
        "skipped": json.dumps(_summary(entries, groups), separators=(",", ":"), sort_keys=True),
    }
    if entries.checksum is not None:
        metadata["tar_adler32"] = str(entries.checksum)
    metadata["digest"] = _digest(metadata, arrays)
    return _container(metadata, arrays)


def _begins(items: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    begins = np.zeros(len(items) + 1, np.uint64)
    np.cumsum(np.fromiter(map(len, items), np.uint64, len(items)), out=begins[1:])
    return begins


def _summary(entries: Entries, groups: Groups) -> dict[str, dict[str, Any]]:
    reasons: dict[str, list[str]] = {reason: list(names) for reason, names in groups.skipped.items()}
    for reason, name in entries.skipped:
        reasons.setdefault(reason, []).append(name.decode("utf-8", "backslashreplace"))
    # Surrogates survive in JSON's escapes, but no terminal or file takes them.
    summary: dict[str, dict[str, Any]] = {
        reason: {
            "count": len(names),
            "names": [n.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")[:200]
                      for n in names[:_EXAMPLES]],
        }
        for reason, names in reasons.items()
    }  # fmt: skip
    if entries.trailing:
        summary["bytes after the end of the archive"] = {"count": entries.trailing, "names": []}
    return summary


def load_index(address: str, storage_options: StorageOptions | None = None) -> Index:
    """Open an index file: mapped where it is local, read where it is not.

    FileNotFoundError, or BadIndex if it is damaged, unknown or some other tool's.
    """
    if not storage.is_local(address):
        return Index(storage.read_bytes(address, storage_options), address)
    with open(storage.local_path(address), "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise BadIndex(f"{address}: an empty file. Delete it, and it is built again")
        return Index(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), address)
