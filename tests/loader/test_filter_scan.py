"""Filters over real shards: exact, remembered, the same for all who ask."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fault_proxy import FaultProxy
from pictures import encoded, pair, pairs, photo, turned, write_dataset
from s3_server import Place
from tars import make_tar

from loader import filter_scan
from loader.captions import Captions
from loader.datasets import SampleDataset
from loader.errors import BadConfig, BadMeta
from loader.filter_scan import Scan, scan
from loader.filters import Filters
from loader.meta import ShardMeta, write_meta
from loader.shards import find_shards
from loader.writer import write_shard


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    """A cache folder of the test's own."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def task(rules, select=None, seed=42, captions=None, **options):
    return Scan(Filters(rules, **options).parse(Captions(captions), seed), select)


def kept(root, given_task, **options):
    """Numbers over the whole dataset, and how many each rule left out."""
    table = find_shards(root)
    found = scan(table, given_task, **options)
    selection = found.selection
    numbers = []
    for shard in range(len(table)):
        places = np.arange(selection.counts[shard])
        numbers += (table.begins[shard] + selection.at(np.full(len(places), shard), places)).tolist()
    return numbers, found.left_out


def scores(tmp_path, count=25):
    samples = [pair(n, metadata={"score": n, "height": 24, "width": 32 + n}) for n in range(count)]
    return write_dataset(tmp_path / "scores", samples)


def test_exactly_those_that_fit(tmp_path):
    root = scores(tmp_path)
    numbers, left_out = kept(root, task({"metadata.score": (5, 19), "width": (None, 50)}))
    assert numbers == list(range(5, 19))
    assert left_out == {"metadata.score": 10, "width": 1}


def test_nothing_left_out(tmp_path):
    assert kept(scores(tmp_path), task({"metadata.score": (0, None)})) == (list(range(25)), {})


def test_headers_where_no_field_tells(tmp_path):
    samples = [pair(n, height=20 + n, width=30) for n in range(12)]
    samples.append(
        {
            "__key__": "000000090",
            ".json": {"caption": "<image_0>turned"},
            ".jpg": [encoded(photo(30, 26), exif=turned(6))],  # 26 × 30 as seen
        }
    )
    long_header = encoded(photo(40, 40), icc_profile=bytes(9000))
    samples.append({"__key__": "000000091", ".json": {"caption": "<image_0>"}, ".jpg": [long_header]})
    samples.append(
        {"__key__": "000000092", ".json": {"caption": "<image_0>"}, ".png": [encoded(photo(40, 40), "PNG")]}
    )
    samples.append(
        {"__key__": "000000093", ".json": {"caption": "<image_0>"}, ".webp": [encoded(photo(9, 9), "WEBP")]}
    )
    samples.append({"__key__": "000000094", ".json": {"caption": "no picture"}})
    two = [encoded(photo(40, 30)), encoded(photo(10, 30))]
    samples.append({"__key__": "000000095", ".json": {"caption": "<image_0><image_1>"}, ".jpg": two})
    root = write_dataset(tmp_path, samples)
    numbers, left_out = kept(root, task({"height": (26, None)}))
    assert numbers == [*range(6, 12), 12, 13, 14] and left_out == {"height": 9}
    numbers, _ = kept(root, task({"height": (26, None)}, keep_missing=True))
    assert numbers == [*range(6, 12), 12, 13, 14, 16]


def test_no_picture_is_decoded(tmp_path, monkeypatch):
    """Pixels cut off, headers left: nothing notices."""
    samples = [
        {"__key__": f"{n:09d}", ".json": {"caption": "<image_0>"}, ".jpg": [encoded(photo(30, 40 + n))[:700]]}
        for n in range(4)
    ]
    assert kept(write_dataset(tmp_path, samples), task({"width": (42, None)}))[0] == [2, 3]


def test_what_cannot_be_read_takes_part(tmp_path):
    """So that on_bad deals with it, instead of vanishing here."""
    broken = {"__key__": "000000050", ".json": b"{", ".jpg": encoded(photo())}
    headless = {"__key__": "000000051", ".json": {"caption": "<image_0>"}, ".jpg": [b"no picture"]}
    root = write_dataset(tmp_path, [*pairs(3), broken, headless])
    assert kept(root, task({"height": (1000, None)}))[0] == [3, 4]


def test_a_select_function(tmp_path):
    root = scores(tmp_path)

    def even(sample):
        assert sample.keys() == {"__key__", ".json"}
        return int(sample["__key__"]) % 2 == 0

    numbers, left_out = kept(root, task({"metadata.score": (None, 9)}, even))
    assert numbers == [0, 2, 4, 6, 8] and left_out == {"metadata.score": 15, "select": 5}


def test_a_select_function_that_fails(tmp_path):
    with pytest.raises(BadConfig, match=r"shard-000000.tar, sample 0, key '000000000': KeyError: 'no'"):
        kept(scores(tmp_path), task({}, lambda sample: sample["no"]))


def test_a_field_that_no_sample_has(tmp_path):
    root = scores(tmp_path)
    with pytest.raises(
        BadConfig, match=r"no sample has a number at 'metadata.scroe': did you mean 'metadata.score'"
    ):
        kept(root, task({"metadata.scroe": (1, 2)}))
    with pytest.raises(BadConfig, match="no sample has a number at 'caption'"):
        kept(root, task({"$.caption": (1, 2)}, keep_missing=True))


def test_nobody_left(tmp_path):
    with pytest.raises(BadConfig, match=r"none of the 25 samples is left \(metadata.score: 25\)"):
        kept(scores(tmp_path), task({"metadata.score": (1000, None)}))


def test_shards_without_samples(tmp_path):
    root = tmp_path / "d"
    make_tar(root / "a.tar", [])
    make_tar(root / "b.tar", [("x.json", b'{"score": 1}'), ("y.json", b'{"score": 5}')])
    make_tar(root / "c.tar", [])
    assert kept(f"{root}/*.tar", task({"$.score": (2, None)}))[0] == [1]


def test_a_shard_of_another_count_than_announced(tmp_path):
    root = scores(tmp_path)
    with open(f"{root}/meta.json") as file:
        meta = json.load(file)
    meta["shard-000001.tar"]["num_samples"] = 9
    with open(f"{root}/meta.json", "w") as file:
        json.dump(meta, file)
    with pytest.raises(BadMeta, match=r"shard-000001.tar: 10 samples, where 9 are announced"):
        kept(root, task({"metadata.score": (0, None)}))


def test_processes_come_to_the_same(tmp_path):
    root = scores(tmp_path, 45)
    rules = task({"metadata.score": (5, 33, 0.8), "keywords": {"picture": 0.3}})
    alone = kept(root, rules, cache=None)
    assert 5 < len(alone[0]) < 40
    assert kept(root, rules, cache=None, n_jobs=2) == alone


def test_the_outcome_is_remembered(tmp_path, home, monkeypatch):
    root = scores(tmp_path)
    rules = task({"metadata.score": (5, None), "height": (1, None)})
    first = kept(root, rules)
    files = [file for file in os.listdir(home / ".cache/shardflow/filters") if file.endswith(".npz")]
    assert len(files) == 1
    calls = Counter()
    original = filter_scan.scan_shard
    monkeypatch.setattr(filter_scan, "scan_shard", lambda *a: calls.update("s") or original(*a))
    assert kept(root, rules) == first and not calls
    assert kept(root, rules, cache=str(tmp_path / "elsewhere")) == first and calls["s"] == 3
    kept(root, task({"metadata.score": (5, None), "height": (2, None)}))
    assert calls["s"] == 6
    kept(root, task({"metadata.score": (5, None), "height": (1, None)}, seed=1))
    assert calls["s"] == 9
    for _ in range(2):  # code is not known: never remembered
        kept(root, task({"metadata.score": (5, None)}, select=lambda sample: True))
    assert calls["s"] == 15


def test_a_changed_tar_is_looked_at_again(tmp_path):
    root = scores(tmp_path)
    rules = task({"metadata.score": (5, None)})
    assert len(kept(root, rules)[0]) == 20
    os.remove(f"{root}/shard-000000.tar.index")
    write_dataset(root, [pair(n, metadata={"score": 9, "height": 24, "width": 32 + n}) for n in range(25)])
    assert len(kept(root, rules)[0]) == 25


@pytest.mark.parametrize("damage", [b"", b"garbage", b"PK\x03\x04 cut short"])
def test_a_damaged_memory_is_made_anew(tmp_path, home, damage, caplog):
    root = scores(tmp_path)
    rules = task({"metadata.score": (5, None)})
    first = kept(root, rules)
    (file,) = (home / ".cache/shardflow/filters").glob("*.npz")
    whole = file.read_bytes()
    file.write_bytes(damage)
    assert kept(root, rules) == first
    assert "they are applied again" in caplog.text
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    first = kept(scores(tmp_path), task({"metadata.score": (5, None)}), cache=str(tmp_path / "file" / "x"))
    assert len(first[0]) == 20
    assert "can't be remembered" in caplog.text


def test_one_scans_while_others_wait(tmp_path, monkeypatch):
    root = scores(tmp_path)
    rules, calls = task({"metadata.score": (5, None)}), Counter()
    original = filter_scan._scan_all
    monkeypatch.setattr(filter_scan, "_scan_all", lambda *a: calls.update("s") or original(*a))
    found = []
    threads = [threading.Thread(target=lambda: found.append(kept(root, rules))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls["s"] == 1 and len(found) == 4 and all(each == found[0] for each in found)


def test_of_shards_in_a_store_the_texts_alone_are_fetched(
    faulty: Place, faults: FaultProxy, tmp_path: Path
) -> None:
    shards, options = {}, faulty.storage_options
    for shard in range(2):
        members = [
            (f"{n:03d}", [(".jpg", os.urandom(20_000)), (".json", b'{"score": %d}' % n)])
            for n in range(30 * shard, 30 * shard + 30)
        ]
        info = write_shard(faulty.address(f"{shard}.tar"), members, storage_options=options)
        shards[f"{shard}.tar"] = ShardMeta(info.num_samples, info.size, info.checksum)
    write_meta(faulty.root, shards, options)
    faults.reset()
    dataset = SampleDataset(
        faulty.root, filters=Filters({"$.score": (25, 33)}, cache=str(tmp_path / "filters")), decode=False,
        storage_options=options, cache_dir=str(tmp_path / "cache"), shuffle=False,
    )  # fmt: skip
    assert len(dataset) == 9
    assert faults.stats()["down"] < 0.05 * 60 * 20_000
    assert [each["__key__"] for each in dataset] == [f"{n:03d}" for n in range(25, 34)]
