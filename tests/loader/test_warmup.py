from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tars import make_dataset, make_tar, pairs, snapshot

from loader import indexing, storage
from loader.errors import BadMeta, UnknownDataset
from loader.gen_meta import gen_meta
from loader.index import index_path, load_index
from loader.meta import ShardMeta, write_meta
from loader.registry import load_registry
from loader.warmup import Target, find_targets, main, warmup, warmup_one

ROOT = Path(__file__).parents[2]
SECRET = "hunter2-do-not-show"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder: data/a (2 tars), data/b/c (1 tar), and a registry that calls them x/a and x/b."""
    make_dataset(tmp_path / "data" / "a", [3, 2])
    make_dataset(tmp_path / "data" / "b" / "c", [4])
    (tmp_path / "configs").mkdir()
    registry = {
        "x/a": {
            "data_type": "t",
            "dir": "../data/a",
            "storage_options": {"auto_mkdir": False, "key": SECRET},
        },
        "x/b": {"data_type": "t", "dir": "../data/b"},
    }
    (tmp_path / "configs" / "datasets.json").write_text(json.dumps(registry))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def relative(targets: list[Target], place: Path) -> list[str]:
    return [os.path.relpath(target.address, place / "data") for target in targets]


A0, A1, C0 = "a/shard-000000.tar", "a/shard-000001.tar", "b/c/shard-000000.tar"


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("x/a", [A0, A1]),
        ("x/*", [A0, A1, C0]),
        ("x/b,x", [C0, A0, A1]),
        ("data/a", [A0, A1]),
        ("data/a/", [A0, A1]),
        ("data/*", [A0, A1, C0]),
        ("data", [A0, A1, C0]),
        ("data/*/shard-000000.tar", [A0]),
        ("data/**/shard-000000.tar", [A0, C0]),
        (f"data/{C0}, x/a ,", [C0, A0, A1]),
        ("./data/a,x/a", [A0, A1]),
    ],
)
def test_patterns(place: Path, patterns: str, expected: list[str]) -> None:
    targets = find_targets(patterns, load_registry("configs/datasets.json"))
    assert relative(targets, place) == expected


def test_without_a_registry_patterns_are_paths(place: Path) -> None:
    assert relative(find_targets(f"{place}/data/b,file://{place}/data/a/shard-000001.tar"), place) == [C0, A1]
    with pytest.raises(FileNotFoundError, match="x/a: no file, folder or glob"):
        find_targets("x/a")
    with pytest.raises(FileNotFoundError, match=r"there is no configs/datasets.json here"):
        find_targets("x/a")
    with pytest.raises(FileNotFoundError, match=r"\.tar$"):
        find_targets("./x/a")


def test_names_come_before_paths_and_explicit_paths_are_paths(place: Path) -> None:
    make_tar(place / "x" / "a" / "own.tar", pairs(1))
    registry = load_registry("configs/datasets.json")
    assert relative(find_targets("x/a", registry), place) == [A0, A1]
    assert relative(find_targets("./x/a", registry), place) == ["../x/a/own.tar"]
    assert relative(find_targets(f"{place}/x/a", registry), place) == ["../x/a/own.tar"]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ("x/aa", r"Nearest: x/a.*Nor is it a tar"),
        ("x/a,nothing*", r"'nothing\*' matches none.*Nor is it"),
        ("configs", r"'configs' matches none"),
        (" , ", "names nothing"),
    ],
)
def test_what_leads_nowhere_says_so(place: Path, patterns: str, said: str) -> None:
    with pytest.raises(UnknownDataset, match=said) as caught:
        find_targets(patterns, load_registry("configs/datasets.json"))
    assert SECRET not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"\./gone"):
        find_targets("./gone", load_registry("configs/datasets.json"))


def test_a_meta_says_which_tars_count(place: Path) -> None:
    registry = load_registry("configs/datasets.json")
    shard = ShardMeta(2, os.path.getsize(f"data/{A1}"), 1)
    write_meta("data/a", {"shard-000001.tar": shard, "gone.tar": shard})
    targets = find_targets("x/a", registry)
    assert relative(targets, place) == ["a/gone.tar", A1]
    outcome = warmup(targets, n_jobs=1)
    assert list(outcome.reports) == [f"{place}/data/{A1}"]
    assert "No such file" in outcome.failures[f"{place}/data/a/gone.tar"]
    (place / "data" / "a" / "meta.json").write_text("[]")
    with pytest.raises(BadMeta):
        find_targets("x/a", registry)


def test_a_meta_that_is_wrong_about_its_tar(place: Path) -> None:
    write_meta("data/a", {"shard-000001.tar": ShardMeta(5, os.path.getsize(f"data/{A1}"), 1)})
    (target,) = find_targets("x/a", load_registry("configs/datasets.json"))
    with pytest.raises(BadMeta, match=r"2 samples in 10240 bytes, but meta\.json says 5"):
        warmup_one(target)


def test_missing_and_stale_are_built_and_the_rest_is_left(place: Path) -> None:
    targets = find_targets("data")
    first = warmup(targets, n_jobs=2)
    assert [report.built for report in first.reports.values()] == [True, True, True]
    make_tar(f"data/{A0}", pairs(30))
    Path(index_path(f"data/{C0}")).write_bytes(pickle.dumps([1]))
    before = snapshot(place)
    second = warmup(targets, n_jobs=1)
    assert [report.built for report in second.reports.values()] == [True, False, True]
    assert [report.num_samples for report in second.reports.values()] == [30, 2, 4]
    changed = [path for path, data in snapshot(place).items() if before[path] != data]
    assert changed == [f"data/{A0}.index", f"data/{C0}.index"]


def test_headers_alone_are_read_where_the_tar_is_local(place: Path) -> None:
    warmup(find_targets("data/a"), n_jobs=1)
    assert load_index(f"data/{A0}.index").checksum is None
    storage.write_bytes("memory://warmup/a.tar", Path(f"data/{A0}").read_bytes())
    warmup([Target("memory://warmup/a.tar")], n_jobs=1)
    assert load_index("memory://warmup/a.tar.index").checksum is not None


def test_after_gen_meta_there_is_nothing_to_do(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gen_meta("data/a", n_jobs=1)
    before = snapshot(place)
    monkeypatch.setattr(indexing, "tar_buffer", None)  # whoever calls it fails
    outcome = warmup(find_targets("x/a", load_registry("configs/datasets.json")), n_jobs=1)
    assert [report.built for report in outcome.reports.values()] == [False, False]
    assert snapshot(place) == before


def test_a_place_that_cannot_be_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, data: bytes, storage_options: Any = None) -> None:
        raise PermissionError(13, "Permission denied", address)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_bytes", refuse)
        outcome = warmup(find_targets("data/a"), n_jobs=1)
    assert [why for why in outcome.failures.values() if "--index_root" in why] == list(
        outcome.failures.values()
    )
    assert len(outcome.failures) == 2
    assert not warmup(find_targets("data/a"), n_jobs=1, index_root=str(place / "idx")).failures
    assert len(list((place / "idx").rglob("*.index"))) == 2
    assert not list((place / "data").rglob("*.index"))


def test_secrets_travel_unseen(place: Path) -> None:
    target = find_targets("x/a", load_registry("configs/datasets.json"))[0]
    assert target.storage_options is not None and target.storage_options["key"] == SECRET
    assert SECRET not in repr(target)


def test_errors_of_a_store_do_not_show_them(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def complain(*arguments: Any, **options: Any) -> Any:
        raise PermissionError(f"access denied for {SECRET}")

    with monkeypatch.context() as patch:
        patch.setattr(indexing, "find_fresh", complain)
        assert main(["x/a", "--n_jobs", "1"]) == 1
    shown = "".join(capsys.readouterr())
    assert shown.count("access denied for ***") == 2
    monkeypatch.setattr(storage, "exists", complain)
    assert main(["x/a", "--n_jobs", "1"]) == 1
    shown += "".join(capsys.readouterr())
    assert "warmup_data: access denied for ***" in shown
    assert SECRET not in shown


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loader.warmup", *arguments],
        cwd=place, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_the_command(place: Path) -> None:
    done = run(place, "x/*", "--n_jobs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "3, 0 of them failed" in done.stdout
    assert "3 built, 0 were there" in done.stdout
    assert "0 built, 1 were there" in run(place, "data/b/c/*").stdout
    other = place / "other.yaml"
    other.write_text("mine: {data_type: t, dir: data/a}\n")
    assert "0 built, 2 were there" in run(place, "mine", "--registry", "other.yaml").stdout


def test_the_command_fails_for_a_bad_tar(place: Path) -> None:
    (place / "data" / "a" / "bad\x1b[2J.tar").write_bytes(b"no tar at all" * 100)
    done = run(place, "data/*")
    assert done.returncode == 1
    assert "3 built" in done.stdout
    assert f"{place}/data/a/bad\\x1b[2J.tar: " in done.stdout
    assert done.stderr == (
        "warmup_data: 1 of 4 tars failed. Repair them and run it again: what is done is kept\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, 'examples:\n  warmup_data "text2image/*'),
        ([], 2, "PATTERNS"),
        (["x", "--n_jobs", "-2"], 2, "-2 is negative"),
        (["x", "--n_jobs", "many"], 2, "'many' is no whole number"),
        (["x/aa"], 1, "warmup_data: 'x/aa' matches none of the 2 datasets"),
        (["x", "--registry", "gone.json"], 1, "gone.json is no file"),
        (["/gone"], 1, "warmup_data: /gone: no file"),
    ],
)
def test_arguments(
    place: Path, arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(arguments)
    except SystemExit as error:
        found = int(str(error.code))
    shown = capsys.readouterr()
    assert found == status
    assert said in shown.out + shown.err
    assert "Traceback" not in shown.err
