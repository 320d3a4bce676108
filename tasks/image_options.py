"""The `images` part of a packing job: what may become of pictures, as fields of `PackConfig` and as a value of its own.

In YAML they may stand together, without their first word: ``images: {format: webp, max_side: 1024}``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from loader.errors import BadConfig

PREFIX = "image_"
SECTION = "images"
FILTERS = ("lanczos", "bicubic", "bilinear", "hamming", "box", "nearest")
FORMATS = {"jpeg": ".jpg", "png": ".png", "webp": ".webp"}
MAX_PIXELS = 178_956_970  # where Pillow refuses as well: 537 MB as RGB
MAX_BYTES = 256 << 20  # as much as is read of one picture


def about(text: str, default: Any = MISSING, hidden: bool = False, choices: tuple[str, ...] = ()) -> Any:
    """A field of a config, with all that a form or a page of help says of it."""
    return field(default=default, repr=not hidden, metadata={"description": text, "choices": choices})


FORMAT = about(
    "How pictures are stored: 'keep' for each in its own format, its bytes as they are unless another option asks "
    "for more; 'jpeg', 'png' or 'webp' to encode every one anew.",
    "keep",
    choices=("keep", *FORMATS),
)
CONVERT = about(
    "What becomes of BMP, TIFF, GIF (the first frame), JPEG 2000, AVIF and HEIC: 'auto' for PNG, or for JPEG from the "
    "last two, 'jpeg', 'png' or 'webp'; 'refuse' leaves their rows out.",
    "auto",
    choices=("auto", *FORMATS, "refuse"),
)
QUALITY = about("Quality of JPEG and WebP that are encoded, 1 to 100.", 90)
MAX_SIDE = about("Pixels of the longer side at most; larger pictures are scaled down. 0: no limit.", 0)
MAX_AREA = about("Width × height at most, in pixels; larger pictures are scaled down. 0: no limit.", 0)
FILTER = about("The filter that scales.", "lanczos", choices=FILTERS)
MIN_WIDTH = about("Rows with a picture that is narrower, as seen, are left out. 0: no limit.", 0)
MIN_HEIGHT = about("Rows with a picture that is lower, as seen, are left out. 0: no limit.", 0)
PIXELS = about("Rows with a picture of more pixels are left out, before it is decoded.", MAX_PIXELS)
BYTES = about("Rows with a picture of more bytes are left out; at most 268,435,456.", MAX_BYTES)
VERIFY = about(
    "How pictures are looked at: 'header' for the format, size, and whether all bytes are there; 'full' decodes each; "
    "'none' reads format and size, and takes what is cut short.",
    "header",
    choices=("header", "full", "none"),
)
ORIENTATION = about(
    "Pictures that EXIF says to turn: 'auto' turns those that are encoded anew and leaves the others; 'apply' turns "
    "each, encoding it anew; 'keep' turns none, and what it says stays.",
    "auto",
    choices=("auto", "apply", "keep"),
)
ICC = about("Colour profiles: 'keep', or 'strip' to remove them.", "keep", choices=("keep", "strip"))
METADATA = about(
    "EXIF, XMP, comments and the like: 'keep', or 'strip' to remove all but what turns the picture. Of a picture "
    "that is encoded anew EXIF and XMP can be kept.",
    "keep",
    choices=("keep", "strip"),
)


@dataclass(frozen=True)
class ImageOptions:
    """The same, checked; see the fields above."""

    format: str = "keep"
    convert: str = "auto"
    quality: int = 90
    max_side: int = 0
    max_area: int = 0
    resize_filter: str = "lanczos"
    min_width: int = 0
    min_height: int = 0
    max_pixels: int = MAX_PIXELS
    max_bytes: int = MAX_BYTES
    verify: str = "header"
    orientation: str = "auto"
    icc: str = "keep"
    metadata: str = "keep"

    @classmethod
    def of(cls, config: Any) -> ImageOptions:
        """From a `PackConfig`; BadConfig for a number that can't be meant."""
        found = cls(**{entry.name: getattr(config, PREFIX + entry.name) for entry in fields(cls)})
        for name, low, high in (
            ("quality", 1, 100),
            ("max_side", 0, 65_535),
            ("max_area", 0, MAX_PIXELS),
            ("min_width", 0, 65_535),
            ("min_height", 0, 65_535),
            ("max_pixels", 1, MAX_PIXELS),
            ("max_bytes", 1, MAX_BYTES),
        ):
            value = getattr(found, name)
            if not low <= value <= high:
                raise BadConfig(f"{PREFIX}{name} is {value}: expected a number from {low:,} to {high:,}")
        return found

    @functools.cached_property
    def keep_all(self) -> bool:
        """Whether JPEG, PNG and WebP are stored as they are, looked at by their headers, and never left out for a size."""
        return not self.signature().keys() - {"convert", "quality", "resize_filter"}

    def signature(self) -> dict[str, Any]:
        """What differs from the defaults: part of what stored bytes follow from."""
        usual = asdict(ImageOptions())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


def unfold(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a YAML file with its `images` section as fields. BadConfig for what can't be meant."""
    if SECTION not in values:
        return dict(values)
    flat = {name: value for name, value in values.items() if name != SECTION}
    section = values[SECTION]
    if not isinstance(section, Mapping) or not all(isinstance(name, str) for name in section):
        raise BadConfig(
            f"{SECTION} is {type(section).__name__}: lines such as 'format: webp' were expected below it"
        )
    for name, value in section.items():
        if PREFIX + name in flat:
            raise BadConfig(f"{PREFIX}{name} is given twice: by itself, and as {name} below {SECTION}")
        flat[PREFIX + name] = value
    return flat
