"""Pictures for tests, and datasets of them, written as our packer writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from loader.meta import ShardMeta, write_meta
from loader.writer import ShardWriter


def photo(height: int = 64, width: int = 96, seed: int = 0) -> Image.Image:
    """Smooth and coloured with a little noise, as photographs are; no two sides or corners are alike."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    noise = np.random.default_rng(seed).normal(0, 4, (height, width, 3))
    pixels = np.stack([255 * x, 255 * y, 127 + 120 * np.sin((6 + seed % 7) * x * y)], -1) + noise
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """The picture as the bytes of a file."""
    stream = io.BytesIO()
    image.save(stream, kind, **({"quality": 90} if kind == "JPEG" else {}) | options)
    return stream.getvalue()


def turned(orientation: int) -> Image.Exif:
    """EXIF that says so."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def write_dataset(root: Path | str, samples: Iterable[dict[str, Any]], per_shard: int = 10) -> str:
    """Shards of so many samples, with indexes and a meta.json."""
    with ShardWriter(str(root), max_samples=per_shard) as writer:
        for sample in samples:
            writer.write(sample)
    shards = {info.path: ShardMeta(info.num_samples, info.size, info.checksum) for info in writer.shards}
    write_meta(str(root), shards)
    return str(root)


def pair(number: int, height: int = 24, width: int = 32, **document: Any) -> dict[str, Any]:
    """One picture with its caption; whatever else the JSON shall say."""
    caption = {"caption": f"<image_0>picture {number}"} | document
    return {
        "__key__": f"{number:09d}",
        ".json": json.dumps(caption).encode(),
        ".jpg": [encoded(photo(height, width, number))],
    }


def pairs(count: int, **options: Any) -> list[dict[str, Any]]:
    """`count` of them."""
    return [pair(number, **options) for number in range(count)]
