"""A few samples of a dataset to look at: spread over its shards, the same ones each time. No Prefect in here."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Iterator, Sequence

from loader import storage
from loader.captions import Captions, strip_placeholders
from loader.contact_sheet import Sample
from loader.data_handler import IMAGE_EXTENSIONS, handler_for, make_handlers
from loader.errors import ShardflowError
from loader.index import Index
from loader.indexing import find_fresh
from loader.progress import printable
from loader.sample import split_number
from loader.storage import StorageOptions

SHOWN = 12
_LARGE = 64 << 20  # bytes of a member that nobody looks at in passing
_SIDE = 560  # pixels, as on a contact sheet
_SMALL = 224  # pixels in Markdown
_COLUMNS = 4
_WORDS = 160  # characters of a caption in Markdown


def look(
    addresses: Sequence[str], storage_options: StorageOptions | None = None, index_root: str | None = None
) -> list[Sample]:
    """Up to `SHOWN` samples of these tars. One that can't be read is passed over: others tell of those."""
    if not addresses:
        return []
    count = min(SHOWN, len(addresses))
    picked = [addresses[number * len(addresses) // count] for number in range(count)]
    samples: list[Sample] = []
    for number, address in enumerate(picked):
        wanted = SHOWN * (number + 1) // count - SHOWN * number // count
        try:
            index, _ = find_fresh(address, storage_options, index_root)
        except (ShardflowError, OSError):
            continue
        if index is not None and index.num_samples:
            samples += _some(index, address, storage_options, min(wanted, index.num_samples))
    return samples


def _some(index: Index, address: str, options: StorageOptions | None, wanted: int) -> Iterator[Sample]:
    for number in range(wanted):
        with contextlib.suppress(Exception):  # decoders may raise anything
            yield _sample(index, number * index.num_samples // wanted, address, options)


def _sample(index: Index, number: int, address: str, options: StorageOptions | None) -> Sample:
    handlers, pictures, texts = make_handlers(None), [], {}
    for member in index.members(number):
        extension = split_number(index.member_extension(member))[1]
        start, end = index.span(member)
        if end - start > _LARGE or extension not in (*IMAGE_EXTENSIONS, ".json", ".txt"):
            continue
        data = storage.read_bytes(address, options, start, end)
        value = handler_for(extension, handlers)(data)
        if extension in IMAGE_EXTENSIONS:
            value.thumbnail((_SIDE, _SIDE))
            pictures.append(value)
        else:
            texts.setdefault(extension, value)
    found = Captions().texts(texts)
    return index.key(number), found[0][1] if found else "", pictures, {"shard": storage.name(address)}


def markdown(samples: Sequence[Sample]) -> str:
    """The samples as a table of pictures with what is said of them; the pictures are part of the text."""
    lines = ["|" + " |" * _COLUMNS, "|" + "---|" * _COLUMNS]
    for begin in range(0, len(samples), _COLUMNS):
        row = samples[begin : begin + _COLUMNS]
        lines.append("| " + " | ".join(" ".join(map(_picture, pictures)) for _, _, pictures, _ in row) + " |")
        lines.append(
            "| "
            + " | ".join(
                f"`{cell(key)}` {_words(caption, len(pictures))}" for key, caption, pictures, _ in row
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """A text in a cell of Markdown: one line, nothing in it taken for markup."""
    return "".join(f"\\{letter}" if letter in r"\`*_[]<>|#" else letter for letter in printable(text))


def _words(caption: str, pictures: int) -> str:
    """Which picture is meant, needs no saying of a single one."""
    if pictures == 1:
        caption = strip_placeholders(caption)
    return cell(caption if len(caption) <= _WORDS else caption[: _WORDS - 1] + "…")


def _picture(picture: object) -> str:
    small = picture.convert("RGB")  # type: ignore[attr-defined]
    small.thumbnail((_SMALL, _SMALL))
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=75, icc_profile=None)
    return f"![picture](data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode('ascii')})"
