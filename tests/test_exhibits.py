"""Files that once broke a reader, or were made to: each gives one clear error, or what it truly holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import check_index, check_tar

EXHIBITS = Path(__file__).parent / "exhibits"


def exhibits(kind: str) -> list[Path]:
    return sorted((EXHIBITS / kind).iterdir())


@pytest.mark.parametrize("path", exhibits("tar"), ids=lambda path: path.name)
def test_tars(path: Path) -> None:
    data = path.read_bytes()
    for require_end in (True, False):
        check_tar(data, require_end)


@pytest.mark.parametrize("path", exhibits("index"), ids=lambda path: path.name)
def test_indexes(path: Path) -> None:
    check_index(path.read_bytes(), bytes(64 << 10))
