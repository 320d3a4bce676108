"""From a tar to its index: built, published, fresh or stale, on every kind of place."""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import tarmaker
from hypothesis import given, settings
from hypothesis import strategies as st
from places import in_mounts, read_only
from strategies import tar_members
from tarmaker import END, header, member, padded

from loader import indexing, storage
from loader.errors import BadIndex, BadTar, ShardflowError, StaleIndex, TruncatedTar, UnknownIndexVersion
from loader.index import Index, index_path, load_index
from loader.indexing import build, check_fresh, ensure_index, find_fresh, obtain_index, scan, tar_buffer
from loader.tar import TarMap

TAR = member(b"a.jpg", b"a" * 700) + member(b"a.txt", b"text") + member(b"b.jpg", b"b") + END
OTHER = member(b"a.jpg", b"a" * 700) + member(b"a.txt", b"TEXT") + member(b"c.jpg", b"c") + END


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path)
        return
    yield f"memory://{tmp_path.name}"
    if storage.exists(f"memory://{tmp_path.name}"):
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


@pytest.fixture
def tar(root: str) -> str:
    address = storage.join(root, "x.tar")
    storage.write_bytes(address, TAR)
    return address


def outcome(address: str, **options: Any) -> str:
    return obtain_index(address, **options)[1]


# -- scanning


@given(tar_members(unique=False), st.sampled_from(("gnu", "pax", "ustar")), st.sampled_from((0, 1.5)))
@settings(deadline=None, max_examples=80)
def test_checksums_of_all_and_of_each(content: list[tuple[str, bytes]], form: str, mtime: float) -> None:
    if form == "ustar":
        content = [
            (name, data) for name, data in content if len(name.encode("utf-8", "surrogateescape")) < 100
        ]
    data = tarmaker.by_tarfile(content, form, mtime)
    entries = scan(data, "x.tar")
    assert entries.checksum == zlib.adler32(data) and entries.tar_size == len(data)
    assert entries.crcs == [zlib.crc32(payload) for _, payload in content]
    assert [os.fsdecode(name) for name in entries.names] == [name for name, _ in content]
    assert entries.first_header == data[:512]
    assert entries.last_header == data[entries.last_header_at :][:512]
    assert not content or entries.last_header_at + 512 == entries.offsets[-1]
    without = scan(data, "x.tar", checksum=False)
    assert (without.crcs, without.checksum, without.offsets) == (None, None, entries.offsets)


def test_checksum_covers_what_comes_after_the_end() -> None:
    data = TAR + b"rest" * 5_000_000
    entries = scan(data, "x.tar")
    assert entries.checksum == zlib.adler32(data)
    assert entries.trailing == 20_000_000


def test_scan_lets_go_of_the_map(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.tar", tmp_path / "bad.tar"
    good.write_bytes(TAR)
    bad.write_bytes(TAR[:1800])
    errors = []
    for path in (good, bad):
        with open(path, "rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            build(buffer, "x.tar")
        except TruncatedTar as error:
            errors.append(error)  # and with it, all that its traceback holds
        buffer.close()  # BufferError if anything still held a view
    assert len(errors) == 1


def test_names_that_lead_outside_are_refused_with_their_place() -> None:
    with pytest.raises(BadTar, match=r"x\.tar: at byte 1024 .*'\.\.'.*repack"):
        build(member(b"a.jpg", b"a") + member(b"../b.jpg", b"b") + END, "x.tar")


def test_numbered_grouping_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadTar, match="numbered grouping was asked for"):
        build(member(b"a-1.jpg", b"a") + END, "x.tar", grouping="numbered")
    with pytest.raises(BadTar, match="auto, numbered, plain"):
        build(TAR, "x.tar", grouping="some")


# -- fresh, stale, missing


class Untouched(TarMap):
    """A map whose pages nobody may touch."""

    def __getitem__(self, part: Any) -> Any:
        raise AssertionError(f"touched: {part}")


def test_a_fresh_index_is_told_without_a_touch_of_the_map(tmp_path: Path) -> None:
    """A cold page would bring all that the disk reads ahead along: megabytes a shard, before its first sample."""
    tar = str(tmp_path / "x.tar")
    storage.write_bytes(tar, TAR)
    ensure_index(tar)
    with open(tar, "rb") as file:
        buffer = Untouched(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer.file = file.fileno()
        index, why = find_fresh(tar, buffer=buffer)
        assert index is not None and why == "fresh"
        check_fresh(index, tar, buffer=buffer)


def test_built_once_then_fresh(tar: str) -> None:
    assert find_fresh(tar) == (None, "missing")
    index, built = ensure_index(tar)
    assert built and index.num_samples == 2 and index.checksum == zlib.adler32(TAR)
    before = storage.read_bytes(index_path(tar))
    assert outcome(tar) == "fresh"
    assert storage.read_bytes(index_path(tar)) == before == build(TAR, tar)


def test_no_tar(root: str) -> None:
    for call in (find_fresh, ensure_index):
        with pytest.raises(FileNotFoundError):
            call(storage.join(root, "none.tar"))
    assert storage.list_files(root) == []


@pytest.mark.parametrize(
    "data",
    [
        TAR + bytes(512),
        TAR[:-512],
        OTHER,  # the same size, and another last header
        member(b"A.jpg", b"a" * 700) + TAR[1536:],  # another first header
        END,
        TAR[:-1024] + member(b"d.jpg", b"d") + END,
    ],
)
def test_a_rewritten_tar_is_indexed_again(tar: str, data: bytes) -> None:
    ensure_index(tar)
    storage.write_bytes(tar, data)
    index, reason = find_fresh(tar)
    assert index is None and ("made for" in reason or "another one" in reason)
    assert outcome(tar) == "built"
    assert storage.read_bytes(index_path(tar)) == build(data, tar)
    assert outcome(tar) == "fresh"


def test_a_tar_that_becomes_none(tar: str) -> None:
    ensure_index(tar)
    for data, error in ((b"", TruncatedTar), (b"x", TruncatedTar), (b"no tar".ljust(len(TAR)), BadTar)):
        storage.write_bytes(tar, data)
        with pytest.raises(error):
            ensure_index(tar)


def test_clocks_do_not_matter(tmp_path: Path) -> None:
    tar = str(tmp_path / "x.tar")
    Path(tar).write_bytes(TAR)
    ensure_index(tar)
    os.utime(index_path(tar), (1, 1))  # older than its tar
    assert outcome(tar) == "fresh"
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("x.tar", "x.tar.index"):
        shutil.copyfile(tmp_path / name, copy / name)
        os.utime(copy / name, (time.time() + 1e6,) * 2)
    assert outcome(str(copy / "x.tar")) == "fresh"
    moved = shutil.move(copy, tmp_path / "moved")
    assert outcome(f"{moved}/x.tar") == "fresh"
    # A rewritten tar may keep its time and its size.
    times = os.stat(tar)
    Path(tar).write_bytes(OTHER)
    os.utime(tar, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert outcome(tar) == "built"


def test_a_tar_of_no_samples(root: str) -> None:
    for blocks in (1, 2, 20):
        address = storage.join(root, f"{blocks}.tar")
        storage.write_bytes(address, bytes(512 * blocks))
        index, _ = ensure_index(address)
        assert index.num_samples == 0 and outcome(address) == "fresh"


@pytest.mark.parametrize(
    "left",
    [
        pickle.dumps({"offsets": list(range(1000))}),
        pickle.dumps([1], 0),
        b"",
        b"[1, 2]",
        build(TAR, "x")[:-9],
        build(TAR, "x")[:40],
        build(END, "x"),
    ],
)
def test_what_is_no_index_is_replaced(tar: str, left: bytes) -> None:
    storage.write_bytes(index_path(tar), left)
    assert find_fresh(tar)[0] is None
    assert outcome(tar) == "built"
    assert storage.read_bytes(index_path(tar)) == build(TAR, tar)


def test_a_later_version_is_refused_and_kept(tar: str) -> None:
    later = build(TAR, tar).replace(b'"version":"1"', b'"version":"2"')
    storage.write_bytes(index_path(tar), later)
    for call in (find_fresh, ensure_index):
        with pytest.raises(UnknownIndexVersion, match=r"version '2'.*upgrade"):
            call(tar)
    assert storage.read_bytes(index_path(tar)) == later


def test_an_index_that_claims_a_last_header_outside(tar: str) -> None:
    good = build(TAR, tar)
    at = good.index(b'"last_header_at":"') + len(b'"last_header_at":"')
    end = good.index(b'"', at)
    storage.write_bytes(index_path(tar), good[:at] + b"9" * (end - at) + good[end:])
    assert "last header" in find_fresh(tar)[1]
    assert outcome(tar) == "built"


def test_checksums_are_added_when_asked_for(tar: str) -> None:
    index, _ = ensure_index(tar, checksum=False)
    assert index.checksum is None and index.crc32 is None
    assert outcome(tar, checksum=False) == "fresh"
    assert outcome(tar) == "built"
    assert outcome(tar) == outcome(tar, checksum=False) == "fresh"
    assert find_fresh(tar)[0].checksum is not None  # type: ignore[union-attr]


def test_another_grouping_builds_anew_and_stays(root: str) -> None:
    address = storage.join(root, "x.tar")
    storage.write_bytes(address, member(b"k.json", b"") + member(b"k-0.jpg", b"") + END)
    assert [ensure_index(address)[0].num_samples, outcome(address, grouping="numbered")] == [1, "fresh"]
    assert [ensure_index(address, grouping="plain")[0].num_samples, outcome(address)] == [2, "fresh"]
    assert outcome(address, grouping="numbered") == "built"


def test_a_tar_without_end_blocks(tar: str) -> None:
    storage.write_bytes(tar, TAR[:-1024])
    with pytest.raises(TruncatedTar, match="require_end=False"):
        ensure_index(tar)
    assert not storage.exists(index_path(tar))
    index, _ = ensure_index(tar, require_end=False)
    assert index.num_samples == 2


def test_a_buffer_at_hand_is_used(tar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "tar_buffer", None)
    monkeypatch.setattr(indexing, "build_remote", None)
    assert outcome(tar, buffer=TAR) == "built"
    look_up = storage.stat

    def stat(address: str, *more: Any) -> storage.Stat:
        assert address != tar
        return look_up(address, *more)

    monkeypatch.setattr(storage, "stat", stat)
    assert outcome(tar, buffer=TAR) == "fresh"
    assert outcome(tar, buffer=OTHER) == "built"


def test_tar_buffer(tar: str, root: str) -> None:
    with tar_buffer(tar) as buffer:
        assert buffer[:] == TAR
    storage.write_bytes(storage.join(root, "empty.tar"), b"")
    with (
        pytest.raises(TruncatedTar, match=r"empty\.tar: a file of zero bytes"),
        tar_buffer(storage.join(root, "empty.tar")),
    ):
        pass


def test_a_tar_that_shrinks_while_it_is_looked_at(tar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index, _ = ensure_index(tar)
    storage.write_bytes(tar, TAR[:700])
    monkeypatch.setattr(storage, "stat", lambda *_: storage.Stat(len(TAR), ""))
    with pytest.raises(StaleIndex, match="shorter"):
        check_fresh(index, tar)


# -- elsewhere, and read-only


def test_index_root(tar: str, tmp_path: Path) -> None:
    kept = tmp_path / "indexes"
    index, built = ensure_index(tar, index_root=str(kept))
    assert built and index.where == index_path(tar, str(kept)) and os.path.exists(index.where)
    assert not storage.exists(index_path(tar))
    assert outcome(tar, index_root=str(kept)) == "fresh"
    storage.write_bytes(tar, OTHER)
    assert outcome(tar, index_root=str(kept)) == "built"


READ_ONLY = """
import logging, sys
from loader.errors import StaleIndex
from loader.indexing import ensure_index, obtain_index
from loader.indexed_tar_samples import IndexedTarSamples
logging.basicConfig(format="%(message)s", stream=sys.stdout)
folder, elsewhere = sys.argv[1:]
for name in ("fresh", "unsummed", "missing", "stale", "foreign"):
    try:
        index, state = obtain_index(f"{folder}/{name}.tar", checksum=True)
        print(name, state, index.num_samples, index.checksum is not None)
    except StaleIndex as error:
        print(name, error)
ensure_index(f"{folder}/missing.tar")
with IndexedTarSamples(f"{folder}/missing.tar", decode=False) as samples:
    print(len(samples), samples[1][".jpg"])
for name in ("missing", "stale"):
    print(obtain_index(f"{folder}/{name}.tar", index_root=elsewhere)[1])
    print(obtain_index(f"{folder}/{name}.tar", index_root=elsewhere)[1])
"""


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("fresh", "unsummed", "missing", "stale", "foreign"):
        (folder / f"{name}.tar").write_bytes(TAR)
    ensure_index(str(folder / "fresh.tar"))
    ensure_index(str(folder / "unsummed.tar"), checksum=False)
    (folder / "stale.tar.index").write_bytes(build(OTHER, "x"))
    (folder / "foreign.tar.index").write_bytes(pickle.dumps([1] * 1000))
    lines = in_mounts(read_only(folder), READ_ONLY, folder, tmp_path / "elsewhere").splitlines()
    assert lines[:3] == ["fresh fresh 2 True", "unsummed unsaved 2 True", "missing unsaved 2 True"]
    assert "last header" in lines[3] and "read-only" in lines[3] and "index_root" in lines[3]
    assert "pickle" in lines[4] and "read-only" in lines[4] and "index_root" in lines[4]
    assert "built for this process alone" in lines[5] and "index_root" in lines[5]
    assert lines[-5:] == ["2 b'b'", "built", "fresh", "built", "fresh"]
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".index") == [
        "foreign.tar.index", "fresh.tar.index", "stale.tar.index", "unsummed.tar.index",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "error", [PermissionError("no"), OSError(30, "Read-only file system"), PermissionError(13, "no")]
)
def test_a_place_that_refuses(
    tar: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: OSError
) -> None:
    # As above, where mounts can't be had, and for stores that say it in their own way.
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(storage, "write_bytes", refuse)
    with caplog.at_level(logging.WARNING):
        index, built = ensure_index(tar)
    assert built and index.num_samples == 2 and "index_root" in caplog.text
    monkeypatch.undo()
    storage.write_bytes(index_path(tar), build(OTHER, tar))
    monkeypatch.setattr(storage, "write_bytes", refuse)
    with pytest.raises(StaleIndex, match=r"another one.*read-only.*index_root"):
        ensure_index(tar)


def test_other_failures_are_not_hidden(tar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        ensure_index(tar)


def test_two_processes_at_once(tmp_path: Path) -> None:
    tar = str(tmp_path / "x.tar")
    Path(tar).write_bytes(b"".join(member(b"%06d.txt" % n, b"x") for n in range(20_000)) + END)
    code = "import sys; from loader.indexing import ensure_index; print(ensure_index(sys.argv[1])[0].num_samples)"
    root = Path(__file__).parents[2]
    children = [
        subprocess.Popen([sys.executable, "-c", code, tar], stdout=subprocess.PIPE, cwd=root, text=True)
        for _ in range(3)
    ]
    assert [child.communicate()[0].strip() for child in children] == ["20000"] * 3
    assert sorted(os.listdir(tmp_path)) == ["x.tar", "x.tar.index"]
    load_index(index_path(tar)).verify()


# -- large


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_a_member_of_9_gib(tmp_path: Path, form: str) -> None:
    import tarfile

    path = tmp_path / "big.tar"
    with open(path, "wb") as file:
        info = tarfile.TarInfo("big.bin")
        info.size = 9 << 30
        file.write(info.tobuf(tarmaker.FORMATS[form]))
        body = file.tell()
        file.seek(body + info.size)
        file.write(member(b"after.txt", b"after") + END)
    index, _ = ensure_index(str(path), checksum=False)
    assert [index.span(i) for i in range(2)] == [
        (body, body + (9 << 30)),
        (body + (9 << 30) + 512, body + (9 << 30) + 517),
    ]
    assert outcome(str(path), checksum=False) == "fresh"


# -- damage anywhere


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_damaged_pair_gives_an_error_or_what_the_tar_holds(data: st.DataObject) -> None:
    files = {"tar": bytearray(TAR), "index": bytearray(build(TAR, "x"))}
    which = data.draw(st.sampled_from(("tar", "index")))
    place = data.draw(st.integers(0, len(files[which]) - 1))
    files[which][place] ^= data.draw(st.integers(1, 255))
    tar = "memory://damaged/x.tar"
    storage.write_bytes(tar, bytes(files["tar"]))
    storage.write_bytes(index_path(tar), bytes(files["index"]))
    try:
        index, state = obtain_index(tar)
        index.verify()
    except ShardflowError:
        return
    if state == "built":
        assert storage.read_bytes(index_path(tar)) == build(bytes(files["tar"]), tar)
    for number in range(index.num_members):
        start, end = index.span(number)
        assert 0 <= start <= end <= len(files["tar"])


def test_an_index_of_lies_is_still_bounded_by_its_tar() -> None:
    good = build(TAR, "x")
    index = Index(good, "x")
    assert index.span(0) == (512, 1212)
    body = header(b"a.jpg", 700) + padded(b"a" * 700)
    assert TAR.startswith(body)
    with pytest.raises(BadIndex):
        Index(good.replace(b'"tar_size":"', b'"tar_size":"x'), "x")
