"""What a dataset holds is the same from every place where it is written down, and from the tars themselves."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import fsspec
import pytest
from pictures import encoded, pair, photo, write_dataset
from s3_server import Place
from sidecars import add_sidecars
from tars import make_tar, snapshot

from loader import stats as module
from loader.gen_meta import gen_meta
from loader.stats import Stats, bars, bins, main, stats
from loader.verify import verify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Pictures of several sizes, captions of several lengths."""
    samples = [pair(n, 20 + 9 * n, 30 + 5 * n, caption="<image_0>" + "x" * n, n=n) for n in range(12)]
    samples[3][".jpg"] = [samples[3][".jpg"][0], encoded(photo(500, 600))]
    samples[4][".jpg"] = [b"no picture"]
    return Path(write_dataset(tmp_path / "ds", samples, per_shard=5))


def same(found: Stats, **changes: object) -> Stats:
    return dataclasses.replace(found, source="", **changes)  # type: ignore[arg-type]


def test_from_tars_sidecars_and_meta_stats(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_tars = stats(str(root), n_jobs=1)
    assert by_tars.source == "the tars"
    assert (by_tars.samples, by_tars.tars) == (12, 3)
    assert by_tars.extensions == {".jpg": 13, ".json": 12}
    assert (by_tars.contents.widths.count, by_tars.contents.unreadable) == (12, 1)
    assert by_tars.contents.captions.total == sum(range(12))
    assert by_tars.size == sum(path.stat().st_size for path in root.glob("*.tar"))
    gen_meta(str(root), n_jobs=1)
    add_sidecars(root)
    with monkeypatch.context() as patched:
        patched.setattr(module, "tar_buffer", None)  # whoever calls it fails
        assert same(stats(str(root), n_jobs=1)) == same(by_tars)
    (root / "meta_stats.json").unlink()
    verify(str(root), n_jobs=1, repair=True)
    with monkeypatch.context() as patched:
        patched.setattr(module, "count_tar", None)
        known = stats(str(root))
        assert known.source == "meta_stats.json"
        assert same(known) == same(by_tars) == same(stats(str(root / "meta.json")), path=str(root))
    assert stats(str(root), n_jobs=2, fresh=True).source == "the tars"


def test_nothing_is_written(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", [("a.json", b'{"caption": "x"}'), ("b.png", encoded(photo(3, 4), "PNG")), ("README", b"")])  # fmt: skip
    before = snapshot(tmp_path)
    found = stats(tar, n_jobs=1)
    assert found == dataclasses.replace(stats(str(tmp_path), n_jobs=1), path=tar)
    assert snapshot(tmp_path) == before
    assert found.skipped_members == {"no extension": 1} and found.contents.widths.bins == {4: 1}


def test_stats_of_another_state_are_not_believed(root: Path) -> None:
    verify(str(root), n_jobs=1, repair=True)
    file = root / "meta_stats.json"
    good = json.loads(file.read_text())
    for wrong in (
        {**good, "total_samples": 1},
        {**good, "images": 5},
        {**good, "bytes": {".jpg": "x"}},
        {},
        [1],
    ):
        file.write_text(json.dumps(wrong))
        assert stats(str(root), n_jobs=1).source == "the tars"


def test_what_packing_said_is_kept(root: Path) -> None:
    verify(str(root), n_jobs=1, repair=True)
    file = root / "meta_stats.json"
    said = {"outcomes": {"as it is": 13}, "skipped_rows": {"read: gone": 2}}
    file.write_text(json.dumps({**json.loads(file.read_text()), **said}))
    for fresh in (False, True):
        found = stats(str(root), n_jobs=1, fresh=fresh)
        assert {"outcomes": found.outcomes, "skipped_rows": found.skipped_rows} == said


def test_a_bad_tar_costs_itself(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tar = root / "shard-000001.tar"
    tar.with_suffix(".tar.index").unlink()
    tar.write_bytes(b"x" * 2000)
    found = stats(str(root), n_jobs=1)
    assert list(found.failures) == ["shard-000001.tar"] and found.samples == 7
    assert main([str(root)], n_jobs=1) == 1
    assert "shard-000001.tar: " in capfd.readouterr().err


def test_datasets_below_a_folder_add_up(tmp_path: Path) -> None:
    samples = [pair(n, 20 + n, 30) for n in range(9)]
    whole = write_dataset(tmp_path / "whole", samples, per_shard=5)
    for split, part in (("train", samples[:5]), ("val", samples[5:])):
        root = Path(write_dataset(tmp_path / "parts" / split, part))
        (root / "meta_stats.json").unlink()
        verify(str(root), n_jobs=1, repair=True)
    parts = str(tmp_path / "parts")
    found = stats(parts)
    assert (found.source, found.path) == ("meta_stats.json", parts)
    assert (
        same(found, path="") == same(stats(whole, n_jobs=1), path="") != same(stats(f"{parts}/val"), path="")
    )
    for index in Path(parts).rglob("*.index"):
        index.unlink()
    for tar in Path(parts).rglob("*.tar"):
        tar.write_bytes(b"x")
    assert list(stats(parts, n_jobs=1, fresh=True).failures) == [
        "train/shard-000000.tar",
        "val/shard-000000.tar",
    ]


def test_in_a_bucket(root: Path, s3: Place) -> None:
    for name, data in snapshot(root).items():
        with fsspec.open(f"{s3.root}/{name}", "wb", **s3.storage_options) as file:
            file.write(data)
    found = stats(s3.root, n_jobs=1, storage_options=s3.storage_options)
    assert same(found, path="") == same(stats(str(root), n_jobs=1), path="")


def test_histograms_as_they_are_shown(root: Path) -> None:
    widths = stats(str(root), n_jobs=1).contents.widths
    found = bins(widths)
    assert [low for low, _ in found] == [24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert sum(count for _, count in found) == widths.count
    assert dict(found)[128] == 0 and bars(widths)[5] == ("128", 0, "")
    assert max(len(bar) for _, _, bar in bars(widths)) == 40


def test_the_command(root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plot.html"
    assert main([str(root), str(tmp_path / "none")], plot=str(page), n_jobs=1) == 1
    shown = capfd.readouterr()
    for text in ("samples   12", "13, 1 of them can't be read", "Width of pictures", "Length of captions"):
        assert text in shown.out
    assert "there is no such folder" in shown.err and page.exists()
    assert main([str(root)], plot="plot.gif", n_jobs=1) == 1
    shown = capfd.readouterr()
    assert "a name that ends in .html or .png was expected" in shown.err and not shown.out
