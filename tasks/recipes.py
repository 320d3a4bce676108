"""Raw record → `Record`: what one sample will say and which pictures it shows. Pure: reads no file.

A recipe is a function ``recipe(raw: dict) -> Record`` that raises `BadSample` (or anything else) for a record
that it cannot use; that costs the record its place and nothing more. `default` is ours; a user names another as
``module:function``.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from loader.errors import BadConfig, BadSample

Raw: TypeAlias = Mapping[str, Any]

# Raise it whenever `default` or `document` gives other bytes for some record: shards made before are then redone.
RECIPE_VERSION = 2

_PLACEHOLDER = re.compile(r"<image_([0-9]+)>")
_CAPTIONS = ("caption", "text")
_OTHER_TEXTS = frozenset((*_CAPTIONS, "description", "instruction", "prompt"))
_OTHER_ENDINGS = ("_caption", "_description", "_instruction", "_prompt", "_text")
_ENCODE = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode
_SHOWN = 60  # characters of a wrong value in a message


@dataclass(frozen=True)
class Record:
    """One sample before its pictures are read.

    `caption` holds ``<image_n>`` once for each picture n, from 0 on, where it stands in the text. `images` are
    addresses (relative ones are seen from the source file's folder or ``image_root``) or the pictures' own bytes.
    `caption_all` are alternative captions by name; `metadata` is whatever JSON can hold.
    """

    caption: str
    images: tuple[str | bytes, ...] = ()
    caption_all: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


Recipe: TypeAlias = Callable[[dict[str, Any]], Record]


def default(raw: dict[str, Any]) -> Record:
    """The records that the field knows; the first kind whose fields are there is meant.

    - ``{"images": [a, b, ...], "caption"}``: the caption says where each picture stands.
    - ``{"input_image", "output_image", "instruction"}``: an edit, ``<image_0>instruction<image_1>``.
    - ``{"image", "caption"}`` or ``{"file_name", "caption"}``: ``<image_0>caption``.
    - ``{"caption"}``: text without pictures.

    A picture is an address, its bytes, or both as Hugging Face writes them, ``{"bytes", "path"}``.
    ``text`` serves instead of ``caption``. In the second and third kind, a text with placeholders of its own is
    taken as it is. Other texts that describe the sample (``*_description``, ``*_caption``, ``prompt``, ...) go to
    `caption_all`, which an edit always has, the others if there is more than one text; all the rest goes to
    `metadata`. A record's own ``caption_all`` and ``metadata`` objects are merged into them.
    """
    if "images" in raw:
        used = ["images", _caption_field(raw)]
        images = raw["images"]
        if not isinstance(images, list):
            raise BadSample(f"images is {_shown(images)}: a list of addresses was expected")
        caption = _text(raw, used[1])
        addresses = tuple(_address(item, f"images[{place}]") for place, item in enumerate(images))
    elif "input_image" in raw or "output_image" in raw:
        used = ["input_image", "output_image", "instruction"]
        addresses = (_image(raw, "input_image"), _image(raw, "output_image"))
        caption = _text(raw, "instruction")
        if not _PLACEHOLDER.search(caption):
            caption = f"<image_0>{caption}<image_1>"
    elif (single := "image" if "image" in raw else "file_name") in raw:
        used = [single, _caption_field(raw)]
        addresses = (_image(raw, single),)
        caption = _text(raw, used[1])
        if not _PLACEHOLDER.search(caption):
            caption = f"<image_0>{caption}"
    else:
        used = [_caption_field(raw)]
        addresses = ()
        caption = _text(raw, used[0])
        if not caption.strip():
            raise BadSample(f"{used[0]} is empty, and there is no picture: nothing to train on")
    if len(raw) == len(used) < 3:  # nothing else is there: the most frequent case by far
        return Record(caption, addresses)
    if others := sorted({"image", "images", "input_image", "output_image"} & raw.keys() - set(used)):
        raise BadSample(f"{used[0]} and {others[0]} in one record: which pictures are meant?")

    texts = {used[-1]: raw[used[-1]]}
    metadata: dict[str, Any] = {}
    for name, value in raw.items():
        if name in used:
            continue
        if name == "caption_all" and value is not None:
            if not _all_texts(value):
                raise BadSample(f"caption_all is {_shown(value)}: an object of texts was expected")
            texts |= value
        elif name == "metadata" and isinstance(value, dict):
            metadata |= value
        elif name in _OTHER_TEXTS or name.endswith(_OTHER_ENDINGS):
            if value is not None:  # an optional description that this record lacks
                texts[name] = _text(raw, name)
        else:
            metadata[name] = value
    keep = len(texts) > 1 or used[0] == "input_image"
    return Record(caption, addresses, texts if keep else None, metadata)


def check(record: Record) -> None:
    """BadSample unless types are right and the placeholders are exactly one for each picture."""
    if not isinstance(record, Record):
        raise BadSample(f"the recipe returned {_shown(record)}: a tasks.recipes.Record was expected")
    if not isinstance(record.caption, str):
        raise BadSample(f"caption is {_shown(record.caption)}: a text was expected")
    for place, image in enumerate(record.images):
        if not isinstance(image, (str, bytes)) or not image:
            raise BadSample(f"picture {place} is {_shown(image)}: an address or its bytes were expected")
    if record.caption_all is not None and not _all_texts(record.caption_all):
        raise BadSample(f"caption_all is {_shown(record.caption_all)}: an object of texts was expected")
    if not isinstance(record.metadata, Mapping):
        raise BadSample(f"metadata is {_shown(record.metadata)}: an object was expected")
    found = _PLACEHOLDER.findall(record.caption)
    wanted = [str(number) for number in range(len(record.images))]
    if found != wanted and sorted(found) != sorted(wanted):
        raise BadSample(
            f"the caption has {_placeholders(found)} but the sample has {_pictures(len(wanted))}: "
            f"expected {_placeholders(wanted)}, each once"
        )


def document(record: Record) -> bytes:
    """The sample's ``.json`` member: compact UTF-8, fields in a fixed order; BadSample if JSON can't hold it."""
    value: dict[str, Any] = {"caption": record.caption}
    if record.caption_all:
        value["caption_all"] = record.caption_all
    if record.metadata:
        value["metadata"] = record.metadata
    try:
        return _ENCODE(value).encode()
    except UnicodeEncodeError as error:
        raise BadSample(
            f"half a surrogate pair ({error.object[error.start : error.end]!a}) in the record: no character"
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        place = _not_json(value)
        raise BadSample(f"{place or 'the record'} cannot be stored as JSON: {error}") from error


def resolve(name: str, folder: str = "", what: str = "recipe") -> Recipe:
    """The recipe (or the function that is a source) which a config names: ``default``, or ``module:function``.

    The module is looked for where Python looks, then in `folder` (of the config file) and the working directory,
    which join the end of the import path, so that spawned workers find it as well. BadConfig if it isn't there.
    """
    if name == "default" and what == "recipe":
        return default
    module_name, separator, path = name.partition(":")
    if not (separator and _dotted(module_name) and _dotted(path)):
        usual = "'default' or " if what == "recipe" else ""
        raise BadConfig(f"{what} is {name!r}: {usual}'module:function' was expected")
    folders = (os.path.abspath(place) for place in (folder, os.getcwd()) if place and os.path.isdir(place))
    places = list(dict.fromkeys(folders))
    for place in places:
        if place not in sys.path:
            sys.path.append(place)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise BadConfig(
                f"{what} {name!r}: no module {module_name!r} on the import path or in {' or '.join(places)}"
            ) from error
        raise BadConfig(f"{what} {name!r}: importing {module_name!r} failed: {error}") from error
    except Exception as error:  # whatever the user's module does when it is imported
        raise BadConfig(
            f"{what} {name!r}: importing {module_name!r} failed: {type(error).__name__}: {error}"
        ) from error
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        where = getattr(module, "__file__", None) or module_name
        raise BadConfig(f"{what} {name!r}: {where} has no function {path!r}")
    return found  # type: ignore[no-any-return]


def source_bytes(recipe: Recipe) -> bytes:
    """What tells one version of a recipe from another: our number, or the source of the user's module.

    Modules that the user's own imports are not followed.
    """
    if recipe is default:
        return b"default %d" % RECIPE_VERSION
    path = getattr(sys.modules.get(recipe.__module__), "__file__", None)
    if not path or not os.path.isfile(path):
        return repr(recipe).encode()
    with open(path, "rb") as file:
        return b"%d " % RECIPE_VERSION + file.read()


def _caption_field(raw: Raw) -> str:
    for name in _CAPTIONS:
        if name in raw:
            return name
    known = ", ".join(sorted(map(str, raw))[:8]) or "nothing"
    raise BadSample(f"no caption or text in the record, which has {known}")


def _text(raw: Raw, name: str) -> str:
    if name not in raw:
        raise BadSample(f"{name} is missing")
    value = raw[name]
    if not isinstance(value, str):
        raise BadSample(f"{name} is {_shown(value)}: a text was expected")
    return value


def _image(raw: Raw, name: str) -> str | bytes:
    if name not in raw:
        raise BadSample(f"{name} is missing")
    return _address(raw[name], name)


def _address(value: object, name: str) -> str | bytes:
    if isinstance(value, dict) and "bytes" in value and value.keys() <= {"bytes", "path"}:
        value = value["bytes"] or value.get("path")
    if not isinstance(value, (str, bytes)) or not value:
        raise BadSample(f"{name} is {_shown(value)}: the address of a picture was expected")
    return value


def _all_texts(captions: object) -> bool:
    return isinstance(captions, Mapping) and all(
        isinstance(name, str) and isinstance(text, str) for name, text in captions.items()
    )


def _dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _placeholders(numbers: Iterable[str]) -> str:
    found = [f"<image_{number}>" for number in numbers]
    return " ".join(found[:6]) + (" ..." if len(found) > 6 else "") if found else "no placeholders"


def _pictures(count: int) -> str:
    return "no pictures" if not count else f"{count} picture{'s' if count > 1 else ''}"


def _not_json(value: object, path: str = "") -> str:
    """Where in `value` the first thing lies that JSON can't hold; empty if that can't be told."""
    if isinstance(value, float) and not math.isfinite(value):
        return path
    if path.count(".") + path.count("[") > 50:
        return ""
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, object]] = (
            (f"{path}.{key}" if path else str(key), item) for key, item in value.items()
        )
    elif isinstance(value, (list, tuple)):
        items = ((f"{path}[{place}]", item) for place, item in enumerate(value))
    elif value is None or isinstance(value, (str, int, float)):
        return ""
    else:
        return path
    return next((found for place, item in items if (found := _not_json(item, place))), "")


def _shown(value: object) -> str:
    """A wrong value as a report may show it: one short line."""
    if value is None:
        return "null"
    text = ascii(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}"
