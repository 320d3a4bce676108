from __future__ import annotations

import datetime
import decimal
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from growth import cost
from source_kinds import picture

from loader.errors import BadConfig
from tasks import pack, source
from tasks.config import PackConfig
from tasks.source import Row, plan_slots, rows
from tasks.sources import parquet_rows


def job(file: Path, most: int = 4, **options: Any) -> PackConfig:
    return PackConfig(str(file), str(file.parent / "out"), max_samples=most, **options)


def read(config: PackConfig) -> list[Row]:
    return [row for slot in plan_slots(config) for row in rows(slot, config)]


def test_slots_run_over_row_groups_and_files(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 10)):
        table = pa.table({"n": range(start, start + 10)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=3)
    config = job(tmp_path / "*.parquet", 7)
    found = read(config)
    assert [row.record for row in found] == [{"n": n} for n in range(20)]
    assert [row.row for row in found] == [*range(1, 11)] * 2
    assert [slot.rows for slot in plan_slots(config)] == [7, 7, 6]


def test_only_the_row_groups_of_a_slot_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"n": range(100)}), tmp_path / "a.parquet", row_group_size=10)
    config = job(tmp_path / "a.parquet", 10)
    groups: list[int] = []
    whole = parquet_rows.ParquetReader._group
    monkeypatch.setattr(
        parquet_rows.ParquetReader, "_group", lambda self, group: groups.append(group) or whole(self, group)
    )
    slots = plan_slots(config)
    assert groups == []
    assert [row.record for row in rows(slots[3], config)] == [{"n": n} for n in range(30, 40)]
    assert groups == [3]


def test_values_become_what_json_holds(tmp_path: Path) -> None:
    table = pa.table(
        {
            "image": [{"bytes": b"\x89PNG", "path": "a.png"}],
            "when": [datetime.datetime(2024, 2, 3, 4, 5)],
            "price": [decimal.Decimal("1.50")],
            "tags": [["a", "b"]],
            "nothing": pa.array([None], pa.string()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (row,) = read(job(tmp_path / "a.parquet"))
    assert row.record == {
        "image": {"bytes": b"\x89PNG", "path": "a.png"},
        "when": "2024-02-03T04:05:00",
        "price": "1.50",
        "tags": ["a", "b"],
        "nothing": None,
    }


def test_null_nan_and_no_text_cost_their_rows(tmp_path: Path) -> None:
    texts = pa.array([b"fine", b"\xff\xfe", b"fine"], pa.binary()).cast(pa.string(), safe=False)
    (tmp_path / "a.jpg").write_bytes(picture(0)[0])
    pq.write_table(pa.table({"image": ["a.jpg", "a.jpg", None], "caption": texts}), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"image": ["a.jpg"] * 2, "caption": ["x", "y"], "score": [float("nan"), 0.5]}),
        tmp_path / "b.parquet",
    )
    summary = pack.pack(job(tmp_path / "*.parquet", max_bad_fraction=1.0, n_jobs=1))
    assert (summary.samples, summary.bad) == (2, 3)
    reasons = (tmp_path / "out/errors.jsonl").read_text().splitlines()
    assert "no text, number or time" in reasons[0]
    assert "image is null" in reasons[1]
    assert "metadata.score cannot be stored as JSON" in reasons[2]


def test_what_is_no_parquet(tmp_path: Path) -> None:
    for data in (b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1"):
        (tmp_path / "a.parquet").write_bytes(data)
        with pytest.raises(BadConfig, match=r"a\.parquet is no Parquet"):
            read(job(tmp_path / "a.parquet"))


def test_a_damaged_page_costs_its_row_group(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    table = pa.table({"text": [random.Random(n).randbytes(500).hex() for n in range(30)]})
    pq.write_table(table, file, row_group_size=10, compression="gzip", use_dictionary=False)
    data = bytearray(file.read_bytes())
    column = pq.ParquetFile(file).metadata.row_group(1).column(0)
    place, size = column.data_page_offset, column.total_compressed_size
    data[place + size // 4 : place + size] = b"\xff" * (size - size // 4)
    file.write_bytes(data)
    found = read(job(file, 15))
    assert [bool(row.error) for row in found] == [False] * 10 + [True] * 10 + [False] * 10
    assert found[10].error.startswith("row group 1 cannot be read")


def test_large_groups_are_shuffled_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"n": range(800)}), tmp_path / "a.parquet", row_group_size=80)
    monkeypatch.setattr(parquet_rows, "_WHOLE", 0)
    config = job(tmp_path / "a.parquet", 100, order="shuffled", seed=3)
    found = [row.record["n"] for row in read(config) if row.record]
    assert sorted(found) == list(range(800))
    assert found != sorted(found)
    pieces = [found[at : at + 10] for at in range(0, 800, 10)]
    assert all(len({n // 10 for n in piece}) == 1 for piece in pieces)
    assert any(piece != sorted(piece) for piece in pieces)


@pytest.mark.slow
def test_a_million_rows_are_planned_from_the_footer(tmp_path: Path) -> None:
    table = pa.table(
        {"image": ["photographs/000000.jpg"] * 1_000_000, "caption": ["a photograph"] * 1_000_000}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.slice(0, 1000), tmp_path / "b.parquet")
    del table
    million, few = job(tmp_path / "a.parquet", 10_000), job(tmp_path / "b.parquet", 10)
    slots: list[source.Slot] = []
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        slots.extend(plan_slots(million))
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 20 << 20
    assert [slot.rows for slot in slots] == [10_000] * 100
    assert cost(lambda: plan_slots(million), 3) < 20 * cost(lambda: plan_slots(few), 3)  # as many slots
