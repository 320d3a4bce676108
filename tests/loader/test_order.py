"""What a position means: against a second implementation, as properties, and pinned by golden values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
import tracemalloc
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growth import cost
from hypothesis import example, given, settings
from hypothesis import strategies as st
from order_reference import bijection, epoch_order

from loader.order import ORDER_VERSION, Order, choose_lanes, permute

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/order.json").read_text())

orders = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(0, 12), max_size=14),
        "seed": st.integers(0, 2**64 - 1),
        "epoch": st.integers(0, 2**64 - 1),
        "shuffle_size": st.integers(1, 40),
        "lanes": st.integers(1, 6),
        "shuffle": st.booleans(),
    }
)


def make(arguments: dict[str, Any]) -> Order:
    return Order(**{**arguments, "counts": np.array(arguments["counts"], dtype=np.int64)})


def listed(order: Order) -> list[tuple[int, int]]:
    shards, samples = order.at(np.arange(len(order)))
    return list(zip(shards.tolist(), samples.tolist(), strict=True))


@settings(deadline=None, max_examples=300)
@given(orders)
def test_it_follows_its_specification(arguments: dict[str, Any]) -> None:
    assert listed(make(arguments)) == epoch_order(**arguments)


@settings(deadline=None, max_examples=200)
@given(orders)
def test_each_sample_has_exactly_one_position(arguments: dict[str, Any]) -> None:
    everything = [(shard, i) for shard, count in enumerate(arguments["counts"]) for i in range(count)]
    order = make(arguments)
    assert len(order) == len(everything)
    assert sorted(listed(order)) == everything


@settings(deadline=None, max_examples=100)
@given(orders, st.data())
def test_any_positions_in_any_order(arguments: dict[str, Any], data: st.DataObject) -> None:
    order = make(arguments)
    whole = listed(order)
    asked = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20)) if whole else []
    shards, samples = order.at(asked)
    assert list(zip(shards.tolist(), samples.tolist(), strict=True)) == [whole[p] for p in asked]
    copy = pickle.loads(pickle.dumps(order))
    assert listed(copy) == whole


@settings(deadline=None, max_examples=200)
@given(orders)
def test_windows_are_whole_shards_of_about_the_stated_size(arguments: dict[str, Any]) -> None:
    order, counts = make(arguments), arguments["counts"]
    windows = [order.window_shards(window).tolist() for window in range(order.num_windows)]
    assert sorted(chain.from_iterable(windows)) == [shard for shard, count in enumerate(counts) if count]
    assert order.largest_window == max(map(len, windows), default=0)
    for window in windows:  # 1.5: a lane that would fill one window and a half has one
        assert sum(counts[s] for s in window) < 1.5 * order.shuffle_size + 1 + max(counts[s] for s in window)
    numbers = order.windows(np.arange(len(order))).tolist()
    assert all(shard in windows[number] for (shard, _), number in zip(listed(order), numbers, strict=True))
    touched = list(dict.fromkeys(numbers))
    wanted = list(chain.from_iterable(windows[number] for number in touched))
    assert order.shards_for(np.arange(len(order))).tolist() == wanted


@pytest.mark.parametrize("lanes", [2, 4, 7])
def test_with_as_many_lanes_as_ranks_each_shard_is_read_by_one_rank(lanes: int) -> None:
    order = Order(np.full(lanes * 12, 50), lanes=lanes, shuffle_size=200)
    shards, _ = order.at(np.arange(len(order)))
    readers = [set(shards[rank::lanes].tolist()) for rank in range(lanes)]
    assert sum(map(len, readers)) == lanes * 12


def test_lanes_of_unlike_length_are_mixed_as_long_as_all_last() -> None:
    order = Order(np.array([3, 9, 1, 2, 0, 1]), lanes=2, shuffle=False)
    assert [shard for shard, _ in listed(order)] == [0, 1, 0, 1, 0, 1, 2, 1, 5, 1, 1, 1, 1, 1, 3, 3]


def test_shuffle_off_is_the_order_on_disk() -> None:
    order = Order(np.array([2, 0, 3]), seed=1, epoch=5, shuffle=False)
    assert listed(order) == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]


def test_epochs_and_seeds_differ_and_repeat() -> None:
    counts = np.full(30, 20)
    seen = {tuple(listed(Order(counts, seed, epoch, 200))) for seed in range(6) for epoch in range(6)}
    assert len(seen) == 36
    order = Order(counts, 3, 4, 200)
    assert listed(dataclasses.replace(Order(counts, 3, 9, 200), epoch=4)) == listed(order)


def test_an_epoch_mixes_within_its_windows_and_moves_shards() -> None:
    order = Order(np.full(40, 100), shuffle_size=1000)
    shards, samples = order.at(np.arange(1000))
    assert len(set(shards.tolist())) == 10
    for window in range(4):  # no shard clusters: a run of 100 positions draws from nearly all ten
        part = shards[window * 100 : window * 100 + 100]
        assert len(set(part.tolist())) >= 9
    assert abs(np.corrcoef(np.arange(1000), samples)[0, 1]) < 0.1


def test_it_is_immutable() -> None:
    counts = np.array([3, 4])
    order = Order(counts)
    before = listed(order)
    counts[0] = 9
    assert listed(order) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        order.seed = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        order.counts[0] = 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": [[1]]}, "one integer for each shard"),
        ({"counts": [1.5]}, "one integer for each shard"),
        ({"counts": [3, -2]}, "shard 1 has -2 samples"),
        ({"counts": [2**61, 2**61]}, "more than 2\\^62"),
        ({"seed": -1}, "seed is -1: an integer from 0"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"epoch": 1.0}, "epoch is 1.0"),
        ({"shuffle_size": 0}, "shuffle_size is 0"),
        ({"lanes": 0}, "lanes is 0"),
        ({"lanes": True}, "lanes is True"),
    ],
)
def test_it_refuses_what_cannot_be_meant(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Order(**{"counts": [1], **arguments})


def test_it_refuses_positions_outside() -> None:
    order = Order(np.array([2, 3]))
    for positions in ([5], [-1], [0, 7], -1):
        with pytest.raises(IndexError, match="of an epoch of 5 samples"):
            order.at(positions)
    with pytest.raises(TypeError, match="integers were expected"):
        order.at([0.5])
    with pytest.raises(IndexError):
        Order(np.array([0, 0])).at(0)
    for window in (-1, 1):
        with pytest.raises(IndexError):
            order.window_shards(window)
    assert [part.shape for part in order.at(np.zeros((2, 3), dtype=int))] == [(2, 3), (2, 3)]
    assert [part.shape for part in order.at(3)] == [(), ()]
    assert order.shards_for([]).size == 0


def test_lanes_follow_the_number_of_shards() -> None:
    assert choose_lanes(79, 8) == 1
    assert choose_lanes(80, 8) == 8
    assert choose_lanes(0, 1) == choose_lanes(500, 1) == 1
    assert choose_lanes(80, 8, shuffle=False) == 1


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
@example(1, 0)
@example(2, 0)
def test_the_bijection_is_one_and_as_specified(size: int, key: int) -> None:
    images = permuted(np.arange(size), size, key)
    assert sorted(images) == list(range(size))
    assert images[:5] == [bijection(x, size, key) for x in range(min(size, 5))]


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 2**31), st.integers(-3, 3), st.integers(0, 2**64 - 1), st.data())
def test_the_bijection_on_huge_domains(root: int, more: int, key: int, data: st.DataObject) -> None:
    # Around a square is where a rounded square root would give another network on another machine.
    size = max(1, min(root * root + more, 2**62))
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
    assert permuted(np.array(places), size, key) == [bijection(place, size, key) for place in places]


def permuted(places: np.ndarray[Any, Any], size: int, key: int) -> list[int]:
    full = [np.full(len(places), value, dtype=np.uint64) for value in (size, key)]
    given_places = places.astype(np.uint64)
    images = permute(given_places, *full).tolist()
    assert given_places.tolist() == places.tolist()
    return images  # type: ignore[no-any-return]


def test_the_bijection_is_fair() -> None:
    # Fixed keys, so that the test can't fail by chance. 40,000 permutations of 50: where does each place lead
    # (chi² of 49² degrees of freedom), and how far apart do neighbours land (49 distances, 48 degrees)?
    size, draws = 50, 40_000
    keys = np.array(
        [int.from_bytes(hashlib.sha256(bytes(str(i), "ascii")).digest()[:8], "big") for i in range(draws)]
    )
    images = (
        permute(
            np.tile(np.arange(size, dtype=np.uint64), draws),
            np.full(size * draws, size, dtype=np.uint64),
            np.repeat(keys.astype(np.uint64), size),
        )
        .reshape(draws, size)
        .astype(np.int64)
    )
    hits = np.stack([np.bincount(images[:, place], minlength=size) for place in range(size)])
    assert abs(z_score(hits, draws / size, (size - 1) ** 2)) < 4
    apart = np.bincount(((images[:, 1:] - images[:, :-1]) % size).ravel(), minlength=size)[1:]
    assert abs(z_score(apart, draws, size - 2)) < 4
    assert len({tuple(row) for row in images[:, :4].tolist()}) > 0.99 * draws * (
        1 - draws / 2 / (50 * 49 * 48 * 47)
    )


def z_score(counted: np.ndarray[Any, Any], expected: float, freedom: int) -> float:
    return float((((counted - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def test_golden_values() -> None:
    """Another order under the same version would feed restored runs doubles: raise ORDER_VERSION with these."""
    assert GOLDEN["order"] == ORDER_VERSION
    for case in GOLDEN["bijections"]:
        images = permuted(np.array(case["places"]), case["size"], case["key"])
        assert images == case["images"]
    for case in GOLDEN["orders"]:
        order = make(case["arguments"])
        if "samples" in case:
            assert [list(pair) for pair in listed(order)] == case["samples"]
        else:
            shards, samples = order.at(case["positions"])
            assert (shards.tolist(), samples.tolist()) == (case["shards"], case["in_shard"])


SCRIPT = """
import sys, numpy as np
from loader.order import Order
from loader.state import State, fingerprint
order = Order(np.arange(1, 400), seed=7, epoch=2, shuffle_size=900, lanes=4)
shards, samples = order.at(np.arange(len(order)))
names = [f"shard-{i}.tar" for i in range(399)]
print(hash("salt"))
print(shards.tolist(), samples.tolist(), State.of(order, fingerprint(names, order.counts)).to_dict())
assert "torch" not in sys.modules
"""


def test_interpreters_with_different_hash_seeds_agree() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout.split("\n", 1))
    assert outputs[0][0] != outputs[1][0], "the hash seeds had no effect: this test would see nothing"
    assert outputs[0][1] == outputs[1][1]


def test_a_hundred_million_samples_cost_what_their_shards_do() -> None:
    counts = np.full(100_000, 1000)
    tracemalloc.start()
    order = Order(counts, seed=1, epoch=3, lanes=64)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4e6
    assert peak < 12e6
    start = cost(lambda: Order(counts, seed=1, epoch=3, lanes=64).at(50_000_000))
    assert start < 60 * cost(lambda: Order(counts[:5_000], seed=1, epoch=3, lanes=64).at(2_500_000))
    middle = np.arange(50_000_000, 50_200_000)
    # A hundred times as many in the same time: what must never come back is Python per position.
    assert cost(lambda: order.at(middle)) < cost(lambda: [order.at(place) for place in middle[:2_000]], 2)
