"""The checker that users run on their own subclass: it passes what is right, and says what is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from design_example import Mine
from made_up import Numbers, numbers, packed
from PIL import Image

from loader.checker import check_resume, digest, find_keys
from loader.data_loader import ShardedDataLoader
from loader.datasets import SampleDataset
from loader.errors import NotResumable, ShardflowError
from loader.indexed_tar_dataset import RetSample

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed(tmp_path_factory.mktemp("packed"), [10, 0, 12, 8])


def maker(root: str, kind: Any = Numbers, **settings: Any) -> Make:
    """What a user writes; `settings` go to the dataset, but for those of the loader."""
    of_loader = {name: settings.pop(name) for name in ("tail", "collate_fn") if name in settings}
    size = settings.pop("batch_size", 4)

    def make_loader(rank: int = 0, world_size: int = 1, batch_size: int = size, num_workers: int = 0) -> Any:
        dataset = kind(root, 8, rank=rank, world_size=world_size, max_bad_fraction=1.0, **settings)
        return ShardedDataLoader(
            dataset, batch_size, num_workers=num_workers, **{"collate_fn": list, **of_loader}
        )

    return make_loader


# -- what is right passes


@pytest.mark.parametrize("on_bad", ["skip", "substitute"])
@pytest.mark.parametrize("tail", ["even", "pad", "drop", "keep"])
def test_what_is_right(root: str, on_bad: str, tail: str) -> None:
    make = maker(root, ret_samples=True, bad={3, 4, 5, 29}, on_bad=on_bad, tail=tail)
    checked = check_resume(make, worlds=[(1, 4, 0), (2, 3, 0), (3, 1, 0)])
    assert checked.batches >= 3 * 6
    assert checked.restores > 100


def test_the_design_page_s_subclass_and_ready_made_ones(root: str) -> None:
    # After 0 to 8 batches, after the epoch; and after each batch, and the end, of one run.
    assert check_resume(maker(root, Mine), epochs=1).restores == 9 + 1 + 9
    assert check_resume(maker(root, SampleDataset, collate_fn=None), every=3, worlds=[(2, 2, 0)]).restores
    assert check_resume(maker(root, SampleDataset, transform=numbers, collate_fn=None)).batches == 24
    assert check_resume(maker(root, SampleDataset, transform=numbers), keys=list, worlds=[(2, 2, 0)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_with_workers(root: str) -> None:
    def make_loader(**world: Any) -> Any:
        return maker(root, Mine)(**{"num_workers": 2, **world})

    check_resume(make_loader, epochs=1, every=4, worlds=[(1, 4, 1), (2, 3, 0)])


# -- what is wrong is caught


class ReadsAhead(Mine):
    """Asks for four numbers before it yields the first sample: they count as done."""

    def data_generator(self) -> Iterator[RetSample]:
        numbers = self.index_generator()
        while ahead := list(islice(numbers, 4)):
            for index in ahead:
                place = self.index2indices(index)
                yield RetSample("", "", *self.success_sample(), index, place, self.read(*place), 0, 1)


class Curriculum(Mine):
    """Numbers what it has seen: unknown to the state."""

    seen = 0

    def data_generator(self) -> Iterator[RetSample]:
        for sample in super().data_generator():
            self.seen += 1
            yield sample._replace(sample={**sample.sample, "seen": self.seen})


class Chance(Mine):
    def data_generator(self) -> Iterator[RetSample]:
        for sample in super().data_generator():
            yield sample._replace(sample={**sample.sample, "crop": random.random()})


class Forgetful(ShardedDataLoader):
    """Loads the state, and begins the epoch anew."""

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.indexed.forget_state()


class OffByOne(ShardedDataLoader):
    """One sample is lost when a state is loaded, though it is told as it was."""

    loaded: Any = None

    def load_state_dict(self, state: Any) -> None:
        changed = json.loads(json.dumps(state))
        for rank in (changed["run"] or {"ranks": []})["ranks"]:
            rank["consumed"][0] += 1
        super().load_state_dict(changed)
        self.loaded = state

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self.loaded is None else self.loaded

    def __iter__(self) -> Iterator[Any]:
        self.loaded = None
        return super().__iter__()


class Lying(ShardedDataLoader):
    def __len__(self) -> int:
        return max(1, super().__len__())


def with_loader(root: str, kind: Any) -> Make:
    def make_loader(rank: int = 0, world_size: int = 1, batch_size: int = 4, num_workers: int = 0) -> Any:
        dataset = Mine(root, 8, rank=rank, world_size=world_size)
        return kind(dataset, batch_size, num_workers=num_workers, collate_fn=list)

    return make_loader


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            ReadsAhead,
            r"len\(\) said 10 batches, 11 came in epoch 0\. .* asks index_generator for the next",
        ),
        (Curriculum, r"Restored after 1 .* its samples are the same \(\[\d+, .*\]\), but not what they hold"),
        (Chance, r"Two runs from the start differ in epoch 0: batch 0: its samples are the same"),
    ],
)
def test_broken_subclasses(root: str, kind: Any, message: str) -> None:
    with pytest.raises(NotResumable, match=message) as caught:
        check_resume(maker(root, kind, batch_size=3))
    assert isinstance(caught.value, AssertionError) and isinstance(caught.value, ShardflowError)


def test_a_subclass_that_is_broken_under_some_batch_sizes_only(root: str) -> None:
    """Four ahead and batches of four: nothing is lost. The checker says so, and finds it under another."""
    check_resume(maker(root, ReadsAhead), epochs=1)
    with pytest.raises(NotResumable, match=r"3 ranks × batches of 3|2 ranks|samples never come"):
        check_resume(maker(root, ReadsAhead), epochs=1, worlds=[(2, 3, 0)])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Forgetful, r"Restored after 1 of 8 batches of epoch 0, state_dict\(\) is not what was loaded"),
        (
            OffByOne,
            r"Restored after 0 of 8 batches of epoch 0, the rest of the epoch differs: batch 0: \[\d+, .* came",
        ),
        (Lying, r"after 8 of 8 batches of epoch 0, len\(\) says 1 batches: 0 remain"),
    ],
)
def test_broken_loaders(root: str, kind: Any, message: str) -> None:
    with pytest.raises(NotResumable, match=message):
        check_resume(with_loader(root, kind))


def test_chance_that_is_meant(root: str) -> None:
    check_resume(maker(root, Chance), epochs=1, whole=False, keys=lambda batch: [s.index for s in batch])
    check_resume(maker(root, Chance), epochs=1, whole=False)


def test_misuse(root: str) -> None:
    with pytest.raises(ValueError, match="epochs is 0"):
        check_resume(maker(root), epochs=0)
    with pytest.raises(TypeError, match="say with keys="):
        check_resume(maker(root), whole=False)
    with pytest.raises(NotResumable, match="no batches"):
        check_resume(lambda: ShardedDataLoader(Numbers(root, 8), 64, drop_last=True))


# -- its parts


def test_digests() -> None:
    ramp = np.arange(6.0)
    values: list[Any] = [
        1, 1.0, True, None, "1", b"1", [1], (1,), {"a": 1}, {"a": 2}, [[1], []], [[], [1]],
        ramp, ramp.reshape(2, 3), ramp.astype("f4"), np.array([None, 1]),
        torch.tensor(ramp), torch.tensor(ramp).reshape(2, 3), torch.tensor(ramp).bfloat16(), torch.tensor(1.0),
        torch.tensor([]), torch.tensor([True]),
        Image.new("RGB", (2, 3)), Image.new("RGB", (3, 2)), Image.new("L", (2, 3)),
        RetSample("", "", [], [], [], 1, ("", 1), ramp, 0, 1),
    ]  # fmt: skip
    digests = [digest(value) for value in values]
    assert len(set(digests)) == len(values)
    assert digest({"a": [torch.ones(3), "x"]}) == digest({"a": [torch.ones(3), "x"]})


def test_keys_of_batches() -> None:
    assert find_keys({"__key__": ["a", "b"]}) == ["a", "b"]
    assert find_keys([{"__key__": "a"}, {"__key__": "b"}]) == ["a", "b"]
    one = RetSample("", "", [], [], [], 7, ("", 1), None, 0, 1)
    assert find_keys([one, one]) == [7, 7]
    assert find_keys(one._replace(index=torch.tensor([1, 2]))) == [1, 2]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="say with keys="):
        find_keys(torch.ones(3))
