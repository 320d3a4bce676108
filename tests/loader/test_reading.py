"""Ways to get at a member's bytes: mapped, read by calls, and as views; the same samples by each."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path

import pytest
import torch
from tars import make_dataset, make_tar

from loader.data_loader import ShardedDataLoader
from loader.datasets import SampleDataset
from loader.errors import BadConfig, TruncatedTar
from loader.indexed_tar import IndexedTar
from loader.indexed_tar_samples import IndexedTarSamples
from loader.map_dataset import IndexedTarMapDataset
from loader.ret_sample import RetSample

MEMBERS = [("a.txt", b"a text"), ("a.bin", bytes(range(256)) * 64), ("b.txt", b""), ("b.bin", b"b")]


@pytest.fixture
def tar(tmp_path):
    return make_tar(tmp_path / "t.tar", MEMBERS)


@pytest.fixture
def shards(tmp_path):
    return make_dataset(tmp_path / "shards", [5, 0, 3, 7])


def open_files():
    return len(os.listdir("/proc/self/fd"))


def as_bytes(samples):
    return [
        {name: value if name == "__key__" else bytes(value) for name, value in sample.items()}
        for sample in samples
    ]


def test_reading_by_calls(tar):
    before = open_files()
    with IndexedTar(tar, backend="read") as reader:
        assert list(reader) == sorted(MEMBERS, key=lambda member: member[0][0])
        assert reader.by_name("a.bin") == MEMBERS[1][1]
        assert reader.checksum == IndexedTar(tar).checksum
        assert pickle.loads(pickle.dumps(reader)).by_index(0) == b"a text"
        assert f"{tar}\n" not in Path("/proc/self/maps").read_text()  # its index is
    with pytest.raises(ValueError, match="closed"):
        reader.by_index(0)
    del reader
    assert open_files() == before


def test_a_tar_that_is_cut_meanwhile_is_an_error_not_a_signal(tar):
    reader = IndexedTarSamples(tar, backend="read", decode=False)
    os.truncate(tar, 2048)
    with pytest.raises(TruncatedTar, match="ends at byte 2048"):
        reader[0]


def test_views(tar):
    samples = IndexedTarSamples(tar, decode=False, views=True)
    first, second = samples[0], samples[1]
    assert type(first[".bin"]) is memoryview
    assert first[".bin"].readonly
    samples.close()
    del samples
    assert as_bytes([first, second]) == [
        {"__key__": "a", ".txt": b"a text", ".bin": MEMBERS[1][1]},
        {"__key__": "b", ".txt": b"", ".bin": b"b"},
    ]
    with pytest.raises(ValueError, match="closed"):
        closed = IndexedTarSamples(tar, decode=False, views=True)
        closed.close()
        closed[0]


@pytest.mark.parametrize("options", [{}, {"backend": "read"}, {"verify": True}])
def test_views_of_what_is_no_map(tar, options):
    with pytest.raises(ValueError, match="views"):
        IndexedTarSamples(tar, decode=not options, views=True, **options)


def test_datasets_give_the_same_by_each(shards):
    by = {
        name: as_bytes(SampleDataset(shards, decode=False, **options))
        for name, options in {"mmap": {}, "read": {"backend": "read"}, "views": {"views": True}}.items()
    }
    assert len(by["mmap"]) == 15
    assert by["mmap"] == by["read"] == by["views"]


def test_open_files_are_as_many_by_each(shards):
    counts = set()
    for options in ({}, {"backend": "read"}):
        gc.collect()  # what earlier tests have left is not closed in the midst of this one
        dataset, before = SampleDataset(shards, lru_size=2, decode=False, **options), open_files()
        list(dataset)
        counts.add(open_files() - before)
        del dataset
    assert counts == {4}


def test_workers_send_bytes_where_views_are_asked_for(shards):
    dataset = SampleDataset(shards, decode=False, views=True)
    plain = torch.utils.data.DataLoader(dataset, None, num_workers=1, collate_fn=list_of)
    ours = ShardedDataLoader(dataset, 4, num_workers=1, collate_fn=list_of)
    expected = as_bytes(dataset)
    assert list(plain) == expected
    assert [sample for batch in ours for sample in batch] == expected


def test_workers_of_a_map_dataset_send_bytes_too(shards):
    dataset = IndexedTarMapDataset(SampleDataset(shards, decode=False, views=True))
    expected = as_bytes(dataset[i] for i in range(len(dataset)))
    loader = torch.utils.data.DataLoader(dataset, None, num_workers=1, collate_fn=list_of)
    assert list(loader) == expected


def list_of(value):
    return value


def test_views_of_what_is_decoded(shards):
    for options in ({}, {"decode": True}, {"decode": False, "backend": "read"}):
        with pytest.raises(BadConfig, match="views"):
            SampleDataset(shards, views=True, **options)


def test_a_generator_of_ones_own_is_used(shards):
    class Mine(SampleDataset):
        def data_generator(self):
            for sample in super().data_generator():
                yield sample._replace(sample=sample.index)

    class Shown(SampleDataset):
        def present(self, sample):
            return sample.url_index

    assert sorted(Mine(shards, decode=False)) == list(range(15))
    assert sorted(Shown(shards, decode=False))[0] == (shards[0], 0)
    assert all(type(sample) is RetSample for sample in SampleDataset(shards, decode=False, ret_samples=True))


def test_an_iteration_that_was_left_says_so(shards):
    dataset = SampleDataset(shards, decode=False)
    old = iter(dataset)
    next(old)
    next(iter(dataset))
    with pytest.raises(RuntimeError, match=r"copy\.copy"):
        next(old)
