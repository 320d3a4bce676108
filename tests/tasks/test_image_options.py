from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from loader import images
from loader.errors import BadConfig
from tasks import config, fetch
from tasks.config import PackConfig
from tasks.image_options import MAX_BYTES, MAX_PIXELS, PREFIX, ImageOptions


def loaded(tmp_path: Path, text: str) -> PackConfig:
    (tmp_path / "job.yaml").write_text("source: a.jsonl\noutput: b\n" + text)
    return config.load(tmp_path / "job.yaml")


def test_the_defaults_are_written_once_in_effect() -> None:
    assert PackConfig("a", "b").images() == ImageOptions()
    assert ImageOptions().signature() == {}
    names = {entry.name for entry in dataclasses.fields(ImageOptions)}
    fields = {entry.name for entry in config.fields() if entry.name.startswith(PREFIX)}
    assert {PREFIX + name for name in names} == fields - {"image_root", "image_names"}
    assert (MAX_BYTES, MAX_PIXELS) == (fetch.MAX_PICTURE, images.MAX_PIXELS)


def test_in_a_section_of_their_own(tmp_path: Path) -> None:
    found = loaded(tmp_path, "images:\n  format: webp\n  max_side: 512\n  metadata: strip\n")
    assert found.images() == ImageOptions(format="webp", max_side=512, metadata="strip")
    assert found == loaded(tmp_path, "image_format: webp\nimage_max_side: 512\nimages: {metadata: strip}\n")
    assert found.images().signature() == {"format": "webp", "max_side": 512, "metadata": "strip"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("images: webp", "images is str: lines such as 'format: webp' were expected below it"),
        ("images: {1: 2}", "images is dict: lines"),
        ("images: {format: webp}\nimage_format: jpeg", "image_format is given twice"),
        ("images: {quality: 0}", "image_quality is 0: expected a number from 1 to 100"),
        ("images: {quality: high}", "image_quality is 'high': expected a whole number"),
        ("images: {max_side: -1}", "image_max_side is -1: expected a number from 0 to 65,535"),
        ("images: {max_pixels: 0}", "image_max_pixels is 0"),
        ("images: {max_bytes: 999999999999}", "image_max_bytes is 999999999999"),
        ("images: {format: gif}", "image_format is 'gif': expected 'keep' or 'jpeg' or 'png' or 'webp'"),
        ("images: {qualty: 90}", "unknown field 'image_qualty'"),
        ("sidecar: 1", "sidecar is 1: expected true or false"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadConfig) as caught:
        loaded(tmp_path, text)
    assert reason in str(caught.value) and "job.yaml" in str(caught.value)


def test_flat_fields_are_checked_alike() -> None:
    changes: dict[str, Any] = {"image_quality": 101}
    with pytest.raises(BadConfig, match="image_quality is 101"):
        PackConfig("a", "b", **changes)
