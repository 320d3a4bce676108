"""Extension → value, with real encoders; what is refused, and what the message tells."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image
from strategies import EXTENSIONS

from loader import data_handler
from loader.data_handler import default_handlers, handler_for, make_handlers
from loader.errors import BadConfig, BadSample, UnsafePickle

NAMED_BY_THE_FORMAT = (".txt", ".json", ".jpg", ".jpeg", ".png", ".webp", ".npy", ".npz", ".pickle", ".mp4")


def decode(extension, data, **options):
    return handler_for(extension, make_handlers(**options) if options else default_handlers)(data)


def encoded(kind):
    stream = io.BytesIO()
    Image.new("RGB", (12, 8), (200, 30, 40)).save(stream, kind)
    return stream.getvalue()


def saved(save, *arrays, **named):
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


class Trap:
    """Unpickling one shows that unpickling ran."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('the pickle ran')",))


# --- values ----------------------------------------------------------------------------------------------


@given(st.text())
def test_text(text):
    assert decode(".txt", text.encode()) == text
    assert decode(".txt", memoryview(text.encode())) == text


@pytest.mark.parametrize(
    "data, where", [(b"caf\xe9", "at byte 3"), (b"\xff\xfea\0", "at byte 0"), (b"\xed\xa0\x80", "UTF-8")]
)
def test_text_that_is_not_utf8(data, where):
    with pytest.raises(BadSample, match=where):
        decode(".txt", data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(json_values)
def test_json(value):
    data = json.dumps(value).encode()
    assert decode(".json", data) == decode(".json", memoryview(data)) == value


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nothing", b"[" * 100_000, b'{"a": 1} trailing'])
def test_json_that_is_none(data):
    with pytest.raises(BadSample, match="no JSON"):
        decode(".json", data)


@pytest.mark.parametrize(
    "extension, kind",
    [
        (".jpg", "JPEG"),
        (".jpeg", "JPEG"),
        (".png", "PNG"),
        (".webp", "WEBP"),
        (".gif", "GIF"),
        (".bmp", "BMP"),
    ],
)
@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_pictures(extension, kind, wrap):
    image = decode(extension, wrap(encoded(kind)))
    assert isinstance(image, Image.Image) and image.mode == "RGB" and image.size == (12, 8)
    assert np.abs(np.array(image).astype(int) - (200, 30, 40)).max() < 12
    array = decode(extension, wrap(encoded(kind)), images="array")
    assert array.dtype == np.uint8 and array.shape == (8, 12, 3)
    assert np.abs(array.astype(int) - np.array(image)).max() <= 2


def test_a_picture_is_recognised_by_its_bytes_not_by_its_name():
    assert decode(".jpg", encoded("PNG")).getpixel((0, 0)) == (200, 30, 40)


@settings(deadline=None)
@given(npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, min_side=0)), st.booleans())
def test_arrays(array, fortran):
    array = np.asfortranarray(array) if fortran else array
    seen = decode(".npy", saved(np.save, array))
    assert seen.dtype == array.dtype and seen.shape == array.shape and seen.flags.writeable
    assert seen.tobytes() == array.tobytes()
    archive = decode(".npz", memoryview(saved(np.savez_compressed, array, named=array)))
    assert type(archive) is dict and list(archive) == ["named", "arr_0"]
    assert all(value.tobytes() == array.tobytes() for value in archive.values())


def test_an_array_with_field_names_beyond_latin_1():
    array = np.zeros(3, [("größe", "<i4"), ("写真", "S3")])
    with pytest.warns(UserWarning, match="3.0"):
        data = saved(np.save, array)
    assert decode(".npy", data).dtype == array.dtype


def test_class_numbers_and_bytes():
    assert decode(".cls", b"17\n") == 17
    with pytest.raises(BadSample, match="no whole number: b'cat'"):
        decode(".cls", b"cat")
    for extension in (".mp4", ".bin", ".csv", "", ".", "..", ".tar.gz"):
        assert decode(extension, memoryview(b"\0\1")) == b"\0\1"
        assert type(decode(extension, memoryview(b"\0\1"))) is bytes


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", [".pickle", ".pkl", ".seg.PICKLE"])
def test_a_pickle_opens_only_when_asked_for(extension):
    with pytest.raises(UnsafePickle, match="allow_pickle=True"):
        decode(extension, pickle.dumps(Trap()))
    assert decode(extension, pickle.dumps({"a": (1, 2)}), allow_pickle=True) == {"a": (1, 2)}
    with pytest.raises(BadSample, match="no readable pickle"):
        decode(extension, b"nothing", allow_pickle=True)


def test_arrays_of_objects_open_only_when_asked_for():
    array = np.array([{"a": 1}, None], object)
    structured = np.array([(1, "x")], [("n", "i4"), ("o", object)])
    for data in (
        saved(np.save, array),
        saved(np.save, structured),
        saved(np.save, np.array([Trap()], object)),
    ):
        with pytest.raises(UnsafePickle, match="allow_pickle=True"):
            decode(".npy", data)
    with pytest.raises(UnsafePickle, match="allow_pickle=True"):
        decode(".npz", saved(np.savez, fine=np.arange(3), bad=array))
    assert decode(".npy", saved(np.save, array), allow_pickle=True).tolist() == [{"a": 1}, None]
    assert decode(".npz", saved(np.savez, bad=array), allow_pickle=True)["bad"].tolist() == [{"a": 1}, None]


def test_what_only_looks_like_an_array_never_reaches_pickle():
    """`numpy.load` takes any other bytes for a pickle: here they are no array, with and without the opt-in."""
    for data in (pickle.dumps(Trap()), b"", b"\x93NUMPY", b"PK\x03\x04"):
        for options in ({}, {"allow_pickle": True}):
            for extension in (".npy", ".npz"):
                with pytest.raises(BadSample, match="no readable"):
                    decode(extension, data, **options)


def npy(header, body=b"", version=(1, 0)):
    text = header.encode().ljust(118) + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + body


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(4294967296, 4294967296)", "(-1,)", "(3, -2, -1)", "(9,)"]
)
def test_an_array_that_announces_more_than_is_there(shape, version):
    """In no time and no memory: the size is compared before anything is allocated."""
    data = npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}", b"\0" * 64, version)
    for options in ({}, {"allow_pickle": True}):
        with pytest.raises(BadSample, match="64 are there"):
            decode(".npy", data, **options)


def test_the_array_behind_a_hand_made_header_is_read():
    data = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (8,), }", b"\0" * 64)
    assert decode(".npy", data).tolist() == [0.0] * 8


def test_an_archive_that_unpacks_to_more_than_the_limit(monkeypatch):
    data = saved(np.savez_compressed, zeros=np.zeros(1_000_000))
    assert len(data) < 20_000
    monkeypatch.setattr(data_handler, "MAX_UNPACKED", 1_000_000)
    with pytest.raises(BadSample, match="unpacks to 8,000,128 bytes, the limit is 1,000,000"):
        decode(".npz", data)


def test_an_archive_with_something_else_in_it():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("note.txt", "hello")
        archive.writestr("deep/a.npy", saved(np.save, np.arange(3)))
    value = decode(".npz", stream.getvalue())
    assert value["note.txt"] == b"hello" and value["deep/a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("extension", NAMED_BY_THE_FORMAT)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_damage_gives_a_value_or_bad_sample(extension, data):
    stems = {
        ".txt": "caption é".encode(),
        ".json": b'{"a": [1, 2.5, null]}',
        ".npy": saved(np.save, np.arange(6.0).reshape(2, 3)),
        ".npz": saved(np.savez_compressed, a=np.arange(6), b=np.zeros(3)),
        **{ext: encoded(kind) for ext, kind in ((".jpg", "JPEG"), (".png", "PNG"), (".webp", "WEBP"))},
    }
    good = bytearray(stems.get(extension, b"some bytes"))
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=3)):
        good[at] = data.draw(st.integers(0, 255))
    bad = bytes(good[: data.draw(st.integers(0, len(good)))])
    images = data.draw(st.sampled_from(("pil", "array")))
    try:
        decode(extension, bad, images=images)
    except BadSample as error:
        assert str(error)


# --- tables ----------------------------------------------------------------------------------------------


def test_the_defaults_cannot_be_changed():
    before = dict(default_handlers)
    assert set(NAMED_BY_THE_FORMAT) <= set(default_handlers)
    with pytest.raises(TypeError):
        default_handlers[".csv"] = bytes
    with pytest.raises(TypeError):
        del default_handlers[".txt"]
    assert not hasattr(default_handlers, "update") and not hasattr(default_handlers, "pop")
    mine = {".csv": bytes, ".TXT": bytes}
    table = make_handlers(mine, allow_pickle=True, images="array")
    assert mine == {".csv": bytes, ".TXT": bytes} and dict(default_handlers) == before
    with pytest.raises(TypeError):
        table[".x"] = bytes


def test_a_table_of_ones_own():
    table = make_handlers({".CSV": lambda data: data.decode().split(","), ".jpg": bytes})
    assert handler_for(".csv", table)(b"a,b") == handler_for(".Csv", table)(b"a,b") == ["a", "b"]
    assert handler_for(".jpg", table)(b"raw") == b"raw"
    assert handler_for(".json", table)(b"{}") == {}
    # the opt-in doesn't undo what was passed in
    assert handler_for(".pickle", make_handlers({".pickle": len}, allow_pickle=True))(b"four") == 4


@pytest.mark.parametrize(
    "handlers, said",
    [
        ({"csv": bytes}, "'csv' is no extension"),
        ({"": bytes}, "''"),
        ({".": bytes}, "'.'"),
        ({3: bytes}, "3"),
        ({".csv": None}, "None, expected a function"),
    ],
)
def test_a_table_that_cannot_be_meant(handlers, said):
    with pytest.raises(BadConfig, match=said):
        make_handlers(handlers)
    with pytest.raises(BadConfig, match="images='jax'"):
        make_handlers(images="jax")


def test_the_longest_known_suffix_decides_in_any_case():
    table = make_handlers({".seg.png": len})
    assert (
        handler_for(".seg.png", table)
        is handler_for(".SEG.Png", table)
        is handler_for(".x.seg.png", table)
        is len
    )
    assert handler_for(".depth.png", table) is handler_for(".PNG", table) is table[".png"]
    assert handler_for(".png.seg", table) is data_handler.read_bytes


@given(st.lists(st.sampled_from(EXTENSIONS), max_size=3), st.sampled_from(sorted(default_handlers)))
def test_whatever_stands_before_the_last_suffix(before, last):
    assert handler_for("".join(before) + last.upper(), default_handlers) is default_handlers[last]


@pytest.mark.parametrize(
    "options", [{}, {"allow_pickle": True, "images": "array", "handlers": {".csv": bytes}}]
)
def test_tables_travel_to_spawned_workers(options):
    table = make_handlers(**options)
    again = pickle.loads(pickle.dumps(table))
    assert dict(again) == dict(table) and repr(again) == repr(table)
    assert dict(pickle.loads(pickle.dumps(default_handlers))) == dict(default_handlers)


def test_importing_it_is_light():
    code = (
        "import sys, loader.data_handler as d; d.handler_for('.json', d.make_handlers())(b'{}'); "
        "print({'PIL', 'numpy', 'torch', 'simplejpeg', 'prefect'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "set()"


def test_the_pictures_of_this_module_are_those_of_images():
    from loader import images

    data = encoded("PNG")
    assert data_handler.decode_image(data).tobytes() == images.decode_image(data).tobytes()
    assert np.array_equal(data_handler.decode_array(data), images.decode_array(data))
    assert data_handler.to_rgb(Image.new("CMYK", (1, 1))).getpixel((0, 0)) == (255, 255, 255)
