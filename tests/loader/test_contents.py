from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from loader.contents import OTHERS, Contents, Histogram, bin_of, caption_length, most_frequent

NUMBERS = st.lists(st.integers(0, 1 << 40), max_size=30)


def test_bins_begin_at_the_usual_sizes() -> None:
    lows = sorted({bin_of(number) for number in range(3000)})
    assert lows == [
        0,
        1,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        24,
        32,
        48,
        64,
        96,
        128,
        192,
        256,
        384,
        512,
        768,
        1024,
        1536,
        2048,
    ]


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60))
def test_a_bin_holds_what_lies_in_it(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert bin_of(low) <= bin_of(high) <= high
    assert bin_of(bin_of(low)) == bin_of(low)
    assert high < 2 * max(1, bin_of(high))


@given(NUMBERS, NUMBERS)
def test_histograms_add_up(first: list[int], second: list[int]) -> None:
    both = Histogram.of(first)
    both.add(Histogram.of(second))
    assert both == Histogram.of(second + first) == Histogram.from_value(json.loads(json.dumps(both.value())))
    numbers = first + second
    if numbers:
        value = both.value()
        assert (value["count"], value["total"], value["min"], value["max"]) == (
            len(numbers), sum(numbers), min(numbers), max(numbers),
        )  # fmt: skip
        assert list(value["bins"]) == sorted(value["bins"], key=int)
    else:
        assert both.value() == {}


@given(NUMBERS, NUMBERS, st.integers(0, 9))
def test_contents_add_up(first: list[int], second: list[int], unreadable: int) -> None:
    one = Contents(Histogram.of(first), Histogram.of(second), Histogram.of(first), unreadable)
    other = Contents(captions=Histogram.of(second))
    one.add(other)
    assert Contents.from_value(json.loads(json.dumps(one.value()))) == one
    assert one.captions == Histogram.of(first + second)


def test_captions_are_counted_without_placeholders() -> None:
    assert caption_length("a café") == 6
    assert caption_length("<image_0>See <image_12>.") == 5
    assert caption_length("<image_x>") == 9


def test_what_is_rare_is_put_together() -> None:
    counts = {f".x{n:03d}": 1 for n in range(100)} | {".json": 7, OTHERS: 3}
    found = most_frequent(counts)
    assert len(found) == 65
    assert next(iter(found)) == ".json" and list(found)[-1] == OTHERS
    assert sum(found.values()) == sum(counts.values())
