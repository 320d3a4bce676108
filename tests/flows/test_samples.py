from __future__ import annotations

import base64
import io
import re
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import pytest
from PIL import Image

from flows import samples
from flows.samples import SHOWN, look, markdown
from loader.writer import ShardWriter


@cache
def picture(kind: str = "JPEG", size: tuple[int, int] = (900, 300)) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 60).convert("RGB").save(buffer, kind)
    return buffer.getvalue()


def dataset(folder: Path, count: int, each: int, **more: Any) -> list[str]:
    with ShardWriter(str(folder), max_samples=each) as writer:
        for number in range(count):
            sample = {
                "__key__": f"{number:06d}",
                ".json": {"caption": f"picture {number}"},
                ".jpg": picture(),
            }
            writer.write({**sample, **more})
    return sorted(map(str, folder.glob("*.tar")))


def test_they_are_spread_over_the_shards_and_the_same_each_time(tmp_path: Path) -> None:
    few, many = dataset(tmp_path / "few", 30, 10), dataset(tmp_path / "many", 40, 2)
    assert [key for key, *_ in look(few)] == [
        f"{n:06d}" for n in (0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25, 27)
    ]
    found = look(many)
    assert len(found) == SHOWN == len({details["shard"] for *_, details in found})
    assert [key for key, *_ in look(many)] == [key for key, *_ in found]
    assert found[0][1] == "picture 0" and found[0][2][0].size == (560, 187)
    assert len(look(dataset(tmp_path / "one", 3, 10))) == 3
    assert look([]) == []


def test_of_a_store_only_what_is_shown_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shard,) = dataset(tmp_path / "here", 100, 100)
    store = fsspec.filesystem("memory")
    for name in (shard, f"{shard}.index"):
        store.pipe_file(f"/samples/{Path(name).name}", Path(name).read_bytes())
    read: list[int] = []
    whole = samples.storage.read_bytes

    def counted(*arguments: Any, **named: Any) -> bytes:
        data = whole(*arguments, **named)
        read.append(len(data))
        return data

    monkeypatch.setattr(samples.storage, "read_bytes", counted)
    found = look([f"memory://samples/{Path(shard).name}"])
    assert len(found) == SHOWN and found[0][2]
    assert sum(read) < Path(shard).stat().st_size // 4


def test_what_cannot_be_shown_is_passed_over(tmp_path: Path) -> None:
    shards = dataset(tmp_path / "bad", 4, 1, **{".jpg": b"no picture"})
    good = dataset(tmp_path / "good", 2, 1)
    Path(shards[0] + ".index").unlink()
    found = look([*shards, *good, str(tmp_path / "none.tar")])
    assert {details["shard"] for *_, details in found} == {Path(name).name for name in good}
    (shard,) = dataset(tmp_path / "text", 1, 1, **{".jpg": b"", ".txt": "only words"})
    assert look([shard]) == [], "an empty file is no picture"


def test_markdown_holds_the_pictures_and_no_markup_of_anybody() -> None:
    image = Image.new("RGBA", (600, 300), "red")
    hostile = "<script>alert(1)</script> | [x](javascript:x) `code`\n# title " + "word " * 100
    text = markdown([("key|1", hostile, [image, image], {}), *[(f"{n}", "", [], {}) for n in range(5)]])
    pictures = re.findall(r"!\[picture\]\(data:image/jpeg;base64,([^)]*)\)", text)
    assert [Image.open(io.BytesIO(base64.b64decode(data))).size for data in pictures] == [(224, 112)] * 2
    words = re.sub(r"\(data:[^)]*\)", "", text)
    assert "<script>" not in words and r"\<script\>" in words and r"\[x\]" in words and "key\\|1" in words
    assert all(len(line) < 700 for line in words.splitlines())
    assert len(words.splitlines()) == 6
    single = markdown([("a", "<image_0>A cat.", [image], {})])
    assert single.endswith("| `a` A cat. |\n"), "which picture is meant needs no saying"
