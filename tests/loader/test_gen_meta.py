from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tars import adler32, make_dataset, make_tar, pairs, snapshot

from loader import gen_meta as module
from loader import indexing, storage
from loader.gen_meta import TarReport, gen_meta, gen_meta_one, list_tars, main, reason, save_meta
from loader.index import index_path, load_index
from loader.indexed_tar import IndexedTar
from loader.meta import ShardMeta, read_meta, read_stats, write_meta

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loader.gen_meta", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        **options,
    )


def test_the_meta_is_what_the_tars_hold(tmp_path: Path) -> None:
    tars = make_dataset(tmp_path, [3, 1, 2])
    tars.append(make_tar(tmp_path / "part-1" / "x.tar", pairs(4)))
    make_tar(tmp_path / ".trash" / "y.tar", pairs(4))
    outcome = gen_meta(str(tmp_path), n_jobs=1)
    assert outcome.written and outcome.meta == str(tmp_path / "meta.json")
    assert read_meta(str(tmp_path)) == {
        os.path.relpath(tar, tmp_path): ShardMeta(samples, os.path.getsize(tar), adler32(tar))
        for tar, samples in zip(tars, [3, 1, 2, 4], strict=True)
    }
    assert read_stats(str(tmp_path)) == {
        "total_samples": 10,
        "total_files": 4,
        "total_size": sum(map(os.path.getsize, tars)),
        "dataset_path": ".",
        "extensions": {".cls": 10, ".txt": 10},
        "bytes": {".cls": 50, ".txt": 50},
    }
    for tar in tars:
        index = load_index(index_path(tar))
        assert index.checksum == adler32(tar)
        assert index.crc32 is not None


def test_the_same_bytes_from_any_number_of_processes_and_any_run(tmp_path: Path) -> None:
    for jobs in (1, 2):
        make_dataset(tmp_path / str(jobs), [3, 0, 5, 1])
        gen_meta(str(tmp_path / str(jobs)), n_jobs=jobs)
    first = snapshot(tmp_path / "1")
    assert first == snapshot(tmp_path / "2")
    assert len(first) == 4 + 4 + 2
    stats = {path: path.stat().st_mtime_ns for path in (tmp_path / "1").iterdir()}
    outcome = gen_meta(str(tmp_path / "1"), n_jobs=1)
    assert {report.index for report in outcome.reports.values()} == {"fresh"}
    assert snapshot(tmp_path / "1") == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "1").iterdir()} == stats


def test_what_is_known_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_dataset(tmp_path, [3, 2])
    gen_meta(str(tmp_path), n_jobs=1)
    monkeypatch.setattr(indexing, "tar_buffer", None)  # whoever calls it fails
    assert gen_meta(str(tmp_path), n_jobs=1).failures == {}


def test_an_index_without_checksum_is_made_anew(tmp_path: Path) -> None:
    (tar,) = make_dataset(tmp_path, [3])
    IndexedTar(tar).close()
    assert load_index(index_path(tar)).checksum is None
    assert gen_meta(str(tmp_path), n_jobs=1).reports["shard-000000.tar"].index == "built"
    assert load_index(index_path(tar)).checksum == adler32(tar)


def test_stale_and_foreign_indexes_are_replaced(tmp_path: Path) -> None:
    stale, foreign = make_dataset(tmp_path, [3, 2])
    gen_meta(str(tmp_path), n_jobs=1)
    make_tar(stale, pairs(30))
    Path(index_path(foreign)).write_bytes(pickle.dumps({"a": 1}))
    outcome = gen_meta(str(tmp_path), n_jobs=1)
    assert [report.index for report in outcome.reports.values()] == ["built", "built"]
    assert read_meta(str(tmp_path))["shard-000000.tar"].num_samples == 30


def test_one_bad_tar_of_many(tmp_path: Path) -> None:
    tars = make_dataset(tmp_path, [3, 2, 4, 1])
    write_meta(str(tmp_path), {"old.tar": ShardMeta(1, 2, 3)})
    before = snapshot(tmp_path)
    whole = Path(tars[1]).read_bytes()
    Path(tars[1]).write_bytes(whole[:700])
    Path(tars[3]).write_bytes(b"")
    outcome = gen_meta(str(tmp_path), n_jobs=2)
    assert not outcome.written
    assert list(outcome.failures) == ["shard-000001.tar", "shard-000003.tar"]
    assert "'000000" not in outcome.failures["shard-000001.tar"]
    assert str(tmp_path) not in outcome.failures["shard-000001.tar"]  # said once, beside it
    after = snapshot(tmp_path)
    assert after["meta.json"] == before["meta.json"]
    assert sorted(set(after) - set(before)) == ["shard-000000.tar.index", "shard-000002.tar.index"]
    os.unlink(tars[3])
    Path(tars[1]).write_bytes(whole)
    outcome = gen_meta(str(tmp_path), n_jobs=1)
    assert [report.index for report in outcome.reports.values()] == ["fresh", "built", "fresh"]
    assert list(read_meta(str(tmp_path))) == [f"shard-00000{n}.tar" for n in range(3)]


def test_what_is_in_no_sample_is_counted_and_named(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", [("README", b""), (".DS_Store", b""), *pairs(2), ("x/._a.jpg", b"")])
    report = gen_meta_one(str(tmp_path / "a.tar"), str(tmp_path))
    assert report.num_samples == 2
    assert report.skipped == {"hidden": (2, [".DS_Store", "x/._a.jpg"]), "no extension": (1, ["README"])}
    assert pickle.loads(pickle.dumps(report)) == report


def test_a_tar_of_no_samples_is_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    assert gen_meta(str(tmp_path), n_jobs=1).reports["a.tar"].num_samples == 0
    assert read_meta(str(tmp_path)) == {"a.tar": ShardMeta(0, 1024, adler32(tmp_path / "a.tar"))}


def test_keys_of_other_tools_stay_while_the_tar_does(tmp_path: Path) -> None:
    same, changed = make_dataset(tmp_path, [3, 2])
    gen_meta(str(tmp_path), n_jobs=1)
    known = {
        path: ShardMeta(shard.num_samples, shard.size, shard.checksum, {"quality": 0.5})
        for path, shard in read_meta(str(tmp_path)).items()
    }
    write_meta(str(tmp_path), known)
    make_tar(changed, pairs(2, start=7))
    gen_meta(str(tmp_path), n_jobs=1)
    assert [shard.extra for shard in read_meta(str(tmp_path)).values()] == [{"quality": 0.5}, {}]
    assert same


def test_an_unreadable_meta_is_written_anew(tmp_path: Path) -> None:
    make_dataset(tmp_path, [3])
    (tmp_path / "meta.json").write_text("{")
    gen_meta(str(tmp_path), n_jobs=1)
    assert len(read_meta(str(tmp_path))) == 1


def test_meta_elsewhere(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", [3])
    outcome = gen_meta(str(tmp_path / "data"), str(tmp_path / "m" / "photos.json"), n_jobs=1)
    assert outcome.meta == str(tmp_path / "m" / "photos.json")
    assert sorted(os.listdir(tmp_path / "m")) == ["photos.json", "photos_stats.json"]
    assert sorted(os.listdir(tmp_path / "data")) == ["shard-000000.tar", "shard-000000.tar.index"]
    assert list(read_meta(outcome.meta)) == ["shard-000000.tar"]


def test_indexes_elsewhere(tmp_path: Path) -> None:
    (tar,) = make_dataset(tmp_path / "data", [3])
    kept = str(tmp_path / "idx")
    for state in ("built", "fresh"):
        outcome = gen_meta(str(tmp_path / "data"), str(tmp_path / "m"), n_jobs=1, index_root=kept)
        assert outcome.reports["shard-000000.tar"].index == state
    assert os.listdir(tmp_path / "data") == ["shard-000000.tar"]
    assert load_index(index_path(tar, kept)).num_samples == 3


def test_a_read_only_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_dataset(tmp_path / "data", [3, 4])
    write = storage.write_bytes

    def refuse(address: str, data: bytes, storage_options: Any = None) -> None:
        if address.startswith(str(tmp_path / "data")):
            raise PermissionError(13, "Permission denied", address)
        write(address, data, storage_options)

    monkeypatch.setattr(storage, "write_bytes", refuse)
    with caplog.at_level(logging.WARNING):
        outcome = gen_meta(str(tmp_path / "data"), str(tmp_path / "m"), n_jobs=1)
    assert {report.index for report in outcome.reports.values()} == {"unsaved"}
    assert [shard.num_samples for shard in read_meta(str(tmp_path / "m")).values()] == [3, 4]
    assert not caplog.records  # the table says it, once
    with pytest.raises(PermissionError):
        gen_meta(str(tmp_path / "data"), n_jobs=1)


def test_the_command_refuses_a_read_only_place_before_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_dataset(tmp_path / "data", [3])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert main([str(tmp_path / "data"), "--meta_save_path", str(tmp_path / "not" / "yet" / "m.json")]) == 1
    said = capsys.readouterr().err
    assert f"m.json can't be written: {tmp_path} is read-only" in said and "--index_root" in said
    assert os.listdir(tmp_path / "data") == ["shard-000000.tar"]


def test_reasons_stand_beside_the_address() -> None:
    assert reason(ValueError("/a.tar: cut short"), "/a.tar") == "cut short"
    assert reason(ValueError("/a.tar.index: made for another"), "/a.tar") == "its index: made for another"
    assert reason(PermissionError("/a.tar.index can't be written"), "/a.tar") == "its index can't be written"
    assert reason(KeyError("x"), "/a.tar") == "KeyError: 'x'"
    assert reason(OSError(), "/a.tar") == "OSError"


def test_a_remote_dataset(tmp_path: Path) -> None:
    make_dataset(tmp_path, [3, 2])
    for name, data in snapshot(tmp_path).items():
        storage.write_bytes(f"memory://gen-meta/set/{name}", data)
    outcome = gen_meta("memory://gen-meta/set/", n_jobs=1)
    assert outcome.written
    gen_meta(str(tmp_path), n_jobs=1)
    remote = {
        storage.relative(address, "memory://gen-meta/set"): storage.read_bytes(address)
        for address in storage.list_files("memory://gen-meta/set")
    }
    assert remote == snapshot(tmp_path)


def test_grouping_and_missing_ends(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", [("k.json", b"{}"), ("k-0.jpg", b"x"), ("k-1.jpg", b"y")])
    assert gen_meta(str(tmp_path), n_jobs=1).reports["a.tar"].num_samples == 1
    assert gen_meta(str(tmp_path), n_jobs=1, grouping="plain").reports["a.tar"].num_samples == 3
    os.truncate(tmp_path / "a.tar", 6 * 512)
    assert "cut short" in gen_meta(str(tmp_path), n_jobs=1).failures["a.tar"]
    assert gen_meta(str(tmp_path), n_jobs=1, require_end=False).reports["a.tar"].num_samples == 1


def test_a_flood_of_extensions_stays_small(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", [*pairs(50), *((f"{n:06d}.e{n:04d}", b"") for n in range(1000))])
    make_tar(tmp_path / "b.tar", [(f"{n:06d}.e{n:04d}", b"") for n in range(990, 2000)])
    gen_meta(str(tmp_path), n_jobs=1)
    counts = read_stats(str(tmp_path))["extensions"]
    assert len(counts) <= 65
    assert list(counts.items())[:2] == [(".cls", 50), (".txt", 50)]
    assert counts["(others)"] == max(counts.values())
    assert sum(counts.values()) == 100 + 1000 + 1010


def test_a_damaged_index_is_a_failure_that_says_what_to_do(tmp_path: Path) -> None:
    (tar,) = make_dataset(tmp_path, [3])
    gen_meta(str(tmp_path), n_jobs=1)
    index = Path(index_path(tar))
    data = index.read_bytes()
    index.write_bytes(data.replace(b'"skipped":"{}"', b'"skipped":"[]"'))
    assert "Delete it" in gen_meta(str(tmp_path), n_jobs=1).failures["shard-000000.tar"]


def test_no_tars(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \.tar files in it"):
        gen_meta(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no such folder"):
        list_tars(str(tmp_path / "gone"))


def test_the_steps_of_a_flow(tmp_path: Path) -> None:
    make_dataset(tmp_path / "a", [3, 2, 1])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    gen_meta(str(tmp_path / "a"), n_jobs=1)
    root = str(tmp_path / "b")
    reports: list[TarReport] = [gen_meta_one(tar, root) for tar in reversed(list_tars(root))]
    assert save_meta(root, reports) == f"{root}/meta.json"
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")
    assert save_meta(str(tmp_path / "none"), []) and read_meta(str(tmp_path / "none")) == {}


# -- the command


def test_the_command(tmp_path: Path) -> None:
    make_dataset(tmp_path, [3, 2])
    make_tar(tmp_path / "z.tar", [("evil\x1b[2J\n", b""), *pairs(1)])
    done = run(str(tmp_path), "--n_jobs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "3, 0 of them failed" in done.stdout
    assert "3 built, 0 were there" in done.stdout
    assert r"z.tar: 'evil\x1b[2J\n'" in done.stdout
    assert "\x1b" not in done.stdout
    assert json.loads((tmp_path / "meta.json").read_text()).keys() == {
        "shard-000000.tar", "shard-000001.tar", "z.tar",
    }  # fmt: skip
    assert "0 built, 3 were there" in run(str(tmp_path), "--n_jobs", "0").stdout


def test_the_command_fails_for_a_bad_tar(tmp_path: Path) -> None:
    make_dataset(tmp_path, [3] * 30)
    for number in range(25):
        os.truncate(tmp_path / f"shard-{number:06d}.tar", 700)
    done = run(str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.count("the file ends there") == 20
    assert "... and 5 more" in done.stdout
    assert "meta.json: not written" in done.stdout
    assert done.stderr.startswith("gen_meta: 25 of 30 tars failed, so meta.json was not written. Repair")
    assert not (tmp_path / "meta.json").exists()
    (tmp_path / "meta.json").write_text("{}")
    done = run(str(tmp_path))
    assert "meta.json: left as it was" in done.stdout
    assert done.stderr.startswith("gen_meta: 25 of 30 tars failed, so meta.json was left as it was. Repair")
    assert (tmp_path / "meta.json").read_text() == "{}"
    assert (tmp_path / "shard-000029.tar.index").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "examples:\n  gen_meta /data/photos"),
        ([], 2, "DIR"),
        ([".", "--n_jobs", "-1"], 2, "-1 is negative"),
        ([".", "--n_jobs", "many"], 2, "'many' is no whole number"),
        ([".", "--grouping", "clever"], 2, "clever"),
        (["/nonexistent/x"], 1, "gen_meta: /nonexistent/x: there is no such folder"),
        ([__file__], 1, f"gen_meta: {__file__}: a file; give the folder"),
        (["nonsense://x"], 1, "gen_meta: nonsense://x: no way to open"),
        (["a::b"], 1, "gen_meta: 'a::b' is an fsspec chain"),
    ],
)
def test_arguments(arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = main(arguments)
    except SystemExit as error:
        found = int(str(error.code))
    shown = capsys.readouterr()
    assert found == status
    assert said in shown.out + shown.err
    assert "Traceback" not in shown.err


def test_ctrl_c_and_going_on(tmp_path: Path) -> None:
    first = make_tar(tmp_path / "shard-000000.tar", pairs(20))
    for number in range(1, 500):
        os.link(first, tmp_path / f"shard-{number:06d}.tar")
    with subprocess.Popen(
        [sys.executable, "-m", "loader.gen_meta", str(tmp_path)],
        cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        while len(list(tmp_path.glob("*.index"))) < 20:
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == "gen_meta: interrupted; what is finished stays, run it again to go on\n"
    assert out == ""
    left = [path.name for path in tmp_path.iterdir() if path.suffix not in (".tar", ".index")]
    assert left == []
    kept = len(list(tmp_path.glob("*.index")))
    assert 20 <= kept < 500
    outcome = gen_meta(str(tmp_path), n_jobs=1)
    assert sum(report.index == "fresh" for report in outcome.reports.values()) == kept
    assert len(read_meta(str(tmp_path))) == 500


def test_what_a_killed_run_left_is_removed_an_hour_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_dataset(tmp_path, [1])
    old, young = tmp_path / ".a.tar.index.0123abcd.part", tmp_path / ".b.tar.index.0123abcd.part"
    for path in (old, young):
        path.touch()
    os.utime(old, (time.time() - 2 * module._ABANDONED,) * 2)
    assert main([str(tmp_path), "--n_jobs", "1"]) == 0
    assert not old.exists()
    assert young.exists()
    assert capsys.readouterr().err == ""
