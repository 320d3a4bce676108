"""Draws are pinned: a library or a Python that gives others would change what is trained on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loader import order
from loader.draws import CAPTION, FILTER, key, uniform

WORDS = st.lists(st.integers(0, (1 << 64) - 1), max_size=6)


@given(WORDS)
def test_keys_are_those_that_the_order_specifies(words):
    assert key(*words) == order.key_of(*words)


@given(WORDS)
def test_a_draw_lies_below_one(words):
    assert 0 <= uniform(*words) < 1


def test_pinned():
    assert key() == 0
    assert key(42, 7, CAPTION, 123_456) == 16_257_892_284_173_330_975
    assert uniform(42, 0, FILTER, 5, 99) == 0.6271270743600413


def test_draws_are_even_and_independent():
    draws = [uniform(1, 2, CAPTION, index) for index in range(4000)]
    assert abs(sum(draws) / 4000 - 0.5) < 0.02
    assert abs(sum(draw < 0.1 for draw in draws) / 4000 - 0.1) < 0.02
    others = [uniform(1, 3, CAPTION, index) for index in range(4000)]
    both = sum(one < 0.5 and other < 0.5 for one, other in zip(draws, others, strict=True))
    assert abs(both / 4000 - 0.25) < 0.03
