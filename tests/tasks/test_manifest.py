from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks import manifest
from tasks.manifest import BadRow, Manifest, PackedShard

ONE = Manifest(
    slot=3,
    inputs="ab",
    rows=5,
    shards=(
        PackedShard("shard-000003.tar", 3, 10240, 7, {".jpg": 2, ".json": 3}),
        PackedShard("shard-000003_001.tar", 1, 10240, 8, {".json": 1}),
    ),
    bad=(BadRow(30_000, "/d/ä.jsonl", 1, "000030000", "read", "half \ud83d"),),
)


def test_there_and_back(tmp_path: Path) -> None:
    manifest.store(ONE, str(tmp_path))
    assert manifest.load(str(tmp_path), 3) == ONE
    assert manifest.load(str(tmp_path), 4) is None
    assert manifest.slots(str(tmp_path)) == [3]
    assert manifest.slots(str(tmp_path / "gone")) == []
    assert str(ONE.bad[0]).startswith("/d/ä.jsonl, row 1 (read): half")


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"slot": 4}, {"rows": 6}, {"rows": "5"}, {"shards": None}, {"shards": [{}]}, {"bad": [3]},
     {"more": 1}, {"inputs": ...}],
)  # fmt: skip
def test_one_that_does_not_fit_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    manifest.store(ONE, str(tmp_path))
    file = Path(manifest.address(str(tmp_path), 3))
    value = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({key: item for key, item in value.items() if item is not ...}))
    assert manifest.load(str(tmp_path), 3) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"version":1}'])
def test_a_damaged_one_is_none(tmp_path: Path, data: bytes) -> None:
    file = Path(manifest.address(str(tmp_path), 3))
    file.parent.mkdir()
    file.write_bytes(data)
    assert manifest.load(str(tmp_path), 3) is None
