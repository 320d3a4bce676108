from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.source import plan_slots, rows

LINES = "".join(f'{{"text": "line {n}"}}\n' for n in range(50)).encode()
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def job(file: Path) -> PackConfig:
    return PackConfig(str(file), str(file.parent / "out"), max_samples=20)


@pytest.mark.parametrize("ending", COMPRESS)
def test_any_compression_in_one_piece_or_two(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"a.jsonl{ending}"
    for data in (COMPRESS[ending](LINES), COMPRESS[ending](LINES[:70]) + COMPRESS[ending](LINES[70:])):
        file.write_bytes(data)
        slots = plan_slots(job(file))
        found = [row for slot in slots for row in rows(slot, job(file))]
        assert [row.record for row in found] == [{"text": f"line {n}"} for n in range(50)]
        assert {row.source for row in found} == {str(file)}
        assert {row.base for row in found} == {str(tmp_path)}
        assert [row.row for row in found] == list(range(1, 51))


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar.zst"])
def test_a_compressed_tar(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(__file__, "x.txt")
    compress = zstandard.compress if name.endswith("zst") else gzip.compress
    (tmp_path / name).write_bytes(compress((tmp_path / "a.tar").read_bytes()))
    (slot,) = plan_slots(job(tmp_path / name))
    (row,) = rows(slot, job(tmp_path / name))
    assert (row.key, row.members) == ("x", ((".txt", Path(__file__).read_bytes()),))


@pytest.mark.parametrize("ending", COMPRESS)
def test_what_is_cut_short_or_something_else(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"a.jsonl{ending}"
    for data in (COMPRESS[ending](LINES)[:-9], b"not compressed at all, whatever its name says"):
        file.write_bytes(data)
        with pytest.raises(BadConfig, match=r"cannot be unpacked \(\w+\): .*: repair it"):
            plan_slots(job(file))
    assert not list((tmp_path / "out").rglob("*.unpacked"))


def test_a_source_that_changes_is_unpacked_again(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(LINES))
    assert sum(slot.rows for slot in plan_slots(job(file))) == 50
    file.write_bytes(gzip.compress(LINES * 2))
    assert sum(slot.rows for slot in plan_slots(job(file))) == 100
