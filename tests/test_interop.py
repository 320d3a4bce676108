"""What we write is read by others, and what others write is read by us."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from places import environment, python
from strategies import ODD_NAMES
from tarmaker import members_of

from loader.indexed_tar import IndexedTar
from loader.indexed_tar_samples import IndexedTarSamples
from loader.sample import clean_name, why_no_sample
from loader.writer import ShardWriter, write_shard

# webdataset leaves the closing of its files to the garbage collector.
UNCLOSED = (
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
)


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8 + number, 6), (20 * number, 100, 0)).save(file, "PNG")
    return file.getvalue()


def sample(number: int) -> dict[str, Any]:
    return {
        "__key__": f"{number:09d}",
        ".png": picture(number),
        ".json": {"caption": f"picture {number}, é", "size": number},
        ".txt": f"text {number}, 日本",
        ".cls": str(number),
    }


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Two shards of four samples each, one picture a sample."""
    with ShardWriter(str(tmp_path / "data"), max_samples=4) as writer:
        for number in range(8):
            writer.write(sample(number))
    return [str(tmp_path / "data" / info.path) for info in writer.shards]


@pytest.fixture
def odd(tmp_path: Path) -> tuple[str, dict[str, bytes]]:
    """A shard with every name that a file system takes, numbered members among them."""
    names = {clean_name(name) for name in ODD_NAMES} - {
        "a.JPG",
        "IMG_1.JPG",
        "img-1.jpg",
        "img-1.txt",
        "img-2.jpg",
    }
    content = {name: os.fsencode(name) * 20 for name in sorted(names) if not why_no_sample(name)}
    content |= {f"numbered{end}": end.encode() for end in (".json", "-0.jpg", "-1.png", "-2.jpg")}
    by_key: dict[str, list[tuple[str, bytes]]] = {}
    for name, data in content.items():
        folder, _, base = name.rpartition("/")
        stem = (
            base.partition(".")[0].partition("-")[0]
            if base.startswith("numbered")
            else base.partition(".")[0]
        )
        key = f"{folder}/{stem}" if folder else stem
        by_key.setdefault(key, []).append((name[len(key) :], data))
    path = str(tmp_path / "odd.tar")
    write_shard(path, by_key.items())
    return path, content


# -- ours, read by others


def test_gnu_tar_unpacks_ours(odd: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    path, content = odd
    (tmp_path / "out").mkdir()
    done = subprocess.run(["tar", "-xf", path, "-C", tmp_path / "out"], capture_output=True, check=True)
    assert done.stderr == b""
    found = {}
    for folder, _, files in os.walk(tmp_path / "out"):
        for file in files:
            full = os.path.join(folder, file)
            found[os.path.relpath(full, tmp_path / "out")] = Path(full).read_bytes()
    assert found == content
    listed = subprocess.run(
        ["tar", "-tf", path, "--quoting-style=literal", "--null"], capture_output=True, check=True
    )
    assert len(listed.stdout) > 0 and listed.stderr == b""


def test_tarfile_reads_ours(odd: tuple[str, dict[str, bytes]]) -> None:
    path, content = odd
    with tarfile.open(path, errors="surrogateescape") as tar:
        infos = tar.getmembers()
        assert {info.name: tar.extractfile(info).read() for info in infos} == content  # type: ignore[union-attr]
        assert {(info.mtime, info.mode, info.uid, info.gid, info.uname) for info in infos} == {
            (946684800, 0o644, 0, 0, "")
        }
    with IndexedTar(path) as ours:
        assert sorted(ours.names()) == sorted(content)
        spans = {name: ours.index.span(number) for number, name in enumerate(ours.names())}
    assert {name: (at, at + size) for name, at, size in members_of(Path(path).read_bytes())} == spans


@UNCLOSED[0]
@UNCLOSED[1]
def test_webdataset_reads_ours(shards: list[str]) -> None:
    import webdataset

    read = list(webdataset.WebDataset(shards, shardshuffle=False).decode("pil"))
    assert len(read) == 8
    for number, found in enumerate(read):
        wanted = sample(number)
        assert found["__key__"] == wanted["__key__"]
        assert (found["json"], found["txt"], found["cls"]) == (wanted[".json"], wanted[".txt"], number)
        assert found["png"].size == (8 + number, 6) and found["png"].getpixel((0, 0)) == (20 * number, 100, 0)
    raw = list(webdataset.WebDataset(shards, shardshuffle=False))
    assert [found["png"] for found in raw] == [picture(number) for number in range(8)]


HUGGING_FACE = """
import sys
import datasets
folder, cache, streaming = sys.argv[1:]
data = datasets.load_dataset(
    "webdataset", data_files={"train": folder + "/*.tar"}, split="train", streaming=streaming == "yes", cache_dir=cache
)
for number, row in enumerate(data):
    print(number, row["__key__"], row["png"].size, row["json"], row["txt"], row["cls"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("streaming", ["yes", "no"])
def test_hugging_face_datasets_reads_ours(shards: list[str], tmp_path: Path, streaming: str) -> None:
    # In a process of its own: it reads its settings on import, and must not reach for the network.
    settings = {
        **environment(),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "home"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    with python(HUGGING_FACE, tmp_path / "data", tmp_path / "cache", streaming, env=settings) as child:
        shown, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert shown.splitlines() == [
        f"{n} {n:09d} ({8 + n}, 6) {sample(n)['.json']} {sample(n)['.txt']} {n}" for n in range(8)
    ]


# -- theirs, read by us


def test_what_webdataset_writes(tmp_path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "x.tar")) as writer:
        for number in range(5):
            writer.write(
                {
                    "__key__": f"a/{number:06d}",
                    "png": picture(number),
                    "json": {"n": number},
                    "txt": f"text {number}",
                    "cls": number,
                }
            )
    with IndexedTarSamples(tmp_path / "x.tar") as tar:
        assert len(tar) == 5 and tar.index.grouping == "plain"
        for number, found in enumerate(tar):
            assert found["__key__"] == f"a/{number:06d}"
            assert (found[".json"], found[".txt"], found[".cls"]) == ({"n": number}, f"text {number}", number)
            assert found[".png"].size == (8 + number, 6)
