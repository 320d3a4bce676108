"""Samples as files: their bytes, and nothing outside of the folder, whatever archives and folders hold."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import fsspec
import pytest
from pictures import pairs, write_dataset
from s3_server import Place
from tars import make_tar, snapshot

from loader.errors import BadAddress, BadTar, CorruptMember
from loader.extract import extract, main
from loader.gen_meta import gen_meta
from loader.index import Entries, index_path, pack_entries
from loader.indexing import scan
from loader.sample import group


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_by_number_and_by_key(tmp_path: Path, out: Path) -> None:
    samples = pairs(7)
    root = write_dataset(tmp_path / "ds", samples, per_shard=3)
    for path in (f"{root}#4", f"{root}#000000004", f"{root}/shard-000001.tar#1", f"{root}/meta.json#-3"):
        written = extract(path, str(out))
        assert list(written) == [str(out / "000000004.json"), str(out / "000000004-0.jpg")]
        assert (out / "000000004-0.jpg").read_bytes() == samples[4][".jpg"][0]
        assert snapshot(out).keys() == {"000000004.json", "000000004-0.jpg"}
        shutil.rmtree(out)
    for path in (f"{root}#7", f"{root}#none", f"{root}/shard-000000.tar#3"):
        with pytest.raises(BadAddress, match="there is no"):
            extract(path, str(out))
    with pytest.raises(BadAddress, match="names no sample"):
        extract(root, str(out))
    assert not out.exists()


def test_folders_in_names_are_made(tmp_path: Path, out: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", [("/a/b/one.txt", b"1"), ("./a/b/one.x.bin", b"2")])
    extract(f"{tar}#a/b/one", str(out))
    assert snapshot(out) == {"a/b/one.txt": b"1", "a/b/one.x.bin": b"2"}
    assert not Path(index_path(tar)).exists()  # reading a tar writes nothing beside it


HOSTILE = ["../evil.txt", "a/../../evil.txt", "/../evil.txt", "a/..//evil.txt"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_lead_out(tmp_path: Path, out: Path, name: str) -> None:
    tar = make_tar(tmp_path / "x.tar", [(name, b"evil")])
    with pytest.raises(BadTar):
        extract(f"{tar}#0", str(out))
    assert not (tmp_path / "evil.txt").exists() and not out.exists()


@pytest.mark.parametrize(
    "name", [*HOSTILE, "/etc/evil.txt", "a//evil.txt", "s3://bucket/evil.txt", "nul\0.txt"]
)
def test_an_index_that_lies_about_names(tmp_path: Path, out: Path, name: str) -> None:
    tar = Path(make_tar(tmp_path / "x.tar", [("a.txt", b"evil")]))
    entries: Entries = scan(tar.read_bytes(), str(tar))
    groups = group(["a.txt"])
    groups.names[0] = name
    Path(index_path(str(tar))).write_bytes(pack_entries(entries, groups))
    if name == "/etc/evil.txt":  # as every reader sees it
        extract(f"{tar}#0", str(out))
        assert snapshot(out) == {"etc/evil.txt": b"evil"}
        return
    with pytest.raises(BadAddress):
        extract(f"{tar}#0", str(out))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tar", "x.tar.index"]


def test_links_in_the_folder_are_not_followed(tmp_path: Path, out: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(b"mine")
    out.mkdir()
    (out / "dir").symlink_to(elsewhere)
    (out / "b.txt").symlink_to(elsewhere / "file")
    tar = make_tar(tmp_path / "x.tar", [("dir/a.txt", b"1"), ("b.txt", b"2"), ("here/c.txt", b"3")])
    with pytest.raises(BadAddress, match="outside of"):
        extract(f"{tar}#dir/a", str(out))
    extract(f"{tar}#b", str(out))  # the link itself is replaced
    assert not (out / "b.txt").is_symlink() and (out / "b.txt").read_bytes() == b"2"
    (out / "here").symlink_to(out)  # which stays inside
    extract(f"{tar}#here/c", str(out))
    assert (out / "c.txt").read_bytes() == b"3"
    assert snapshot(elsewhere) == {"file": b"mine"}
    linked = tmp_path / "linked"
    linked.symlink_to(elsewhere)  # the folder itself may be one: it was asked for
    extract(f"{tar}#b", str(linked))
    assert (elsewhere / "b.txt").read_bytes() == b"2"


def test_a_folder_is_not_replaced(tmp_path: Path, out: Path) -> None:
    (out / "a.txt").mkdir(parents=True)
    tar = make_tar(tmp_path / "x.tar", [("a.txt", b"1")])
    with pytest.raises(BadAddress, match="would replace the folder"):
        extract(f"{tar}#0", str(out))


def test_all_names_are_looked_at_before_anything_is_written(tmp_path: Path, out: Path) -> None:
    (out / "a.x").mkdir(parents=True)
    tar = make_tar(tmp_path / "x.tar", [("a.txt", b"1"), ("a.x", b"2")])
    with pytest.raises(BadAddress):
        extract(f"{tar}#0", str(out))
    assert not (out / "a.txt").exists()


def test_bytes_that_have_changed(tmp_path: Path, out: Path) -> None:
    tar = Path(make_tar(tmp_path / "ds" / "x.tar", [("a.txt", b"12345")]))
    gen_meta(str(tar.parent), n_jobs=1)
    tar.write_bytes(tar.read_bytes().replace(b"12345", b"12346"))
    with pytest.raises(CorruptMember, match=r"'a\.txt' has changed"):
        extract(f"{tar}#0", str(out))
    assert not out.exists()


def test_names_that_are_no_utf8(tmp_path: Path, out: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", [("caf\udce9.txt", b"1")], errors="surrogateescape")
    extract(f"{tar}#0", str(out))
    assert os.listdir(os.fsencode(out)) == [b"caf\xe9.txt"]


def test_from_and_to_a_bucket(tmp_path: Path, s3: Place) -> None:
    tar = Path(make_tar(tmp_path / "x.tar", [("d/a.txt", b"1")]))
    with fsspec.open(f"{s3.root}/x.tar", "wb", **s3.storage_options) as file:
        file.write(tar.read_bytes())
    extract(f"{s3.root}/x.tar#0", f"{s3.root}/out", s3.storage_options, s3.storage_options)
    with fsspec.open(f"{s3.root}/out/d/a.txt", "rb", **s3.storage_options) as file:
        assert file.read() == b"1"
    extract(f"{tar}#0", "memory://extracted")
    with fsspec.open("memory://extracted/d/a.txt", "rb") as file:
        assert file.read() == b"1"


def test_the_command(tmp_path: Path, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tar = make_tar(tmp_path / "x.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    assert main([f"{tar}#0", f"{tar}#9", f"{tar}#b"], str(out)) == 1
    shown = capfd.readouterr()
    assert snapshot(out) == {"a.txt": b"1", "b.txt": b"2"}
    assert f"{out}/a.txt  1 bytes" in shown.out and "there is no sample 9" in shown.err
