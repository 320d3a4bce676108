"""An index of ours is told from what other tools leave, whatever its header's length."""

from __future__ import annotations

import pickle

import pytest

from loader.index import foreign


@pytest.mark.parametrize("length", range(0, 4096, 8))
def test_any_header_length_is_ours(length: int) -> None:
    # 640, 896, 1152 and 1408 begin with the bytes 80 02 to 80 05, like a pickle.
    assert foreign(length.to_bytes(8, "little") + b'{"offset') is None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("content", [[("a.jpg", 512, 3)] * 100, {"a.jpg": 512}, b"{" * 40])
def test_pickles_are_told(protocol: int, content: object) -> None:
    problem = foreign(pickle.dumps(content, protocol)[:16])
    assert problem is not None
    assert ("pickle" in problem) == (protocol >= 2)  # older ones have no mark of their own
