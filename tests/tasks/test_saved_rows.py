from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, Features, Image, Value
from source_kinds import picture

from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.source import find_sources, plan_slots, rows


def job(folder: Path, **options: Any) -> PackConfig:
    return PackConfig(str(folder), str(folder.parent / "out"), max_samples=4, **options)


def records(config: PackConfig) -> list[Any]:
    return [row.record for slot in plan_slots(config) for row in rows(slot, config)]


def test_pictures_are_the_bytes_that_are_stored(tmp_path: Path) -> None:
    features = Features({"image": Image(), "text": Value("string")})
    (tmp_path / "b.png").write_bytes(picture(1)[0])
    values = [{"image": {"bytes": picture(0)[0], "path": "a.jpg"}, "text": "a"}, {"image": None, "text": "n"}]
    Dataset.from_list(values, features).save_to_disk(str(tmp_path / "saved"))
    assert records(job(tmp_path / "saved")) == values


def test_an_index_of_chosen_rows_is_followed(tmp_path: Path) -> None:
    data = Dataset.from_list([{"text": str(n), "part": "ab"[n % 2]} for n in range(20)])
    data.shuffle(seed=1).select(range(9)).save_to_disk(str(tmp_path / "saved"), num_shards=2)
    wanted = data.shuffle(seed=1).select(range(9)).to_list()
    assert records(job(tmp_path / "saved")) == wanted
    shuffled = records(job(tmp_path / "saved", order="shuffled", seed=2))
    assert shuffled != wanted
    assert sorted(record["text"] for record in shuffled) == sorted(record["text"] for record in wanted)
    slots = plan_slots(job(tmp_path / "saved", split_column="part"))
    assert [slot.split for slot in slots] == sorted(slot.split for slot in slots)
    assert {slot.split for slot in slots} == {"a", "b"}


def test_a_folder_that_only_looks_like_one(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / "saved" / name).write_text("{}")
    assert [file.kind for file in find_sources(job(tmp_path / "saved"))] == ["datasets"]
    with pytest.raises(BadConfig, match="the dataset in this folder cannot be loaded"):
        plan_slots(job(tmp_path / "saved"))
    (tmp_path / "saved/state.json").unlink()
    with pytest.raises(BadConfig, match=r"no state\.json there, as save_to_disk writes it"):
        plan_slots(job(tmp_path / "saved", source_kind="datasets"))
