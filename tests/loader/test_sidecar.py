"""Sidecars as Parquet files, and the layout of another tool's beside its tars."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encoded, pairs, photo, turned, write_dataset
from s3_server import Place
from sidecars import add_sidecars, facts, rows

from loader.datasets import SampleDataset
from loader.errors import BadConfig, BadSidecar
from loader.gen_meta import gen_meta
from loader.indexing import find_fresh
from loader.sample_facts import UNREADABLE, PictureFacts, SampleFacts
from loader.sidecar import (
    About,
    about,
    conform,
    documents_of,
    is_about,
    open_sidecar,
    parquet,
    rows_of,
    schema,
    sidecar_path,
    table,
    write_sidecar,
)
from loader.sidecar_columns import FIXED, columns_of, union
from loader.verify import verify

ABOUT = About(10240, 7)
DOCUMENTS: list[Any] = [
    {"caption": "<image_0>one", "metadata": {"score": 1, "tags": ["a"], "width": 9, "ok": True}},
    {"caption": "two", "caption_all": {"short": "2"}, "metadata": {"score": 0.5, "text": "é\n"}, "url": "u"},
    {"caption": ["a", "list"], "metadata": "a text", "big": 2**70, "long": 2**60},
    {"caption": None, "n": None}, {}, [1, 2], "text", 5, None, UNREADABLE,
]  # fmt: skip


def samples(documents: list[Any] = DOCUMENTS) -> list[SampleFacts]:
    pictures = [PictureFacts(f"k-{n}.jpg", "/a.jpg", 4, 3, "jpeg", 99, "0" * 64) for n in range(3)]
    captions = [d.get("caption") if isinstance(d, dict) else None for d in documents]
    return [
        SampleFacts(f"k{n}", document, text if isinstance(text, str) else None, tuple(pictures[: n % 4]))
        for n, (document, text) in enumerate(zip(documents, captions, strict=True))
    ]


def test_what_every_sidecar_has() -> None:
    assert schema({}).names == list(FIXED)
    wanted = {"image_id", "tar_file", "member_name", "original_path", "width", "height", "format", "bytes", "caption",
              "sha256", "metadata"}  # fmt: skip
    assert wanted <= set(FIXED)


def test_of_the_json_nothing_is_lost() -> None:
    found = documents_of(rows_of(samples(), "x.tar"))
    assert found == [{} if document is None else document for document in DOCUMENTS]


def test_a_picture_each_way() -> None:
    found = table(rows_of(samples(), "x.tar"), {}, ABOUT).to_pylist()
    assert [row["num_images"] for row in found[:4]] == [0, 1, 2, 3]
    assert (found[0]["member_name"], found[0]["bytes"], found[0]["other_images"]) == (None, None, [])
    assert found[3]["member_name"] == "k-0.jpg"
    assert [picture["member_name"] for picture in found[3]["other_images"]] == ["k-1.jpg", "k-2.jpg"]


def test_typed_columns(tmp_path: Path) -> None:
    columns = union([columns_of(sample.document for sample in samples())])
    tar = str(tmp_path / "x.tar")
    write_sidecar(tar, rows_of(samples(), "x.tar"), columns, ABOUT)
    read = pq.read_table(sidecar_path(tar))
    types = {name: str(read.schema.field(name).type) for name in read.column_names[len(FIXED) :]}
    assert types == {
        "json.big": "string", "json.caption": "string", "json.long": "int64", "json.metadata": "string",
        "json.url": "string", "metadata.width": "int64", "ok": "bool", "score": "double", "tags": "string",
        "text": "string",
    }  # fmt: skip
    assert read["score"].to_pylist()[:3] == [1.0, 0.5, None]
    assert (read["tags"][0].as_py(), read["json.big"][2].as_py()) == ('["a"]', str(2**70))
    assert about(read.schema, "x") == ABOUT and is_about(tar, ABOUT) and not is_about(tar, About(1, 2))


def test_row_groups_and_statistics_are_fit_for_filters(tmp_path: Path) -> None:
    root = write_dataset(tmp_path, pairs(1, metadata={"n": 0}))
    tar = f"{root}/shard-000000.tar"
    many = [
        SampleFacts(
            f"{n:06d}", {"metadata": {"n": n}}, "x", (PictureFacts("a", None, n, 2 * n, "png", 5, "f"),)
        )
        for n in range(3500)
    ]
    write_sidecar(tar, rows_of(many, "x.tar"), union([columns_of(s.document for s in many)]), ABOUT)
    with open_sidecar(tar) as file:
        assert file.metadata.num_row_groups == 4
        for group in map(file.metadata.row_group, range(4)):
            columns = [group.column(number) for number in range(group.num_columns)]
            known = {column.path_in_schema for column in columns if column.statistics.has_min_max}
            assert known >= {"width", "height", "bytes", "n", "image_id"}
    filtered = pq.read_table(sidecar_path(tar), filters=[("n", ">=", 3400), ("width", "<", 3410)])
    assert filtered["n"].to_pylist() == list(range(3400, 3410))


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    columns = union([columns_of(sample.document for sample in samples())])
    written = []
    for name in ("a", "b"):
        write_sidecar(str(tmp_path / f"{name}.tar"), rows_of(samples(), "x.tar"), columns, ABOUT)
        written.append((tmp_path / f"{name}.parquet").read_bytes())
    assert written[0] == written[1]


def test_other_columns_by_any_way_are_the_same_bytes(tmp_path: Path) -> None:
    tar, wanted = str(tmp_path / "x.tar"), union([columns_of(sample.document for sample in samples())])
    write_sidecar(tar, rows_of(samples(), "x.tar"), wanted, ABOUT)
    good = (tmp_path / "x.parquet").read_bytes()
    assert not conform(tar, wanted)
    for detour in ({}, {"score": ("json", 1)}, {"none": ("int", 1), "score": ("float", 2)}):
        assert conform(tar, detour)
        assert conform(tar, wanted)
        assert (tmp_path / "x.parquet").read_bytes() == good


def test_names_that_utf8_cannot_hold(tmp_path: Path) -> None:
    odd = [SampleFacts("caf\udce9", {"metadata": {"k\udce9": "\ud800"}}, "\ud800", ())]
    columns = union([columns_of(sample.document for sample in odd)])
    write_sidecar(str(tmp_path / "x.tar"), rows_of(odd, "x.tar"), columns, ABOUT)
    (row,) = rows(tmp_path / "x.parquet")
    assert (row["image_id"], row["caption"], row["k\\udce9"]) == ("caf\\udce9", "\\ud800", "\\ud800")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", bytes(100), b"x" * 500])
def test_damaged_files_are_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(data)
    with pytest.raises(BadSidecar, match="no readable Parquet"), open_sidecar(str(tmp_path / "x.tar")):
        pass
    assert not is_about(str(tmp_path / "x.tar"), ABOUT)


@pytest.mark.parametrize(
    "said",
    [
        {"version": "2", "tar_size": "1", "tar_adler32": "1"},
        {"version": "1"},
        {"version": "1", "tar_size": "x"},
    ],
)
def test_what_can_not_be_meant(said: dict[str, str]) -> None:
    with pytest.raises(BadSidecar):
        about(pa.schema([], metadata={"format": "shardflow.sidecar", **said}), "x")
    assert about(pa.schema([], metadata=said), "x") is None


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = write_dataset(tmp_path, pairs(2))
    add_sidecars(root)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BadConfig, match=r"pip install 'shardflow\[parquet\]'"):
        parquet()
    verdict = verify(root, n_jobs=1)
    assert [problem.part for problem in verdict.problems if "pip install" in problem.reason] == ["sidecar"]


def test_it_is_imported_where_it_is_used() -> None:
    code = "import sys, loader.sidecar, tasks.pack; print('pyarrow' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_in_memory_and_in_a_bucket(s3: Place) -> None:
    for root, options in (("memory://sidecar", None), (s3.root, s3.storage_options)):
        write_sidecar(f"{root}/x.tar", rows_of(samples(), "x.tar"), {}, ABOUT, options)
        assert is_about(f"{root}/x.tar", ABOUT, options)
        assert conform(f"{root}/x.tar", {"a": ("int", 1)}, options)


# -- another tool's


def curator(root: Path, images: int = 7, per_tar: int = 3) -> list[dict[str, Any]]:
    """Tars of JPEGs alone, named by a hash of their inputs, and a Parquet file for each, as NeMo Curator exports them."""
    root.mkdir()
    said = []
    for chunk, start in enumerate(range(0, images, per_tar)):
        numbers = range(start, min(start + per_tar, images))
        name = hashlib.sha256(f"{start}".encode()).hexdigest()[:12]
        path = root / f"images-{name}-{chunk:06d}.tar"
        found = []
        with tarfile.open(path, "w") as tar:
            for n in numbers:
                data = encoded(photo(20 + n, 30, n), exif=turned(1))
                info = tarfile.TarInfo(f"{n:06d}.jpg")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
                found.append(
                    {
                        "image_id": f"{n:06d}",
                        "tar_file": str(path),
                        "member_name": f"{n:06d}.jpg",
                        "original_path": f"/in/{n}.jpg",
                        "metadata": repr({"aesthetic_score": n / 2}),
                    }
                )
        pq.write_table(pa.Table.from_pylist(found), path.with_suffix(".parquet"))
        said += found
    return sorted(said, key=lambda row: str(Path(row["tar_file"]).name + row["member_name"]))


def test_curators_layout_is_read_as_it_is(tmp_path: Path) -> None:
    said = curator(tmp_path / "curated")
    theirs = {path: path.read_bytes() for path in (tmp_path / "curated").glob("*.parquet")}
    assert gen_meta(str(tmp_path / "curated"), n_jobs=1).written
    dataset = SampleDataset(
        str(tmp_path / "curated"), shuffle=False, ret_samples=True, filters={"height": (21, 25)}
    )
    found = [(sample.sample["__key__"], sample.sample[".jpg"].height) for sample in dataset]
    assert sorted(found) == [(f"{n:06d}", 20 + n) for n in range(1, 6)]
    assert {row["image_id"] for row in said} >= {key for key, _ in found}
    verdict = verify(str(tmp_path / "curated"), n_jobs=1, deep=True, repair=True)
    assert verdict.ok and {path: path.read_bytes() for path in theirs} == theirs


def test_our_sidecars_have_all_that_curators_have(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "ours", pairs(3, metadata={"aesthetic_score": 0.5}))
    (mine,) = add_sidecars(root)
    curator(tmp_path / "theirs")
    theirs = pq.read_schema(next((tmp_path / "theirs").glob("*.parquet")))
    ours = pq.read_schema(mine)
    for field in theirs:
        assert ours.field(field.name).type == field.type
    assert json.loads(rows(mine)[0]["metadata"]) == {"aesthetic_score": 0.5}
    assert rows(mine)[0]["aesthetic_score"] == 0.5


def test_rows_are_samples_in_order(tmp_path: Path) -> None:
    root = write_dataset(tmp_path, pairs(25), per_shard=10)
    for sidecar in add_sidecars(root):
        tar = str(sidecar.with_suffix(".tar"))
        index, _ = find_fresh(tar)
        assert index is not None
        assert [row["image_id"] for row in rows(sidecar)] == index.keys()
        assert np.all(
            [row["sha256"] == f.pictures[0].sha256 for row, f in zip(rows(sidecar), facts(tar), strict=True)]
        )
