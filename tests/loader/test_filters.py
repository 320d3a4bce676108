"""Rules on made-up samples: which one leaves a sample out, and that nothing else does."""

from __future__ import annotations

import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.captions import Captions
from loader.errors import BadConfig, BadSample
from loader.filters import Facts, Filters, Range, contains, numbers


def rules(given_rules, seed=42, captions=None, **options):
    return Filters(given_rules, **options).parse(Captions(captions), seed)


def why_not(given_rules, document=None, sizes=(), index=0, text=None, **options):
    sample = {"__key__": "1"} | ({} if document is None else {".json": document})
    sample |= {} if text is None else {".txt": text}
    return rules(given_rules, **options).why_not(Facts(index, sample, len(sizes), lambda: list(sizes)))


@pytest.mark.parametrize(
    ("rule", "value", "fits", "fails"),
    [
        ("height", (10, 20), [(10, 1), (20, 1)], [(9, 15), (21, 15)]),
        ("width", (10, None), [(1, 10), (1, 10**6)], [(15, 9)]),
        ("width", (None, 10), [(15, 10), (15, 1)], [(1, 11)]),
        ("area", (100, 200), [(10, 10), (2, 100)], [(9, 11), (2, 101)]),
        ("aspect_ratio", (0.5, 2.0), [(10, 20), (20, 10), (7, 7)], [(10, 21), (21, 10)]),
        ("aspect_ratio", [1.5, 1.5], [(10, 15)], [(10, 16)]),
    ],
)
def test_shapes(rule, value, fits, fails):
    for size in fits:
        assert why_not({rule: value}, sizes=[size]) is None
        assert why_not({rule: value}, {"height": size[0], "width": size[1]}) is None
    for size in fails:
        assert why_not({rule: value}, sizes=[size]) == rule
        assert why_not({rule: value}, {"height": size[0], "width": size[1]}) == rule


def test_how_many_pictures():
    assert why_not({"images": (1, 1)}, sizes=[(1, 1)]) is None
    assert why_not({"images": (1, 1)}) == why_not({"images": (1, 1)}, sizes=[(1, 1)] * 2) == "images"
    assert why_not({"images": (1, 1)}, keep_missing=True) == "images"  # none is a number, too


def test_every_picture_must_fit():
    assert why_not({"height": (10, None)}, sizes=[(10, 1), (11, 1)]) is None
    assert why_not({"height": (10, None)}, sizes=[(10, 1), (9, 1)]) == "height"
    both = {"metadata": {"height": [10, 9], "width": [5, 5]}}
    assert why_not({"height": (10, None)}, both) == "height"
    assert why_not({"height": (9, None)}, both) is None


@pytest.mark.parametrize(
    ("document", "options", "height"),
    [
        ({"metadata": {"height": 1, "width": 9}, "height": 2, "width": 9}, {}, 1),
        ({"metadata": {"height": 1}, "height": 2, "width": 9}, {}, 2),  # both or none
        ({"height": 2, "width": 9}, {"size_fields": "picture"}, 99),
        ({"height": 2, "width": 9, "h": 3, "w": 9}, {"size_fields": ("h", "w")}, 3),
        ({"a": {"h": 3, "w": 9}}, {"size_fields": ("a.h", "a.w")}, 3),
        ({"h": 3, "w": 9}, {"size_fields": ("$.h", "$.w")}, 3),
        ({"h": 3}, {"size_fields": ("h", "w")}, 99),
        ({"height": 0, "width": 9}, {}, 99),  # no size that a picture has
        ({"height": "2", "width": 9}, {}, 99),
        ({"height": math.inf, "width": 9}, {}, 99),
        ({"height": 10**400, "width": 9}, {}, 99),
        ({"height": [2, 3], "width": [9]}, {}, 99),
        ({"height": [], "width": []}, {}, 99),
        (None, {}, 99),
        ("text", {}, 99),
    ],
)
def test_where_sizes_come_from(document, options, height):
    assert why_not({"height": (height, height)}, document, [(99, 99)], **options) is None
    assert why_not({"height": (height + 1, None)}, document, [(99, 99)], **options) == "height"


def test_headers_are_read_where_they_are_needed_alone():
    def measure():
        raise AssertionError("the picture was opened")

    known = Facts(0, {".json": {"height": 5, "width": 5, "score": 1}, ".txt": "a"}, 1, measure)
    assert rules({"height": (5, 5), "$.score": (1, 1), "keywords": "b"}).why_not(known) is None
    unknown = Facts(0, {".json": {"score": 1}, ".txt": "a b"}, 1, measure)
    assert rules({"height": (5, 5), "$.score": (2, 2)}).why_not(unknown) == "score"
    assert rules({"height": (5, 5), "keywords": "b"}).why_not(unknown) == "keywords: b"


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        (5, True),
        (5.0, True),
        (4.99, False),
        (True, False),
        ([5, 6], True),
        ([5, 4], False),
        (math.inf, True),
        (10**400, True),
        (-(10**400), False),
    ],
)
def test_numbers_of_the_json(value, inside):
    document = {"metadata": {"aesthetic": value}}
    assert why_not({"metadata.aesthetic": (5.0, None)}, document) == (
        None if inside else "metadata.aesthetic"
    )


@pytest.mark.parametrize("value", [None, "5", {}, [], [5, "6"], math.nan])
def test_what_is_no_number_is_missing(value):
    document = {"metadata": {"aesthetic": value}}
    assert why_not({"metadata.aesthetic": (None, None)}, document) == "metadata.aesthetic"
    assert why_not({"metadata.aesthetic": (None, None)}, document, keep_missing=True) is None
    assert why_not({"height": (1, None)}) == "height"  # no picture
    assert why_not({"height": (1, None)}, keep_missing=True) is None


def test_fields_that_were_looked_for_are_told():
    facts = Facts(0, {".json": {"a": 1, "b": "text"}}, 0, list)
    rules({"$.a": (0, 2), "$.b": (0, 2), "$.c": (0, 2)}, keep_missing=True).why_not(facts)
    assert (facts.present, facts.absent) == ({"a"}, {"b", "c"})


@pytest.mark.parametrize(
    ("text", "word", "there"),
    [
        ("a logo here", "logo", True),
        ("LOGO.", "logo", True),
        ("logos", "logo", False),
        ("my_logo", "logo", False),
        ("dialogo, logo", "logo", True),
        ("a stock photo!", "stock photo", True),
        ("stock  photo", "stock photo", False),
        ("STRASSE", "straße", True),
        ("café", "caf", False),
        ("日本の写真です", "写真", True),
        ("ภาพถ่ายสวย", "ถ่าย", True),
        ("写真photo集", "photo", True),
        ("c++ code", "c++", True),
        ("", "logo", False),
        ("aaa", "a", False),
        ("a-b", "a", True),
    ],
)
def test_keywords_are_whole_words_in_any_case(text, word, there):
    assert contains(text.casefold(), word.casefold()) is there
    assert (why_not({"keywords": [word]}, text=text) is not None) is there


def test_keywords_are_looked_for_in_every_caption():
    document = {"caption": "a cat", "caption_all": {"short": "cat", "tags": ["pet", "logo"]}}
    assert why_not({"keywords": "logo"}, document) is None
    assert (
        why_not({"keywords": "logo"}, document, captions=["caption", "caption_all.tags"]) == "keywords: logo"
    )
    with pytest.raises(BadSample, match="int 5"):
        why_not({"keywords": "logo"}, {"caption": 5})
    assert why_not({"keywords": "logo"}, {}) is None  # no text, no keyword in it


@pytest.mark.parametrize("drop", [0.0, 0.25, 1.0])
def test_chance(drop):
    def left_out(given_rules, seed=42):
        return {
            index
            for index in range(2000)
            if why_not(given_rules, {"score": 0, "caption": "logo"}, [(5, 5)], index, seed=seed)
        }

    for given_rules in (
        {"$.score": (1, None, drop)},
        {"height": (9, None, drop)},
        {"keywords": {"logo": drop}},
    ):
        found = left_out(given_rules)
        assert abs(len(found) / 2000 - drop) < 0.04
        assert found == left_out(given_rules)
        if drop == 0.25:
            assert found != left_out(given_rules, seed=43)
            more = left_out(given_rules | {"width": (9, None, 0.01)})
            assert found <= more  # another rule changes nothing about this one
            two = left_out({"$.score": (1, None, drop), "height": (9, None, drop)})
            assert abs(len(two) / 2000 - (1 - 0.75**2)) < 0.04  # independent of each other


@given(st.lists(st.floats(allow_nan=False)), st.none() | st.floats(-9, 9), st.none() | st.floats(-9, 9))
def test_ranges(values, low, high):
    if low is not None and high is not None and low > high:
        low, high = high, low
    inside = all((low is None or value >= low) and (high is None or value <= high) for value in values)
    assert Range.of("a.b", (low, high)).holds(values) is inside


@pytest.mark.parametrize(
    "value",
    [
        *(5, None, "12", {"min": 1}),
        *((), (1,), (2, 1), ("1", 2), (True, 2), (math.nan, 1)),
        *((1, 2, 3), (1, 2, -0.1), (1, 2, None), (1, 2, True), (None, None, "x"), (1, 2, 0.5, 0)),
    ],
)
@pytest.mark.parametrize("rule", ["height", "a.b"])
def test_ranges_that_cannot_be_meant(rule, value):
    with pytest.raises(BadConfig, match=f"'{rule}' is .*lowest, highest"):
        Filters({rule: value})


@pytest.mark.parametrize(
    "value", [5, None, [5], {"a": 2}, {"a": "x"}, {"a": True}, {5: 1.0}, "", ["", "a"], [" "]]
)
def test_keywords_that_cannot_be_meant(value):
    with pytest.raises(BadConfig, match="'keywords' is"):
        Filters({"keywords": value})


@pytest.mark.parametrize(
    ("rule", "meant"),
    [
        ("hieght", "height"),
        ("aspect", "aspect_ratio"),
        ("keyword", "keywords"),
        ("aspectratio", "aspect_ratio"),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest(rule, meant):
    with pytest.raises(BadConfig, match=f"no rule '{rule}': did you mean '{meant}'"):
        Filters({rule: (1, 2)})


@pytest.mark.parametrize("rule", ["score", "", ".", "$.", 5, None, "a.", ".a"])
def test_a_field_is_a_dotted_path(rule):
    with pytest.raises(BadConfig, match="no rule"):
        Filters({rule: (1, 2)})


@pytest.mark.parametrize("fields", ["picure", ("a",), ("a", "b", "c"), (1, 2), ("a", ""), None, 5])
def test_size_fields_that_cannot_be_meant(fields):
    with pytest.raises(BadConfig, match="size_fields is"):
        Filters({}, size_fields=fields)


@pytest.mark.parametrize("given_rules", [None, [("height", (1, 2))], "height"])
def test_rules_are_a_mapping(given_rules):
    with pytest.raises(BadConfig, match="a mapping such as"):
        Filters(given_rules)


def test_signatures_tell_what_matters():
    base = {"height": (1, 2), "a.b": (1, None)}
    signature = rules(base).signature()
    assert json.loads(signature)
    assert rules(dict(reversed(base.items()))).signature() == signature
    assert rules(base, captions=["x"]).signature() == signature  # no keyword looks at texts
    others = [
        rules(base, seed=1),
        rules(base | {"height": (1, 3)}),
        rules(base | {"height": (1, 2, 0.5)}),
        rules(base | {"$.height": (1, 2)}),
        rules(base | {"images": (1, 2)}),
        rules(base, size_fields="picture"),
        rules(base, keep_missing=True),
        rules(base | {"keywords": "a"}),
        rules(base | {"keywords": {"a": 0.5}}),
        rules(base | {"keywords": "a"}, captions=["x"]),
    ]
    assert len({signature, *(other.signature() for other in others)}) == 11


def test_only_what_is_needed_is_read():
    assert rules({"height": (1, 2)}).texts == {".json"}
    assert rules({"height": (1, 2)}, size_fields="picture").texts == set()
    assert rules({"a.b": (1, 2)}).texts == {".json"}
    assert rules({"keywords": "a"}).texts == {".json", ".txt"}
    assert rules({"keywords": "a"}, captions=".cap").texts == {".json", ".cap"}
    assert rules({}).texts == set()


def test_rules_are_pickled():
    copy = pickle.loads(pickle.dumps(rules({"height": (5, None), "keywords": "a"})))
    assert copy.why_not(Facts(0, {}, 1, lambda: [(4, 4)])) == "height"
    assert pickle.loads(pickle.dumps(Filters({"height": (5, None)}))) == Filters({"height": (5, None)})


def test_numbers():
    assert numbers(5) == [5] and numbers([1, 2.5]) == [1, 2.5]
    assert numbers("5") == numbers(None) == numbers([None]) == numbers([math.nan]) == numbers({}) == []
