from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import fsspec
import pytest
from source_kinds import picture

from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.source import Row, find_sources, plan_slots, rows


def job(folder: Path | str, output: Path | str, **options: Any) -> PackConfig:
    return PackConfig(str(folder), str(output), max_samples=3, **options)


def read(config: PackConfig) -> list[Row]:
    return [row for slot in plan_slots(config) for row in rows(slot, config)]


def fill(folder: Path, **files: bytes | str) -> None:
    for name, data in files.items():
        file = folder / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else data.encode())


JPEG = picture(0)[0]


def test_captions_beside_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(
        tmp_path / "in",
        a_jpg=JPEG,
        a_txt="\ufeffa cat \r\n",
        a_json=json.dumps({"caption": "another", "stars": 3}),
        b__c_JPG=JPEG,
        b__c_json=json.dumps({"text": "a dog"}),
        d_png=JPEG,
        e_txt="no picture",
        f_jpg=JPEG,
        f_txt=b"\xff\xfe",
        g_jpg=JPEG,
        g_json="[1]",
        h_jpg=JPEG,
        h_npy=b"something else",
        h_txt="",
    )
    (tmp_path / "in" / ".hidden.jpg").write_bytes(JPEG)
    with caplog.at_level(logging.WARNING):
        found = read(job(tmp_path / "in", tmp_path / "out"))
    assert "1 files that are neither pictures nor captions take no part (1 .npy)" in caplog.text
    good = [row.record for row in found if row.record]
    assert good == [
        {"image": "a.jpg", "caption": "a cat", "stars": 3},
        {"image": "b/c.JPG", "text": "a dog"},
        {"image": "h.jpg", "caption": ""},
    ]
    assert [row.error.removeprefix(f"{tmp_path}/in/") for row in found if row.error] == [
        "d.png: no .txt or .json of that name beside it",
        "e.txt: a caption, but no picture of that name beside it",
        "f.txt: not UTF-8: invalid start byte at byte 1",
        "g.json: a JSON object was expected, found list",
    ]
    assert {row.base for row in found} == {row.source for row in found} == {str(tmp_path / "in")}


def test_a_folder_of_a_store() -> None:
    fs = fsspec.filesystem("memory")
    for number in range(7):
        fs.pipe_file(f"/beside/{number}.jpg", JPEG)
        fs.pipe_file(f"/beside/{number}.txt", b"number %d" % number)
    found = read(job("memory://beside", "memory://beside-out"))
    assert [row.record for row in found] == [
        {"image": f"{n}.jpg", "caption": f"number {n}"} for n in range(7)
    ]
    assert {row.base for row in found} == {"memory://beside"}


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    fill(tmp_path / "in", cat__1_jpg=JPEG, dog__small__2_jpg=JPEG, dog__small__3_png=JPEG, loose_jpg=JPEG)
    found = [row.record for row in read(job(tmp_path / "in", tmp_path / "out"))]
    assert found == [
        {"image": "cat/1.jpg", "caption": "cat", "label": "cat"},
        {"image": "dog/small/2.jpg", "caption": "small", "label": "small"},
        {"image": "dog/small/3.png", "caption": "small", "label": "small"},
        {"image": "loose.jpg"},
    ]


def test_the_kind_of_a_folder(tmp_path: Path) -> None:
    kinds = {
        "captions": {"a_jpg": JPEG, "a_txt": "x"},
        "jsonl": {"cat__a_jpg": JPEG, "records_jsonl": "{}"},
        "csv": {"a_jpg": JPEG, "metadata_csv": "file_name,text\n", "other_csv": ""},
        "tar": {"0_tar": bytes(1024), "0_json": "{}", "0_parquet": b""},
    }
    for kind, files in kinds.items():
        fill(tmp_path / kind, **files)
        found = find_sources(job(tmp_path / kind, tmp_path / "out" / kind))
        assert [file.kind for file in found] == [kind]
    fill(tmp_path / "bare", a_jpg=JPEG, b_jpg=JPEG)
    with pytest.raises(
        BadConfig, match=r"pictures, but no captions\. Expected is a\.txt or a\.json beside a\.jpg"
    ):
        find_sources(job(tmp_path / "bare", tmp_path / "out"))
    assert len(read(job(tmp_path / "bare", tmp_path / "out", source_kind="captions"))) == 2


def test_content_tells_where_a_name_does_not(tmp_path: Path) -> None:
    for name, data, kind in (("a", b'\n {"text": "x"}\n', "jsonl"), ("b.data", b"[{}]", "json")):
        (tmp_path / name).write_bytes(data)
        assert [file.kind for file in find_sources(job(tmp_path / name, tmp_path / "out"))] == [kind]
    (tmp_path / "c").write_bytes(b"neither")
    with pytest.raises(BadConfig, match="say which with source_kind"):
        find_sources(job(tmp_path / "c", tmp_path / "out"))
