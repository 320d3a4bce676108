"""The demo's material: complete, true to its sources, the same each time, and fit for `pack`."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flows import photos
from loader.errors import BadConfig
from loader.images import decode_image, image_extension
from tasks import recipes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    return folder, photos.make_photos(folder)


def picture_lines():
    return list(photos._lines(photos.CONFIGS / "pictures.jsonl"))


def pixels(folder, name):
    return np.array(decode_image((folder / name).read_bytes())).astype(int)


def shipped(name):
    package, _, rest = name.partition("/")
    return Path(find_spec(package).submodule_search_locations[0]) / rest


def test_every_picture_is_there_and_is_used(made):
    folder, records = made
    files = {path.name for path in folder.iterdir()}
    assert files == {picture["file"] for picture in picture_lines()}
    assert files == {name for record in records for name in photos.picture_names(record)}
    assert len({picture["file"] for picture in picture_lines()}) == len(picture_lines())


def test_names_tell_the_true_format_and_all_three_are_there(made):
    folder, _ = made
    kinds = {path.name: image_extension(path.read_bytes()) for path in folder.iterdir()}
    assert {Path(name).suffix: kind for name, kind in kinds.items()} == {
        k: k for k in (".jpg", ".png", ".webp")
    }


def test_unmodified_photographs_are_byte_identical(made):
    folder, _ = made
    whole = [picture for picture in picture_lines() if "steps" not in picture]
    assert len(whole) >= 20
    for picture in whole:
        assert (folder / picture["file"]).read_bytes() == shipped(picture["from"]).read_bytes()


def test_a_second_call_writes_the_same(made, tmp_path):
    folder, records = made
    assert photos.make_photos(tmp_path) == records
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_pack_takes_every_record_and_placeholders_match(made):
    _, records = made
    kinds = {"image": 0, "input_image": 0, "images": 0, "caption": 0}
    for raw in records:
        record = recipes.default(raw)
        recipes.check(record)
        wanted = [f"<image_{n}>" for n in range(len(photos.picture_names(raw)))]
        assert re.findall(r"<image_\d+>", record.caption) == wanted
        assert re.sub(r"<image_\d+>", "", record.caption).strip()
        kinds[next(kind for kind in kinds if kind in raw)] += 1
    assert (
        kinds["image"] >= 40 and kinds["input_image"] >= 20 and kinds["images"] >= 6 and kinds["caption"] >= 4
    )


def test_whoever_took_a_picture_is_named(made):
    _, records = made
    for record in records:
        if photos.picture_names(record):
            assert record["credits"] and all(record["credits"])
    assert any("CC BY 2.0" in credit for record in records for credit in record.get("credits", []))


def test_edits_are_what_their_instructions_say(made):
    folder, records = made
    edits = {record["instruction"]: record for record in records if "instruction" in record}

    def pair(instruction):
        record = edits.pop(instruction)
        return pixels(folder, record["input_image"]), pixels(folder, record["output_image"])

    before, after = pair("Flip it from left to right.")
    assert np.abs(before[:, ::-1] - after).mean() < 4
    before, after = pair("Turn it upside down.")
    assert np.array_equal(before[::-1, ::-1], after)
    before, after = pair("Turn it a quarter to the right.")
    assert np.abs(np.rot90(before, -1) - after).mean() < 4
    before, after = pair("Make it black and white.")
    assert np.ptp(after, axis=2).max() == 0 and np.ptp(before, axis=2).max() > 100
    before, after = pair("Turn it into a photographic negative.")
    assert np.abs((255 - before) - after).mean() < 4
    before, after = pair("Blur the whole picture.")
    assert np.abs(np.diff(after, axis=1)).mean() < np.abs(np.diff(before, axis=1)).mean() / 3
    before, after = pair("Make it much brighter.")
    assert after.mean() > 1.4 * before.mean()
    before, after = pair("Make it darker, as if the light had been turned down.")
    assert after.mean() < 0.6 * before.mean()
    before, after = pair("Raise the contrast.")
    assert after.std() > 1.5 * before.std()
    before, after = pair("Crop to the face.")
    assert np.abs(before[5:205, 140:312] - after).mean() < 4


def test_the_awkward_kinds_are_among_them(made):
    """Stored sideways, in CMYK, with transparency: what a reader must get right."""
    folder, _ = made
    with Image.open(folder / "pavilion-phone.jpg") as stored:
        assert stored.width > stored.height and stored.getexif()[0x0112] == 6
    upright = pixels(folder, "pavilion-phone.jpg")
    assert np.abs(upright - pixels(folder, "pavilion.jpg")[0:427, 60:345]).mean() < 4
    with Image.open(folder / "dahlia-print.jpg") as stored:
        assert stored.mode == "CMYK"
    assert np.abs(pixels(folder, "dahlia-print.jpg") - pixels(folder, "dahlia.jpg")).mean() < 8
    assert pixels(folder, "horse.png")[0, 0].tolist() == [255, 255, 255]


def test_without_the_wheels_the_error_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setattr(photos.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadConfig, match=r"skimage.*make demo"):
        photos.make_photos(tmp_path)
