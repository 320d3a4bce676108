"""What a name means, and the table of shards: names, counts, places, without opening anything."""

from __future__ import annotations

import json
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import made_up, packed
from strategies import keys

from loader.errors import BadMeta, UnknownDataset
from loader.meta import ShardMeta
from loader.registry import load_registry
from loader.shards import ShardTable, find_shards
from loader.state import fingerprint

names = st.one_of(keys(), st.sampled_from(["caf\udce9", "日本/写真", "two\nlines", "a b"])).map(
    "{}.tar".format
)
groups = st.lists(st.dictionaries(names, st.integers(0, 5), max_size=6), min_size=1, max_size=4)


def table_of(groups: list[dict[str, int]]) -> ShardTable:
    return ShardTable(
        [
            (
                ("", f"/root/{n}", {"n": n}),
                {name: ShardMeta(count, 512 * count, 1) for name, count in shards.items()},
            )
            for n, shards in enumerate(groups)
        ]
    )


@settings(deadline=None, max_examples=150)
@given(groups)
def test_a_table_is_the_list_that_it_was_made_from(groups: list[dict[str, int]]) -> None:
    table = table_of(groups)
    flat = [(n, name, count) for n, shards in enumerate(groups) for name, count in shards.items()]
    assert len(table) == len(flat)
    assert table.urls() == [f"/root/{n}/{name}" for n, name, _ in flat]
    assert table.counts.tolist() == [count for *_, count in flat]
    assert table.sizes.tolist() == [512 * count for *_, count in flat]
    assert [table.storage_options(shard) for shard in range(len(table))] == [{"n": n} for n, *_ in flat]
    assert table.num_samples == sum(count for *_, count in flat)
    places = [(shard, i) for shard, (*_, count) in enumerate(flat) for i in range(count)]
    assert [table.locate(number) for number in range(table.num_samples)] == places
    assert table.fingerprint == fingerprint(["/" + name for _, name, _ in flat], table.counts)


@settings(deadline=None, max_examples=30)
@given(groups, st.booleans())
def test_it_survives_pickling_once_and_twice(groups: list[dict[str, int]], forking: bool) -> None:
    table = table_of(groups)
    wanted = (table.urls(), table.counts.tolist(), table.sizes.tolist(), table.fingerprint)
    for _ in range(2):
        data = bytes(ForkingPickler.dumps(table)) if forking else pickle.dumps(table)
        other = pickle.loads(data)
        for each in (table, other):
            assert (each.urls(), each.counts.tolist(), each.sizes.tolist(), each.fingerprint) == wanted
            assert [each.locate(n) for n in range(each.num_samples)] == [
                table.locate(n) for n in range(table.num_samples)
            ]
        table = other


def test_workers_share_one_copy() -> None:
    table = table_of([{f"{n}.tar": n for n in range(500)}])
    one, two = (pickle.loads(bytes(ForkingPickler.dumps(table))) for _ in range(2))
    # Written through one of them, seen by all: it is one memory.
    one._tensors["counts"][7] = 99
    assert two.counts[7] == table.counts[7] == 99


@pytest.fixture
def registry(tmp_path: Path) -> str:
    entries = {}
    for name, counts in (("text2image/a", [3, 4]), ("text2image/b", [5]), ("text/c", [6, 0])):
        root = made_up(tmp_path / "data" / name, counts)
        entries[name] = {"data_type": "image-text", "dir": root}
    path = tmp_path / "datasets.json"
    path.write_text(json.dumps(entries))
    return str(path)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("text2image/a", [3, 4]),
        ("text2image", [3, 4, 5]),
        ("text2image/*", [3, 4, 5]),
        ("text/c, text2image/b", [6, 0, 5]),
        ("text2image/b,text2image", [5, 3, 4]),  # none twice
    ],
)
def test_registered_names(registry: str, name: str, counts: list[int]) -> None:
    assert find_shards(name, registry).counts.tolist() == counts
    assert find_shards(name, load_registry(registry)).counts.tolist() == counts


def test_the_registry_of_the_current_folder(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(registry).parent
    (folder / "configs").mkdir()
    Path(registry).rename(folder / "configs/datasets.json")
    monkeypatch.chdir(folder)
    assert find_shards("text2image/b").counts.tolist() == [5]
    assert find_shards("data/text/c").counts.tolist() == [6, 0]  # an address still serves
    with pytest.raises(UnknownDataset, match=r"text2image/x.*text2image/a.*no such file or folder either"):
        find_shards("text2image/x")


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = packed(tmp_path / "d", [2, 3, 4])
    other = packed(tmp_path / "e", [5])
    tar = f"{root}/00001.tar"
    monkeypatch.chdir(tmp_path)
    for name, counts in (
        (root, [2, 3, 4]),
        (Path(root), [2, 3, 4]),
        (f"{root}/", [2, 3, 4]),
        ("d", [2, 3, 4]),
        (f"{root}/meta.json", [2, 3, 4]),
        (tar, [3]),
        (f"{root}/0000[02].tar", [2, 4]),
        (f"{root}/*", [2, 3, 4]),
        (f"{root}, {other}", [2, 3, 4, 5]),
        ([other, Path(tar)], [5, 3]),
        (f"file://{tar}", [3]),
        ([root, tar, root], [2, 3, 4]),  # none twice
    ):
        table = find_shards(name)  # type: ignore[arg-type]
        assert table.counts.tolist() == counts, name
        assert all(Path(url).exists() for url in table.urls())


def test_a_folder_whose_name_holds_a_comma(tmp_path: Path) -> None:
    root = packed(tmp_path / "a, b", [2])
    assert find_shards(root).counts.tolist() == [2]
    assert find_shards(Path(root)).counts.tolist() == [2]
    assert find_shards(f"{root}/00000.tar").counts.tolist() == [2]


def test_a_moved_dataset_is_the_same(tmp_path: Path) -> None:
    root = made_up(tmp_path / "d", [2, 3])
    before = find_shards(root).fingerprint
    Path(root).rename(tmp_path / "e")
    assert find_shards(str(tmp_path / "e")).fingerprint == before
    assert find_shards(made_up(tmp_path / "f", [3, 2])).fingerprint != before


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("nowhere", UnknownDataset, "'nowhere' is neither the address .* nor a registered name"),
        ("", UnknownDataset, "an empty dataset name"),
        ("empty", BadMeta, "meta.json"),
        ("no_shards", BadMeta, "no shards in it: pack some, or run gen_meta"),
        ([], BadMeta, "no shards in it"),
        ("*.tar", UnknownDataset, "neither the address"),
    ],
)
def test_what_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, kind: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    made_up(tmp_path / "no_shards", [])
    with pytest.raises(kind, match=message):
        find_shards(name)


def test_nothing_is_opened(tmp_path: Path) -> None:
    """meta.json says it all: there isn't one tar."""
    table = find_shards(made_up(tmp_path / "d", [7, 0, 9]))
    assert (table.counts.tolist(), table.num_samples) == ([7, 0, 9], 16)
    assert table.counts.dtype == np.int64
