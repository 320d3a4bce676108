"""A job with pictures of every kind, packed under options: what is stored, noted, and left out, and why."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encoded, photo, turned
from PIL import Image
from sidecars import rows
from tars import make_tar, snapshot

from loader import show
from loader.gen_meta import gen_meta
from loader.images import decode_image
from loader.indexed_tar_samples import IndexedTarSamples
from loader.meta import read_stats
from loader.verify import verify
from tasks import manifest, pack
from tasks.config import PackConfig

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "a.jpg": ("JPEG", {"quality": 90}), "b.png": ("PNG", {}), "c.webp": ("WEBP", {"lossless": True}),
    "d.gif": ("GIF", {}), "e.bmp": ("BMP", {}), "f.tiff": ("TIFF", {}), "g.avif": ("AVIF", {"quality": 90}),
    "h.jpg": ("JPEG", {"exif": turned(6)}),
}  # fmt: skip


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Sixteen records, two for each kind of picture, and three that are bad in their own ways."""
    folder = tmp_path / "album"
    folder.mkdir()
    records = []
    for number, (name, (kind, options)) in enumerate(KINDS.items()):
        for size in (60, 200):
            file = f"{size}-{name}"
            (folder / file).write_bytes(encoded(photo(size, size + 40, number), kind, **options))
            records.append({"image": file, "caption": f"{kind} of {size}", "score": number / 2, "tag": name})
    (folder / "cut.jpg").write_bytes(encoded(photo(60, 60))[:-200])
    (folder / "thumb.jpg").write_bytes(encoded(photo(9, 9)))
    records += [{"image": name, "caption": "bad"} for name in ("cut.jpg", "thumb.jpg", "none.jpg")]
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder


def job(album: Path, **changes: Any) -> PackConfig:
    values = {"source": str(album / "records.jsonl"), "output": str(album.parent / "out"), "n_jobs": 1}
    usual = {"max_samples": 6, "max_bad_fraction": 1.0, "image_min_width": 10, "sidecar": True}
    return PackConfig(**{**values, **usual, **changes})


def errors(config: PackConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(config.output, "errors.jsonl").read_text().splitlines()]


def side(config: PackConfig) -> list[dict[str, Any]]:
    return [row for file in sorted(Path(config.output).rglob("*.parquet")) for row in rows(file)]


def stored(config: PackConfig) -> dict[str, bytes]:
    """Picture bytes by the key of their sample."""
    found = {}
    for tar in sorted(Path(config.output).rglob("*.tar")):
        for sample in IndexedTarSamples(str(tar), decode=False):
            (value,) = (sample[name] for name in (".jpg", ".png", ".webp") if name in sample)
            found[sample["__key__"]] = value[0] if isinstance(value, list) else value
    return found


def test_each_picture_is_what_a_person_saw(album: Path) -> None:
    config = job(album, image_names="extension")
    summary = pack.pack(config)
    assert (summary.samples, summary.bad) == (16, 3)
    sources = [album / f"{size}-{name}" for name in KINDS for size in (60, 200)]
    for (key, data), source in zip(stored(config).items(), sources, strict=True):
        seen, before = decode_image(data), decode_image(source.read_bytes())
        assert seen.size == before.size, key
        off = np.abs(np.asarray(seen).astype(int) - np.asarray(before).astype(int)).mean()
        assert off <= (3 if source.suffix == ".avif" else 0), source
    assert [row["outcome"] for row in side(config)][::2] == [
        "as it is", "as it is", "as it is", "converted from GIF", "converted from BMP", "converted from TIFF",
        "converted from AVIF", "as it is",
    ]  # fmt: skip
    assert [(row["width"], row["height"]) for row in side(config)][-2:] == [(60, 100), (200, 240)]


def test_what_is_left_out_is_named(album: Path) -> None:
    config = job(album)
    pack.pack(config)
    assert [(error["row"], error["key"], error["stage"]) for error in errors(config)] == [
        (17, "000000016", "picture"), (18, "000000017", "picture"), (19, "000000018", "read"),
    ]  # fmt: skip
    reasons = [error["reason"] for error in errors(config)]
    assert "cut.jpg: a JPEG cut short" in reasons[0]
    assert "thumb.jpg: a picture of 9 × 9 pixels, less than image_min_width = 10" in reasons[1]
    assert "none.jpg: No such file" in reasons[2]
    stats = read_stats(config.output)
    assert stats["skipped_rows"] == {
        "picture: a JPEG cut short: no end-of-image marker in N bytes": 1,
        "picture: a picture of N × N pixels, less than image_min_width = N and image_min_height = N": 1,
        "read: No such file or directory": 1,
    }


def test_the_statistics(album: Path) -> None:
    config = job(album, image_names="extension")
    pack.pack(config)
    stats = read_stats(config.output)
    assert stats["outcomes"] == {
        "as it is": 8, "converted from AVIF": 2, "converted from BMP": 2, "converted from GIF": 2, "converted from TIFF": 2,
    }  # fmt: skip
    assert stats["extensions"] == {".json": 16, ".png": 8, ".jpg": 6, ".webp": 2}
    found = stored(config)
    assert sum(stats["bytes"].values()) - stats["bytes"][".json"] == sum(map(len, found.values()))
    sizes = [decode_image(data).size for data in found.values()]
    for name, place in (("width", 0), ("height", 1)):
        histogram = stats["images"][name]
        assert (histogram["count"], histogram["total"]) == (16, sum(size[place] for size in sizes))
    assert stats["captions"]["count"] == 16
    assert stats["captions"]["total"] == sum(len(row["caption"]) - len("<image_0>") for row in side(config))
    before = snapshot(config.output)
    gen_meta(config.output, n_jobs=1)
    assert snapshot(config.output) == before


def test_sidecars_say_where_pictures_came_from(album: Path) -> None:
    config = job(album)
    pack.pack(config)
    first = side(config)[0]
    assert (first["original_path"], first["tar_file"], first["member_name"]) == (
        str(album / "60-a.jpg"), "shard-000000.tar", "000000000-0.jpg",
    )  # fmt: skip
    assert (first["score"], first["tag"], first["metadata"]) == (0.0, "a.jpg", '{"score":0.0,"tag":"a.jpg"}')
    assert verify(config.output, n_jobs=1, deep=True).problems == []


Change = Callable[[Path], dict[str, Any]]


@pytest.mark.parametrize("options", [
    {}, {"image_format": "webp", "image_max_side": 80},
])  # fmt: skip
def test_the_same_bytes_whoever_packs(album: Path, options: dict[str, Any]) -> None:
    trees = []
    for jobs in (1, 2, 12):
        config = job(album, output=str(album.parent / f"out{jobs}"), n_jobs=jobs, **options)
        pack.pack(config)
        again = pack.pack(config)
        assert again.kept == again.slots == 4
        tree = snapshot(config.output)
        trees.append(
            {name: data for name, data in tree.items() if not name.startswith(".shardflow/pack.json")}
        )
    assert trees[0] == trees[1] == trees[2]
    assert any(name.endswith(".parquet") for name in trees[0])


def test_after_a_kill_and_a_rerun(album: Path) -> None:
    lines = (album / "records.jsonl").read_text().splitlines()[:16]
    (album / "records.jsonl").write_text("\n".join(lines * 12))
    whole = job(album, image_format="jpeg", output=str(album.parent / "whole"))
    pack.pack(whole)
    config = job(album, image_format="jpeg")
    code = f"from tasks import pack; from tasks.config import PackConfig\npack.pack({config!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    while not list(Path(config.output).glob("*.parquet")) and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed = pack.pack(config)
    assert killed.samples == 192
    one, other = snapshot(whole.output), snapshot(config.output)
    for name in (".shardflow/pack.json",):
        one.pop(name), other.pop(name)
    assert one == other


def test_one_schema_whatever_single_shards_hold(album: Path) -> None:
    file = album / "records.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for number, record in enumerate(records):
        record["mixed"] = number if number < 6 else number + 0.5 if number < 12 else None
        record["late"] = {"only": "here"} if number == 13 else 5
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    config = job(album)
    pack.pack(config)
    import pyarrow.parquet as pq

    schemas = [
        pq.read_schema(path).remove_metadata() for path in sorted(Path(config.output).glob("*.parquet"))
    ]
    assert len(schemas) == 3 and all(schema == schemas[0] for schema in schemas)
    assert str(schemas[0].field("mixed").type) == "double" and str(schemas[0].field("late").type) == "string"
    assert side(config)[0]["late"] == "5" and side(config)[13]["late"] == '{"only":"here"}'
    assert verify(config.output, n_jobs=1).problems == []
    good = snapshot(config.output)
    # What one shard holds has changed: the columns of all others follow, and their tars are left.
    text = file.read_text()
    file.write_text(text.replace('"late": {"only": "here"}', '"late": 7'))
    assert pack.pack(config).kept == 3
    assert side(config)[0]["late"] == 5 and side(config)[13]["late"] == 7
    assert verify(config.output, n_jobs=1).problems == []
    file.write_text(text)
    pack.pack(config)
    assert snapshot(config.output) == good


def test_a_sidecar_that_is_gone_or_damaged_is_made_again(album: Path) -> None:
    config = job(album)
    pack.pack(config)
    good = snapshot(config.output)
    file = Path(config.output, "shard-000001.parquet")
    for damage in (file.unlink, lambda: file.write_bytes(b"PAR1"), lambda: file.write_bytes(Path(config.output, "shard-000000.parquet").read_bytes())):  # fmt: skip
        damage()
        assert pack.pack(config).kept == 3
        assert snapshot(config.output) == good


def test_sidecars_come_and_go_with_the_option(album: Path) -> None:
    config = job(album, sidecar=False)
    pack.pack(config)
    assert not list(Path(config.output).glob("*.parquet"))
    bare = {name: data for name, data in snapshot(config.output).items() if not name.startswith(".shardflow")}
    pack.pack(job(album))
    assert len(list(Path(config.output).glob("*.parquet"))) == 3
    pack.pack(config)
    assert {n: d for n, d in snapshot(config.output).items() if not n.startswith(".shardflow")} == bare


def test_other_options_are_another_dataset(album: Path) -> None:
    config = job(album)
    pack.pack(config)
    assert pack.pack(job(album, image_quality=50)).kept == 0
    assert pack.pack(job(album, image_quality=50, n_jobs=2)).kept == 4


def test_retry_errors_packs_what_failed_and_nothing_else(album: Path) -> None:
    whole = job(album, output=str(album.parent / "whole"))
    config = job(album)
    pack.pack(config)
    before = {tar: tar.stat().st_mtime_ns for tar in Path(config.output).glob("*.tar")}
    assert pack.pack(job(album, retry_errors=True)).kept == 2  # rows 17 to 19 are in the third and the fourth
    (album / "cut.jpg").write_bytes(encoded(photo(60, 60)))
    (album / "none.jpg").write_bytes(encoded(photo(60, 60)))
    summary = pack.pack(job(album, retry_errors=True))
    assert (summary.kept, summary.bad) == (2, 1)
    for tar in ("shard-000000.tar", "shard-000001.tar"):
        assert Path(config.output, tar).stat().st_mtime_ns == before[Path(config.output, tar)]
    pack.pack(whole)
    one, other = snapshot(whole.output), snapshot(config.output)
    assert {n: d for n, d in one.items() if "pack.json" not in n} == {
        n: d for n, d in other.items() if "pack.json" not in n
    }


def test_each_rows_outcome_is_in_the_manifest(album: Path) -> None:
    config = job(album, image_max_side=150)
    pack.pack(config)
    outcomes: dict[str, list[list[int]]] = {}
    for number in range(4):
        found = manifest.load(config.output, number)
        assert found is not None
        for outcome, ranges in found.outcomes.items():
            outcomes.setdefault(outcome, []).extend(ranges)
    assert outcomes == {
        "scaled down": [[1, 1], [3, 3], [5, 5], [15, 15]],
        "converted from GIF": [[6, 7]], "converted from BMP": [[8, 9]], "converted from TIFF": [[10, 11]],
        "converted from AVIF": [[12, 13]],
    }  # fmt: skip


def test_tars_of_others_keep_their_bytes_unless_asked(album: Path) -> None:
    first = job(album, image_names="extension", sidecar=False)
    pack.pack(first)
    again = job(album, source=first.output, source_kind="tar", output=str(album.parent / "again"))
    pack.pack(again)
    assert stored(again) == stored(first)
    assert [row["outcome"] for row in side(again)] == ["as it is"] * 16
    assert read_stats(again.output)["images"] == read_stats(first.output)["images"]
    assert read_stats(again.output)["captions"] == read_stats(first.output)["captions"]
    assert verify(again.output, n_jobs=1).problems == []
    small = job(album, source=first.output, source_kind="tar", output=str(album.parent / "small"), image_format="webp", image_max_side=50)  # fmt: skip
    assert pack.pack(small).samples == 16
    for data in stored(small).values():
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == "WEBP" and max(image.size) == 50
    assert verify(small.output, n_jobs=1).problems == []


def test_no_secret_in_what_is_reported(album: Path) -> None:
    signed = '{"image": "http://127.0.0.1:1/a.jpg?X-Amz-Signature=abc123", "caption": "x"}\n'
    (album / "records.jsonl").write_text('{"image": "hunter2secret.jpg", "caption": "x"}\n' + signed)
    config = job(album, source_storage_options={"key": "hunter2secret"})
    pack.pack(config)
    for data in snapshot(config.output).values():
        assert b"hunter2secret" not in data and b"abc123" not in data
    assert "***.jpg: No such file" in errors(config)[0]["reason"]


def test_splits_have_a_schema_each_and_what_is_appended_has_that_of_all(album: Path) -> None:
    config = job(album, split_column="part", max_samples=3)
    lines = [json.loads(line) for line in (album / "records.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line["part"] = "val" if number % 4 == 0 else "train"
        line["kind"] = "a text" if number % 4 == 0 else number
    (album / "records.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    pack.pack(config)
    assert {row["part"] for row in side(config)} == {"train", "val"}
    assert verify(config.output, n_jobs=1).problems == []
    skipped = [read_stats(f"{config.output}/{split}")["skipped_rows"] for split in ("train", "val")]
    assert sum(sum(counts.values()) for counts in skipped) == 3 and skipped[0] != skipped[1]
    one = job(album, output=str(album.parent / "one"))
    pack.pack(one)
    first = {name: data for name, data in snapshot(one.output).items() if name.endswith(".tar")}
    (album / "more.jsonl").write_text(
        json.dumps({"image": "60-a.jpg", "caption": "more", "score": "a text"}) + "\n"
    )
    more = job(album, source=str(album / "more.jsonl"), output=one.output, mode="append")
    pack.pack(more)
    assert {name: snapshot(one.output)[name] for name in first} == first
    assert [row["score"] for row in side(one)][:2] == ["0.0", "0.0"] and side(one)[-1]["score"] == '"a text"'
    assert verify(one.output, n_jobs=1).problems == []
    stats = read_stats(one.output)
    assert stats["captions"]["count"] == 17 and sum(stats["skipped_rows"].values()) == 3
    assert stats["outcomes"]["as it is"] == 9


def test_from_the_command_line(album: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from flows import cli

    file = album / "job.yaml"
    file.write_text("source: records.jsonl\noutput: out\nmax_samples: 6\nmax_bad_fraction: 1\nn_jobs: 1\nimages: {format: webp, quality: 60}\n")  # fmt: skip
    assert cli.main(["pack", str(file), "--direct", "--sidecar", "--image-max-side", "50"]) == 0
    config = job(album, output=str(album / "out"))
    assert {row["outcome"] for row in side(config)} >= {"scaled down", "converted from GIF"}
    (album / "none.jpg").write_bytes(encoded(photo(60, 60)))
    before = snapshot(album / "out")
    assert (
        cli.main(["pack", str(file), "--direct", "--sidecar", "--image-max-side=50", "--retry-errors"]) == 0
    )
    assert "2 of 4 slots were done before" in capfd.readouterr().out
    after = snapshot(album / "out")
    changed = {name for name in after if name.endswith(".tar") and before.get(name) != after[name]}
    assert changed == {"shard-000003.tar"}


def test_a_bad_picture_leads_back_to_its_row(album: Path) -> None:
    config = job(album)
    pack.pack(config)
    assert [(row["source"], row["source_row"]) for row in side(config)][:2] == [
        (config.source, 1),
        (config.source, 2),
    ]
    tar = Path(config.output, "shard-000000.tar")
    picture = (album / "60-b.png").read_bytes()
    tar.write_bytes(tar.read_bytes().replace(picture[60:], bytes(len(picture) - 60)))
    problems = [problem.reason for problem in verify(config.output, n_jobs=1, deep=True).problems]
    (named,) = (reason for reason in problems if reason.startswith("'000000002-0.png'"))
    assert named.endswith(f"(packed from {config.source}, row 3)")
    facts = dict(show.describe(f"{config.output}#000000002").facts)
    assert facts["packed from"] == f"{config.source}, row 3"


def test_a_row_that_can_not_be_written_has_no_outcome(tmp_path: Path) -> None:
    for name, keys in (("1.tar", "ab"), ("2.tar", "ac")):
        make_tar(tmp_path / "in" / name, [(f"{key}.png", encoded(photo(9, 9), "PNG")) for key in keys])
    config = PackConfig(
        str(tmp_path / "in"), str(tmp_path / "out"), source_kind="tar", image_format="webp", max_bad_fraction=1.0, n_jobs=1
    )  # fmt: skip
    assert pack.pack(config).bad == 1
    found = manifest.load(config.output, 0)
    assert found is not None and [(bad.stage, bad.number) for bad in found.bad] == [("write", 2)]
    assert sorted(map(tuple, found.outcomes["encoded anew"])) == [(0, 1), (3, 3)]
    assert read_stats(config.output)["outcomes"] == {"encoded anew": 3}
