from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pytest
from growth import cost
from hypothesis import given, settings
from hypothesis import strategies as st

from loader import storage
from loader.errors import BadConfig
from loader.indexed_tar_samples import IndexedTarSamples
from loader.meta import read_meta
from tasks import pack
from tasks.config import PackConfig
from tasks.source import Row, plan_slots, rows


def write(folder: Path, count: int, files: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    for file in range(files):
        lines = (json.dumps({"text": str(n), "part": f"p{n % 3}"}) for n in range(file, count, files))
        (folder / f"{file:03d}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def job(folder: Path, **options: Any) -> PackConfig:
    return PackConfig(str(folder), str(folder.parent / "out"), n_jobs=1, **{"max_samples": 10, **options})


def read(config: PackConfig) -> dict[str, list[Row]]:
    """Rows by split, by way of the slots, whose own arithmetic is checked."""
    found: dict[str, list[Row]] = {}
    first = 0
    for index, slot in enumerate(plan_slots(config)):
        mine = list(rows(slot, config))
        assert (slot.index, slot.first_row, slot.rows) == (index, first, len(mine))
        assert slot.shard * config.max_samples == len(found.setdefault(slot.split, []))
        found[slot.split] += mine
        first += len(mine)
    return found


def texts(found: list[Row]) -> list[int]:
    return [int((row.record or {})["text"]) for row in found]


def test_a_shuffle_is_even_and_follows_from_the_seed(tmp_path: Path) -> None:
    write(tmp_path / "in", 1000, files=70)
    orders = [texts(read(job(tmp_path / "in", order="shuffled", seed=seed))[""]) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(1000))
    # Each tenth of the sources is in each tenth of the order: 10 of 1000 are expected in each of 100 cells.
    cells = Counter((place // 100, number // 100) for place, number in enumerate(orders[0]))
    assert len(cells) == 100
    assert max(cells.values()) < 25
    kept = read(job(tmp_path / "in"))[""]
    by_text = {int((row.record or {})["text"]): (row.number, row.source, row.row) for row in kept}
    shuffled = read(job(tmp_path / "in", order="shuffled"))[""]
    assert {int((r.record or {})["text"]): (r.number, r.source, r.row) for r in shuffled} == by_text


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 60),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 1 << 40),
    st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
)
def test_splits_are_all_rows_once_and_of_the_sizes_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    files: int,
    shuffled: bool,
    seed: int,
    weights: list[int],
) -> None:
    folder = tmp_path_factory.mktemp("split")
    write(folder / "in", count, files)
    split = ",".join(f"s{n}={weight / sum(weights)}" for n, weight in enumerate(weights))
    options = {"split": split, "seed": seed, "order": "shuffled" if shuffled else "kept"}
    found = read(job(folder / "in", **options))
    together = [number for part in found.values() for number in texts(part)]
    assert sorted(together) == list(range(count))
    for n, weight in enumerate(weights):
        part = found.get(f"s{n}", [])
        assert abs(len(part) - count * weight / sum(weights)) < 1.001
        if not shuffled:
            assert [row.number for row in part] == sorted(row.number for row in part)


def test_each_split_is_a_dataset_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "in", 100)
    config = job(tmp_path / "in", split="train=0.8, val=0.1, test=0.1", seed=4)
    summary = pack.pack(config)
    assert (summary.samples, summary.shards) == (100, 10)
    assert not (tmp_path / "out/meta.json").exists()
    keys: list[str] = []
    for name, count in (("train", 80), ("val", 10), ("test", 10)):
        root = tmp_path / "out" / name
        shards = read_meta(str(root))
        assert list(shards) == [f"shard-{n:06d}.tar" for n in range(count // 10)]
        assert json.loads((root / "meta_stats.json").read_text())["total_samples"] == count
        for shard in shards:
            with IndexedTarSamples(str(root / shard)) as tar:
                keys += tar.keys()
    assert sorted(keys) == [f"{n:09d}" for n in range(100)]
    assert pack.pack(config).kept == 10


def test_a_split_by_a_column_and_rows_without_one(tmp_path: Path) -> None:
    write(tmp_path / "in", 30)
    with (tmp_path / "in/000.jsonl").open("a") as file:
        file.write('{"text": "none"}\n{"text": "path", "part": "../x"}\n{"text": "number", "part": 3}\nbad\n')
    config = job(tmp_path / "in", split_column="part", max_bad_fraction=0.5)
    summary = pack.pack(config)
    assert (summary.samples, summary.bad) == (30, 4)
    assert sorted(file.name for file in (tmp_path / "out").iterdir() if file.is_dir()) == [
        ".shardflow", "p0", "p1", "p2",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "out/errors.jsonl").read_text().splitlines()]
    assert [(line["row"], line["stage"]) for line in lines] == [
        (31, "split"),
        (32, "split"),
        (33, "split"),
        (34, "parse"),
    ]
    assert "part is 'None'" in lines[0]["reason"]
    with pytest.raises(BadConfig, match="split_column is 'no', which has 0 values"):
        plan_slots(job(tmp_path / "in", split_column="no"))


@pytest.mark.slow
def test_a_million_rows_are_shuffled_in_linear_time_and_few_bytes(tmp_path: Path) -> None:
    row = '{"image": "photographs/000000.jpg", "caption": "a photograph"}\n'
    (tmp_path / "a.jsonl").write_text(row * 1_000_000)
    (tmp_path / "b.jsonl").write_text(row * 50_000)
    options: dict[str, Any] = {"order": "shuffled", "split": "train=0.9,test=0.1"}
    million, fewer = (
        PackConfig(str(tmp_path / f"{name}.jsonl"), str(tmp_path / "out"), **options) for name in "ab"
    )
    assert cost(lambda: plan_slots(million), 1) < 60 * cost(
        lambda: plan_slots(fewer), 3
    )  # of 20 times the rows
    tracemalloc.start()
    try:
        plan_slots(fewer)
        assert tracemalloc.get_traced_memory()[1] < 200 * 50_000  # 200 bytes a row
    finally:
        tracemalloc.stop()


def test_shuffled_rows_of_a_store_are_asked_for_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f'{{"text": "{n}", "long": "{"x" * 300}"}}\n' for n in range(1000))
    fsspec.filesystem("memory").pipe_file("/arrange/a.jsonl", lines.encode())
    asked: list[int] = []
    read_ranges = storage.read_ranges

    def counted(address: str, spans: Any, *arguments: Any, **named: Any) -> list[bytes]:
        if address.endswith(".jsonl"):
            asked.append(len(spans))
        return read_ranges(address, spans, *arguments, **named)

    monkeypatch.setattr(storage, "read_ranges", counted)
    config = PackConfig("memory://arrange/a.jsonl", str(tmp_path / "out"), max_samples=500, order="shuffled")
    assert sorted(texts(read(config)[""])) == list(range(1000))
    assert sum(asked) == 1000
    assert len(asked) == 16
