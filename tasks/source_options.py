"""The fields of a packing job that say what its sources are, in which order rows come, and how shards are cut and named.

Each is a text or a number, as a form or a command line can give it; what a text means is worked out here.
"""

from __future__ import annotations

import os
import re
import string
from typing import TYPE_CHECKING

from loader import storage
from loader.errors import BadConfig
from tasks.image_options import about

if TYPE_CHECKING:
    from tasks.config import PackConfig

KIND = about(
    "What the source is; 'auto' finds out from what is there. 'captions': pictures with a .txt or .json beside each; "
    "'classes': a folder of pictures for each class; 'imagefolder': pictures and a metadata.csv with file_name; "
    "'datasets': a Hugging Face dataset on disk; 'tar': WebDataset shards; 'python': module:function that gives records.",
    "auto",
    choices=("auto", "json", "jsonl", "csv", "tsv", "parquet", "tar", "captions", "classes", "imagefolder",
             "datasets", "python"),
)  # fmt: skip
COLUMNS = about("Fields to rename before the recipe sees a record: 'url=image, TEXT=caption'.", "")
KEYS = about(
    "A sample's key: 'number' for that of its row; 'source' for the one that it has in a tar; 'auto' for the "
    "latter where there is one.",
    "auto",
    choices=("auto", "number", "source"),
)
SHARD_NAMES = about(
    "How shards are called: {index:06d} is a shard's number, {hash} twelve hex digits that follow from its inputs.",
    "shard-{index:06d}.tar",
)
DETERMINISTIC = about(
    "Whether {hash} in shard_names follows from the shard's inputs, so that equal inputs give a file of the same name, "
    "or is random.",
    "true",
    choices=("true", "false"),
)
ORDER = about(
    "Rows in the order of their sources ('kept'), or mixed by `seed` ('shuffled').",
    "kept",
    choices=("kept", "shuffled"),
)
SEED = about("Decides the order of 'shuffled', and which rows go to which split.", 0)
SPLIT = about(
    "Divide the rows at random, each part a dataset in a folder of its own: 'train=0.9, val=0.05, test=0.05'.",
    "",
)
SPLIT_COLUMN = about(
    "Divide the rows by what this field says, each part a dataset in a folder of that name.", ""
)
MODE = about(
    "What becomes of shards that are there: those of another job are an 'error', or replaced ('overwrite'), or kept, with "
    "new ones behind them ('append'). 'resume' goes on with a job of the same source, even if it is set otherwise now.",
    "error",
    choices=("error", "overwrite", "append", "resume"),
)
DUPLICATES = about(
    "Samples whose pictures are, byte for byte, those of an earlier one: kept, or kept and listed in duplicates.jsonl "
    "('report'), or left out and listed ('drop').",
    "keep",
    choices=("keep", "report", "drop"),
)

_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def is_callable(source: str) -> bool:
    """Whether a source is a function, ``module:function``, and no path."""
    return _CALLABLE.fullmatch(source) is not None


def source_parts(source: str) -> list[str]:
    """The sources that commas divide; a path that holds commas and is there is one."""
    if "," not in source or (storage.is_local(source) and os.path.exists(source)):
        return [source]
    return [part.strip() for part in source.split(",") if part.strip()]


def seen_from(folder: str, source: str) -> str:
    """A source's parts as seen from a folder; a function stays."""
    if is_callable(source):
        return source
    whole = storage.join(folder, os.path.expanduser(source))
    parts = [whole] if storage.is_local(whole) and os.path.exists(whole) else source_parts(source)
    return ",".join(storage.join(folder, os.path.expanduser(part)) for part in parts)


def normalised(source: str) -> str:
    """Absolute addresses for a source's parts; a function stays."""
    return source if is_callable(source) else ",".join(map(storage.normalise, source_parts(source)))


def renames(columns: str) -> dict[str, str]:
    """``url=image, TEXT=caption`` → {"url": "image", "TEXT": "caption"}; BadConfig if that isn't what it is."""
    return dict(_pairs("columns", columns, "'url=image, TEXT=caption'"))


def fractions(split: str) -> dict[str, float]:
    """``train=0.9, val=0.1`` → shares by name, which make up 1."""
    expected = "shares that make up 1, such as 'train=0.9, val=0.05, test=0.05'"
    shares: dict[str, float] = {}
    for name, text in _pairs("split", split, expected):
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not (SPLIT_NAME.fullmatch(name) and 0 <= share <= 1):
            raise BadConfig(f"split is {split!r}: expected {expected}")
        shares[name] = share
    if shares and abs(sum(shares.values()) - 1) > 1e-6:
        raise BadConfig(f"split is {split!r}, which makes up {sum(shares.values()):g}: expected {expected}")
    return shares


def _pairs(field: str, text: str, expected: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value) or name in dict(found):
            raise BadConfig(f"{field} is {text!r}: expected {expected}")
        found.append((name, value))
    return found


def check(config: PackConfig) -> None:
    """BadConfig for a text that can't be meant."""
    renames(config.columns)
    if fractions(config.split) and config.split_column:
        raise BadConfig("split and split_column are both set: one of them was expected")
    if config.seed < 0:
        raise BadConfig(f"seed is {config.seed}: expected a whole number from 0 on")
    if not (config.max_samples or config.max_bytes):
        raise BadConfig(
            "max_samples and max_bytes are both 0: a limit was expected, of samples, bytes or both"
        )
    _check_names(config.shard_names)


def _check_names(pattern: str) -> None:
    expected = "a name that ends in .tar and holds {index}, such as 'images-{hash}-{index:06d}.tar'"
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
        names = [shard_name(pattern, index, "0" * 12) for index in (0, 1)]
    except (ValueError, LookupError, AttributeError):
        used, names = set(), ["", ""]
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}\.tar", names[0])
    if not plain or names[0] == names[1] or not used <= {"index", "hash"}:
        raise BadConfig(f"shard_names is {pattern!r}: expected {expected}")


def shard_name(pattern: str, index: int, digest: str, part: int = 0) -> str:
    """``shard-000007.tar``; where `max_bytes` cuts it, the rest follows in ``shard-000007_001.tar``, ..."""
    name = pattern.format(index=index, hash=digest)
    return f"{name.removesuffix('.tar')}_{part:03d}.tar" if part else name


def shard_pattern(config: PackConfig) -> re.Pattern[str]:
    """What fits the paths of all shards that a job can have, parts included."""
    pieces, seen = [], False
    for text, name, _, _ in string.Formatter().parse(config.shard_names):
        pieces.append(re.escape(text))
        if name is not None:
            number = r"\d+" if seen else r"(?P<index>\d+)"
            pieces.append(number if name == "index" else r"[0-9a-f]{12}")
            seen = seen or name == "index"
    fixed = "".join(pieces).removesuffix(re.escape(".tar"))
    folder = "[^/]+/" if config.split or config.split_column else ""
    return re.compile(rf"{folder}{fixed}(_\d{{3,}})?\.tar")
