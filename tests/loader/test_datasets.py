"""Ready-made datasets on real pictures: what they yield, and that chance and filters keep every guarantee."""

from __future__ import annotations

import gc
import json
import logging
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from pictures import encoded, pair, pairs, photo, write_dataset
from PIL import Image
from tars import make_tar

from loader.data_loader import ShardedDataLoader
from loader.datasets import ImageTextDataset, InterleavedDataset, SampleDataset, TextDataset
from loader.errors import BadConfig, BadSample, StateMismatch, TooManyBad, UnsafePickle
from loader.filters import Filters

CAPTIONS = {"caption": 0.5, "caption_all.short": 0.5}


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


def keys(samples):
    return [int(sample["__key__"]) for sample in samples]


# -- pairs


def test_a_pair(root):
    dataset = ImageTextDataset(root, shuffle=False)
    samples = list(dataset)
    assert len(samples) == len(dataset) == 43 and keys(samples) == list(range(43))
    assert samples[7].keys() == {"__key__", "image", "text"}
    assert samples[7]["text"] == "long 7"
    assert isinstance(samples[7]["image"], Image.Image)
    assert np.abs(np.asarray(samples[7]["image"], int) - np.asarray(photo(24, 32, 7))).mean() < 5


def test_metadata_is_there_where_it_is_asked_for(root):
    sample = next(iter(ImageTextDataset(root, shuffle=False, metadata=True)))
    assert sample["metadata"]["metadata"] == {"score": 0}


def test_arrays_of_one_size_make_a_batch(root):
    dataset = ImageTextDataset(root, images="array", resize=(16, 20))
    batch = next(iter(ShardedDataLoader(dataset, 4)))
    assert batch["image"].shape == (4, 16, 20, 3) and batch["image"].dtype == torch.uint8
    assert len(batch["text"]) == len(batch["__key__"]) == 4
    image = ImageTextDataset(root, resize=(16, 20), shuffle=False).__iter__().__next__()["image"]
    array = (
        ImageTextDataset(root, images="array", resize=(16, 20), shuffle=False).__iter__().__next__()["image"]
    )
    assert np.abs(np.asarray(image, int) - array).max() <= 2


def test_pictures_as_bytes(root):
    sample = next(iter(ImageTextDataset(root, shuffle=False, decode=False)))
    assert sample["image"][:2] == b"\xff\xd8" and sample["text"] == "long 0"


def test_a_handler_of_ones_own(root):
    sample = next(iter(ImageTextDataset(root, shuffle=False, handlers={".jpg": len})))
    assert sample["image"] > 500


def test_pairs_as_others_write_them(tmp_path):
    members = [("a.jpg", encoded(photo())), ("a.txt", b"a cat"), ("a.seg.png", encoded(photo(), "PNG"))]
    path = make_tar(tmp_path / "x.tar", members)
    (sample,) = ImageTextDataset(path)
    assert sample["text"] == "a cat" and sample["image"].size == (96, 64)
    (mask,) = ImageTextDataset(path, extensions=[".seg.png", ".txt"], images="array")
    assert mask["image"].shape == (64, 96, 3)
    with pytest.raises(BadSample, match=r"x\.tar: sample 'a': 2 pictures, one was expected"):
        list(ImageTextDataset(path, extensions=[".jpg", ".seg.png", ".txt"], on_bad="raise"))


def test_captions_by_extension(tmp_path):
    path = make_tar(
        tmp_path / "x.tar", [("a.jpg", encoded(photo())), ("a.short.txt", b"cat"), ("a.txt", b"no")]
    )
    (sample,) = ImageTextDataset(path, captions=".short.txt")
    assert sample["text"] == "cat"


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({".json": {"caption": "text alone"}}, "sample 'x': 0 pictures"),
        ({".json": {"other": "a"}, ".jpg": encoded(photo())}, "sample 'x': no text at caption or .txt"),
        (
            {".json": {"caption": 5}, ".jpg": encoded(photo())},
            "sample 'x': what stands at 'caption' is int 5",
        ),
        ({".json": b"{", ".jpg": encoded(photo())}, "member 'x.json': no JSON"),
        ({".json": {"caption": "a"}, ".jpg": b"no picture"}, "member 'x.jpg': no picture"),
    ],
)
def test_bad_pairs(tmp_path, sample, message, caplog):
    root = write_dataset(tmp_path, [*pairs(3), {"__key__": "x", **sample}, *[pair(n) for n in range(5, 8)]])
    dataset = ImageTextDataset(root, shuffle=False, tail="keep", ret_samples=True)
    with caplog.at_level(logging.WARNING):
        samples = list(dataset)
    assert keys(each.sample for each in samples) == [0, 1, 2, 5, 6, 7]
    assert samples[3].missing_indices == [3] and message in samples[3].missing_samples[0]
    assert message in caplog.text and "shard-000000.tar" in caplog.text
    with pytest.raises(BadSample, match=r"shard-000000\.tar") as failure:
        list(ImageTextDataset(root, on_bad="raise"))
    assert message in str(failure.value)


def test_nobody_trains_on_nothing(root):
    with pytest.raises(TooManyBad, match=r"no text at captoin: did you mean 'caption'\?"):
        list(ImageTextDataset(root, captions="captoin", max_bad_in_row=20))


# -- chance


def texts(root, world_size, workers, epoch, batch_size=6, **options):
    """{key: text} of an epoch, over all ranks."""
    found = {}
    for rank in range(world_size):
        dataset = ImageTextDataset(
            root, captions=CAPTIONS, rank=rank, world_size=world_size, images="array", **options
        )
        loader = ShardedDataLoader(dataset, batch_size // world_size, num_workers=workers)
        loader.set_epoch(epoch)
        for batch in loader:
            for key, text in zip(batch["__key__"], batch["text"], strict=True):
                assert found.setdefault(key, text) == text
    return found


def test_captions_are_the_same_on_every_world(root):
    first = texts(root, 1, 0, 0)
    assert len(first) == 43
    kinds = Counter(text[0] for text in first.values())
    assert set(kinds) == {"l", "s"} and min(kinds.values()) > 10
    assert texts(root, 2, 0, 0) == texts(root, 3, 0, 0) == texts(root, 1, 2, 0) == first
    assert texts(root, 2, 0, 0, shuffle_size=5, sharding="url") == first  # of another order, too
    second = texts(root, 1, 0, 1)
    assert second.keys() == first.keys() and second != first
    assert texts(root, 2, 0, 1) == second
    assert texts(root, 1, 0, 0, seed=43) != first
    some = texts(root, 2, 0, 0, filters={"metadata.score": (None, 4)})
    assert len(some) == 23 and some.items() <= first.items()  # whoever else takes part


def test_workers_that_live_through_epochs_draw_anew(root):
    dataset = ImageTextDataset(root, captions=CAPTIONS, images="array")
    loader = ShardedDataLoader(dataset, 6, num_workers=2, persistent_workers=True)
    epochs = [dict(zip(batch["__key__"], batch["text"], strict=True)) for _ in range(2) for batch in loader]
    found = [{}, {}]
    for place, batch in enumerate(epochs):
        found[place // len(loader)].update(batch)
    assert found == [texts(root, 1, 0, epoch) for epoch in (0, 1)]


# -- filters


FILTERS = {"metadata.score": (2, 8, 0.9), "height": (24, None), "keywords": {"7": 0.5}}


def filtered(root, **options):
    return ImageTextDataset(
        root, filters=FILTERS, captions=CAPTIONS, images="array", shuffle_size=12, **options
    )


def test_filters_give_an_exact_length(root):
    dataset = filtered(root, tail="keep")
    assert dataset.left_out and sum(dataset.left_out.values()) == 43 - len(dataset)
    found = keys(dataset)
    assert len(found) == len(set(found)) == len(dataset) < 43
    assert f"{len(found)} of 43 samples in 5 shards" in repr(dataset)
    assert set(range(43)) - set(found) <= {n for n in range(43) if n % 10 in (0, 1, 9) or "7" in str(n)}
    ranks = [filtered(root, rank=rank, world_size=3, tail="keep") for rank in range(3)]
    assert sorted(found) == sorted(key for dataset in ranks for key in keys(dataset))
    assert sum(map(len, ranks)) == len(found)


def test_filters_that_leave_nothing_out_change_nothing(root):
    plain, all_fit = ImageTextDataset(root), ImageTextDataset(root, filters={"height": (1, None)})
    assert plain.fingerprint == all_fit.fingerprint and keys(plain) == keys(all_fit)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_filtered_epoch_goes_on_where_it_was_left(root, workers):
    whole = [
        batch["__key__"] + batch["text"]
        for batch in ShardedDataLoader(filtered(root), 4, num_workers=workers)
    ]
    for stop in range(0, len(whole) + 1, 1 if workers == 0 else 3):
        loader = ShardedDataLoader(filtered(root), 4, num_workers=workers)
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        again = ShardedDataLoader(filtered(root), 4, num_workers=workers)
        again.load_state_dict(state)
        rest = [batch["__key__"] + batch["text"] for batch in again]
        assert len(rest) == len(whole) - stop and rest == whole[stop:]


def test_a_filtered_epoch_goes_on_on_another_world(root):
    total = len(filtered(root, tail="keep"))
    one = ShardedDataLoader(filtered(root), 4, tail="keep")
    iterator = iter(one)
    seen = [key for _ in range(3) for key in next(iterator)["__key__"]]
    for rank in range(2):
        loader = ShardedDataLoader(filtered(root, rank=rank, world_size=2), 3, tail="keep")
        loader.load_state_dict(one.state_dict())
        assert len(loader) > 0
        seen += [key for batch in loader for key in batch["__key__"]]
    assert len(seen) == len(set(seen)) == total


def test_another_filter_is_another_dataset(root):
    loader = ShardedDataLoader(filtered(root), 4)
    state = loader.state_dict()
    other = ShardedDataLoader(ImageTextDataset(root, filters={"metadata.score": (2, 8)}, shuffle_size=12), 4)
    with pytest.raises(StateMismatch):
        other.load_state_dict(state)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_filters_and_captions_in_workers_of_every_kind(root, context):
    def batches(**options):
        return [batch["text"] for batch in ShardedDataLoader(filtered(root), 4, **options)]

    assert batches(num_workers=2, multiprocessing_context=context) == batches()


def test_a_select_function(root):
    dataset = ImageTextDataset(root, select=lambda sample: int(sample["__key__"]) < 5, tail="keep")
    assert sorted(keys(dataset)) == [0, 1, 2, 3, 4] and dataset.left_out == {"select": 38}


def test_filters_with_options(root):
    options = Filters({"height": (25, None)}, size_fields=("metadata.score", "metadata.score"), cache=None)
    with pytest.raises(BadConfig, match="none of the 43 samples is left"):
        ImageTextDataset(root, filters=options)
    with pytest.raises(BadConfig, match="no rule 'hieght': did you mean 'height'"):
        ImageTextDataset(root, filters={"hieght": (1, 2)})


def test_only_pictures_that_are_read_are_measured(tmp_path):
    members = [("a.jpg", encoded(photo(30, 30))), ("a.seg.png", encoded(photo(9, 9), "PNG")), ("a.txt", b"a")]
    path = make_tar(tmp_path / "x.tar", members)
    assert len(ImageTextDataset(path, filters={"height": (30, None)})) == 1
    assert len(SampleDataset(path, filters={"height": (30, None)})) == 1
    with pytest.raises(BadConfig, match="none of the 1 samples"):
        ImageTextDataset(path, extensions=["seg.PNG", ".txt"], filters={"height": (30, None)})


def test_pictures_numbered_by_extension(tmp_path):
    sides = range(20, 32)
    text = "".join(f"<image_{n}>" for n in reversed(range(12)))
    members = [(f"k.{n}.jpg", encoded(photo(side, side))) for n, side in enumerate(sides)]
    members += [("k.0.seg.png", b"no picture"), ("k.json", json.dumps({"caption": text}).encode())]
    path = make_tar(tmp_path / "x.tar", sorted(members))  # .10.jpg before .2.jpg
    (sample,) = InterleavedDataset(path, on_bad="raise", images="array")
    assert [part.shape[0] for part in sample["segments"]] == [*reversed(sides)]
    (sample,) = SampleDataset(path, extensions=[".jpg"])
    assert [sample[f".{n}.jpg"].height for n in range(12)] == [*sides] and len(sample) == 13
    (sample,) = ImageTextDataset(path, extensions=[".10.jpg", ".json"], on_bad="raise")
    assert sample["image"].height == 30 and sample["text"] == ""
    with pytest.raises(BadSample, match="12 pictures, one was expected"):
        list(ImageTextDataset(path, on_bad="raise"))
    for kind in (ImageTextDataset, SampleDataset):
        assert len(kind(path, filters={"height": (20, None)})) == 1
        with pytest.raises(BadConfig, match="none of the 1 samples"):
            kind(path, filters={"height": (21, None)})


# -- interleaved


def interleaved(tmp_path, text, pictures, **options):
    numbered = {}
    for number, (kind, side) in enumerate(pictures):
        numbered[f"-{number}.{kind}"] = encoded(photo(side, side), {"jpg": "JPEG", "png": "PNG"}[kind])
    members = [("k.json", json.dumps({"caption": text}).encode())]
    members += [
        (f"k{name}", data) for name, data in reversed(numbered.items())
    ]  # order on disk means nothing
    path = make_tar(tmp_path / "x.tar", members)
    return list(InterleavedDataset(path, on_bad="raise", **options))


def test_segments_follow_the_text(tmp_path):
    text = "See <image_0> and\n<image_2><image_1> end."
    (sample,) = interleaved(tmp_path, text, [("jpg", 10), ("png", 11), ("jpg", 12)], images="array")
    kinds = [part if isinstance(part, str) else part.shape[0] for part in sample["segments"]]
    assert kinds == ["See ", 10, " and\n", 12, 11, " end."]


def test_text_alone_is_one_segment(tmp_path):
    assert interleaved(tmp_path, "text", [])[0]["segments"] == ["text"]
    assert interleaved(tmp_path, "", [])[0]["segments"] == []


@pytest.mark.parametrize("text", ["no", "<image_0>", "<image_0><image_0><image_1>", "<image_1><image_2>"])
def test_placeholders_that_do_not_match(tmp_path, text):
    with pytest.raises(BadSample, match=r"x\.tar: sample 'k': 2 pictures, and these placeholders"):
        interleaved(tmp_path, text, [("jpg", 10), ("jpg", 11)])


def test_segments_reach_the_trainer(root):
    loader = ShardedDataLoader(InterleavedDataset(root, shuffle=False), 3, collate_fn=list)
    batch = next(iter(loader))
    assert [len(sample["segments"]) for sample in batch] == [2, 2, 2]
    assert batch[1]["segments"][1] == " long 1"


# -- text


def test_text_alone(tmp_path):
    samples = [
        {"__key__": "a", ".json": {"caption": "see <image_0> here"}, ".jpg": [b"no picture at all"]},
        {"__key__": "b", ".json": {"caption": "text"}},
    ]
    root = write_dataset(tmp_path, samples)
    found = list(TextDataset(root, shuffle=False))
    assert found == [{"__key__": "a", "text": "see here"}, {"__key__": "b", "text": "text"}]
    batch = next(iter(ShardedDataLoader(TextDataset(root, shuffle=False), 2)))
    assert batch["text"] == ["see here", "text"]


# -- whole samples


def test_whole_samples(root):
    sample = next(iter(SampleDataset(root, shuffle=False, images="array", resize=8)))
    assert sample.keys() == {"__key__", ".json", ".jpg"}
    assert sample[".jpg"].shape == (8, 8, 3)
    only = next(iter(SampleDataset(root, shuffle=False, extensions=[".json"])))
    assert only.keys() == {"__key__", ".json"}


def test_a_transform_may_leave_out_or_fail(root):
    def transform(sample):
        number = int(sample["__key__"])
        if number == 3:
            return None
        if number == 5:
            raise OSError("a picture that can't be opened")
        return number

    dataset = TextDataset(root, transform=transform, shuffle=False, tail="keep", ret_samples=True)
    samples = list(dataset)
    assert [each.sample for each in samples] == [n for n in range(43) if n not in (3, 5)]
    left_out = {
        index: why
        for each in samples
        for index, why in zip(each.missing_indices, each.missing_samples, strict=True)
    }
    assert left_out.keys() == {3, 5}
    assert "sample '000000005': transform: OSError: a picture that can't be opened" in left_out[5]
    with pytest.raises(BadSample, match="'000000005': transform: OSError"):
        list(TextDataset(root, transform=transform, shuffle=False, on_bad="raise"))


def test_pickles_stay_refused(tmp_path):
    path = make_tar(tmp_path / "x.tar", [("a.pickle", b"\x80\x04N.")])
    with pytest.raises(UnsafePickle, match=r"x\.tar"):
        list(SampleDataset(path, on_bad="raise"))


def test_a_shard_that_is_no_tar_costs_its_own_samples(tmp_path):
    root = write_dataset(tmp_path, pairs(40))
    with open(f"{root}/shard-000001.tar", "r+b") as file:
        file.write(b"x" * 512)
        file.truncate(2048)
    dataset = TextDataset(root, shuffle=False, tail="keep", max_bad_fraction=0.5)
    assert keys(dataset) == [*range(10), *range(20, 40)]
    with pytest.raises(BadConfig, match="images is 'jax'"):
        SampleDataset(root, images="jax")


def test_making_a_dataset_keeps_nobody_alive(root, tmp_path, monkeypatch):
    """A loader that its maker lets go is gone at once: left to the garbage collector, its workers take seconds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "datasets.json").write_text('{"a/b": {"data_type": "x", "dir": "/nowhere"}}')

    def make():
        dataset = ImageTextDataset(root, filters={"metadata.score": (1, None)}, images="array")
        loader = ShardedDataLoader(dataset, 4, num_workers=0)
        next(iter(loader))
        return weakref.ref(loader)

    gc.disable()
    try:
        assert make()() is None
    finally:
        gc.enable()


# -- subclasses


@pytest.mark.parametrize("name", ["index_generator", "index2indices", "shard_of", "success_sample"])
def test_a_method_of_ones_own_is_called(root, name):
    calls = []

    def own(self, *arguments):
        calls.append(arguments)
        return getattr(SampleDataset, name)(self, *arguments)

    dataset = type("Own", (SampleDataset,), {name: own})(root, shuffle=False, extensions=[".json"])
    assert keys(dataset) == list(range(43))
    assert len(calls) == (1 if name == "index_generator" else 43)
