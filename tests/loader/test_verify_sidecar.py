"""Sidecars against their tars: what is wrong is told, and what can be made from the tars alone is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pictures import pair, write_dataset
from sidecars import add_sidecars
from tars import snapshot

from loader.errors import BadSidecar
from loader.sidecar import conform, open_sidecar
from loader.verify import verify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three shards with sidecars."""
    made = write_dataset(tmp_path / "ds", [pair(n, metadata={"n": n if n < 20 else 0.5}) for n in range(30)])
    add_sidecars(made)
    verify(made, n_jobs=1, repair=True)  # its statistics
    return Path(made)


def change(column: str, value: object) -> Callable[[Path], None]:
    """One value of a sidecar is another."""

    def damage(root: Path) -> None:
        file = root / "shard-000001.parquet"
        table = pq.read_table(file)
        values = [value, *table[column].to_pylist()[1:]]
        number = table.column_names.index(column)
        import pyarrow as pa

        field = table.schema.field(column)
        pq.write_table(table.set_column(number, field, pa.array(values, field.type)), file)

    return damage


def cut(root: Path) -> None:
    file = root / "shard-000001.parquet"
    file.write_bytes(file.read_bytes()[:-100])


def flip(root: Path) -> None:
    file = root / "shard-000001.parquet"
    data = bytearray(file.read_bytes())
    data[30:60] = bytes(30)
    file.write_bytes(data)


def told(root: Path, **options: bool) -> list[tuple[str, str, bool]]:
    return [
        (problem.path, problem.reason, problem.repaired)
        for problem in verify(str(root), n_jobs=1, **options).problems
    ]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda root: (root / "shard-000001.parquet").unlink(), "there is none, though other tars have one"),
        (lambda root: (root / "shard-000001.parquet").write_bytes(b""), "no readable Parquet"),
        (cut, "no readable Parquet"),
        (flip, ""),
        (
            lambda root: shutil.copy(root / "shard-000000.parquet", root / "shard-000001.parquet"),
            "stale: it is about",
        ),
        (change("width", 99), "row 0: width is 99, the tar says 32"),
        (change("sha256", "0" * 64), "row 0: sha256 is"),
        (change("caption", "other"), "row 0: caption is 'other'"),
        (change("n", 1.5), "row 0: n is 1.5, the tar says 10.0"),
        (
            lambda root: conform(str(root / "shard-000001.tar"), {}),
            "its columns are not those of the whole dataset",
        ),
    ],
)
def test_each_damage_is_told_and_repaired(root: Path, damage: Callable[[Path], None], reason: str) -> None:
    good = snapshot(root)
    damage(root)
    ((path, why, repaired),) = told(root)
    assert path == "shard-000001.parquet" and reason in why and not repaired
    ((path, why, repaired),) = told(root, repair=True)
    assert path == "shard-000001.parquet" and repaired
    assert snapshot(root) == good
    assert told(root) == []


def test_what_the_packer_alone_knew_stays_in_a_repair(root: Path) -> None:
    change("original_path", "/from/here.jpg")(root)
    assert told(root) == []  # no tar says otherwise
    change("width", 99)(root)
    assert [repaired for _, _, repaired in told(root, repair=True)] == [True]
    with open_sidecar(str(root / "shard-000001.tar")) as file:
        row = file.read().to_pylist()[0]
    assert (row["original_path"], row["width"]) == ("/from/here.jpg", 32)


def test_one_that_is_left_behind(root: Path) -> None:
    for name in ("shard-000002.tar", "shard-000002.tar.index"):
        (root / name).unlink()
    assert ("shard-000002.parquet", "left behind: its tar is gone; delete it", False) in told(root)


def test_where_no_tar_has_one_none_is_missed(tmp_path: Path) -> None:
    made = write_dataset(tmp_path / "ds", [pair(n) for n in range(3)])
    verify(made, n_jobs=1, repair=True)
    assert told(Path(made)) == []


def test_one_of_a_later_version_is_told(root: Path) -> None:
    file = root / "shard-000001.parquet"
    table = pq.read_table(file)
    later = {**table.schema.metadata, b"version": b"9"}
    pq.write_table(table.replace_schema_metadata(later), file)
    ((_, why, _),) = told(root)
    assert "version b'9' of the sidecar" in why
    with pytest.raises(BadSidecar):
        conform(str(root / "shard-000001.tar"), {})


def test_many_processes_repair_the_same(root: Path) -> None:
    good = snapshot(root)
    for file in ("shard-000000.parquet", "shard-000002.parquet"):
        (root / file).unlink()
    assert verify(str(root), n_jobs=2, repair=True).ok
    assert snapshot(root) == good
