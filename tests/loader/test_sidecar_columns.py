from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.sample_facts import UNREADABLE
from loader.sidecar_columns import (
    FIXED,
    MOST,
    as_kind,
    column_of,
    columns_of,
    field_of,
    joined,
    kind_of,
    kinds,
    named,
    plain,
    union,
)

KINDS = ("bool", "int", "long", "float", "text", "json")
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
NAMES = st.sampled_from([*FIXED, "score", "json.score", "metadata.width", "a.b", ""])
DOCUMENTS = st.lists(
    st.dictionaries(NAMES, VALUES, max_size=3).flatmap(
        lambda metadata: st.dictionaries(NAMES, VALUES, max_size=3).map(
            lambda others: {**others, "metadata": metadata}
        )
    ),
    max_size=8,
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, "bool"), (5, "int"), (-(2**53), "int"), (2**53 + 1, "long"), (2**63, "json"), (0.5, "float"), ("x", "text"),
     ([1], "json"), ({}, "json")],
)  # fmt: skip
def test_kinds(value: object, kind: str) -> None:
    assert kind_of(value) == kind


def test_joining_is_a_matter_of_the_kinds_alone() -> None:
    for first, second, third in itertools.product(KINDS, repeat=3):
        assert joined(first, second) == joined(second, first)
        assert joined(first, first) == first
        both = joined(joined(first, second), third), joined(first, joined(second, third))
        assert both[0] == both[1] or "json" in both


@given(DOCUMENTS, st.data())
def test_shards_in_any_order_and_division_have_the_same_columns(
    documents: list[Any], data: st.DataObject
) -> None:
    whole = union([columns_of(documents)])
    at = data.draw(st.integers(0, len(documents)))
    shuffled = data.draw(st.permutations(documents))
    assert union([columns_of(shuffled[at:]), columns_of(shuffled[:at])]) == whole
    assert list(whole) == sorted(whole)


@given(DOCUMENTS)
def test_every_value_fits_its_column(documents: list[Any]) -> None:
    wanted = kinds(union([columns_of(documents)]))
    assert not set(wanted) & set(FIXED)
    for document in documents:
        for column, value in named(document):
            kept = as_kind(value, wanted[column])
            types = {"bool": bool, "int": int, "long": int, "float": float}
            assert isinstance(kept, types.get(wanted[column], str))
            if wanted[column] != "json":
                assert kept == value


@given(st.text(max_size=12) | NAMES, st.booleans())
def test_columns_and_fields_tell_each_other(name: str, top: bool) -> None:
    assert field_of(column_of(name if top else "metadata." + name, top)) == (name, top)


def test_names() -> None:
    document = {"caption": "c", "url": "u", "metadata": {"score": 1, "width": 2, "none": None}}
    assert dict(named(document)) == {"score": 1, "metadata.width": 2, "json.url": "u"}
    for nothing in (None, UNREADABLE, [1], "text", 5):
        assert list(named(nothing)) == []


def test_of_very_many_fields_the_most_frequent_have_columns() -> None:
    documents = [{"metadata": {f"f{n:04d}": n for n in range(start, 3000, start + 1)}} for start in range(3)]
    found = union([columns_of(documents)])
    assert len(found) == MOST
    assert {count for _, count in found.values()} == {3}


def test_texts_that_utf8_cannot_hold() -> None:
    assert plain("caf\udce9 é") == "caf\\udce9 é"
    assert plain(None) is None
