from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.fields import find, nearest, paths

DOCUMENT = {
    "caption": "a",
    "metadata": {"aesthetic": 5.5, "a.b": 1, "empty": None, "deep": {"er": [1, 2]}},
    "images": [{"width": 3}, {"width": 4}],
    "x.y": {"z": 7},
    "x": {"y": {"other": 8}},
    "list": [[1, 2], 3],
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("caption", "a"),
        ("metadata.aesthetic", 5.5),
        ("metadata.a.b", 1),  # a name that holds a dot
        ("metadata.deep.er", [1, 2]),
        ("metadata.deep.er.1", 2),
        ("images.1.width", 4),
        ("x.y.z", 7),
        ("x.y.other", 8),
        ("list.0.1", 2),
        ("list.1", 3),
        ("metadata.empty", None),
        ("metadata.absent", None),
        ("caption.length", None),
        ("images.2.width", None),
        ("images.-1.width", None),
        ("images.²", None),
        ("images." + "9" * 5000, None),
        ("images.width", None),
        ("", None),
        (".", None),
        ("metadata.", None),
    ],
)
def test_find(path, value):
    assert find(DOCUMENT, path) == value


@pytest.mark.parametrize("document", [None, 5, "text", [], True])
def test_documents_of_other_kinds_hold_nothing(document):
    assert find(document, "a.b") is None
    assert paths(document) == []


LEAVES = st.none() | st.integers() | st.text(max_size=3)
NAMES = st.text(st.characters(codec="ascii", exclude_characters="."), min_size=1, max_size=4)
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=12)


@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_every_path_leads_to_its_value(document):
    def walk(value, prefix):
        if isinstance(value, dict) and prefix.count(".") < 7:
            for name, inner in value.items():
                yield from walk(inner, f"{prefix}.{name}" if prefix else name)
        else:
            yield prefix, value

    leaves = dict(walk(document, ""))
    assert paths(document) == list(leaves)
    for path, value in leaves.items():
        assert find(document, path) == value


def test_paths_are_bounded():
    assert len(paths({str(number): 0 for number in range(10_000)})) == 200
    deep: dict = {}
    for _ in range(3000):
        deep = {"a": deep}
    assert len(paths(deep)) <= 1


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("hieght", "did you mean 'height'?"),
        ("metadata.widht", "did you mean 'width'?"),  # another place, nearly the same name
        ("meta.aesthetic", "did you mean 'metadata.aesthetic'?"),
        ("zzz", "there are height, width, metadata.aesthetic"),
    ],
)
def test_nearest(wrong, meant):
    assert nearest(wrong, ["height", "width", "metadata.aesthetic"]) == meant
    assert nearest(wrong, []) == "there are none"
