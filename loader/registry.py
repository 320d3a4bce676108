"""The registry (``configs/datasets.json``, or YAML): dataset names, and the patterns that choose among them.

``{name: {data_type, dir, tar_meta_path, num_samples, description, storage_options}}``. `data_type` and `dir`
are required. `dir` and `tar_meta_path` are URLs, absolute paths, or relative to the folder that holds the
registry, so that they mean the same wherever a command is started. `tar_meta_path` defaults to the
``meta.json`` in `dir`; `num_samples` (for people) and `description` may be left out.

Names look like ``text2image/BLIP3o-60k``. A pattern is a name, a folder of names (``text2image``), or a glob
over either (``*/BLIP3o-*``; ``*`` stops at ``/``); several are separated by commas.
"""

from __future__ import annotations

import difflib
import fnmatch
import posixpath
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from loader import storage
from loader.errors import BadMeta, UnknownDataset
from loader.meta import META_NAME, parse_json
from loader.storage import StorageOptions

MAX_BYTES = 8 << 20  # of a JSON registry: some 20,000 datasets
MAX_YAML_BYTES = 1 << 20  # YAML takes 100 times the time, and a kilobyte a value
_FIELDS = ("data_type", "dir", "tar_meta_path", "num_samples", "description", "storage_options")
_NO_SECRETS = {"endpoint_url", "endpoint", "region_name", "region", "profile", "project", "version"}
_CREDENTIALS = re.compile(r"://[^/@]*:[^/@]*@")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """One dataset: absolute addresses; `storage_options` for both, which may hold secrets and is never shown."""

    name: str
    data_type: str
    dir: str
    tar_meta_path: str
    num_samples: int | None = None
    description: str = ""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)


def load_registry(path: str, storage_options: StorageOptions | None = None) -> dict[str, DatasetEntry]:
    """The entries by name, in the order of the file; `storage_options` is for the registry file itself.

    A name that ends in ``.yaml`` or ``.yml`` is YAML, every other JSON. BadMeta if it is missing or malformed.
    """
    file = storage.normalise(path)
    data = _read(file, storage_options)
    document = _parse_yaml(data, file) if _is_yaml(file) else parse_json(data, file)
    if not isinstance(document, dict):
        _refuse(file, f"holds {_kind(document)}", "one object {name: {data_type, dir, ...}}")
    return {name: _entry(name, fields, file) for name, fields in document.items()}


def resolve(pattern: str, registry: Mapping[str, DatasetEntry]) -> list[DatasetEntry]:
    """The entries that a comma-separated pattern names, each once.

    Order: that of the patterns, and within one that of the registry. UnknownDataset if a part matches nothing.
    """
    parts = [part for text in pattern.split(",") if (part := text.strip().rstrip("/"))]
    if not parts:
        raise UnknownDataset(f"{pattern!r} names no dataset: give a name, a folder of names or a glob")
    found: dict[str, DatasetEntry] = {}
    for part in parts:
        matches = matching(part, registry)
        if not matches:
            raise UnknownDataset(
                f"{part!r} matches none of the {len(registry)} datasets in the registry. {_nearest(part, registry)}"
            )
        found |= {name: registry[name] for name in matches}
    return list(found.values())


def redactor(*options: StorageOptions | None) -> Callable[[str], str]:
    """A function that blots out what storage options hold wherever it stands in a text.

    Errors of storage libraries may quote it. Numbers, and texts of up to three characters, are no secrets.
    """
    secrets = sorted(set().union(*map(_leaves, options)), key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    return redact


def _leaves(options: object) -> set[str]:
    """The texts in nested options. Each container is looked at once: YAML can make them share or hold themselves."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[object] = [options]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if len(value) > 3:
                found.add(value)
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            inner = value.items() if isinstance(value, Mapping) else enumerate(value)
            waiting += [item for key, item in inner if key not in _NO_SECRETS]
    return found


def matching(part: str, names: Mapping[str, object]) -> list[str]:
    """The names that one pattern (no commas) means, in their order; an exact name means itself alone."""
    if part in names:
        return [part]
    wanted = part.split("/")
    return [
        name
        for name in names
        if len(have := name.split("/")) >= len(wanted)
        and all(fnmatch.fnmatchcase(*pair) for pair in zip(have, wanted, strict=False))
    ]


def _nearest(part: str, registry: Mapping[str, DatasetEntry]) -> str:
    folders = {name.rpartition("/")[0] for name in registry} - {""}
    known = {text.lower(): text for text in [*folders, *registry]}
    near = difflib.get_close_matches(part.lower(), known, n=5, cutoff=0.4)
    if near:
        return "Nearest: " + ", ".join(known[text] for text in near)
    return "It holds: " + ", ".join(sorted(registry)[:5]) + (", ..." if len(registry) > 5 else "")


def _is_yaml(file: str) -> bool:
    return file.lower().endswith((".yaml", ".yml"))


def _read(file: str, storage_options: StorageOptions | None) -> bytes:
    try:
        size = storage.stat(file, storage_options).size
        limit = MAX_YAML_BYTES if _is_yaml(file) else MAX_BYTES
        if size > limit:
            _refuse(file, f"has {size:,} bytes", f"at most {limit:,}")
        return storage.read_bytes(file, storage_options)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise BadMeta(
            f"{file} is no file: expected a registry of datasets, such as configs/datasets.json. "
            "Correct the path, or write one: {name: {data_type, dir}}"
        ) from error


def _entry(name: Any, fields: Any, file: str) -> DatasetEntry:
    _check_name(name, file)
    if not isinstance(fields, dict):
        _refuse(file, f"{name!r} is {_kind(fields)}", "an object {data_type, dir, ...}")
    for key in fields:
        # What other tools add is ignored, but a slip of the pen is not.
        meant = [] if key in _FIELDS else difflib.get_close_matches(str(key), _FIELDS, n=1, cutoff=0.8)
        if meant:
            _refuse(file, f"{name!r} has the field {str(key)[:40]!r}", f"{meant[0]!r}, if that was meant")
    folder = _address(_text(fields, "dir", name, file), "dir", name, file)
    meta_path = _text(fields, "tar_meta_path", name, file, default="")
    count = fields.get("num_samples")
    if count is not None and (type(count) is not int or not 0 <= count < 1 << 63):
        _refuse(file, f"{name!r}: num_samples is {_kind(count)}", "a whole number, 0 or more, or nothing")
    options = fields.get("storage_options")
    if options is not None and not (
        isinstance(options, dict) and all(isinstance(key, str) for key in options)
    ):
        _refuse(file, f"{name!r}: storage_options is {_kind(options)}", "an object, as fsspec takes it")
    return DatasetEntry(
        name=name,
        data_type=_text(fields, "data_type", name, file),
        dir=folder,
        tar_meta_path=_address(meta_path, "tar_meta_path", name, file)
        if meta_path
        else storage.join(folder, META_NAME),
        num_samples=count,
        description=_text(fields, "description", name, file, default=""),
        storage_options=options,
    )


def _check_name(name: Any, file: str) -> None:
    expected = "a text such as 'text2image/BLIP3o-60k': no comma, no spaces around it, no empty part"
    if not isinstance(name, str):
        _refuse(file, f"a name is {_kind(name)}", expected)
    if (
        name != name.strip()
        or "," in name
        or {"", ".", ".."} & set(name.split("/"))
        or not name.isprintable()
    ):
        _refuse(file, f"the name {ascii(name)[:80]}", expected)


def _text(fields: Mapping[str, Any], key: str, name: str, file: str, default: str | None = None) -> str:
    value = fields.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (default is None and not value):
        found = f"is {_kind(value)}" if key in fields else "is missing"
        _refuse(file, f"{name!r}: {key} {found}", "a text")
    return value


def _address(text: str, key: str, name: str, file: str) -> str:
    """The absolute address that the registry `file` means by `text`."""
    if _CREDENTIALS.search(text):
        _refuse(file, f"{name!r}: {key} holds a password", "it in storage_options, which is never shown")
    if "::" in text or "\0" in text:
        _refuse(file, f"{name!r}: {key} is {ascii(text)[:80]}", "a path or one URL")
    if "://" in text or text.startswith(("/", "~")):
        return storage.normalise(text)
    folder = storage.parent(file)
    protocol, separator, place = folder.rpartition("://")
    path = posixpath.normpath(posixpath.join(place, text))
    if path.startswith("..") and path[2:3] in ("", "/"):
        _refuse(file, f"{name!r}: {key} is {ascii(text)[:80]}, above the top of {protocol}://", "fewer '..'")
    return storage.normalise(protocol + separator + path)


class _Yaml(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, as the JSON reader does.

    The pure Python loader on purpose: libyaml's recurses in C, where deep nesting ends the process.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(
                problem="a key is given more than once", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


def _parse_yaml(data: bytes, file: str) -> Any:
    try:
        return yaml.load(data.decode("utf-8-sig"), _Yaml)
    except RecursionError:
        _refuse(file, "is nested too deeply", "objects a few levels deep")
    # Beside its own errors PyYAML lets through what its converters meet: `!!int ""`, `!!bool x`, `!!timestamp x`.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        # YAML's own messages quote the lines around the fault: one of them may be a secret.
        problem = _QUOTED.sub("'...'", getattr(error, "problem", None) or "not UTF-8, or an unknown value")
        _refuse(file, f"is no YAML ({problem}{place})", "one mapping {name: {data_type, dir, ...}}")


def _kind(value: Any) -> str:
    """What a value is, not what it says: it may be a secret in the wrong place."""
    if value is None:
        return "nothing"
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
    return kinds.get(type(value), f"a {type(value).__name__}") + (
        " that is empty" if value in ("", {}, []) else ""
    )


def _refuse(file: str, found: str, expected: str) -> NoReturn:
    # "from None": an inner error may quote the text of the file
    raise BadMeta(f"{file}: {found}; expected {expected}. Correct the file") from None
