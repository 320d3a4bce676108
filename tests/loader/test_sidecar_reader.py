"""Filters by sidecars come to what filters by tars come to, and read no tar."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import encoded, photo, turned
from sidecars import add_sidecars
from tars import make_tar

from loader import filter_scan, sidecar_reader
from loader.captions import Captions
from loader.errors import BadConfig
from loader.filter_scan import Scan, Shard, scan_shard
from loader.filters import Filters
from loader.gen_meta import gen_meta
from loader.indexed_tar import IndexedTar
from loader.meta import read_meta
from loader.sidecar_columns import MOST

JPEG = [encoded(photo(10 + 7 * n, 40 - 5 * n, n), exif=turned(6 if n % 2 else 1)) for n in range(4)]
DOCUMENTS: list[Any] = [
    {"caption": "a cat", "metadata": {"score": 1, "height": 10, "width": 40, "nested": {"deep": [1, 2]}}},
    {"caption": "a dog", "metadata": {"score": 0.5, "height": [1, 2], "width": [3, 4], "a.b": 7}, "quality": 3},
    {"caption": "LOGO", "caption_all": {"short": "logo", "n": ["cat"]}, "metadata": {"score": True}, "height": 5, "width": 6},
    {"caption": ["several", "cat"], "metadata": "text", "score": "no number"},
    {"metadata": {"score": None, "nested": {"deep": 5}}, "metadata.score": 9},
    {"metadata": {"score": 2**70}, "quality": 2**60, "nested": {"deep": -1}},
    [{"score": 4}], "text", None, b"{", {},
]  # fmt: skip
RULES: list[dict[str, Any]] = [
    {"metadata.score": (0.6, None)}, {"metadata.score": (None, 2**69)}, {"metadata.nested.deep": (1, 3)},
    {"$.quality": (1, None)}, {"metadata.a.b": (None, None)}, {"$.0.score": (1, 5)}, {"metadata.score": (8, 10, 0.5)},
    {"height": (5, 30)}, {"area": (1, 500)}, {"aspect_ratio": (0.9, 3)}, {"images": (1, 1)}, {"images": (0, 1), "width": (20, None)},
    {"keywords": ["cat"]}, {"keywords": {"logo": 0.5, "dog": 1.0}, "images": (0, 2)},
    {"$.nested.deep": (-5, 5)}, {"metadata.score": (0, 5), "height": (1, None)},
]  # fmt: skip


def dataset(folder: Path, documents: list[Any], name: str = "x.tar", columns: Any = None) -> Path:
    members = []
    for number, document in enumerate(documents):
        key = f"{number:04d}"
        if document is not None:
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            members.append((f"{key}.json", data))
        members += [(f"{key}.{n}.jpg", JPEG[(number + n) % 4]) for n in range(number % 3)]
        if number % 5 == 4:
            members.append((f"{key}.png", b"no picture"))
    members = [(n, d) for n, d in members if d] or [("0000.json", b"{}")]
    tar = Path(make_tar(folder / name, members))
    gen_meta(str(folder), n_jobs=1)
    add_sidecars(folder, columns)
    return tar


def outcome(tar: Path, rules: dict[str, Any], captions: Any = None, **options: Any) -> Any:
    task = Scan(Filters(rules, **options).parse(Captions(captions), 7))
    samples = read_meta(str(tar.parent))[tar.name].num_samples
    found = scan_shard(Shard(0, str(tar), None, 100, samples), task)
    return found.kept.tolist(), found.left_out, found.present, set(found.absent)


@pytest.fixture
def no_tars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a tar fails."""
    monkeypatch.setattr(filter_scan, "IndexedTar", None)


def both(tar: Path, rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    with monkeypatch.context() as patched:
        patched.setattr(filter_scan, "read_sidecar", lambda *_: None)
        by_tar = outcome(tar, rules, **options)
    with monkeypatch.context() as patched:
        patched.setattr(filter_scan, "IndexedTar", None)
        by_sidecar = outcome(tar, rules, **options)
    return by_tar, by_sidecar


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("size_fields", ["auto", "picture", ("metadata.nested.deep", "metadata.score")])
def test_by_sidecar_as_by_tar(
    tmp_path: Path, rules: dict[str, Any], size_fields: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = dataset(tmp_path, DOCUMENTS)
    by_tar, by_sidecar = both(tar, rules, monkeypatch, size_fields=size_fields)
    assert by_sidecar == by_tar


@pytest.mark.parametrize("captions", ["caption", "caption_all.short", ["caption_all", "metadata.text"]])
def test_keywords_in_every_caption(tmp_path: Path, captions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = dataset(tmp_path, DOCUMENTS)
    by_tar, by_sidecar = both(tar, {"keywords": ["cat", "logo"]}, monkeypatch, captions=captions)
    assert by_sidecar == by_tar


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | st.floats(allow_nan=False) | st.just("x"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "a.b"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
FIELDS = st.dictionaries(
    st.sampled_from(["a", "b", "a.b", "width", "height", "metadata"]), VALUES, max_size=3
)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        FIELDS.flatmap(lambda inner: FIELDS.map(lambda outer: {**outer, "metadata": inner})) | FIELDS | VALUES,
        min_size=1, max_size=6,
    ),
    st.sampled_from(["metadata.a", "metadata.a.b", "$.a", "$.a.b", "metadata.width", "$.metadata.a", "metadata.b.0"]),
    st.sampled_from([(-1, 3), (0, None), (None, 0.5)]),
    st.booleans(),
)  # fmt: skip
def test_whatever_the_json_says(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Any], path: str, limits: Any, sizes: bool
) -> None:
    tar = dataset(tmp_path_factory.mktemp("any"), [d for d in documents if d is not None] or [{}])
    rules = {path: limits, **({"height": (1, 20)} if sizes else {})}
    by_tar, by_sidecar = both(tar, rules, pytest.MonkeyPatch())
    assert by_sidecar == by_tar


def test_with_more_fields_than_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [
        {"metadata": {f"f{n}": n for n in range(number, MOST + 50, number + 1)}} for number in range(4)
    ]
    tar = dataset(tmp_path, documents)
    for rules in ({"metadata.f249": (0, None)}, {"metadata.f3": (0, None)}):
        by_tar, by_sidecar = both(tar, rules, monkeypatch)
        assert by_sidecar == by_tar


def test_hints_name_what_there_is(tmp_path: Path) -> None:
    from loader.filter_scan import scan
    from loader.shards import find_shards

    dataset(tmp_path, [{"metadata": {"aesthetic": 5}}] * 3)
    task = Scan(Filters({"metadata.aestetic": (1, None)}).parse(Captions(), 0))
    with pytest.raises(BadConfig, match=r"did you mean 'metadata\.aesthetic'"):
        scan(find_shards(str(tmp_path)), task, cache=None)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tars that filters have opened."""
    seen: list[str] = []

    class Counting(IndexedTar):
        def __init__(self, path: Any, *arguments: Any, **keywords: Any) -> None:
            seen.append(str(path))
            super().__init__(path, *arguments, **keywords)

    monkeypatch.setattr(filter_scan, "IndexedTar", Counting)
    return seen


RULE = {"metadata.score": (0.6, None)}


def test_a_sidecar_of_another_state_is_not_believed(tmp_path: Path, opened: list[str]) -> None:
    tar = dataset(tmp_path, [{"metadata": {"score": n}} for n in range(3)])
    assert outcome(tar, RULE)[0] == [1, 2] and not opened
    old = tar.with_suffix(".parquet").read_bytes()
    dataset(tmp_path, [{"metadata": {"score": 13 - n}} for n in range(3)])
    tar.with_suffix(".parquet").write_bytes(old)
    assert outcome(tar, RULE)[0] == [0, 1, 2] and opened


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"x" * 100])
def test_a_damaged_one_is_told_and_not_used(
    tmp_path: Path, damage: bytes, opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    tar = dataset(tmp_path, [{"metadata": {"score": n}} for n in range(3)])
    tar.with_suffix(".parquet").write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert outcome(tar, RULE)[0] == [1, 2]
    assert opened and "x.parquet: not used" in caplog.text


def test_where_it_can_not_say_all_the_tar_is_read(tmp_path: Path, opened: list[str]) -> None:
    tar = dataset(tmp_path, [{"caption": "x", "metadata": {"score": n}} for n in range(3)])
    outcome(tar, RULE)
    assert not opened
    rules = Filters(RULE).parse(Captions(), 0)
    shard = Shard(0, str(tar), None, 0, 3)
    scan_shard(shard, Scan(rules, select=lambda sample: True))
    scan_shard(shard, Scan(rules, pictures=(".avif",)))
    assert len(opened) == 2
    texts = Path(make_tar(tmp_path / "more" / "y.tar", [("a.json", b"{}"), ("a.txt", b"a cat")]))
    gen_meta(str(texts.parent), n_jobs=1)
    add_sidecars(texts.parent)
    assert outcome(texts, {"keywords": ["cat"]})[0] == [] and len(opened) == 3


def test_without_pyarrow_the_tar_is_read(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = dataset(tmp_path, [{"metadata": {"score": n}} for n in range(3)])

    def gone(*_: Any) -> Any:
        raise BadConfig("no pyarrow")

    monkeypatch.setattr(sidecar_reader, "open_sidecar", gone)
    assert outcome(tar, RULE)[0] == [1, 2] and opened
