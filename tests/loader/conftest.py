"""Fixtures of several files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from made_up import packed, with_bad

from loader import storage
from loader.remote import Remote


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    made = Remote(str(tmp_path / "cache"))
    yield made
    made.close()


@pytest.fixture(params=["local", "file://", "memory"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty folder, as `normalise` spells it (but for the one with file://)."""
    if request.param == "memory":
        address = f"memory://{tmp_path.name}"
        yield address
        if storage.exists(address):
            fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)
    else:
        yield str(tmp_path) if request.param == "local" else f"file://{tmp_path}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """30 samples in 4 shards, each of which says its number."""
    return packed(tmp_path_factory.mktemp("packed"), [10, 0, 12, 8])


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """30 samples in 3 shards, of which 3, 14 and 15 hold no JSON."""
    return with_bad(tmp_path_factory.mktemp("broken"), 30, (3, 14, 15))
