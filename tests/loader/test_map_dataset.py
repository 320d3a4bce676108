"""Samples by number: the same ones, in the order on disk, for any sampler of torch's."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
import torch
from pictures import pair, pairs, write_dataset
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Subset, WeightedRandomSampler

from loader.datasets import ImageTextDataset, TextDataset
from loader.errors import BadSample, TooManyBad
from loader.indexed_tar_dataset import IndexedTarDataset
from loader.map_dataset import IndexedTarMapDataset


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """43 pairs in 5 shards, with two captions and a score each."""
    samples = [
        pair(n, caption=f"<image_0> long {n}", caption_all={"short": f"s {n}"}, metadata={"score": n % 10})
        for n in range(43)
    ]
    return write_dataset(tmp_path_factory.mktemp("pairs"), samples, per_shard=9)


CAPTIONS = {"caption": 0.5, "caption_all.short": 0.5}


def numbers(samples):
    return [int(sample["__key__"]) for sample in samples]


def test_by_number(root):
    dataset = IndexedTarMapDataset(TextDataset(root))
    assert len(dataset) == 43
    assert numbers(dataset[i] for i in range(43)) == list(range(43))
    assert numbers([dataset[-1], dataset[-43], dataset[np.int64(7)], dataset[torch.tensor(8)]]) == [
        42,
        0,
        7,
        8,
    ]
    assert numbers(dataset[40:]) == [40, 41, 42] and numbers(dataset[::-10]) == [42, 32, 22, 12, 2]
    assert dataset[5:5] == [] and numbers(dataset[-2:100]) == [41, 42]
    assert numbers(dataset.__getitems__([30, 2, -1, 2])) == [30, 2, 42, 2]
    assert numbers(iter(dataset)) == list(range(43))  # Python's own way, up to the IndexError
    for wrong in (43, -44, 10**30):
        with pytest.raises(IndexError, match=f"no sample {wrong}"):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset[1.0]


def test_locate(root):
    dataset = IndexedTarMapDataset(TextDataset(root))
    assert [dataset.locate(i) for i in (0, 8, 9, -1)] == [
        (f"{root}/shard-000000.tar", 0),
        (f"{root}/shard-000000.tar", 8),
        (f"{root}/shard-000001.tar", 0),
        (f"{root}/shard-000004.tar", 6),
    ]
    with pytest.raises(IndexError):
        dataset.locate(43)


def test_filters_are_counted_and_located(root):
    dataset = IndexedTarMapDataset(TextDataset(root, filters={"metadata.score": (3, 5)}))
    kept = [n for n in range(43) if 3 <= n % 10 <= 5]
    assert len(dataset) == len(kept) and numbers(dataset[:]) == kept
    for i, number in enumerate(kept):
        assert dataset.locate(i) == (f"{root}/shard-{number // 9:06d}.tar", number % 9)
    assert "12 of 43 samples" in repr(dataset)


def test_an_address_serves_as_well(root):
    dataset = IndexedTarMapDataset(root, extensions=[".json"])
    assert dataset[3].keys() == {"__key__", ".json"}


def test_captions_are_those_of_the_iterable_one(root):
    iterable = ImageTextDataset(root, captions=CAPTIONS, images="array")
    dataset = IndexedTarMapDataset(iterable)
    epochs = []
    for epoch in (0, 1):
        iterable.set_epoch(epoch)
        dataset.set_epoch(epoch)
        assert dataset.epoch == epoch
        found = {sample["__key__"]: sample["text"] for sample in dataset[:]}
        assert found == {sample["__key__"]: sample["text"] for sample in iterable}
        epochs.append(found)
    assert epochs[0] != epochs[1]
    iterable.set_epoch(5)
    assert dataset.epoch == 1  # an epoch of its own


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "kind", [RandomSampler, lambda d: WeightedRandomSampler([1.0] * len(d), 43, False), range]
)
def test_samplers(root, kind, workers):
    dataset = IndexedTarMapDataset(ImageTextDataset(root, images="array", resize=8))
    sampler = kind(dataset) if kind is not range else range(43)
    loader = DataLoader(dataset, 5, sampler=sampler, num_workers=workers)
    batches = list(loader)
    assert [batch["image"].shape for batch in batches] == [(5, 8, 8, 3)] * 8 + [(3, 8, 8, 3)]
    assert sorted(int(key) for batch in batches for key in batch["__key__"]) == list(range(43))


def test_distributed_sampler(root):
    dataset = IndexedTarMapDataset(TextDataset(root))
    seen = []
    for rank in range(4):
        sampler = DistributedSampler(dataset, num_replicas=4, rank=rank)
        sampler.set_epoch(3)
        batches = list(DataLoader(dataset, 4, sampler=sampler))
        assert len(batches) == 3
        seen += [int(key) for batch in batches for key in batch["__key__"]]
    assert len(seen) == 44 and set(seen) == set(range(43))


def test_subsets(root):
    subset = Subset(IndexedTarMapDataset(TextDataset(root)), [40, 1, 20])
    assert next(iter(DataLoader(subset, 3)))["text"] == ["long 40", "long 1", "long 20"]


@pytest.mark.slow
def test_spawned_workers_see_the_epoch(root):
    dataset = IndexedTarMapDataset(
        TextDataset(root, captions=CAPTIONS, filters={"metadata.score": (3, None)})
    )
    loader = DataLoader(dataset, 4, num_workers=2, multiprocessing_context="spawn", persistent_workers=True)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        assert [text for batch in loader for text in batch["text"]] == [each["text"] for each in dataset[:]]


def test_few_shards_are_open_at_a_time(root):
    dataset = IndexedTarMapDataset(TextDataset(root, lru_size=2))
    assert numbers(dataset[i] for i in (0, 42, 20, 3, 30)) == [0, 42, 20, 3, 30]
    assert len(dataset._shards) == 2
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(copy._shards) == 0 and numbers([copy[41]]) == [41] and copy.locate(9) == dataset.locate(9)


def test_a_batch_is_read_shard_by_shard(root):
    opened = []

    class Watched(TextDataset):
        def open_shard(self, shard):
            opened.append(shard)
            return super().open_shard(shard)

    dataset = IndexedTarMapDataset(Watched(root, lru_size=1))
    assert numbers(dataset.__getitems__([40, 0, 41, 1, 20, 2])) == [40, 0, 41, 1, 20, 2]
    assert opened == [0, 2, 4]


# -- bad samples


def broken(tmp_path, bad=(3, 4)):
    samples = pairs(12)
    for number in bad:
        samples[number][".jpg"] = [b"no picture"]
    return write_dataset(tmp_path, samples)


def test_a_bad_sample_raises(tmp_path):
    dataset = IndexedTarMapDataset(ImageTextDataset(broken(tmp_path)))
    assert dataset[2]["text"] == "picture 2"
    with pytest.raises(BadSample, match=r"shard-000000\.tar: member '000000003-0\.jpg': no picture"):
        dataset[3]


def test_a_bad_sample_is_replaced(tmp_path, caplog):
    dataset = IndexedTarMapDataset(ImageTextDataset(broken(tmp_path, (3, 4, 9))), on_bad="substitute")
    with caplog.at_level(logging.WARNING):
        found = numbers(dataset[:])
    assert found == [0, 1, 2, 10, 10, 5, 6, 7, 8, 5, 10, 11]  # half of them away, and on
    assert numbers(dataset[:]) == found
    assert caplog.text.count("is replaced by another") == 1  # a shard


def test_what_is_left_out(tmp_path):
    root = broken(tmp_path, ())

    def transform(sample):
        return None if sample["__key__"].endswith("5") else sample

    dataset = TextDataset(root, transform=transform)
    assert IndexedTarMapDataset(dataset)[5] is None
    assert numbers([IndexedTarMapDataset(dataset, on_bad="substitute")[5]]) == [11]


def test_nobody_trains_on_nothing(tmp_path):
    dataset = IndexedTarMapDataset(ImageTextDataset(broken(tmp_path, range(12))), on_bad="substitute")
    with pytest.raises(TooManyBad, match="sample 3 can't be read"):
        dataset[3]


def test_what_cannot_be_meant(root):
    with pytest.raises(ValueError, match="on_bad is 'skip': one of raise, substitute"):
        IndexedTarMapDataset(TextDataset(root), on_bad="skip")
    with pytest.raises(TypeError, match="a SampleDataset, or one of its kind"):
        IndexedTarMapDataset(IndexedTarDataset(root))
    with pytest.raises(TypeError, match="seed: say that to the TextDataset"):
        IndexedTarMapDataset(TextDataset(root), seed=3)
