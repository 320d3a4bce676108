"""The demo's material: real photographs that come inside the wheels of scikit-image and scikit-learn.

Nothing is downloaded. What the pictures are made of, and what is said about them, is data in ``configs/demo``.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from loader.errors import BadConfig
from loader.images import decode_image

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "demo"
_ORIENTATION = 0x0112  # the EXIF tag

# A step of configs/demo/pictures.jsonl: [name, *arguments].
_STEPS: dict[str, Callable[..., Image.Image]] = {
    "crop": lambda image, *box: image.crop(box),  # left, top, right, bottom in pixels
    "mirror": ImageOps.mirror,  # left to right
    "half_turn": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "quarter_turn": lambda image: image.transpose(Image.Transpose.ROTATE_270),  # clockwise
    "stored_sideways": lambda image: image.transpose(Image.Transpose.ROTATE_90),  # see `_save`
    "grey": ImageOps.grayscale,
    "negative": ImageOps.invert,
    "sepia": lambda image: ImageOps.colorize(ImageOps.grayscale(image), "#1c0f05", "#fff1d6", "#9c7a52"),
    "blur": lambda image, radius: image.filter(ImageFilter.GaussianBlur(radius)),
    "blocks": lambda image, side: image.reduce(side).resize(image.size, Image.Resampling.NEAREST),
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "saturation": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "cmyk": lambda image: image.convert("CMYK"),
}


def make_photos(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Write the demo's pictures into `folder` and return the records that speak of them, ready for `pack`.

    The names of pictures in the records are relative to `folder`. Unmodified pictures are the very bytes that the
    wheel holds. A second call writes the same files again.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    taken_by = {}
    for picture in _lines(CONFIGS / "pictures.jsonl"):
        _make(picture, target)
        taken_by[picture["file"]] = picture["credit"]
    records = list(_lines(CONFIGS / "records.jsonl"))
    for record in records:
        # Some licences ask for it, so who took a picture travels with every sample that shows it.
        if names := picture_names(record):
            record["credits"] = sorted({taken_by[name] for name in names})
    return records


def picture_names(record: dict[str, Any]) -> list[str]:
    """The pictures of a record, in order."""
    single = [record[field] for field in ("image", "input_image", "output_image") if field in record]
    return [*single, *record.get("images", [])]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _make(picture: dict[str, Any], folder: Path) -> None:
    data = _shipped(picture["from"]).read_bytes()
    steps = picture.get("steps", [])
    target = folder / picture["file"]
    if not steps:
        target.write_bytes(data)
        return
    image = decode_image(data)
    for name, *arguments in steps:
        image = _STEPS[name](image, *arguments)
    options: dict[str, Any] = {} if target.suffix == ".png" else {"quality": 92}
    if steps[-1][0] == "stored_sideways":
        # As a phone does it: the pixels lie on their side, and a tag says which way is up.
        options["exif"] = Image.Exif()
        options["exif"][_ORIENTATION] = 6
    image.save(target, **options)


def _shipped(name: str) -> Path:
    """A file inside an installed package, found without importing the package."""
    package, _, rest = name.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BadConfig(
            f"the demo's photographs come with {package}, which is not installed: "
            "`make demo` installs it, and so does pip install 'shardflow[demo]'"
        )
    return Path(spec.submodule_search_locations[0], rest)
