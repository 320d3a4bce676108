"""Which kind a source is of, and which files it means: found from what is there, or as ``source_kind`` says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from loader import storage
from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.source_options import is_callable, source_parts
from tasks.sources import folder_rows, spool
from tasks.sources.base import SourceFile, described, options_of
from tasks.sources.folder_rows import PICTURES, split
from tasks.sources.saved_rows import STATE

SUFFIXES = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tar": "tar",
}
_KNOWN = ", ".join(SUFFIXES)
_METADATA = re.compile(r"metadata\.(csv|jsonl|parquet)", re.IGNORECASE)
_TABLES = {"csv", "jsonl", "parquet"}
_BEGINNINGS = {b"PAR1": "parquet", b"{": "jsonl", b"[": "json"}


def find_sources(config: PackConfig) -> list[SourceFile]:
    """The files that rows are read from, in the order of their names, source by source. BadConfig if there are none.

    Hidden files, and the job's own output, are none. What has to be made of a source before it can be read
    (`tasks.sources.spool`) is made.
    """
    return [file for pattern in source_parts(config.source) for file in _files(pattern, config)]


def _files(pattern: str, config: PackConfig) -> list[SourceFile]:
    kind = config.source_kind
    if kind == "python" or (kind == "auto" and is_callable(pattern)):
        raise BadConfig(f"source is {pattern}: a function can't be one of several sources")
    found = _expanded(pattern, config)
    if found != [pattern] and kind == "auto" and not _is_glob(pattern):
        kind = _kind_of_folder(pattern, found)
    if kind in ("captions", "classes"):
        folder_rows.check_pictures(pattern, found)
        make = folder_rows.with_captions if kind == "captions" else folder_rows.with_classes
        return [make(storage.parent(_fixed(pattern) + "x") if _is_glob(pattern) else pattern, found, config)]
    if kind == "datasets":
        return [_saved(file, config) for file in _states(pattern, found)]
    if found == [pattern]:
        return [_one_file(pattern, kind, config)]
    return [_described(file, kind, config) for file in _of_kind(pattern, kind, found)]


def _expanded(pattern: str, config: PackConfig) -> list[str]:
    try:
        found = storage.expand(pattern, storage_options=options_of(config, pattern))
    except FileNotFoundError as error:
        raise BadConfig(f"source: {error}") from error
    if found != [pattern]:
        fixed = _fixed(pattern)
        found = [file for file in found if "/." not in "/" + file[len(fixed) :]]
    inside = config.output.rstrip("/") + "/"
    sources = [file for file in found if not file.startswith(inside)]
    if found and not sources:
        raise BadConfig(
            f"output is {config.output}, which holds the sources themselves: choose another folder"
        )
    return sources


def _is_glob(pattern: str) -> bool:
    return _fixed(pattern) != pattern


def _fixed(pattern: str) -> str:
    """What is spelled out of a pattern."""
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0]


def _kind_of_folder(folder: str, files: list[str]) -> str:
    """By what lies in it; the first that fits. "" leaves it to each file's name."""
    saved = {storage.join(folder, name) for name in (STATE, "dataset_info.json", "dataset_dict.json")}
    found = saved.intersection(files)
    if len(found) > 1 or storage.join(folder, "dataset_dict.json") in found:
        return "datasets"
    kinds = {_kind(file)[0] for file in files}
    if "tar" in kinds:  # whose statistics and tables may lie beside them
        return "tar"
    if kinds & _TABLES and any(_METADATA.fullmatch(storage.name(file)) for file in files):
        return "imagefolder"
    kind = folder_rows.looks_like(folder, files)
    if kind == "captions" or kinds == {""}:
        if not kind and any(split(file)[1] in PICTURES for file in files):
            raise BadConfig(
                f"source is {folder}: pictures, but no captions. Expected is a.txt or a.json beside a.jpg, a folder for "
                "each class, a metadata.csv with file_name, or records that name the pictures"
            )
        return kind
    return ""


def _kind(address: str) -> tuple[str, str]:
    """(kind, compression) that a name speaks of; empty texts where it doesn't."""
    name = storage.name(address).lower()
    compression = ""
    for ending, how in spool.COMPRESSIONS.items():
        if name.endswith(ending):
            name, compression = name.removesuffix(ending), how
            break
    if name.endswith(".tgz"):
        return "tar", "gzip"
    kind = SUFFIXES.get(name[name.rfind(".") :] if "." in name else "", "")
    return kind, compression if kind else ""


def _of_kind(pattern: str, kind: str, files: Iterable[str]) -> Iterator[str]:
    """Those that can be read, or that are of the kind that was asked for."""
    found = False
    for file in files:
        known = _kind(file)[0]
        wanted = {
            "auto": known,
            "": known,
            "imagefolder": known if _METADATA.fullmatch(storage.name(file)) else "",
        }
        if wanted.get(kind, known if known == kind else ""):
            found = True
            yield file
    if not found:
        expected = {
            "auto": _KNOWN,
            "": _KNOWN,
            "imagefolder": "metadata.csv, metadata.jsonl or metadata.parquet",
        }
        endings = ", ".join(ending for ending, known in SUFFIXES.items() if known == kind)
        raise BadConfig(f"source is {pattern}: no file there ends in {expected.get(kind, endings)}")


def _one_file(address: str, kind: str, config: PackConfig) -> SourceFile:
    if kind not in ("auto", "imagefolder") or _kind(address)[0]:
        return _described(address, kind, config)
    with storage.open_read(address, options_of(config, address)) as stream:
        head = stream.read(512)
    if head[257:262] == b"ustar":
        return _described(address, "tar", config)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for beginning, known in _BEGINNINGS.items():
        if text.startswith(beginning):
            return _described(address, known, config)
    raise BadConfig(
        f"source is {address}: a name that ends in {_KNOWN} was expected, or one of these with .gz or .zst behind; "
        "if it is one all the same, say which with source_kind"
    )


def _described(address: str, kind: str, config: PackConfig) -> SourceFile:
    known, compression = _kind(address)
    if kind not in ("auto", "", "imagefolder"):
        known = kind
        ending = split(address)[1]
        compression = compression or spool.COMPRESSIONS.get(ending, "")
    file = described(address, config, known)
    if compression and known == "parquet":
        raise BadConfig(f"source {address}: Parquet compresses its own pages: unpack the file")
    return spool.unpacked(file, compression, config) if compression else file


def _states(pattern: str, files: list[str]) -> list[str]:
    """The ``state.json`` of each dataset: one, or one for each split."""
    found = [file for file in files if storage.name(file) == STATE]
    if not found:
        raise BadConfig(f"source is {pattern}: no {STATE} there, as save_to_disk writes it")
    return found


def _saved(state: str, config: PackConfig) -> SourceFile:
    return described(state, config, "datasets")
