"""What a tar, an index, a dataset folder, a meta.json or one sample holds, for a person to look at.

`describe` only reads: no index is written, nothing is unpickled, and of arrays the headers alone are read. It gives
plain data (`Page`); `show` prints it, with whatever a name or caption holds made harmless.
"""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np
from numpy.lib import format as npy

from loader import storage
from loader.checksums import crc32
from loader.errors import BadIndex, BadSample
from loader.find_sample import dataset_root, find_sample, index_of, split_address
from loader.index import Index, load_index
from loader.indexing import check_fresh, find_fresh
from loader.meta import ShardMeta, meta_address, read_meta
from loader.progress import command, each, human_size, listing, table
from loader.storage import StorageOptions
from loader.verify_sidecar import origins

NAME = "shardflow show"
LIMIT = 10  # samples, shards or members that are listed, unless said otherwise
_LINES = 60  # of one value
_WIDTH = 2_000  # characters of one line
_LARGEST = 64 << 20  # bytes of a member that is read to be shown
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
_TEXTS = (".txt", ".cls", ".csv", ".md", ".html", ".xml", ".yaml", ".caption", ".text")


@dataclass(frozen=True)
class Section:
    """One table: title, column names, rows of plain values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass
class Page:
    """What `show` prints: facts, tables, and long values as (title, lines)."""

    title: str
    facts: list[tuple[str, object]] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    values: list[tuple[str, list[str]]] = field(default_factory=list)


def show(
    path: str,
    limit: int = LIMIT,
    storage_options: StorageOptions | None = None,
    stream: TextIO | None = None,
) -> None:
    """Print what `path` holds (see `describe`), on stdout unless told otherwise."""
    page = describe(path, limit, storage_options)
    table("", [page.title, ""], page.facts, stream)
    for section in page.sections:
        table(section.title, section.columns, section.rows, stream)
    for title, lines in page.values:
        listing(title, lines, stream)


def main(paths: Sequence[str], limit: int = LIMIT) -> int:
    """The body of ``shardflow show``: print each of `paths`; returns the exit status, 1 if one of them is bad."""

    def one(path: str) -> int:
        show(path, limit)
        return 0

    return command(lambda: each(paths, NAME, one), NAME)


def describe(path: str, limit: int = LIMIT, storage_options: StorageOptions | None = None) -> Page:
    """What `path` holds: a tar, an ``.index``, a dataset folder, a meta.json, or a sample of a tar or dataset.

    A sample is ``PATH#17`` (its number; -1 is the last) or ``PATH#key``. FileNotFoundError,
    BadAddress, BadTar, BadIndex or BadMeta say what is wrong with it.
    """
    address, which = split_address(path, storage_options)
    if which is not None:
        return _sample_page(address, which, storage_options)
    if storage.is_dir(address, storage_options) or address.endswith(".json"):
        return _dataset_page(address, limit, storage_options)
    if address.endswith(".index"):
        return _index_page(address, limit, storage_options)
    return _tar_page(address, limit, storage_options)


# -- pages


def _tar_page(address: str, limit: int, storage_options: StorageOptions | None) -> Page:
    index, state = index_of(address, storage_options)
    page = Page("tar", [("path", address), ("size", human_size(index.tar_size))])
    page.facts += [*_index_facts(index), ("index", state)]
    page.sections += [*_extension_section(index), *_sample_section(index, limit), *_skipped_section(index)]
    return page


def _index_page(address: str, limit: int, storage_options: StorageOptions | None) -> Page:
    index = load_index(address, storage_options)
    tar = address.removesuffix(".index")
    page = Page("index", [("path", address), ("version", index.metadata.get("version"))])
    try:
        check_fresh(index, tar, storage_options)
        state = "fresh"
    except FileNotFoundError:
        state = "its tar is not beside it"
    except BadIndex as error:
        state = str(error)
    page.facts += [("tar size", human_size(index.tar_size)), *_index_facts(index), ("state", state)]
    page.sections += [*_extension_section(index), *_sample_section(index, limit), *_skipped_section(index)]
    return page


def _dataset_page(address: str, limit: int, storage_options: StorageOptions | None) -> Page:
    page = Page("dataset", [("path", address)])
    root = dataset_root(address, storage_options)
    meta = meta_address(address)
    if meta != address and not storage.exists(meta, storage_options):
        tars = storage.list_files(root, ".tar", storage_options)
        if not tars:
            raise FileNotFoundError(f"{address}: neither a meta.json nor any .tar files in it")
        page.facts += [("shards", len(tars)), ("meta", f"none yet: run gen_meta {root}")]
        rows = [
            (storage.relative(tar, root), human_size(storage.stat(tar, storage_options).size))
            for tar in tars[:limit]
        ]
        page.sections.append(Section(_first("Shards", len(tars), limit), ["shard", "size"], rows))
        return page
    shards = read_meta(meta, storage_options)
    page.facts += [
        ("meta", meta),
        ("shards", len(shards)),
        ("samples", sum(shard.num_samples for shard in shards.values())),
        ("size", human_size(sum(shard.size for shard in shards.values()))),
    ]
    listed = [
        (path, shard.num_samples, human_size(shard.size), str("not known" if shard.checksum is None else shard.checksum),
         _shard_state(storage.join(root, path), shard, storage_options))
        for path, shard in itertools.islice(shards.items(), limit)
    ]  # fmt: skip
    columns = ["shard", "samples", "size", "adler32", "index"]
    page.sections.append(Section(_first("Shards", len(shards), limit), columns, listed))
    return page


def _shard_state(address: str, shard: ShardMeta, storage_options: StorageOptions | None) -> str:
    try:
        if storage.stat(address, storage_options).size != shard.size:
            return "the tar has another size than meta.json says"
        index, state = find_fresh(address, storage_options)
    except FileNotFoundError:
        return "no such tar"
    except BadIndex as error:
        return str(error)
    if index is not None and index.num_samples != shard.num_samples:
        return f"knows {index.num_samples} samples"
    return state


def _sample_page(address: str, which: str, storage_options: StorageOptions | None) -> Page:
    tar, index, number = find_sample(address, which, storage_options)
    page = Page("sample", [("tar", tar), ("number", number), ("key", index.key(number))])
    if came_from := origins(tar, {index.key(number)}, storage_options):
        page.facts.append(("packed from", came_from[index.key(number)]))
    rows = []
    for member in index.members(number):
        start, end = index.span(member)
        name, extension = index.member_name(member), index.member_extension(member)
        whole = end - start <= _LARGEST
        data = storage.read_bytes(tar, storage_options, start, end if whole else start + 32)
        lines = value_lines(extension, data) if whole else [*_hex(data), "too large to be shown"]
        if whole and index.crc32 is not None and crc32(data) != index.crc32[member]:
            lines.insert(0, "THE BYTES HAVE CHANGED since they were indexed (CRC-32)")
        rows.append((name, human_size(end - start), start))
        page.values.append((name, lines))
    page.sections.append(Section("", ["member", "size", "at byte"], rows))
    return page


# -- sections


def _index_facts(index: Index) -> list[tuple[str, object]]:
    checksum = "not known (gen_meta adds it)" if index.checksum is None else f"{index.checksum} (adler32)"
    return [
        ("samples", index.num_samples),
        ("members", index.num_members),
        ("grouping", index.grouping),
        ("checksum", checksum),
    ]


def _first(what: str, count: int, limit: int) -> str:
    return what if count <= limit else f"{what}: the first {limit:,} of {count:,}"


def _extension_section(index: Index) -> Iterator[Section]:
    codes, sizes = np.frombuffer(index.extension, np.uint32), np.frombuffer(index.size, np.uint64)
    if not len(codes):
        return
    if int(codes.max()) >= len(index.extensions):
        raise BadIndex(
            f"{index.where}: damaged: an extension it doesn't list. Delete it, and it is built again"
        )
    counts = np.bincount(codes, minlength=len(index.extensions))
    totals = np.bincount(codes, weights=sizes.astype(np.float64), minlength=len(index.extensions))
    rows = [
        (extension, count, human_size(total), human_size(total / max(1, count)))
        for extension, count, total in zip(index.extensions, counts.tolist(), totals.tolist(), strict=True)
    ]
    rows.sort(key=lambda row: (-row[1], row[0]))
    columns = ["extension", "members", "bytes", "on average"]
    yield Section(_first("Extensions", len(rows), 20), columns, rows[:20])


def _sample_section(index: Index, limit: int) -> Iterator[Section]:
    rows = []
    for sample in range(min(limit, index.num_samples)):
        members = index.members(sample)
        size = sum(end - start for start, end in map(index.span, members))
        kinds = " ".join(index.member_extension(member) for member in members[:LIMIT])
        more = f" and {len(members) - LIMIT:,} more" if len(members) > LIMIT else ""
        rows.append((sample, index.key(sample), kinds + more, human_size(size)))
    if rows:
        yield Section(
            _first("Samples", index.num_samples, limit), ["number", "key", "members", "bytes"], rows
        )


def _skipped_section(index: Index) -> Iterator[Section]:
    try:
        rows = [
            (why, entry["count"], ", ".join(map(repr, entry["names"])))
            for why, entry in index.skipped.items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadIndex(f"{index.where}: damaged: its list of skipped members") from error
    if rows:
        yield Section("Left out of the samples", ["why", "count", "for example"], rows)


# -- values


def value_lines(extension: str, data: bytes) -> list[str]:
    """A member's value as lines for a person, at most 60 of 2,000 characters. Never raises for bad data."""
    kind = "." + extension.rpartition(".")[2]
    describer = next((how for kinds, how in _DESCRIBERS if kind in kinds), _hex)
    try:
        lines = describer(data)
    except Exception as error:  # noqa: BLE001 - what decoders raise for hostile bytes has no end
        known = isinstance(error, (BadSample, ValueError))
        lines = [f"cannot be read: {error if known else repr(error)}", *_hex(data)]
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], f"... and {len(lines) - _LINES:,} more lines"]
    return [line if len(line) <= _WIDTH else f"{line[:_WIDTH]} ..." for line in lines]


def _hex(data: bytes) -> list[str]:
    return [f"{len(data):,} bytes: {data[:32].hex(' ')}{' ...' if len(data) > 32 else ''}"]


def _text(data: bytes) -> list[str]:
    return data.decode("utf-8").splitlines() or ["(empty)"]


def _json(data: bytes) -> list[str]:
    return json.dumps(json.loads(data), indent=2, ensure_ascii=False).splitlines()


def _image(data: bytes) -> list[str]:
    from loader.images import decode_image, image_extension

    image = decode_image(data)
    kind = (image_extension(data) or "picture").removeprefix(".")
    return [f"{kind}, {image.width} × {image.height} pixels as seen, {human_size(len(data))}"]


def _npy(data: bytes) -> list[str]:
    return [_npy_header(io.BytesIO(data))]


def _npy_header(file: Any) -> str:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return f"array of {dtype}, shape {shape}"


def _npz(data: bytes) -> list[str]:
    lines = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist()[:_LINES]:
            with archive.open(name) as file:
                what = _npy_header(file) if name.endswith(".npy") else "no array"
            lines.append(f"{name.removesuffix('.npy')}: {what}")
    return lines or ["no arrays"]


def _pickle(data: bytes) -> list[str]:
    return [f"a pickle of {len(data):,} bytes: not loaded, since that can run code"]


_DESCRIBERS: tuple[tuple[tuple[str, ...], Callable[[bytes], list[str]]], ...] = (
    (_TEXTS, _text),
    ((".json",), _json),
    (_IMAGES, _image),
    ((".npy",), _npy),
    ((".npz",), _npz),
    ((".pickle", ".pkl"), _pickle),
)
