"""A whole dataset: what no single tar shows, what a repair comes to, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from s3_server import Place
from tars import make_dataset, make_tar, pairs, snapshot

from loader.gen_meta import gen_meta
from loader.verify import main, verify


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three tars, indexed and described."""
    root = tmp_path / "ds"
    make_dataset(root, [3, 0, 2])
    gen_meta(str(root), n_jobs=1)
    return root


def told(root: Path | str, **options: object) -> list[tuple[str, str, bool]]:
    """(path, part, repaired) of each problem."""
    verdict = verify(str(root), n_jobs=1, **options)  # type: ignore[arg-type]
    return [(problem.path, problem.part, problem.repaired) for problem in verdict.problems]


def test_a_good_one(dataset: Path) -> None:
    before = snapshot(dataset)
    verdict = verify(str(dataset), n_jobs=1)
    assert verdict.ok and verdict.problems == [] and verdict.tars == 3
    assert sum(report.num_samples for report in verdict.reports.values()) == 5
    assert told(dataset, repair=True) == []
    assert snapshot(dataset) == before


def test_what_no_single_tar_shows(dataset: Path) -> None:
    (dataset / "shard-000002.tar").unlink()
    make_tar(dataset / "more" / "x.tar", pairs(2, 90))
    stats = json.loads((dataset / "meta_stats.json").read_text())
    (dataset / "meta_stats.json").write_text(json.dumps({**stats, "total_samples": 99}))
    assert told(dataset) == [
        ("meta_stats.json", "stats", False),
        ("more/x.tar", "meta", False),
        ("more/x.tar.index", "index", False),
        ("shard-000002.tar", "meta", False),
        ("shard-000002.tar.index", "index", False),
    ]


@pytest.mark.parametrize("name", ["meta.json", "meta_stats.json", "shard-000000.tar.index"])
@pytest.mark.parametrize("damage", [None, b"", b"{}", b"nonsense"])
def test_a_repair_makes_it_anew(dataset: Path, name: str, damage: bytes | None) -> None:
    good = snapshot(dataset)
    if damage is None:
        (dataset / name).unlink()
    else:
        (dataset / name).write_bytes(damage)
    assert not verify(str(dataset), n_jobs=1).ok
    assert verify(str(dataset), n_jobs=1, repair=True).ok
    assert told(dataset) == []
    after = snapshot(dataset)
    stats = [json.loads(files.pop("meta_stats.json")) for files in (good, after)]
    assert after == good
    assert stats[0].items() <= stats[1].items()  # what the samples hold has been looked into by the way
    assert stats[1].get("captions", {"count": 5})["count"] == 5


def test_meta_is_not_written_over_a_bad_tar(dataset: Path) -> None:
    tar = dataset / "shard-000000.tar"
    tar.write_bytes(tar.read_bytes()[:3000])
    (dataset / "meta.json").unlink()
    verdict = verify(str(dataset), n_jobs=1, repair=True)
    assert [(problem.path, problem.repaired) for problem in verdict.problems] == [
        ("meta.json", False), ("shard-000000.tar", False),
    ]  # fmt: skip
    assert not (dataset / "meta.json").exists()


def test_one_tar_alone(dataset: Path) -> None:
    tar = dataset / "shard-000002.tar"
    assert verify(str(tar), n_jobs=1).ok
    (dataset / "meta.json").write_text("{}")  # is no matter of this tar
    make_tar(tar, pairs(1))
    assert [problem.part for problem in verify(str(tar), n_jobs=1).problems] == ["index"]
    with pytest.raises(FileNotFoundError):
        verify(str(dataset / "none.tar"))
    with pytest.raises(FileNotFoundError):
        verify(str(dataset / "none"))


def test_many_processes_find_the_same(dataset: Path) -> None:
    (dataset / "shard-000000.tar.index").write_bytes(b"x")
    assert verify(str(dataset), n_jobs=2).problems == verify(str(dataset), n_jobs=1).problems != []


def test_datasets_below_a_folder_are_looked_at_one_by_one(tmp_path: Path) -> None:
    for split, counts in (("train", [3, 2]), ("val", [1])):
        make_dataset(tmp_path / split, counts)
        gen_meta(str(tmp_path / split), n_jobs=1)
    started: list[int] = []
    verdict = verify(str(tmp_path), n_jobs=1, on_start=started.append)
    assert verdict.ok and verdict.tars == 3 and started == [2, 3]
    assert list(verdict.reports) == [
        "train/shard-000000.tar",
        "train/shard-000001.tar",
        "val/shard-000000.tar",
    ]
    (tmp_path / "val" / "shard-000000.tar.index").unlink()
    assert told(tmp_path) == [("val/shard-000000.tar.index", "index", False)]
    assert verify(str(tmp_path), n_jobs=1, repair=True).ok
    assert not (tmp_path / "meta.json").exists()
    make_tar(tmp_path / "x.tar", pairs(1))  # which is in none of them: one dataset is meant
    assert ("meta.json", "meta", False) in told(tmp_path)


def test_in_memory_and_in_a_bucket(dataset: Path, s3: Place) -> None:
    for root, options in (("memory://verify", {}), (s3.root, s3.storage_options)):
        for name, data in snapshot(dataset).items():
            with fsspec.open(f"{root}/{name}", "wb", **options) as file:
                file.write(data)
        assert verify(root, n_jobs=1, storage_options=options).ok
        with fsspec.open(f"{root}/shard-000000.tar.index", "wb", **options) as file:
            file.write(b"x")
        assert told(root, storage_options=options) == [("shard-000000.tar.index", "index", False)]
        assert verify(root, n_jobs=1, storage_options=options, repair=True).ok
        with fsspec.open(f"{root}/shard-000000.tar.index", "rb", **options) as file:
            assert file.read() == (dataset / "shard-000000.tar.index").read_bytes()


def test_indexes_kept_elsewhere(dataset: Path, tmp_path: Path) -> None:
    for index in dataset.glob("*.index"):
        index.unlink()
    elsewhere = str(tmp_path / "indexes")
    gen_meta(str(dataset), n_jobs=1, index_root=elsewhere)
    assert told(dataset, index_root=elsewhere) == []
    assert {part for _, part, _ in told(dataset)} == {"index"}


def test_the_command(dataset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(dataset)], n_jobs=1) == 0
    shown = capfd.readouterr()
    assert "problems   0" in shown.out and shown.err == ""
    (dataset / "shard-000000.tar.index").unlink()
    assert main([str(dataset), str(dataset / "none")], n_jobs=1) == 1
    shown = capfd.readouterr()
    assert "shard-000000.tar.index: there is none" in shown.out
    assert "1 problem in" in shown.err and "--repair" in shown.err and "there is no such folder" in shown.err
    assert main([str(dataset)], repair=True, n_jobs=1) == 0
    assert "0, and 1 repaired" in capfd.readouterr().out


def test_it_needs_neither_torch_nor_pillow() -> None:
    code = "import sys, loader.verify; print([m for m in ('torch', 'PIL', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
