from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import BadConfig
from tasks.config import PackConfig, load
from tasks.source_options import (
    fractions,
    is_callable,
    normalised,
    renames,
    seen_from,
    shard_name,
    shard_pattern,
)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shard_names": "shard.tar"}, r"shard_names is 'shard\.tar': expected a name that ends in \.tar"),
        ({"shard_names": "{index}.zip"}, "shard_names is"),
        ({"shard_names": "../{index}.tar"}, "shard_names is"),
        ({"shard_names": "{index}{split}.tar"}, "shard_names is"),
        ({"shard_names": "{index.real}.tar"}, "shard_names is"),
        ({"shard_names": "{}.tar"}, "shard_names is"),
        ({"shard_names": ".{index}.tar"}, "shard_names is"),
        ({"split": "train"}, "split is 'train': expected shares that make up 1"),
        ({"split": "train=0.5"}, "which makes up 0.5"),
        ({"split": "a=0.5,a=0.5"}, "split is"),
        ({"split": "../a=1"}, "split is"),
        ({"split": "a=1.5,b=-0.5"}, "split is"),
        ({"split": "a=1", "split_column": "b"}, "both set"),
        ({"columns": "a"}, "columns is 'a': expected 'url=image"),
        ({"columns": "a=b, a=c"}, "columns is"),
        ({"seed": -1}, "seed is -1"),
        ({"max_samples": 0, "max_bytes": 0}, "both 0"),
        ({"order": "random"}, "order is 'random': expected 'kept' or 'shuffled'"),
        ({"mode": "replace"}, "mode is 'replace'"),
        ({"deterministic_name": "yes"}, "deterministic_name is 'yes'"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadConfig, match=reason):
        PackConfig("/in", "/out", **options)


def test_texts_are_taken_apart() -> None:
    assert renames("url=image, TEXT = caption,") == {"url": "image", "TEXT": "caption"}
    assert fractions(" train=0.9,test = .1 ") == {"train": 0.9, "test": 0.1}
    assert fractions("") == {}


def test_sources_with_commas_and_functions(tmp_path: Path) -> None:
    assert is_callable("my.module:function")
    for path in ("s3://a", "c:/x", "a:b/c", "/a:b", "a:1", "./a:b"):
        assert not is_callable(path)
    (tmp_path / "a,b").mkdir()
    assert seen_from(str(tmp_path), "a,b") == f"{tmp_path}/a,b"
    assert seen_from(str(tmp_path), "a, s3://bucket/b,/c") == f"{tmp_path}/a,s3://bucket/b,/c"
    assert seen_from(str(tmp_path), "module:function") == "module:function"
    assert normalised(f"{tmp_path}/a,b") == f"{tmp_path}/a,b"
    assert normalised("/a/../b,memory://c/") == "/b,memory://c"


def test_a_bool_of_yaml(tmp_path: Path) -> None:
    for text, value in (("true", "true"), ("no", "false"), ("'false'", "false")):
        (tmp_path / "job.yaml").write_text(f"source: a\noutput: b\ndeterministic_name: {text}\n")
        assert load(tmp_path / "job.yaml").deterministic_name == value


@given(
    st.sampled_from(
        [
            "shard-{index:06d}.tar",
            "images-{hash}-{index}.tar",
            "{index:03d}-of-{index}.tar",
            "a{index}b{hash}.tar",
        ]
    ),
    st.integers(0, 10**7),
    st.integers(0, 1200),
)
def test_a_name_fits_its_pattern_and_tells_its_number(template: str, index: int, part: int) -> None:
    config = PackConfig("/in", "/out", shard_names=template)
    name = shard_name(template, index, "0123456789ab", part)
    match = shard_pattern(config).fullmatch(name)
    assert match is not None
    assert int(match["index"]) == index
    assert not shard_pattern(config).fullmatch(f"sub/{name}")
    assert shard_pattern(PackConfig("/in", "/out", shard_names=template, split="a=1")).fullmatch(f"a/{name}")
    assert re.fullmatch(r"[\w-]+\.tar", name)
