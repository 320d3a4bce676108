from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from loader import indexing, meta, storage
from loader.errors import BadConfig, BadSample, TooManyBad
from loader.gen_meta import gen_meta
from loader.indexed_tar_samples import IndexedTarSamples
from loader.pool import Pool
from loader.writer import Shard
from tasks import fetch, pack, slot
from tasks.config import PackConfig
from tasks.lock import OutputBusy, exclusive
from tasks.manifest import FOLDER
from tasks.slot import SlotReport

Encode = Callable[..., bytes]
ROOT = Path(__file__).parents[2]


def tree(root: Path) -> dict[str, bytes]:
    """Every file under `root`, hidden ones included, by relative path."""
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def job(corpus: Path, **changes: Any) -> PackConfig:
    values = {"source": str(corpus / "records.jsonl"), "output": str(corpus.parent / "out"), "n_jobs": 1}
    return PackConfig(**{**values, "max_samples": 5, "max_bad_fraction": 1.0, **changes})


def out(config: PackConfig) -> Path:
    return Path(config.output)


def names(config: PackConfig) -> list[str]:
    return sorted(file for file in tree(out(config)) if not file.startswith(FOLDER))


def kept(config: PackConfig) -> list[int]:
    """Pack, and say which slots were there already."""
    reports: list[SlotReport] = []
    pack.pack(config, reports.append)
    return sorted(report.slot for report in reports if report.kept)


def errors(config: PackConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out(config) / "errors.jsonl").read_text().splitlines()]


def write(corpus: Path, records: list[Any]) -> None:
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    (corpus / "records.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_what_is_written(corpus: Path) -> None:
    config = job(corpus, key_prefix="cats_")
    summary = pack.pack(config)
    assert (summary.rows, summary.samples, summary.bad, summary.shards, summary.kept) == (22, 22, 0, 5, 0)
    assert summary.errors == ""
    shards = [f"shard-{n:06d}.tar" for n in range(5)]
    assert names(config) == sorted(
        [*shards, *(f"{name}.index" for name in shards), "meta.json", "meta_stats.json"]
    )

    members: list[tuple[str, bytes]] = []
    for name in shards:
        with tarfile.open(out(config) / name) as tar:
            members += [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    assert [name for name, _ in members[:4]] == [
        "cats_000000000.json",
        "cats_000000000-0.jpg",
        "cats_000000001.json",
        "cats_000000001-0.png",
    ]
    assert [name for name, _ in members[-8:]] == [
        "cats_000000019.json",
        "cats_000000019-0.png",
        "cats_000000019-1.webp",
        "cats_000000020.json",
        "cats_000000020-0.jpg",
        "cats_000000020-1.png",
        "cats_000000020-2.webp",
        "cats_000000021.json",
    ]
    by_name = dict(members)
    assert by_name["cats_000000001-0.png"] == (corpus / "img/01.png").read_bytes()
    assert by_name["cats_000000020-2.webp"] == (corpus / "img/02.webp").read_bytes()
    assert by_name["cats_000000001.json"].decode() == (
        '{"caption":"<image_0>picture 1: a café","metadata":{"n":1}}'
    )
    assert json.loads(by_name["cats_000000012.json"]) == {
        "caption": "<image_0>edit 0<image_1>",
        "caption_all": {"instruction": "edit 0"},
        "metadata": {"id": 0},
    }
    assert by_name["cats_000000021.json"] == b'{"caption":"only words"}'


def test_the_loader_reads_it_and_nothing_is_left_to_index(corpus: Path) -> None:
    config = job(corpus)
    pack.pack(config)
    shards = meta.read_meta(config.output)
    assert sum(shard.num_samples for shard in shards.values()) == 22
    samples = []
    for name, shard in shards.items():
        address = f"{config.output}/{name}"
        index, state = indexing.find_fresh(address)
        assert (index is not None and index.checksum, state) == (shard.checksum, "fresh")
        assert os.path.getsize(address) == shard.size
        with IndexedTarSamples(address) as tar:
            assert len(tar) == shard.num_samples
            samples += list(tar)
    assert [sample["__key__"] for sample in samples] == [f"{n:09d}" for n in range(22)]
    assert samples[12][".json"]["caption"] == "<image_0>edit 0<image_1>"
    assert samples[0][".jpg"].size == (64, 48)


def test_gen_meta_after_it_has_nothing_to_add(corpus: Path) -> None:
    config = job(corpus, max_samples=21)  # the last shard holds nothing but text
    pack.pack(config)
    before = tree(out(config))
    outcome = gen_meta(config.output, n_jobs=1)
    assert [report.index for report in outcome.reports.values()] == ["fresh", "fresh"]
    assert tree(out(config)) == before


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bytes(corpus: Path) -> None:
    write(
        corpus,
        [*(corpus / "records.jsonl").read_text().splitlines(), "{bad", {"image": "gone", "caption": ""}],
    )
    config = job(corpus, max_samples=1, max_bytes=30_000)
    pack.pack(config)
    wanted = tree(out(config))
    assert len([name for name in wanted if name.endswith(".tar")]) == 22
    for jobs in (2, 12):
        other = dataclasses.replace(config, output=f"{config.output}-{jobs}", n_jobs=jobs)
        slots = pack.plan(other).slots
        with exclusive(other.output), Pool(jobs) as pool:  # Pool itself keeps to no number of cores
            planned = pack.plan(other)
            pack.prepare_output(other)
            reports = pack.pack_group(planned, reversed(range(10)), pool)
            reports += pack.pack_group(planned, range(10, len(slots)), pool)
            pack.finish_pack(planned, reports)
        assert tree(out(other)) == wanted
    shutil.rmtree(config.output)
    pack.pack(dataclasses.replace(config, n_jobs=0))
    assert tree(out(config)) == wanted


def test_a_rerun_keeps_all_and_touches_nothing(corpus: Path) -> None:
    config = job(corpus)
    assert kept(config) == []
    times = {file: os.stat(out(config) / file).st_mtime_ns for file in tree(out(config))}
    assert kept(config) == [0, 1, 2, 3, 4]
    assert {file: os.stat(out(config) / file).st_mtime_ns for file in tree(out(config))} == times
    assert kept(dataclasses.replace(config, on_error="raise", max_bad_fraction=0.0, n_jobs=2)) == [
        0,
        1,
        2,
        3,
        4,
    ]


def damage(kind: str, config: PackConfig, corpus: Path) -> None:
    shard, index = out(config) / "shard-000001.tar", out(config) / "shard-000001.tar.index"
    record = out(config) / FOLDER / "slot-000001.json"
    if kind == "no tar":
        shard.unlink()
    elif kind == "no index":
        index.unlink()
    elif kind == "no manifest":
        record.unlink()
    elif kind == "torn manifest":
        record.write_bytes(record.read_bytes()[:100])
    elif kind == "tar of another size":
        shard.write_bytes(shard.read_bytes() + bytes(512))
    elif kind == "tar of a killed run":
        shutil.copy(out(config) / "shard-000002.tar", shard)
    elif kind == "another index":
        shutil.copy(out(config) / "shard-000002.tar.index", index)
    elif kind == "picture touched":
        os.utime(corpus / "img/06.jpg", ns=(1, 1))
    elif kind == "picture of the same size":
        data = bytearray((corpus / "img/06.jpg").read_bytes())
        data[-10] ^= 1
        (corpus / "img/06.jpg").write_bytes(data)


@pytest.mark.parametrize(
    "kind",
    ["no tar", "no index", "no manifest", "torn manifest", "tar of another size", "tar of a killed run",
     "another index", "picture touched", "picture of the same size"],
)  # fmt: skip
def test_what_is_not_as_it_was_is_redone(corpus: Path, kind: str) -> None:
    write(corpus, (corpus / "records.jsonl").read_text().splitlines()[:12])  # each picture once
    config = job(corpus)
    pack.pack(config)
    damage(kind, config, corpus)
    assert kept(config) == [0, 2]
    done = tree(out(config))
    shutil.rmtree(config.output)
    pack.pack(config)
    assert tree(out(config)) == done


def test_a_torn_run_is_not_taken_for_done_when_its_inputs_come_back(corpus: Path) -> None:
    """Tar replaced, index not yet: equal in size and headers, it looks like the old one; then the picture is
    what it was."""
    write(corpus, [{"image": "img/06.jpg", "caption": "x"}, {"text": "x"}])
    config = job(corpus)
    pack.pack(config)
    wanted = tree(out(config))
    picture, before = corpus / "img/06.jpg", os.stat(corpus / "img/06.jpg")
    old = picture.read_bytes()
    picture.write_bytes(old[:-10] + bytes([old[-10] ^ 1]) + old[-9:])

    def die(address: str, *rest: Any) -> None:
        raise OSError(f"no more space for {address}")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(pack.SlotsFailed, match=r"\.index"):
        patch.setattr(storage, "write_bytes", die)
        pack.pack(config)
    picture.write_bytes(old)
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept(config) == []
    assert tree(out(config)) == wanted


def test_what_a_killed_run_left_is_swept_before_the_next_begins(corpus: Path) -> None:
    config = job(corpus)
    out(config).mkdir()
    (out(config) / ".shard-000000.tar.0123abcd.part").touch()
    pack.prepare_output(config)
    assert list(tree(out(config))) == [f"{FOLDER}/pack.json"]


def test_only_changed_rows_are_redone(corpus: Path) -> None:
    config = job(corpus)
    pack.pack(config)
    lines = (corpus / "records.jsonl").read_text().splitlines()
    lines[7] = lines[7].replace("picture 7", "PICTURE 7")
    write(corpus, lines)
    assert kept(config) == [0, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"max_bytes": 1 << 20}, []),
        ({"max_samples": 4}, []),
        ({"n_jobs": 2, "on_error": "raise", "max_bad_fraction": 0.5}, [0, 1, 2, 3, 4]),
    ],
)
def test_what_in_the_config_matters(corpus: Path, change: dict[str, Any], again: list[int]) -> None:
    config = job(corpus)
    pack.pack(config)
    assert kept(dataclasses.replace(config, **change)) == again


def test_images_named_by_extension(corpus: Path) -> None:
    config = job(corpus, max_bytes=10_000)
    pack.pack(config)
    numbered = tree(out(config))
    named = dataclasses.replace(config, image_names="extension")
    assert kept(named) == []
    found: list[str] = []
    for name in sorted(tree(out(named))):
        if name.endswith(".tar"):
            with tarfile.open(out(named) / name) as tar:
                found += tar.getnames()
    assert found[:4] == ["000000000.json", "000000000.jpg", "000000001.json", "000000001.png"]
    assert [name.partition("0020")[2] for name in found[-5:-1]] == [".json", ".0.jpg", ".1.png", ".2.webp"]
    assert found[-1] == "000000021.json"
    assert kept(named) == [0, 1, 2, 3, 4]
    done = tree(out(named))
    gen_meta(named.output)
    assert tree(out(named)) == done
    other = dataclasses.replace(named, output=f"{named.output}-2", n_jobs=2)
    pack.pack(other)
    assert tree(out(other)) == done
    assert kept(config) == []
    assert tree(out(config)) == numbered


def test_fewer_shards_than_before(corpus: Path) -> None:
    config = job(corpus, max_samples=2)
    assert pack.pack(config).shards == 11
    write(corpus, (corpus / "records.jsonl").read_text().splitlines()[:12])
    seen: list[int] = []
    removed = storage.remove

    def remove(address: str, *options: Any) -> None:
        """Whoever reads in between meets all of the old shards, or none of them, in meta.json."""
        if address.endswith(".tar"):
            seen.append(len(meta.read_meta(config.output)))
        removed(address, *options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "remove", remove)
        reports: list[SlotReport] = []
        summary = pack.pack(config, reports.append)
    assert (summary.shards, summary.kept) == (6, 6)
    assert seen == [6] * 5
    assert list(meta.read_meta(config.output)) == [f"shard-{n:06d}.tar" for n in range(6)]
    assert len([name for name in names(config) if ".tar" in name]) == 12
    done = tree(out(config))
    shutil.rmtree(config.output)
    pack.pack(config)
    assert tree(out(config)) == done


def test_a_shard_that_is_replaced_is_in_no_meta_before(corpus: Path) -> None:
    config = job(corpus)
    pack.pack(config)
    lines = (corpus / "records.jsonl").read_text().splitlines()
    write(corpus, [*lines[:6], *lines[7:], {"image": "gone", "caption": "x"}])
    with pytest.raises(BadSample):
        pack.pack(dataclasses.replace(config, on_error="raise"))
    assert "meta.json" not in names(config)
    pack.pack(config)
    assert meta.read_meta(config.output)["shard-000004.tar"].num_samples == 1


def test_a_shard_that_is_full_goes_on_in_another_file(corpus: Path) -> None:
    config = job(corpus, max_samples=12, max_bytes=20_000)
    pack.pack(config)
    tars = [name for name in names(config) if name.endswith(".tar")]
    assert tars[:3] == ["shard-000000.tar", "shard-000000_001.tar", "shard-000000_002.tar"]
    assert tars[-1].startswith("shard-000001_")
    keys: list[str] = []
    for name in tars:
        with IndexedTarSamples(f"{config.output}/{name}") as tar:
            found = list(tar.keys())
        assert found
        assert len(found) == 1 or os.path.getsize(out(config) / name) <= 20_000
        keys += found
    assert keys == [f"{n:09d}" for n in range(22)]  # sorted by name, the shards are in the rows' order
    assert list(meta.read_meta(config.output)) == tars
    assert kept(config) == [0, 1]
    pack.pack(dataclasses.replace(config, max_bytes=1 << 30))
    assert [name for name in names(config) if name.endswith(".tar")] == [
        "shard-000000.tar",
        "shard-000001.tar",
    ]


def test_a_sample_larger_than_a_shard_has_one_of_its_own(corpus: Path) -> None:
    config = job(corpus, max_bytes=1)
    assert pack.pack(config).shards == 22


def test_more_files_than_can_be_numbered(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "_MOST_PARTS", 3)
    with pytest.raises(BadConfig, match="max_bytes is 1: the 5 rows of a shard need more than 3 files"):
        pack.pack(job(corpus, max_bytes=1))


def bad_rows(corpus: Path, encode: Encode) -> dict[str, tuple[Any, str, str]]:
    """Twelve and more kinds: (row, stage, reason)."""
    img = corpus / "img"
    (img / "empty.jpg").touch()
    (img / "folder.jpg").mkdir()
    (img / "cut.jpg").write_bytes(encode("JPEG")[:-30])
    (img / "cut.png").write_bytes(encode("PNG")[:20])
    (img / "cut.gif").write_bytes(encode("GIF")[:200])
    (img / "drawn.png").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (img / "page.jpg").write_text("<!DOCTYPE html><html>404 Not Found</html>")
    (img / "link.jpg").symlink_to(img / "nowhere.jpg")
    os.mkfifo(img / "pipe.jpg")

    def one(name: str) -> dict[str, str]:
        return {"image": f"img/{name}", "caption": "x"}

    return {
        "missing": (one("gone.jpg"), "read", "img/gone.jpg: No such file or directory"),
        "folder": (one("folder.jpg"), "read", "img/folder.jpg: a folder"),
        "dead link": (one("link.jpg"), "read", "img/link.jpg: No such file or directory"),
        "pipe": (one("pipe.jpg"), "read", "img/pipe.jpg: no regular file"),
        "empty": (one("empty.jpg"), "picture", "img/empty.jpg: an empty file"),
        "cut": (one("cut.jpg"), "picture", "img/cut.jpg: a JPEG cut short"),
        "header": (one("cut.png"), "picture", "img/cut.png: cut short in its header: 20 bytes"),
        "cut as it is converted": (one("cut.gif"), "picture", "img/cut.gif: no readable picture, though it starts"),
        "svg": (one("drawn.png"), "picture", "img/drawn.png: SVG: JPEG, PNG or WebP was expected"),
        "html": (one("page.jpg"), "picture", "img/page.jpg: an HTML page"),
        "second of two": (
            {"images": ["img/00.jpg", "img/gone.jpg"], "caption": "<image_0><image_1>"}, "read", "img/gone.jpg"),
        "placeholders": ({"images": ["img/00.jpg"], "caption": "x"}, "recipe", "no placeholders but the sample has 1"),
        "null": ({"image": None, "caption": "x"}, "recipe", "image is null"),
        "NaN": ('{"image": "img/00.jpg", "caption": NaN}', "recipe", "caption is float nan"),
        "NaN within": ('{"text": "x", "score": NaN}', "recipe", "metadata.score cannot be stored as JSON"),
        "no JSON": ('{"image": ', "parse", "not JSON"),
        "list": ("[1]", "parse", "a JSON object was expected, found list"),
        "null byte": ({"image": "img/\0.jpg", "caption": "x"}, "read", "null byte"),
        "surrogate": ('{"text": "\\ud83d"}', "recipe", "half a surrogate pair"),
    }  # fmt: skip


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_bad_row_costs_itself_and_is_named(corpus: Path, encode: Encode, jobs: int) -> None:
    bad = bad_rows(corpus, encode)
    good = [json.loads(line) for line in (corpus / "records.jsonl").read_text().splitlines()]
    rows: list[Any] = []
    for number, (row, _, _) in enumerate(bad.values()):
        rows += [good[number], row]
    write(corpus, rows)
    config = job(corpus, n_jobs=jobs)
    summary = pack.pack(config)
    assert (summary.rows, summary.samples, summary.bad) == (len(rows), len(bad), len(bad))
    assert [row.number for row in summary.first_bad] == [1, 3, 5]
    found = errors(config)
    assert summary.errors == f"{config.output}/errors.jsonl"
    for number, (entry, (_, stage, reason)) in enumerate(zip(found, bad.values(), strict=True)):
        assert list(entry) == ["source", "row", "key", "stage", "reason"]
        assert entry["source"] == str(corpus / "records.jsonl")
        assert (entry["row"], entry["key"]) == (2 * number + 2, f"{2 * number + 1:09d}")
        assert entry["stage"] == stage, entry
        assert reason in entry["reason"], entry
    keys = []
    for name in meta.read_meta(config.output):
        with IndexedTarSamples(f"{config.output}/{name}") as tar:
            keys += list(tar.keys())
            assert not any(".json" not in sample for sample in tar)
    assert keys == [f"{n:09d}" for n in range(0, len(rows), 2)]  # a bad picture leaves no caption behind

    before = tree(out(config))
    assert len(kept(config)) == summary.slots  # and are reported again
    assert tree(out(config)) == before


def test_a_bad_row_that_was_repaired_is_packed_by_the_next_run(corpus: Path, encode: Encode) -> None:
    write(corpus, [{"image": f"img/new-{n}.jpg", "caption": "x"} for n in range(3)])
    config = job(corpus, max_samples=1)
    assert pack.pack(config).bad == 3
    assert names(config) == ["errors.jsonl", "meta.json", "meta_stats.json"]
    (corpus / "img/new-1.jpg").write_bytes(encode("JPEG"))
    assert kept(config) == [0, 2]
    assert [entry["row"] for entry in errors(config)] == [1, 3]
    assert list(meta.read_meta(config.output)) == ["shard-000001.tar"]
    for n in (0, 2):
        (corpus / f"img/new-{n}.jpg").write_bytes(encode("JPEG", n))
    assert kept(config) == [1]
    assert "errors.jsonl" not in names(config)


def test_on_error_raise_ends_the_run_at_the_first(corpus: Path) -> None:
    write(corpus, [{"text": "x"}] * 7 + [{"image": "gone.jpg", "caption": "x"}])
    config = job(corpus, on_error="raise")
    for jobs in (1, 2):
        with pytest.raises(BadSample, match=r"records\.jsonl, row 8 \(read\): .*gone\.jpg: No such file"):
            pack.pack(dataclasses.replace(config, n_jobs=jobs))
    assert "meta.json" not in names(config)
    pack.pack(dataclasses.replace(config, on_error="skip"))
    with pytest.raises(BadSample, match="row 8"):  # of a slot that is done, too
        pack.pack(config)


def test_too_many_bad(corpus: Path) -> None:
    write(corpus, [{"text": "x"}] * 6 + [{"image": "gone.jpg", "caption": "x"}] * 4)
    config = job(corpus, max_bad_fraction=0.3)
    with pytest.raises(TooManyBad) as caught:
        pack.pack(config)
    assert "4 of 10 rows could not be packed, more than max_bad_fraction = 0.3 allows" in str(caught.value)
    assert "records.jsonl, row 7 (read): " in str(caught.value)
    assert len(errors(config)) == 4
    assert "meta.json" not in names(config)
    assert pack.pack(dataclasses.replace(config, max_bad_fraction=0.4)).bad == 4  # not above it


def test_too_many_bad_ends_as_soon_as_it_is_certain(corpus: Path) -> None:
    write(corpus, [{"image": "gone.jpg", "caption": "x"}] * 10 + [{"text": "x"}] * 90)
    config = job(corpus, max_bad_fraction=0.05)
    reports: list[SlotReport] = []
    with pytest.raises(TooManyBad, match="10 of 100 rows"):
        pack.pack(config, reports.append)
    assert [report.slot for report in reports] == [0, 1]
    assert [entry["row"] for entry in errors(config)] == list(range(1, 11))


@pytest.mark.parametrize("jobs", [1, 8])
def test_no_rows_and_few(corpus: Path, jobs: int) -> None:
    config = job(corpus, n_jobs=jobs)
    write(corpus, [])
    summary = pack.pack(config)
    assert (summary.rows, summary.shards, summary.slots) == (0, 0, 0)
    assert meta.read_meta(config.output) == {}
    write(corpus, [{"text": "x"}] * 3)
    assert pack.pack(dataclasses.replace(config, max_samples=1)).shards == 3
    write(corpus, [])
    pack.pack(config)
    assert names(config) == ["meta.json", "meta_stats.json"]
    assert os.listdir(out(config) / FOLDER) == ["pack.json"]


@pytest.fixture
def _own_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("_own_path")
def test_own_recipe_in_spawned_workers(corpus: Path) -> None:
    (corpus / "pack_recipe_a.py").write_text(
        "from pathlib import Path\nfrom tasks.recipes import Record\n"
        "def run(raw):\n"
        "    if raw.get('n') == 3: raise KeyError('three')\n"
        "    if raw.get('n') == 4: return None\n"
        "    data = (Path(__file__).parent / 'img/00.jpg').read_bytes()\n"
        "    return Record('mine <image_1> <image_0>', (data, 'img/01.png'), None, {'row': raw})\n"
    )
    config = job(corpus, recipe="pack_recipe_a:run", recipe_folder=str(corpus), n_jobs=2)
    summary = pack.pack(config)
    assert (summary.bad, summary.filtered, summary.samples) == (1, 1, 20)
    assert [(entry["row"], entry["stage"], entry["reason"]) for entry in errors(config)] == [
        (4, "recipe", "KeyError: 'three'"),
    ]
    with IndexedTarSamples(f"{config.output}/shard-000000.tar", decode=False) as tar:
        assert tar[0][".jpg"] == (corpus / "img/00.jpg").read_bytes()
        assert tar[0][".png"] == (corpus / "img/01.png").read_bytes()
    assert kept(config) == [0, 1, 2, 3, 4]
    with (corpus / "pack_recipe_a.py").open("a") as file:
        file.write("# changed\n")
    assert kept(config) == []


def test_no_such_recipe_is_an_early_error(corpus: Path) -> None:
    config = job(corpus, recipe="no_such_module_b:run")
    with pytest.raises(BadConfig, match="no module 'no_such_module_b'"):
        pack.pack(config)
    assert not out(config).exists()


def test_the_output_of_somebody_else(corpus: Path) -> None:
    config = job(corpus)
    out(config).mkdir()
    (out(config) / "notes.txt").write_text("mine")
    pack.pack(config)
    assert (out(config) / "notes.txt").exists()
    shutil.rmtree(out(config) / FOLDER)
    before = tree(out(config))
    with pytest.raises(BadConfig, match=r"output is .*, where meta\.json was not written by this command"):
        pack.pack(config)
    (out(config) / "meta.json").unlink()
    with pytest.raises(BadConfig, match=r"where shard-000000\.tar was not written"):
        pack.pack(config)
    del before["meta.json"]
    assert tree(out(config)) == before
    elsewhere = dataclasses.replace(config, output=f"{corpus}/theirs")
    (corpus / "theirs/deep").mkdir(parents=True)
    (corpus / "theirs/deep/00000.tar").touch()
    with pytest.raises(BadConfig, match=r"where deep/00000\.tar was not written"):
        pack.pack(elsewhere)


def test_names_that_are_no_utf8_are_reported(corpus: Path) -> None:
    folder = corpus / os.fsdecode(b"caf\xe9 \xe6\x97\xa5")
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"image": "日本.jpg", "caption": "x"}\n')
    config = job(corpus, source=str(folder))
    assert pack.pack(config).bad == 1
    (entry,) = errors(config)
    assert entry["source"] == str(folder / "a.jsonl")
    assert "日本.jpg: No such file" in (out(config) / "errors.jsonl").read_text()


def test_a_script_without_its_guard_is_told_so(corpus: Path) -> None:
    """Its workers import it, and pack; what they meet there, such as the lock, is not what is wrong."""
    script = corpus / "script.py"
    script.write_text(
        "from loader.pool import Pool\nfrom tasks import pack\nfrom tasks.config import PackConfig\n"
        f"config = PackConfig({str(corpus / 'records.jsonl')!r}, {str(corpus / 'out')!r}, max_samples=5)\n"
        "job = pack.plan(config)\n"
        "with pack.exclusive(config.output), Pool(2) as pool:\n"
        "    pack.prepare_output(config)\n    pack.pack_group(job, range(5), pool)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "CannotStart: the script that was started has to begin its work under" in done.stderr
    assert not list((corpus / "out").glob("*.tar"))


def test_two_runs_of_one_output(corpus: Path) -> None:
    config = job(corpus)
    with exclusive(config.output), pytest.raises(OutputBusy):
        pack.pack(config)
    assert not out(config).exists()


def test_a_slot_that_fails_lets_the_others_finish(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = job(corpus)

    def full(self: object, key: str, *rest: object) -> None:
        if key == "000000007":
            raise OSError(28, "No space left on device")
        good(self, key, *rest)

    good: Any = Shard.add
    monkeypatch.setattr(Shard, "add", full)
    with pytest.raises(
        pack.SlotsFailed, match=r"1 of 5 slots could not be packed; slot 1: OSError: .*No space"
    ) as caught:
        pack.pack(config)
    assert caught.value.slots == (1,)
    assert "meta.json" not in names(config)
    monkeypatch.undo()
    assert kept(config) == [0, 2, 3, 4]


def test_to_finish_wants_a_report_of_each_slot(corpus: Path) -> None:
    config = job(corpus)
    pack.pack(config)
    planned = pack.plan(config)
    with Pool(1) as pool:
        reports = pack.pack_group(planned, [0, 1, 3, 4], pool)
    with pytest.raises(pack.SlotsFailed, match="1 of 5 slots are not packed yet, the first of them 2"):
        pack.finish_pack(planned, reports)


def test_from_memory_to_memory(encode: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/m/img/a[1].jpg", encode("JPEG"))
    fs.pipe_file("/m/img/b.jpg", encode("PNG"))
    records = [{"image": f"img/{name}.jpg", "caption": name} for name in ("a[1]", "b", "late")]
    fs.pipe_file("/m/records.jsonl", "".join(f"{json.dumps(record)}\n" for record in records).encode())
    config = PackConfig("memory://m/*.jsonl", "memory://out", n_jobs=1, max_samples=2, max_bad_fraction=1.0)
    summary = pack.pack(config)
    assert (summary.samples, summary.bad) == (2, 1)
    assert {path for path in fs.find("/out") if "/." not in path} == {
        "/out/shard-000000.tar", "/out/shard-000000.tar.index", "/out/meta.json", "/out/meta_stats.json",
        "/out/errors.jsonl"}  # fmt: skip
    with IndexedTarSamples("memory://out/shard-000000.tar", backend="memory", decode=False) as tar:
        assert tar[0][".jpg"] == encode("JPEG")
        assert tar[1][".png"] == encode("PNG")
    assert kept(config) == [0, 1]
    fs.pipe_file("/m/img/late.jpg", encode("WEBP"))
    assert kept(config) == [0]  # what could not be read is tried again
    assert fs.exists("/out/shard-000001.tar")
    assert not fs.exists("/out/errors.jsonl")
    assert fetch.MAX_PICTURE


def test_sources_and_pictures_may_lie_apart(corpus: Path, encode: Encode) -> None:
    fsspec.filesystem("memory").pipe_file("/apart/img/00.jpg", encode("WEBP"))
    write(
        corpus, [{"image": "img/00.jpg", "caption": "x"}, {"image": f"{corpus}/img/00.jpg", "caption": "x"}]
    )
    config = job(corpus, image_root="memory://apart")
    assert pack.pack(config).samples == 2
    with IndexedTarSamples(f"{config.output}/shard-000000.tar", decode=False) as tar:
        assert tar[0][".webp"] == encode("WEBP")
        assert tar[1][".jpg"] == (corpus / "img/00.jpg").read_bytes()
