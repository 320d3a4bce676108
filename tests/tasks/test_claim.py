"""An output belongs to the job that made it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
from s3_server import Place

from loader import storage
from loader.errors import BadConfig, BadSample
from tasks import claim, pack
from tasks.config import PackConfig
from tasks.manifest import FOLDER


def tree(root: str) -> dict[str, bytes]:
    """Every file, hidden ones included."""
    return {
        str(file.relative_to(root)): file.read_bytes() for file in Path(root).rglob("*") if file.is_file()
    }


@pytest.fixture
def config(corpus: Path) -> PackConfig:
    return PackConfig(str(corpus / "records.jsonl"), str(corpus.parent / "out"), n_jobs=1, max_samples=5)


@pytest.fixture
def other(corpus: Path) -> str:
    """The source of another job."""
    (corpus / "other.jsonl").write_text('{"text": "other words"}\n')
    return str(corpus / "other.jsonl")


def test_another_source_is_refused_and_nothing_is_touched(config: PackConfig, other: str) -> None:
    pack.pack(config)
    before = tree(config.output)
    with pytest.raises(BadConfig) as caught:
        pack.pack(dataclasses.replace(config, source=other))
    assert str(caught.value) == (
        f"output is {config.output}, where another job has packed (source was {config.source}, and is now {other}). "
        "Choose another folder, or empty it; to have this job replace what is there, say mode "
        "'overwrite', to add to it 'append'"
    )
    assert tree(config.output) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key_prefix": "x"}, "key_prefix was not set, and is now x"),
        ({"image_root": "/elsewhere"}, "image_root was not set, and is now /elsewhere"),
        ({"recipe": "tasks.recipes:default"}, "recipe was default, and is now tasks.recipes:default"),
    ],
)
def test_a_finished_dataset_is_of_one_recipe(config: PackConfig, change: dict[str, Any], said: str) -> None:
    pack.pack(config)
    before = tree(config.output)
    with pytest.raises(BadConfig) as caught:
        pack.pack(dataclasses.replace(config, **change))
    assert f"({said})" in str(caught.value)
    assert tree(config.output) == before


def test_a_rerun_may_change_what_is_not_the_job(config: PackConfig, corpus: Path) -> None:
    pack.pack(config)
    written = (Path(config.output) / FOLDER / "pack.json").stat().st_mtime_ns
    with (corpus / "records.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    changed = dataclasses.replace(
        config, max_samples=7, max_bytes=1 << 20, on_error="raise", max_bad_fraction=1.0, n_jobs=2,
        recipe_folder=str(corpus), storage_options={"auto_mkdir": True},
    )  # fmt: skip
    assert pack.pack(changed).samples == 23
    assert (Path(config.output) / FOLDER / "pack.json").stat().st_mtime_ns == written


def test_a_run_that_did_not_end_may_be_put_right(config: PackConfig, corpus: Path, other: str) -> None:
    """Without its image_root half of the pictures are missing; a typing error in the source is another matter."""
    shutil.move(corpus / "img", corpus / "pictures")
    (corpus / "pictures/img").mkdir()
    for file in list((corpus / "pictures").glob("*.*")):
        file.rename(corpus / "pictures/img" / file.name)
    lines = (corpus / "records.jsonl").read_text().splitlines()
    (corpus / "records.jsonl").write_text("\n".join([*['{"text": "x"}'] * 5, *lines]))
    with pytest.raises(BadSample, match=r"img/00\.jpg: No such file"):
        pack.pack(dataclasses.replace(config, on_error="raise"))
    assert list(Path(config.output).glob("*.tar"))
    with pytest.raises(BadConfig, match="another job has packed"):
        pack.pack(dataclasses.replace(config, source=other))
    right = dataclasses.replace(config, image_root=str(corpus / "pictures"))
    assert pack.pack(right).bad == 0
    with pytest.raises(BadConfig, match=r"image_root was .*/pictures, and is now not set"):
        pack.pack(config)


def test_where_there_is_nothing_to_lose(config: PackConfig, other: str) -> None:
    pack.prepare_output(config)
    changed = dataclasses.replace(config, source=other)
    assert pack.pack(changed).samples == 1
    with pytest.raises(BadConfig):
        pack.pack(config)


def test_on_purpose(config: PackConfig, other: str) -> None:
    """As the error says it."""
    pack.pack(config)
    os.unlink(claim.address(config.output))
    moved = dataclasses.replace(config, source=other)
    assert pack.pack(moved).shards == 1
    assert sorted(path.name for path in Path(config.output).glob("*.tar")) == ["shard-000000.tar"]
    with pytest.raises(BadConfig):
        pack.pack(config)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "null", '{"format":"shardflow pack","version":99,"job":{}}', "[" * 100_000,
             '{"format":"shardflow pack","version":1,"job":7}'],
)  # fmt: skip
def test_what_cannot_be_understood_is_not_ours(config: PackConfig, text: str) -> None:
    pack.pack(config)
    Path(claim.address(config.output)).write_text(text)
    with pytest.raises(BadConfig, match=r"where another job has packed\. Choose"):
        pack.pack(config)


def test_in_an_object_store_and_from_a_path_that_is_no_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "x"}\n')
    config = PackConfig(str(folder), "memory://claimed", n_jobs=1)
    assert pack.pack(config).kept == 0
    assert pack.pack(config).kept == 1
    document = json.loads(fsspec.filesystem("memory").cat("/claimed/.shardflow/pack.json"))
    assert document["job"]["source"] == str(folder)
    with pytest.raises(BadConfig, match="output is memory://claimed, where another job has packed"):
        pack.pack(dataclasses.replace(config, key_prefix="y"))


def test_two_jobs_at_once_into_one_bucket(
    config: PackConfig, other: str, s3: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find it empty; one of them is the first to say that it is its own."""
    mine = dataclasses.replace(config, output=s3.address("out"), storage_options=s3.storage_options)
    theirs = dataclasses.replace(mine, source=other)
    look = claim.before

    def meanwhile(asked: PackConfig) -> claim.Claim:
        found = look(asked)
        monkeypatch.setattr(claim, "before", look)
        claim.claim(mine)
        return found

    for late in (mine, theirs):  # the same job twice is no conflict: it writes the same bytes
        storage.remove(claim.address(mine.output), s3.storage_options)
        monkeypatch.setattr(claim, "before", meanwhile)
        if late is theirs:
            with pytest.raises(BadConfig, match="which another job has just taken"):
                claim.claim(late)
        else:
            claim.claim(late)
        assert claim.claim(mine) == look(mine)
