"""`PackConfig`: everything that a packing job can be told, checked once, early.

The one place where fields, defaults and descriptions are written: YAML, command line and the flow's form are
made from it (`fields`).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, replace
from dataclasses import fields as _fields
from typing import Any, NamedTuple, cast

import yaml

from loader import storage
from loader.errors import BadAddress, BadConfig
from tasks import image_options, recipes, source_options
from tasks.image_options import ImageOptions, about
from tasks.workforce import RUNNERS

_MAX_CONFIG = 1 << 20  # bytes of a YAML
_PREFIX = re.compile(r"[A-Za-z0-9_]{0,64}")  # in a key: no '.', '-' or '/', and the name stays in plain ustar
_PATHS = ("source", "output", "image_root", "recipe_folder")


@dataclass(frozen=True)
class PackConfig:
    """One packing job. Paths are absolute or URLs after construction; BadConfig names the wrong field."""

    source: str = about(
        "What to pack: a file of records, a folder of pictures or records, a glob, or several with commas, local or "
        "any fsspec URL; or module:function."
    )
    output: str = about("Folder or URL that the shards go to. It belongs to this job alone.")
    source_kind: str = source_options.KIND
    columns: str = source_options.COLUMNS
    recipe: str = about(
        "How a record becomes a sample: 'default', or 'module:function' for a recipe of your own.", "default"
    )
    image_root: str = about(
        "Folder or URL that relative picture addresses are seen from. Empty: the folder of the source file.",
        "",
    )
    max_samples: int = about("Rows for each shard; 0: as many as max_bytes allows.", 10_000)
    max_bytes: int = about(
        "Bytes at which a shard ends early and the rest of its rows goes on in shard-NNNNNN_001.tar; 0: no limit.",
        1 << 30,
    )
    order: str = source_options.ORDER
    seed: int = source_options.SEED
    split: str = source_options.SPLIT
    split_column: str = source_options.SPLIT_COLUMN
    duplicates: str = source_options.DUPLICATES
    mode: str = source_options.MODE
    shard_names: str = source_options.SHARD_NAMES
    deterministic_name: str = source_options.DETERMINISTIC
    keys: str = source_options.KEYS
    on_error: str = about(
        "A record that cannot be packed: 'skip' leaves it out and reports it, 'raise' ends the run.",
        "skip",
        choices=("skip", "raise"),
    )
    max_bad_fraction: float = about(
        "Share of all records, 0 to 1, that may be left out; above it the run ends with an error.", 0.05
    )
    key_prefix: str = about(
        "Put before each sample's number in its key: letters, digits and '_', to keep the keys of several "
        "datasets apart.",
        "",
    )
    image_names: str = about(
        "How images are named: 'numbered' for key-0.jpg, key-1.png; 'extension' for key.jpg, or key.0.jpg and "
        "key.1.png if there are several, which any WebDataset reader takes for one sample.",
        "numbered",
        choices=("numbered", "extension"),
    )
    image_format: str = image_options.FORMAT
    image_convert: str = image_options.CONVERT
    image_quality: int = image_options.QUALITY
    image_max_side: int = image_options.MAX_SIDE
    image_max_area: int = image_options.MAX_AREA
    image_resize_filter: str = image_options.FILTER
    image_min_width: int = image_options.MIN_WIDTH
    image_min_height: int = image_options.MIN_HEIGHT
    image_max_pixels: int = image_options.PIXELS
    image_max_bytes: int = image_options.BYTES
    image_verify: str = image_options.VERIFY
    image_orientation: str = image_options.ORIENTATION
    image_icc: str = image_options.ICC
    image_metadata: str = image_options.METADATA
    sidecar: bool = about(
        "Write a Parquet file beside each tar, one row a sample: keys, sizes, captions, checksums, metadata in typed "
        "columns. Needs the extra 'parquet'.",
        False,
    )
    retry_errors: bool = about(
        "Pack again every shard in which rows were left out, whether or not anything of theirs has changed.",
        False,
    )
    n_jobs: int = about("Processes at work; 0 for all cores.", 0)
    runner: str = about(
        "Who does the work: processes of the machine that the run is on (local), or a Dask or Ray cluster.",
        "local",
        choices=RUNNERS,
    )
    dask_address: str = about(
        "Scheduler of the Dask cluster, such as tcp://10.0.0.1:8786. Empty: a cluster on this machine, if the runner is dask.",
        "",
    )
    storage_options: Mapping[str, Any] | None = about(
        "Options of the output's filesystem (fsspec), such as endpoint or keys; also used for sources and "
        "pictures of the same protocol.",
        None,
        hidden=True,
    )
    source_storage_options: Mapping[str, Any] | None = about(
        "Options of the filesystem of sources and pictures, where they differ from the output's.",
        None,
        hidden=True,
    )
    recipe_folder: str = about(
        "Where to look for the recipe's module as well. Empty: the folder of the config file.", ""
    )

    def __post_init__(self) -> None:
        given: object = self.deterministic_name
        if isinstance(given, bool):  # as YAML has it
            object.__setattr__(self, "deterministic_name", str(given).lower())
        for entry in _fields(self):
            value, choices = getattr(self, entry.name), entry.metadata["choices"]
            _check_type(entry.name, value, str(entry.type))
            _check(not choices or value in choices, entry.name, value, " or ".join(map(repr, choices)))
        for name in ("source", "output"):
            if not getattr(self, name):
                raise BadConfig(f"{name} is empty: a path or URL was expected")
        for name in _PATHS:
            if value := getattr(self, name):
                absolute = source_options.normalised if name == "source" else storage.normalise
                try:
                    object.__setattr__(self, name, absolute(value))
                except BadAddress as error:
                    raise BadConfig(f"{name}: {error}") from error
        _check(self.max_samples >= 0, "max_samples", self.max_samples, "at least 1, or 0 for no limit")
        _check(self.max_bytes >= 0, "max_bytes", self.max_bytes, "at least 1, or 0 for no limit")
        source_options.check(self)
        self.images()
        _check(self.n_jobs >= 0, "n_jobs", self.n_jobs, "a number of processes, or 0 for all cores")
        _check(0 <= self.max_bad_fraction <= 1, "max_bad_fraction", self.max_bad_fraction, "from 0 to 1")
        _check(
            _PREFIX.fullmatch(self.key_prefix) is not None,
            "key_prefix",
            self.key_prefix,
            "at most 64 letters, digits and '_'",
        )

    def options_for(self, address: str) -> Mapping[str, Any] | None:
        """The storage options for a source file or picture."""
        if self.source_storage_options is not None:
            return self.source_storage_options
        return self.storage_options if _protocol(address) == _protocol(self.output) else None

    def images(self) -> ImageOptions:
        """What may become of pictures; BadConfig for a number that can't be meant."""
        return ImageOptions.of(self)

    def find_recipe(self) -> recipes.Recipe:
        """The recipe's function, in this process; BadConfig if there is none."""
        return recipes.resolve(self.recipe, self.recipe_folder)


class Field(NamedTuple):
    """A field of `PackConfig`, for whoever makes a form, a parser or a page of help from it."""

    name: str
    type: str
    default: Any  # dataclasses.MISSING where there is none
    description: str
    choices: tuple[str, ...]  # all values that it can have; empty: any


def fields() -> list[Field]:
    """The fields in order, each with its description."""
    return [
        Field(
            entry.name,
            str(entry.type),
            entry.default,
            entry.metadata["description"],
            entry.metadata["choices"],
        )
        for entry in _fields(PackConfig)
    ]


def load(address: str | os.PathLike[str], **overrides: Any) -> PackConfig:
    """A YAML file as a `PackConfig`. Relative paths in it are seen from its folder.

    `overrides` replace single fields; relative paths there are seen from the working directory.
    """
    address = storage.normalise(address)
    folder = storage.parent(address)
    values = _unfolded(_read(address), address)
    _check_names(values, address)
    _check_names(overrides, "")
    for name in _PATHS:
        path = values.get(name)
        if name == "source" and isinstance(path, str) and path:
            values[name] = source_options.seen_from(folder, path)
        elif isinstance(path, str) and path:
            values[name] = storage.join(folder, os.path.expanduser(path))
    values.setdefault("recipe_folder", folder if storage.is_local(folder) else "")
    return _build({**values, **overrides}, address)


def from_values(values: Mapping[str, Any]) -> PackConfig:
    """A `PackConfig` from fields by name, as a form or a command line gives them."""
    _check_names(values, "")
    return _build(values, "")


def override(config: PackConfig, **changes: Any) -> PackConfig:
    """`config` with single fields replaced."""
    _check_names(changes, "")
    return replace(config, **changes)


def _build(values: Mapping[str, Any], address: str) -> PackConfig:
    where = f"{address}: " if address else ""
    for entry in fields():
        if entry.default is MISSING and entry.name not in values:
            raise BadConfig(f"{where}{entry.name} is missing. {entry.description}")
    try:
        return PackConfig(**values)
    except BadConfig as error:
        raise BadConfig(f"{where}{error}") from error


def _read(address: str) -> dict[str, Any]:
    try:
        size = storage.stat(address).size
        if size > _MAX_CONFIG:
            raise BadConfig(f"{address} has {size:,} bytes: a config has at most {_MAX_CONFIG:,}")
        found = yaml.safe_load(storage.read_bytes(address))
    except FileNotFoundError as error:
        raise BadConfig(f"{address} is not there: the YAML file of a packing job was expected") from error
    except IsADirectoryError as error:
        raise BadConfig(f"{address} is a folder: the YAML file of a packing job was expected") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, BadConfig):
            raise
        raise BadConfig(f"{address} is no YAML: {_yaml_reason(error)}") from error
    if not isinstance(found, dict):
        raise BadConfig(f"{address} holds {type(found).__name__}: 'field: value' lines were expected")
    return cast(dict[str, Any], found)


def _unfolded(values: dict[str, Any], address: str) -> dict[str, Any]:
    try:
        return image_options.unfold(values)
    except BadConfig as error:
        raise BadConfig(f"{address}: {error}") from error


def _yaml_reason(error: Exception) -> str:
    """What and where; never the lines around it, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or type(error).__name__
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)


def _check_names(values: Mapping[Any, Any], address: str) -> None:
    known = [entry.name for entry in _fields(PackConfig)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(known)}"
            raise BadConfig(f"{f'{address}: ' if address else ''}unknown field {name!r}: {hint}")


def _check(fits: bool, name: str, value: object, expected: str) -> None:
    if not fits:
        raise BadConfig(f"{name} is {_shown(value)}: expected {expected}")


def _check_type(name: str, value: object, wanted: str) -> None:
    if wanted == "str":
        fits, expected = isinstance(value, str), "a text"
    elif wanted == "int":
        fits, expected = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif wanted == "bool":
        fits, expected = isinstance(value, bool), "true or false"
    elif wanted == "float":
        fits, expected = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    else:
        fits = value is None or (isinstance(value, Mapping) and all(isinstance(key, str) for key in value))
        if not fits:  # not shown: it may hold a secret
            raise BadConfig(f"{name} is {type(value).__name__}: an object of options was expected")
        return
    if not fits:
        raise BadConfig(f"{name} is {_shown(value)}: expected {expected}")


def _shown(value: object) -> str:
    """One short line; of a container only its kind (a few bytes of YAML aliases can print as gigabytes)."""
    if isinstance(value, (str, bytes, int, float)):
        text = (
            ascii(value) if not isinstance(value, int) or abs(value) < 1 << 70 else "a number of many digits"
        )
        return text if len(text) <= 80 else text[:77] + "..."
    return "empty" if value is None else type(value).__name__


def _protocol(address: str) -> str:
    return "file" if storage.is_local(address) else address.partition("://")[0]
