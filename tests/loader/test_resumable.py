"""A dataset's own state: taken anywhere, loaded where it fits, refused where it doesn't."""

from __future__ import annotations

import copy
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from made_up import Numbers
from simulated import as_worker

from loader.errors import StateMismatch
from loader.state import State

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/loader.json"


@pytest.mark.parametrize("on_bad", ["skip", "substitute"])
def test_state_of_the_dataset_itself(root: str, on_bad: Any) -> None:
    def dataset() -> Numbers:
        return Numbers(root, 8, bad=range(0, 30, 4), on_bad=on_bad, max_bad_fraction=1.0)

    wanted = list(dataset())
    whole = dataset()
    whole.set_epoch(1)
    after = list(whole)
    for stop in range(31):
        one = dataset()
        samples = iter(one)
        head = [next(samples) for _ in range(stop)]
        state = json.loads(json.dumps(one.state_dict()))
        two = dataset()
        two.load_state_dict(state)
        assert two.state_dict() == state
        assert len(two) == 30 - stop
        assert head + list(two) == wanted
        two.set_epoch(1)
        assert (len(two), list(two)) == (30, after)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_state_in_each_worker(root: str, workers: int) -> None:
    """What torchdata's StatefulDataLoader does: a state from each worker, given back before it begins."""

    def streams(states: list[Any], stop: int | None = None) -> list[tuple[list[int], list[int], Any]]:
        made = []
        for number, state in enumerate(states):
            dataset = Numbers(root, 8, bad=range(0, 30, 4), batch_size=2, max_bad_fraction=1.0)
            with as_worker(number, workers, dataset):
                if state is None:
                    dataset.set_epoch(2)
                else:
                    dataset.load_state_dict(state)
                    assert dataset.epoch == 2
                samples = iter(dataset)
                if state is not None:
                    assert dataset.state_dict() == state
                got = list(islice(samples, stop))
                state = dataset.state_dict()
                dataset.set_epoch(3)
                made.append((got, list(dataset), state))
        return made

    whole = streams([None] * workers)
    for stop in range(0, 12, 2):  # after whole batches
        part = streams([None] * workers, stop)
        rest = streams([state for *_, state in part])
        for (head, _, _), (tail, following, _), (wanted, next_epoch, _) in zip(
            part, rest, whole, strict=True
        ):
            assert head + tail == wanted
            assert following == next_epoch


def test_a_state_that_comes_too_late_for_a_worker(root: str) -> None:
    dataset = Numbers(root)
    worker = copy.copy(dataset)
    worker._shared = dataset._shared  # as after a fork
    dataset.load_state_dict(dataset.state_dict())
    with as_worker(0, 2, worker), pytest.raises(RuntimeError, match="loaded while this worker was running"):
        list(worker)
    dataset.forget_state()
    with as_worker(0, 2, worker):
        assert len(list(worker)) == 15


def test_states_of_other_data(root: str, broken: str) -> None:
    with pytest.raises(StateMismatch, match="other shards"):
        Numbers(broken).load_state_dict(Numbers(root).state_dict())
    assert State.from_dict(Numbers(root).state_dict()).samples == 30
