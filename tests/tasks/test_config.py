from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from loader.errors import BadConfig
from tasks import config
from tasks.config import PackConfig

EXAMPLE = Path(__file__).parents[2] / "configs/pack-example.yaml"


def write(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text)
    return file


def test_paths_are_seen_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    file = write(tmp_path, "source: in/*.jsonl\noutput: ../out\nimage_root: s3://bucket/pictures/\n")
    found = config.load(file)
    assert found.source == f"{tmp_path}/in/*.jsonl"
    assert found.output == f"{tmp_path.parent}/out"
    assert found.image_root == "s3://bucket/pictures"
    assert found.recipe_folder == str(tmp_path)
    assert (found.max_samples, found.max_bytes, found.on_error, found.n_jobs) == (10_000, 1 << 30, "skip", 0)


def test_overrides_are_seen_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "source: a.jsonl\noutput: out\nmax_samples: 10\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = config.load(file, output="mine", max_samples=3)
    assert (found.source, found.output, found.max_samples) == (f"{tmp_path}/a.jsonl", f"{elsewhere}/mine", 3)
    assert config.override(found, n_jobs=2).n_jobs == 2
    with pytest.raises(BadConfig, match="unknown field 'jobs': did you mean n_jobs"):
        config.override(found, jobs=2)


def test_home_and_numbers(tmp_path: Path) -> None:
    found = config.load(
        write(tmp_path, "source: ~/a.json\noutput: out\nmax_samples: 10_000\nmax_bad_fraction: 1")
    )
    assert found.source == os.path.expanduser("~/a.json")
    assert (found.max_samples, found.max_bad_fraction) == (10_000, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("source: a\noutput: b\nmax_sample: 3", "unknown field 'max_sample': did you mean max_samples?"),
        ("source: a\noutput: b\nxyzzy: 3", "unknown field 'xyzzy': the fields are source, output"),
        ("output: b", "source is missing. What to pack"),
        ("source: a", "output is missing"),
        ("source: ''\noutput: b", "source is empty"),
        ("source: 3\noutput: b", "source is 3: expected a text"),
        ("source: [a, b]\noutput: b", "source is list: expected a text"),
        ("source:\noutput: b", "source is empty: expected a text"),
        ("source: a\noutput: b\nmax_samples: -1", "max_samples is -1: expected at least 1, or 0"),
        ("source: a\noutput: b\nmax_samples: 1e4", "max_samples is '1e4': expected a whole number"),
        ("source: a\noutput: b\nmax_samples: true", "max_samples is True: expected a whole number"),
        ("source: a\noutput: b\nmax_bytes: 1.5", "max_bytes is 1.5: expected a whole number"),
        ("source: a\noutput: b\nn_jobs: -1", "n_jobs is -1"),
        ("source: a\noutput: b\non_error: stop", "on_error is 'stop': expected 'skip' or 'raise'"),
        (
            "source: a\noutput: b\nimage_names: dotted",
            "image_names is 'dotted': expected 'numbered' or 'extension'",
        ),
        ("source: a\noutput: b\nmax_bad_fraction: 1.1", "max_bad_fraction is 1.1: expected from 0 to 1"),
        ("source: a\noutput: b\nmax_bad_fraction: .nan", "max_bad_fraction is nan"),
        ("source: a\noutput: b\nkey_prefix: a-b", "key_prefix is 'a-b': expected at most 64 letters"),
        ("source: a\noutput: b\nkey_prefix: a.b", "key_prefix is 'a.b'"),
        ("source: a::b\noutput: b", "source: .* is an fsspec chain"),
        ("source: a\noutput: b\nstorage_options: [hunter2]", "storage_options is list: an object"),
        ("source: a\noutput: b\nstorage_options: {1: hunter2}", "storage_options is dict: an object"),
        ("- a", "holds list: 'field: value' lines were expected"),
        ("", "holds NoneType"),
        ("a: [hunter2", "is no YAML: .* in line 1"),
        ("a: !!python/object/apply:os.system [hunter2]", "is no YAML: could not determine a constructor"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadConfig, match=reason) as caught:
        config.load(write(tmp_path, text))
    assert "job.yaml" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_aliases_cannot_blow_up_a_message(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    with pytest.raises(BadConfig, match="unknown field 'a0'"):
        config.load(write(tmp_path, "\n".join(lines)))
    with pytest.raises(BadConfig, match="source is list") as caught:
        nested: list[Any] = ["x"] * 9
        for _ in range(30):
            nested = [nested] * 9
        config.from_values({"source": nested, "output": "b"})
    assert len(str(caught.value)) < 200


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"gone.yaml is not there"):
        config.load(tmp_path / "gone.yaml")
    with pytest.raises(BadConfig, match="is a folder"):
        config.load(tmp_path)
    big = write(tmp_path, "#" * (1 << 20) + "\n")
    with pytest.raises(BadConfig, match="a config has at most"):
        config.load(big)
    big.write_bytes(b"source: \xff")
    with pytest.raises(BadConfig, match="is no YAML"):
        config.load(big)


def test_secrets_are_never_shown() -> None:
    found = PackConfig(
        "a", "s3://b", storage_options={"secret": "hunter2"}, source_storage_options={"key": "hunter2"}
    )
    assert "hunter2" not in repr(found) + str(found)
    assert "hunter2" not in repr(config.fields())
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.storage_options == {"secret": "hunter2"}


def test_options_go_where_they_belong() -> None:
    found = PackConfig("a.jsonl", "s3://b/out", storage_options={"key": "k"})
    assert found.options_for("s3://other/x.jpg") == {"key": "k"}
    assert found.options_for("https://example.invalid/x.jpg") is None
    assert found.options_for("/data/x.jpg") is None
    other = dataclasses.replace(found, source_storage_options={"anon": True})
    assert other.options_for("s3://other/x.jpg") == {"anon": True}


def test_each_field_is_described_once_and_for_all() -> None:
    described = config.fields()
    assert [entry.name for entry in described] == [entry.name for entry in dataclasses.fields(PackConfig)]
    for entry in described:
        assert entry.description.endswith("."), entry
        assert entry.type in ("str", "int", "float", "bool", "Mapping[str, Any] | None"), entry
    assert [entry.name for entry in described if entry.default is dataclasses.MISSING] == ["source", "output"]


def test_the_example_is_valid_and_shows_the_defaults() -> None:
    found = config.load(EXAMPLE)
    assert found.source.endswith("/data/records.jsonl")
    defaults = PackConfig(found.source, found.output, recipe_folder=found.recipe_folder)
    assert found == defaults


@pytest.mark.parametrize(
    "file", [*sorted(EXAMPLE.parent.glob("*pack*.yaml")), EXAMPLE.parent / "reshard.yaml"]
)
def test_the_examples_can_be_meant(file: Path) -> None:
    found = config.load(file)
    assert all(part.startswith(f"{EXAMPLE.parents[1]}/data/") for part in found.source.split(","))
