from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import BadConfig, BadSample
from tasks.recipes import Record, check, default, document, resolve, source_bytes

NAN = float("nan")


def made(raw: dict[str, Any]) -> Record:
    record = default(raw)
    check(record)
    return record


def refused(raw: dict[str, Any]) -> str:
    with pytest.raises(BadSample) as caught:
        document(made(raw))
    return str(caught.value)


def test_an_edit() -> None:
    record = made(
        {
            "id": 7,
            "input_image": "a.png",
            "output_image": "b.png",
            "instruction": "make it red",
            "input_description": "a blue car",
            "output_description": "a red car",
            "edit_type": {"name": "colour"},
        }
    )
    assert record.caption == "<image_0>make it red<image_1>"
    assert record.images == ("a.png", "b.png")
    assert record.caption_all == {
        "instruction": "make it red",
        "input_description": "a blue car",
        "output_description": "a red car",
    }
    assert record.metadata == {"id": 7, "edit_type": {"name": "colour"}}


def test_an_edit_keeps_its_own_placeholders_and_needs_no_description() -> None:
    edit = {"input_image": "a", "output_image": "b", "instruction": "turn <image_0> into <image_1>"}
    record = made(edit)
    assert record.caption == "turn <image_0> into <image_1>"
    assert record.caption_all == {"instruction": "turn <image_0> into <image_1>"}
    assert made({**edit, "input_description": None}).caption_all == record.caption_all


def test_one_picture() -> None:
    assert made({"image": "a.jpg", "caption": "a cat"}) == Record("<image_0>a cat", ("a.jpg",))
    assert made({"image": "a.jpg", "text": "a cat"}).caption == "<image_0>a cat"
    assert made({"image": "a.jpg", "caption": "see <image_0>: a cat"}).caption == "see <image_0>: a cat"
    more = made({"image": "a.jpg", "caption": "a cat", "short_caption": "cat", "width": 3})
    assert more.caption_all == {"caption": "a cat", "short_caption": "cat"}
    assert more.metadata == {"width": 3}


def test_many_pictures_and_none() -> None:
    record = made({"images": ["a", "b"], "caption": "<image_1> then <image_0>", "n": None})
    assert record == Record("<image_1> then <image_0>", ("a", "b"), None, {"n": None})
    assert made({"caption": "words"}) == made({"text": "words"}) == Record("words")
    assert made({"images": [], "caption": "words"}).images == ()


def test_own_captions_and_metadata_are_merged() -> None:
    record = made({"text": "a", "caption_all": {"long": "aaa"}, "metadata": {"k": 1}, "z": 2})
    assert record == Record("a", (), {"text": "a", "long": "aaa"}, {"k": 1, "z": 2})
    assert "caption_all is dict" in refused({"text": "a", "caption_all": {"long": 3}})
    assert made({"text": "a", "metadata": "free"}).metadata == {"metadata": "free"}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"images": ["a", "b"], "caption": "<image_0>"}, "has <image_0> but the sample has 2 pictures"),
        ({"images": ["a"], "caption": "none"}, "has no placeholders but the sample has 1 picture"),
        ({"images": ["a", "b"], "caption": "<image_0><image_0>"}, "expected <image_0> <image_1>, each once"),
        ({"images": ["a"], "caption": "<image_00>"}, "has <image_00>"),
        ({"images": ["a"], "caption": "<image_1>"}, "has <image_1>"),
        ({"image": "a", "caption": "<image_0> <image_1>"}, "has <image_0> <image_1>"),
        ({"caption": "<image_0>"}, "the sample has no pictures"),
        ({"input_image": "a", "output_image": "b", "instruction": "<image_0>"}, "2 pictures"),
        ({"input_image": "a", "output_image": "b"}, "instruction is missing"),
        ({"input_image": "a", "instruction": "x"}, "output_image is missing"),
        ({"image": "a"}, "no caption or text in the record, which has image"),
        ({}, "which has nothing"),
        ({"image": None, "caption": "x"}, "image is null: the address of a picture was expected"),
        ({"image": "", "caption": "x"}, "image is str ''"),
        ({"image": ["a"], "caption": "x"}, "image is list ['a']"),
        ({"image": "a", "caption": None}, "caption is null: a text was expected"),
        ({"image": "a", "caption": NAN}, "caption is float nan: a text was expected"),
        ({"image": "a", "caption": 7}, "caption is int 7"),
        ({"image": "a", "caption": "x", "long_caption": NAN}, "long_caption is float nan"),
        ({"images": "a", "caption": "<image_0>"}, "images is str 'a': a list"),
        ({"images": ["a", None], "caption": "<image_0><image_1>"}, "images[1] is null"),
        ({"images": ["a"], "image": "a", "caption": "<image_0>"}, "images and image in one record"),
        ({"text": " "}, "nothing to train on"),
        ({"text": "x", "score": NAN}, "metadata.score cannot be stored as JSON"),
        ({"text": "x", "boxes": [{"y": [1.0, float("inf")]}]}, "metadata.boxes[0].y[1] cannot be stored"),
        ({"text": "half \ud83d"}, "half a surrogate pair"),
    ],
)
def test_what_cannot_be_used(raw: dict[str, Any], reason: str) -> None:
    assert reason in refused(raw)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("text", "a tasks.recipes.Record was expected"),
        (None, "returned null"),
        (Record(3), "caption is int 3"),  # type: ignore[arg-type]
        (Record("<image_0>", (3,)), "picture 0 is int 3"),  # type: ignore[arg-type]
        (Record("<image_0>", (b"",)), "picture 0 is bytes"),
        (Record("x", (), {"a": 1}), "caption_all is dict"),  # type: ignore[dict-item]
        (Record("x", (), None, []), "metadata is list"),  # type: ignore[arg-type]
    ],
)
def test_what_a_recipe_may_not_return(record: Any, reason: str) -> None:
    with pytest.raises(BadSample, match=reason):
        check(record)


def test_the_document_is_compact_utf8_in_a_fixed_order() -> None:
    record = Record("ä", (), {"b": "x", "a": "y"}, {"z": 1.5})
    text = '{"caption":"ä","caption_all":{"b":"x","a":"y"},"metadata":{"z":1.5}}'
    assert document(record) == text.encode()
    assert document(Record("x", (), {}, {})) == b'{"caption":"x"}'
    with pytest.raises(BadSample, match=r"metadata\.when cannot be stored as JSON: Object of type set"):
        document(Record("x", (), None, {"when": {1}}))


@settings(deadline=None, max_examples=200)
@given(st.text(), st.lists(st.integers(0, 5), max_size=5), st.integers(0, 5))
def test_placeholders_fit_exactly_or_not_at_all(text: str, numbers: list[int], pictures: int) -> None:
    caption = text.replace("<image_", "") + "".join(f"<image_{number}>" for number in numbers)
    record = Record(caption, ("a",) * pictures)
    if sorted(numbers) == list(range(pictures)):
        check(record)
    else:
        with pytest.raises(BadSample):
            check(record)


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(("image", "images", "input_image", "output_image", "instruction", "caption", "text",
                         "caption_all", "metadata", "a_description", "other")),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        ),
    )
)  # fmt: skip
def test_any_record_gives_a_document_or_one_clear_error(raw: dict[str, Any]) -> None:
    try:
        record = default(raw)
        check(record)
        value = json.loads(document(record))
    except BadSample:
        return
    assert value["caption"] == record.caption


@pytest.fixture
def _own_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`resolve` adds to the import path; a module found there is forgotten with it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("_own_path")
def test_own_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "beside the config"
    folder.mkdir()
    (folder / "my_recipe_a.py").write_text(
        "from tasks.recipes import Record\n"
        "class Kind:\n    @staticmethod\n    def make(raw): return Record(raw['q'])\n"
        "def run(raw): return Record(raw['q'])\nvalue = 3\n"
    )
    (tmp_path / "my_recipe_b.py").write_text("from my_recipe_a import run\n")
    assert resolve("my_recipe_a:run", str(folder))({"q": "x"}) == Record("x")
    assert resolve("my_recipe_a:Kind.make", str(folder))({"q": "x"}) == Record("x")
    assert resolve("my_recipe_b:run")({"q": "x"}) == Record("x")  # the working directory
    with pytest.raises(BadConfig, match=r"my_recipe_a\.py has no function 'value'"):
        resolve("my_recipe_a:value", str(folder))
    with pytest.raises(BadConfig, match="has no function 'gone'"):
        resolve("my_recipe_a:gone", str(folder))


@pytest.mark.usefixtures("_own_path")
def test_own_recipe_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "my_recipe_c.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "my_recipe_d.py").write_text("1 / 0\n")
    (tmp_path / "my_recipe_e.py").write_text("def (\n")
    with pytest.raises(BadConfig, match="no module 'my_recipe_x' on the import path or in /"):
        resolve("my_recipe_x:run", str(tmp_path))
    with pytest.raises(BadConfig, match=rf"path or in {tmp_path}$"):  # also the working directory: named once
        resolve("my_recipe_x:run", f"{tmp_path}/")
    (tmp_path / "configs").mkdir()
    with pytest.raises(BadConfig, match=rf"path or in {tmp_path}/configs or {tmp_path}$"):
        resolve("my_recipe_x:run", str(tmp_path / "configs"))
    with pytest.raises(BadConfig, match="importing 'my_recipe_c' failed: No module named 'no_such_module"):
        resolve("my_recipe_c:run", str(tmp_path))
    with pytest.raises(BadConfig, match="importing 'my_recipe_d' failed: ZeroDivisionError"):
        resolve("my_recipe_d:run", str(tmp_path))
    with pytest.raises(BadConfig, match="importing 'my_recipe_e' failed: SyntaxError"):
        resolve("my_recipe_e:run", str(tmp_path))


@pytest.mark.parametrize(
    "name", ["", "module", "module:", ":function", "a b:c", "a:b c", "a/b.py:c", "a:b:c"]
)
def test_names_that_are_no_recipe(name: str) -> None:
    with pytest.raises(BadConfig, match="'default' or 'module:function' was expected"):
        resolve(name)


@pytest.mark.usefixtures("_own_path")
def test_a_changed_recipe_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "my_recipe_f.py"
    file.write_text("def run(raw): ...\n")
    recipe = resolve("my_recipe_f:run")
    before = source_bytes(recipe)
    file.write_text("def run(raw): return 1\n")
    assert source_bytes(recipe) != before
    assert source_bytes(default) == source_bytes(resolve("default"))
