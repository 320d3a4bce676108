from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from source_kinds import picture

from loader.errors import BadConfig
from loader.gen_meta import gen_meta
from loader.meta import read_meta
from tasks import pack
from tasks.config import PackConfig
from tasks.recipes import Record

Tar = dict[str, bytes]


def write(path: Path, members: Tar | list[tuple[str, bytes]]) -> None:
    """As GNU tar would, folders and all."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members.items() if isinstance(members, dict) else members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def contents(root: str | Path) -> list[tuple[str, bytes]]:
    found = []
    for name in read_meta(str(root)):
        with tarfile.open(Path(root) / name) as tar:
            found += [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    return found


def shards(folder: Path, count: int = 6) -> dict[str, bytes]:
    """Two tars of another tool's making: a picture, a mask, a class and odd JSON for each sample."""
    everything: Tar = {}
    for half in range(2):
        members: Tar = {}
        for number in range(half * count // 2, (half + 1) * count // 2):
            key = f"part {half}/x-{number}"
            members[f"./{key}.JPG"] = picture(0)[0] + b"%d" % number
            members[f"./{key}.seg.png"] = picture(1)[0]
            members[f"./{key}.cls"] = b"%d" % number
            members[f"./{key}.json"] = b'{ "caption" : "kept as it is" , "split": "%s" }' % (
                b"a" if number % 2 else b"b"
            )
        write(folder / f"{half}.tar", members)
        everything |= {name[2:]: data for name, data in members.items()}
    return everything


def job(source: Path | str, output: Path, **options: Any) -> PackConfig:
    return PackConfig(str(source), str(output), n_jobs=1, **{"max_samples": 4, **options})


def test_samples_are_dealt_anew_byte_for_byte(tmp_path: Path) -> None:
    before = shards(tmp_path / "in")
    sources = {file: file.read_bytes() for file in (tmp_path / "in").iterdir()}
    pack.pack(job(tmp_path / "in", tmp_path / "out"))
    assert dict(contents(tmp_path / "out")) == before
    assert list(read_meta(str(tmp_path / "out"))) == ["shard-000000.tar", "shard-000001.tar"]
    assert {
        file: file.read_bytes() for file in (tmp_path / "in").iterdir()
    } == sources  # and nothing beside them
    assert all(
        report.index == "fresh" for report in gen_meta(str(tmp_path / "out"), n_jobs=1).reports.values()
    )


def test_several_datasets_become_one_with_names_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shards(tmp_path / name)
    both = f"{tmp_path / 'one'}, {tmp_path / 'two'}/*.tar"
    clash = pack.pack(job(both, tmp_path / "clash", max_samples=100, max_bad_fraction=1.0))
    assert (clash.samples, clash.bad) == (6, 6)
    assert "comes twice" in (tmp_path / "clash/errors.jsonl").read_text()
    summary = pack.pack(job(both, tmp_path / "out", keys="number", key_prefix="k"))
    assert (summary.samples, summary.shards) == (12, 3)
    names = [name for name, _ in contents(tmp_path / "out")]
    assert names[:4] == ["k000000000.JPG", "k000000000.seg.png", "k000000000.cls", "k000000000.json"]
    assert names[-1] == "k000000011.json"


def few(raw: dict[str, Any]) -> Any:
    number = int(raw[".cls"])
    if number == 0:
        return None
    if number == 1:
        return raw
    if number == 2:
        return {"__key__": "ignored", ".jpg": raw[".JPG"], ".json": {**raw[".json"], "new": True}}
    if number == 3:
        return Record("<image_0>", (raw[".JPG"],))
    raise ValueError("a fault")


def test_a_recipe_filters_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shards(tmp_path / "in")
    (tmp_path / "tar_recipe.py").write_text(Path(__file__).read_text())
    config = job(
        tmp_path / "in",
        tmp_path / "out",
        recipe="tar_recipe:few",
        recipe_folder=str(tmp_path),
        max_bad_fraction=0.5,
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    summary = pack.pack(config)
    assert (summary.rows, summary.samples, summary.filtered, summary.bad) == (6, 2, 1, 3)
    assert [row.stage for row in summary.first_bad] == ["write", "recipe", "recipe"]
    assert "its key can hold none of its own" in summary.first_bad[0].reason  # numbered images, and a hyphen
    found = dict(contents(tmp_path / "out"))
    assert {name: data for name, data in found.items() if name.startswith("part 0/x-1")} == {
        name: data for name, data in before.items() if name.startswith("part 0/x-1")
    }
    assert json.loads(found["part 0/x-2.json"]) == {"caption": "kept as it is", "split": "b", "new": True}
    assert found["part 0/x-2.jpg"] == before["part 0/x-2.JPG"]
    assert pack.pack(config).kept == summary.slots


def test_split_by_a_field_of_the_json(tmp_path: Path) -> None:
    shards(tmp_path / "in")
    pack.pack(job(tmp_path / "in", tmp_path / "out", split_column="split"))
    for name, numbers in (("a", {1, 3, 5}), ("b", {0, 2, 4})):
        found = {int(data) for member, data in contents(tmp_path / "out" / name) if member.endswith(".cls")}
        assert found == numbers


def test_what_is_no_whole_tar(tmp_path: Path) -> None:
    shards(tmp_path / "in")
    whole = (tmp_path / "in/1.tar").read_bytes()
    (tmp_path / "in/1.tar").write_bytes(whole[:2000])
    with pytest.raises(BadConfig, match=r"1\.tar"):
        pack.pack(job(tmp_path / "in", tmp_path / "out"))


def test_damage_that_an_index_knows_of_costs_its_sample(tmp_path: Path) -> None:
    shards(tmp_path / "in")
    gen_meta(str(tmp_path / "in"), n_jobs=1)
    data = bytearray((tmp_path / "in/0.tar").read_bytes())
    data[520] ^= 1
    (tmp_path / "in/0.tar").write_bytes(data)
    summary = pack.pack(job(tmp_path / "in", tmp_path / "out", max_bad_fraction=0.5))
    assert (summary.samples, summary.bad) == (5, 1)
    assert "damaged: its bytes don't match the index's CRC-32" in summary.first_bad[0].reason
