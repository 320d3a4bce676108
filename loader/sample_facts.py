"""What can be said of samples without decoding a picture: texts, and each picture's size, format and checksum."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from loader.captions import Captions
from loader.contents import Contents, Histogram, caption_length
from loader.data_handler import IMAGE_EXTENSIONS, read_json, read_text
from loader.errors import BadSample
from loader.index import Index
from loader.sample import split_number
from loader.tar import Buffer

Data: TypeAlias = "bytes | memoryview"
Member: TypeAlias = tuple[str, str, Data]

_HEAD = 4096  # bytes of a picture that are looked at first
_CAPTIONS = Captions()
FORMATS = {".jpg": "jpeg"}  # others are called as their extension is


class _Unreadable:
    """What stands for JSON that is none."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE: Final = _Unreadable()


class PictureFacts(NamedTuple):
    """One picture: its member, where it came from, width and height as seen (None if its header is damaged)."""

    name: str
    path: str | None
    width: int | None
    height: int | None
    format: str | None
    bytes: int
    sha256: str | None


class SampleFacts(NamedTuple):
    """One sample. `document` is its JSON, None if it has none; `outcome` what packing did to its pictures.

    `source` and `row`: the file that it was packed from, and the row in it, from 1.
    """

    key: str
    document: Any
    caption: str | None
    pictures: tuple[PictureFacts, ...]
    outcome: str | None = None
    source: str | None = None
    row: int | None = None


def is_picture(extension: str, pictures: tuple[str, ...] = IMAGE_EXTENSIONS) -> bool:
    """Whether members of that extension are pictures: ``.jpg`` and ``.0.jpg``, but not ``.seg.jpg``."""
    return extension in pictures or split_number(extension)[1] in pictures


def picture_size(read: Callable[[int, int], bytes], start: int, end: int) -> tuple[int, int]:
    """(height, width) as seen of the picture in those bytes, from the first of them where they tell."""
    from loader.images import image_extension, image_size

    head = read(start, min(end, start + _HEAD))
    if len(head) < end - start and image_extension(head) in (".jpg", ".png"):
        with contextlib.suppress(BadSample):  # a header longer than that
            return image_size(head)
    return image_size(head if len(head) == end - start else read(start, end))


def sample_facts(index: Index, buffer: Buffer, digests: bool) -> Iterator[SampleFacts]:
    """Of every sample of a tar, in order; `digests`: with the SHA-256 of each picture, for which all is read."""
    with memoryview(buffer) as view:
        for number in range(index.num_samples):
            members = [
                (index.member_name(member), index.member_extension(member), view[slice(*index.span(member))])
                for member in index.members(number)
            ]
            yield facts_of(index.key(number), members, digests)
            for _, _, part in members:
                part.release()


def facts_of(key: str, members: Iterable[Member], digests: bool) -> SampleFacts:
    """Of one sample, from its members: name, extension in lower case, bytes."""
    texts: dict[str, Any] = {}
    pictures = []
    for name, extension, data in members:
        if is_picture(extension):
            pictures.append(_picture(name, data, digests))
        elif extension in (".json", ".txt"):
            _add_text(texts, extension, bytes(data))
    return SampleFacts(key, texts.get(".json"), _caption(texts), tuple(pictures))


def _add_text(texts: dict[str, Any], extension: str, data: bytes) -> None:
    """As a sample holds it: several members of one extension are a list."""
    try:
        value: Any = read_json(data) if extension == ".json" else read_text(data)
    except BadSample:
        value = UNREADABLE
    if extension not in texts:
        texts[extension] = value
    elif UNREADABLE in (texts[extension], value):
        texts[extension] = UNREADABLE
    elif isinstance(texts[extension], list) and extension != ".json":
        texts[extension].append(value)
    else:
        texts[extension] = [texts[extension], value]


def _caption(texts: dict[str, Any]) -> str | None:
    readable = {name: value for name, value in texts.items() if value is not UNREADABLE}
    try:
        return next((text for _, text in _CAPTIONS.texts(readable)), None)
    except BadSample:  # something else than text stands there
        return None


def _picture(name: str, data: Data, digests: bool) -> PictureFacts:
    from loader.images import image_extension

    digest = hashlib.sha256(data).hexdigest() if digests else None
    extension = image_extension(bytes(data[:_HEAD]))
    kind = FORMATS.get(extension, extension[1:]) if extension else None
    try:
        height, width = picture_size(lambda start, end: bytes(data[start:end]), 0, len(data))
    except BadSample:
        return PictureFacts(name, None, None, None, kind, len(data), digest)
    return PictureFacts(name, None, width, height, kind, len(data), digest)


def contents_of(samples: Iterable[SampleFacts]) -> Contents:
    """What they hold, counted."""
    widths, heights, captions, unreadable = [], [], [], 0
    for sample in samples:
        if sample.caption is not None:
            captions.append(caption_length(sample.caption))
        for picture in sample.pictures:
            if picture.width is None or picture.height is None:
                unreadable += 1
            else:
                widths.append(picture.width)
                heights.append(picture.height)
    return Contents(Histogram.of(widths), Histogram.of(heights), Histogram.of(captions), unreadable)
