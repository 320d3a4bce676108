"""Every kind of damage to one tar and to what stands beside it is told, and nothing else is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pictures import encoded, photo
from tars import adler32, make_tar, pairs, snapshot

from loader.gen_meta import gen_meta
from loader.index import index_path
from loader.indexed_tar import IndexedTar
from loader.meta import ShardMeta
from loader.verify_tar import How, Tar, verify_tar


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    """An indexed tar of five samples."""
    made = make_tar(tmp_path / "ds" / "x.tar", [(n, b"7") for n, _ in pairs(5)])
    gen_meta(str(tmp_path / "ds"), n_jobs=1)
    return Path(made)


def told(tar: Path, expected: ShardMeta | None = None, **options: object) -> list[tuple[str, str]]:
    """(part, reason) of each problem."""
    how = How(str(tar.parent), **options)  # type: ignore[arg-type]
    return [(problem.part, problem.reason) for problem in verify_tar(Tar(str(tar), expected), how).problems]


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


def test_nothing_is_wrong(tar: Path) -> None:
    found = verify_tar(
        Tar(str(tar), ShardMeta(5, tar.stat().st_size, adler32(tar))), How(str(tar.parent), True)
    )
    assert found.problems == ()
    assert found.report is not None and found.report.num_samples == 5
    assert found.path == "x.tar"


def test_an_index_that_knows_no_checksums_is_as_good(tar: Path) -> None:
    Path(index_path(str(tar))).unlink()
    IndexedTar(str(tar)).close()
    assert told(tar) == []


def test_an_index_of_either_grouping_is_as_good(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "k.tar", [("k.json", b"{}"), ("k-0.jpg", encoded(photo(8, 8)))])
    for grouping in ("plain", "numbered"):
        IndexedTar(tar, grouping=grouping).close()
        assert told(Path(tar)) == []


@pytest.mark.parametrize(
    ("damage", "part", "reason"),
    [
        (lambda tar: flip(tar, 512), "index", "the bytes of '000000.txt' have changed"),
        (lambda tar: flip(tar, 100), "tar", "checksum"),
        (lambda tar: tar.write_bytes(tar.read_bytes()[:9 * 1024]), "tar", "end"),
        (lambda tar: tar.write_bytes(b""), "tar", "zero bytes"),
        (lambda tar: tar.unlink(), "tar", "No such file"),
        (lambda tar: flip(Path(index_path(str(tar))), -1), "index", "changed since it was written"),
        (lambda tar: Path(index_path(str(tar))).write_bytes(b"\x80\x04."), "index", "a pickle"),
        (lambda tar: Path(index_path(str(tar))).write_bytes(b""), "index", "no index of ours"),
        (lambda tar: Path(index_path(str(tar))).unlink(), "index", "there is none"),
        (lambda tar: make_tar(tar, pairs(7)), "index", "stale: it says"),
    ],
)  # fmt: skip
def test_each_damage_is_told(tar: Path, damage, part: str, reason: str) -> None:  # type: ignore[no-untyped-def]
    damage(tar)
    (found,) = told(tar)
    assert found[0] == part
    assert reason in found[1]


def test_every_byte_of_the_payloads_counts(tar: Path) -> None:
    whole = tar.read_bytes()
    for member in range(10):
        tar.write_bytes(whole)
        flip(tar, member * 1024 + 512)
        assert [part for part, _ in told(tar)] == ["index"]


def test_a_repair_makes_the_index_and_touches_no_tar(tar: Path) -> None:
    good, index = snapshot(tar.parent), Path(index_path(str(tar)))
    for damage in (index.unlink, lambda: index.write_bytes(b"\x80\x04."), lambda: flip(index, -1)):
        damage()
        assert [part for part, _ in told(tar, repair=True)] == ["index"]
        assert snapshot(tar.parent) == good


def test_an_index_of_a_later_version_is_told_and_left(tar: Path) -> None:
    index = Path(index_path(str(tar)))
    index.write_bytes(index.read_bytes().replace(b'"version":"1"', b'"version":"9"'))
    before = index.read_bytes()
    (problem,) = verify_tar(Tar(str(tar)), How(str(tar.parent), repair=True)).problems
    assert "version '9'" in problem.reason and not problem.repaired
    assert index.read_bytes() == before


def test_what_meta_says_is_compared(tar: Path) -> None:
    assert [reason for _, reason in told(tar, ShardMeta(4, tar.stat().st_size + 1, 1))] == [
        "meta.json says num_samples 4, the tar has 5",
        f"meta.json says size {tar.stat().st_size + 1}, the tar has {tar.stat().st_size}",
        f"meta.json says checksum 1, the tar has {adler32(tar)}",
    ]


def test_deep_decodes_every_member(tmp_path: Path) -> None:
    whole = encoded(photo(64, 64))
    members = [
        ("a.jpg", whole[:-900] + whole[-2:]),  # its end is there, pixels are missing
        ("a.json", b"{"),
        ("b.png", encoded(photo(8, 8), "PNG")),
        ("b.pkl", b"cos\nsystem\n(S'false'\ntR."),  # never opened
        ("b.xyz", b"\xff\xfe"),  # nobody knows how
        ("b.txt", b"\xff\xfe"),
    ]
    tar = Path(make_tar(tmp_path / "ds" / "x.tar", members))
    gen_meta(str(tar.parent), n_jobs=1)
    assert told(tar) == []
    assert [(part, reason.partition(":")[0]) for part, reason in told(tar, deep=True)] == [
        ("member", "'a.jpg'"), ("member", "'a.json'"), ("member", "'b.txt'"),
    ]  # fmt: skip


def test_of_many_bad_members_the_rest_is_counted(tmp_path: Path) -> None:
    tar = Path(make_tar(tmp_path / "ds" / "x.tar", [(f"{n:03d}.json", b"{") for n in range(130)]))
    gen_meta(str(tar.parent), n_jobs=1)
    problems = told(tar, deep=True)
    assert len(problems) == 101
    assert problems[-1][1].startswith("and 30 more members")


def test_tars_without_an_end_are_as_good_as_they_are_said_to_be(tar: Path) -> None:
    data = tar.read_bytes().rstrip(b"\0")
    tar.write_bytes(data + bytes(-len(data) % 512))
    assert [part for part, _ in told(tar)] == ["tar"]
    shutil.rmtree(tar.parent / "x", ignore_errors=True)
    assert [part for part, _ in told(tar, require_end=False)] == ["index"]  # of the tar as it was
