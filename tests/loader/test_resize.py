"""One size for all pictures: exact shapes, upright, and the same by both decoders."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photo, turned
from PIL import Image

from loader import images, resize
from loader.errors import BadConfig, BadSample
from loader.indexed_tar_samples import IndexedTarSamples
from loader.resize import ResizedImage, image_handlers, resize_array

FITS = ("crop", "cover", "stretch")
SIDES = st.integers(1, 4000)


def difference(first, second) -> int:
    return int(np.abs(np.asarray(first, np.int16) - np.asarray(second, np.int16)).max())


@settings(deadline=None, max_examples=200)
@given(SIDES, SIDES, st.integers(1, 600), st.integers(1, 600))
def test_what_covers_covers_and_keeps_its_shape(height, width, wanted_height, wanted_width):
    scaled = ResizedImage((wanted_height, wanted_width), "cover").scaled(height, width)
    assert scaled[0] >= wanted_height and scaled[1] >= wanted_width
    assert scaled[0] == wanted_height or scaled[1] == wanted_width  # and no more than it must
    exact = max(wanted_height / height, wanted_width / width)
    assert abs(scaled[0] - height * exact) <= 0.5001 and abs(scaled[1] - width * exact) <= 0.5001
    assert ResizedImage((wanted_height, wanted_width), "stretch").scaled(height, width) == (
        wanted_height,
        wanted_width,
    )


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize(
    "shape", [(64, 96), (96, 64), (64, 64), (20, 30), (1, 50), (51, 1), (33, 47), (40, 60)]
)
def test_both_decoders_give_the_same_picture_of_the_same_size(fit, shape):
    data = encoded(photo(*shape))
    size = (40, 60)
    image = image_handlers("pil", size, fit)[".jpg"](data)
    array = image_handlers("array", size, fit)[".jpg"](data)
    assert isinstance(image, Image.Image) and image.mode == "RGB"
    assert array.dtype == np.uint8 and array.flags.c_contiguous and array.flags.writeable
    assert array.shape == (image.height, image.width, 3)
    if fit != "cover":
        assert array.shape == (*size, 3)
    assert difference(image, array) <= 2


def test_what_is_cut_out_is_the_middle():
    wide = np.zeros((30, 90, 3), np.uint8)
    wide[:, 30:60] = 255  # exactly what shall be left
    data = encoded(Image.fromarray(wide), "PNG")
    for kind in ("pil", "array"):
        assert np.asarray(image_handlers(kind, 30)[".png"](data)).min() == 255
        stretched = np.asarray(image_handlers(kind, 30, "stretch")[".png"](data))
        assert stretched[:, 0].max() <= 1 and stretched[:, 15].min() >= 254


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["pil", "array"])
def test_orientation_is_applied_before_it_is_fitted(kind, orientation):
    stored = photo(60, 90)
    data = encoded(stored, exif=turned(orientation))
    upright = images.decode_image(data)
    expected = upright.resize((24, 40), Image.Resampling.BICUBIC)
    found = image_handlers(kind, (40, 24), "stretch")[".jpg"](data)
    assert difference(expected, found) <= 2
    cut = np.asarray(image_handlers(kind, (30, 12))[".jpg"](data))
    whole = np.asarray(image_handlers(kind, (30, 12), "cover")[".jpg"](data))
    top, left = (whole.shape[0] - 30) // 2, (whole.shape[1] - 12) // 2
    assert np.array_equal(cut, whole[top : top + 30, left : left + 12])


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same(fit, orientation, monkeypatch):
    data = encoded(photo(601, 1201), exif=turned(orientation))
    decoded = []
    for name in ("decode_image", "decode_array"):
        original = getattr(images, name)

        def spy(*arguments, original=original, **keywords):
            decoded.append(original(*arguments, **keywords))
            return decoded[-1]

        monkeypatch.setattr(images, name, spy)
    size = (40, 50)
    small = [image_handlers(kind, size, fit)[".jpg"](data) for kind in ("pil", "array")]
    assert decoded[0].width * decoded[0].height < 601 * 1201 / 3
    assert decoded[1].size < 601 * 1201
    monkeypatch.setattr(resize, "_MARGIN", 1000)
    full = [image_handlers(kind, size, fit)[".jpg"](data) for kind in ("pil", "array")]
    assert decoded[2].width * decoded[2].height == 601 * 1201
    for one in (*small, *full):
        assert np.asarray(one).shape == np.asarray(full[0]).shape
        assert difference(one, full[0]) <= 6  # the margin keeps it to a third of a pixel


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(1, 120),
    st.integers(1, 120),
    st.sampled_from((1, 6)),
)
def test_at_least_is_kept(height, width, least_height, least_width, orientation):
    data = encoded(Image.new("RGB", (width, height), "red"), exif=turned(orientation))
    seen = (height, width) if orientation == 1 else (width, height)
    image = images.decode_image(data, at_least=(least_height, least_width))
    array = images.decode_array(data, at_least=(least_height, least_width))
    for shape in ((image.height, image.width), array.shape[:2]):
        if seen[0] >= least_height and seen[1] >= least_width:
            assert shape[0] >= least_height and shape[1] >= least_width
        else:
            assert shape == seen  # it is small enough as it is


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_other_formats_and_modes(kind, mode):
    data = encoded(photo(50, 70).convert(mode), kind)
    both = [image_handlers(images, (30, 30))["." + kind.lower()](data) for images in ("pil", "array")]
    assert both[1].shape == (30, 30, 3)
    assert difference(*both) <= 2


def test_cmyk_jpegs_go_the_same_way():
    data = encoded(photo(600, 900).convert("CMYK"))
    both = [image_handlers(images, (30, 40))[".jpg"](data) for images in ("pil", "array")]
    assert difference(*both) <= 2


def test_without_a_size_pictures_stay_as_large_as_they_are():
    data = encoded(photo(31, 41))
    assert image_handlers()[".jpeg"](data).size == (41, 31)
    assert image_handlers("array")[".jpeg"](data).shape == (31, 41, 3)


def test_a_picture_of_the_size_is_left_alone():
    pixels = np.asarray(photo(30, 40)).copy()
    assert resize_array(pixels, 30, 40) is pixels


@pytest.mark.parametrize("kind", ["pil", "array"])
@pytest.mark.parametrize("data", [b"", b"text", encoded(photo())[:-400], encoded(photo())[:30]])
def test_what_is_no_picture_is_a_bad_sample(kind, data):
    with pytest.raises(BadSample):
        image_handlers(kind, 20)[".jpg"](data)


def test_handlers_are_pickled_to_workers(tmp_path):
    handlers = pickle.loads(pickle.dumps(image_handlers("array", (20, 30))))
    assert handlers[".jpg"](encoded(photo())).shape == (20, 30, 3)
    assert repr(handlers[".jpg"]) == "ResizedImage(size=(20, 30), fit='crop', images='array')"


def test_handlers_go_with_open_tars(tmp_path):
    from pictures import pairs, write_dataset

    root = write_dataset(tmp_path, pairs(2))
    samples = IndexedTarSamples(f"{root}/shard-000000.tar", handlers=image_handlers("array", 16))
    assert samples[1][".jpg"].shape == (16, 16, 3)


@pytest.mark.parametrize(
    "size", [0, -1, True, 1.5, "224", (1, 2, 3), (0, 5), (5, 1 << 20), [3, None], (2.0, 3)]
)
def test_sizes_that_cannot_be_meant(size):
    with pytest.raises(BadConfig, match="resize is"):
        image_handlers("pil", size)


def test_choices_that_cannot_be_meant():
    with pytest.raises(BadConfig, match="images is 'jax': one of pil, array"):
        image_handlers("jax")
    with pytest.raises(BadConfig, match="fit is 'squeeze': one of crop, cover, stretch"):
        image_handlers("pil", 3, "squeeze")


def test_a_missing_fast_decoder_is_told(monkeypatch, caplog):
    monkeypatch.setattr(resize.importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        image_handlers("pil", 20)
        assert not caplog.records
        image_handlers("array", 20)
    assert "shardflow[fast]" in caplog.text
