"""A folder of pictures: with captions beside them, or a folder for each class.

What pictures there are is written down once, as lines (`tasks.sources.spool`); captions are read by who packs them.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from loader import storage
from loader.errors import BadConfig, BadSample
from tasks import fetch
from tasks.config import PackConfig
from tasks.sources import base, spool
from tasks.sources.base import Found, Segment, SourceFile
from tasks.sources.json_rows import LinesReader, parse

logger = logging.getLogger(__name__)

PICTURES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif",
     ".jxl", ".jp2")
)  # fmt: skip
CAPTIONS = (".txt", ".json")
_AT_ONCE = 64  # remote captions that are read together


class CaptionsReader(LinesReader):
    """Pictures and the .txt or .json beside each; `file` is a listing."""

    def read(self, segment: Segment, light: bool = False) -> Iterator[Found]:
        """Lines of the listing, and the captions that they name."""
        lines = super().read(segment)
        while batch := list(islice(lines, _AT_ONCE)):
            listed = [found.record or {} for found in batch]
            root = self.file.base
            remote = [] if storage.is_local(root) else [
                f"{root}/{entry[name]}" for entry in listed for name in CAPTIONS if name in entry
            ]  # fmt: skip
            ready = fetch.read_remote(remote, self.config.options_for) if remote else {}
            for found, entry in zip(batch, listed, strict=True):
                yield self._found(found, entry, ready)

    def _found(self, found: Found, entry: dict[str, Any], ready: dict[str, bytes | BadSample]) -> Found:
        picture, data = entry.get("image"), found.data
        captions = [entry[name] for name in CAPTIONS if name in entry]
        if not picture:
            return Found(
                found.row, data, None, f"{captions[0]}: a caption, but no picture of that name beside it"
            )
        if not captions:
            return Found(found.row, data, None, f"{picture}: no .txt or .json of that name beside it")
        record: dict[str, Any] = {}
        for name in reversed(captions):  # what the .txt says goes before what the .json does
            place = f"{self.file.base}/{name}"
            try:
                content = fetch.read_local(place)[0] if storage.is_local(place) else ready[place]
                if isinstance(content, BadSample):
                    raise content
            except BadSample as error:
                return Found(found.row, data, None, str(error))
            data += content
            if place.lower().endswith(".txt"):
                text, problem = _text(content)
                record["caption"] = text
            else:
                document, problem = parse(content.removeprefix(base.BOM))
                record |= document or {}
            if problem:
                return Found(found.row, data, None, f"{place}: {problem}")
        return Found(found.row, data, record | {"image": picture})


def _text(content: bytes) -> tuple[str, str]:
    try:
        return content.decode("utf-8-sig").strip(), ""
    except UnicodeDecodeError as error:
        return "", f"not UTF-8: {error.reason} at byte {error.start + 1}"


def with_captions(root: str, files: list[str], config: PackConfig) -> SourceFile:
    """Each picture and what lies beside it; a caption without a picture is a row as well, and a bad one."""
    beside: dict[str, tuple[str, ...]] = {}
    others: Counter[str] = Counter()
    for file in files:
        stem, suffix = split(file)
        if suffix in CAPTIONS:
            beside[stem] = (*beside.get(stem, ()), file)
        elif suffix not in PICTURES:
            others[suffix or "no extension"] += 1
    _tell(root, others)
    alone = set(beside)
    for file in files:
        stem, suffix = split(file)
        if suffix in PICTURES:
            alone.discard(stem)

    def entries() -> Iterator[bytes]:
        for file in files:
            stem, suffix = split(file)
            captions = {split(caption)[1]: caption for caption in beside.get(stem, ())}
            if suffix in PICTURES:
                yield _line({"image": file, **captions}, root)
            elif stem in alone and file == beside[stem][0]:
                yield _line(captions, root)

    return spool.written("captions", entries(), config, root)


def with_classes(root: str, files: list[str], config: PackConfig) -> SourceFile:
    """Each picture with the name of the folder that it lies in as its caption."""
    pictures = [file for file in files if split(file)[1] in PICTURES]
    _tell(root, Counter(split(file)[1] or "no extension" for file in files if split(file)[1] not in PICTURES))
    lines = (_line({"image": file}, root, _label(file, root)) for file in pictures)
    return spool.written("jsonl", lines, config, root)


def _label(file: str, root: str) -> dict[str, str]:
    folder = storage.parent(file)
    if folder == root:
        return {}
    return {"caption": storage.name(folder), "label": storage.name(folder)}


def _tell(root: str, others: Counter[str]) -> None:
    if others:
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(5))
        logger.warning("source %s: %s files that are neither pictures nor captions take no part (%s)", root,
                       f"{others.total():,}", kinds)  # fmt: skip


def _line(files: dict[str, str], root: str, more: dict[str, str] | None = None) -> bytes:
    """One entry of a listing; its files as seen from the root, so that a folder that is moved stays what it is."""
    entry = {name: storage.relative(file, root) for name, file in files.items()} | (more or {})
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def split(file: str) -> tuple[str, str]:
    """(address up to the last dot of its name, the extension in lower case)."""
    name = storage.name(file)
    dot = name.rfind(".")
    if dot <= 0:
        return file, ""
    return file[: len(file) - len(name) + dot], name[dot:].lower()


def looks_like(root: str, files: list[str]) -> str:
    """The kind of a folder with pictures in it: "captions", "classes", or "" where it has neither."""
    stems = {stem for stem, suffix in map(split, files) if suffix in PICTURES}
    if any(stem in stems for stem, suffix in map(split, files) if suffix in CAPTIONS):
        return "captions"
    inside = [file for file in files if split(file)[1] in PICTURES]
    return "classes" if any(storage.parent(file) != root for file in inside) else ""


def check_pictures(root: str, files: list[str]) -> None:
    """BadConfig for a folder without any."""
    if not any(split(file)[1] in PICTURES for file in files):
        raise BadConfig(f"source is {root}: no file there ends in {', '.join(sorted(PICTURES))}")
