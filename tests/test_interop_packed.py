"""What the packer writes, in both of its layouts, as GNU tar, tarfile, webdataset, Hugging Face and our datasets read it."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pictures import encoded, photo
from PIL import Image
from places import environment, python

from loader.datasets import ImageTextDataset, InterleavedDataset, SampleDataset
from tasks.config import PackConfig
from tasks.pack import pack

LAYOUTS = ("numbered", "extension")
ROWS = 12

# webdataset leaves the closing of its files to the garbage collector.
UNCLOSED = (
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
)


class Row(NamedTuple):
    """What must be found of one record: its JSON, and its pictures' files by extension, in their order."""

    key: str
    document: dict[str, Any]
    images: list[tuple[str, bytes]]

    def members(self, layout: str) -> dict[str, bytes]:
        """Name → bytes, of the pictures."""
        if layout == "numbered":
            return {f"{self.key}-{n}{kind}": data for n, (kind, data) in enumerate(self.images)}
        if len(self.images) == 1:
            return {f"{self.key}{kind}": data for kind, data in self.images}
        return {f"{self.key}.{n}{kind}": data for n, (kind, data) in enumerate(self.images)}


class Packed(NamedTuple):
    """A packed dataset, and what went into it."""

    root: str
    rows: list[Row]

    @property
    def shards(self) -> list[str]:
        return sorted(str(file) for file in Path(self.root).glob("*.tar"))


Make = Callable[[str, str], Packed]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`make(what, layout)` packs twelve records in three shards: "singles", "edits" (two pictures each), or "albums"
    (eleven each, which the caption names from the last to the first)."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # locks go there

    def made(what: str, layout: str) -> Packed:
        folder = tmp_path / what
        folder.mkdir(exist_ok=True)
        records, rows = zip(*(record(what, n, folder) for n in range(ROWS)), strict=True)
        (folder / "records.jsonl").write_text("".join(f"{json.dumps(found)}\n" for found in records))
        root = str(tmp_path / f"{what}-{layout}")
        summary = pack(
            PackConfig(str(folder / "records.jsonl"), root, max_samples=5, n_jobs=1, image_names=layout)
        )
        assert (summary.samples, summary.shards, summary.bad) == (ROWS, 3, 0)
        return Packed(root, list(rows))

    return made


def record(what: str, n: int, folder: Path) -> tuple[dict[str, Any], Row]:
    """A raw record, with its pictures' files written, and what it becomes."""
    kinds = {"singles": ["JPEG"], "edits": ["JPEG", "PNG"], "albums": ["PNG", *["JPEG"] * 10]}[what]
    names, images = [], []
    for place, kind in enumerate(kinds):
        extension = {"JPEG": ".jpg", "PNG": ".png"}[kind]
        data = encoded(photo(16 + n, 24 + place, n), kind)
        names.append(f"{n}-{place}{extension}")
        (folder / names[-1]).write_bytes(data)
        images.append((extension, data))
    key = f"{n:09d}"
    if what == "singles":
        raw = {"image": names[0], "caption": f"picture {n}: é 日本", "n": n}
        document = {"caption": f"<image_0>picture {n}: é 日本", "metadata": {"n": n}}
    elif what == "edits":
        raw = {"input_image": names[0], "output_image": names[1], "instruction": f"edit {n}", "n": n}
        document = {
            "caption": f"<image_0>edit {n}<image_1>",
            "caption_all": {"instruction": f"edit {n}"},
            "metadata": {"n": n},
        }
    else:
        caption = "".join(f"<image_{place}>" for place in reversed(range(len(names))))
        raw, document = {"images": names, "caption": caption}, {"caption": caption}
    return raw, Row(key, document, images)


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def same(image: Image.Image, data: bytes) -> bool:
    return np.array_equal(np.asarray(image), pixels(data))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", ["singles", "edits"])
def test_gnu_tar_and_tarfile(make: Make, what: str, layout: str, tmp_path: Path) -> None:
    packed = make(what, layout)
    wanted: dict[str, bytes] = {}
    for row in packed.rows:
        wanted |= row.members(layout)
    unpacked: dict[str, bytes] = {}
    for shard in packed.shards:
        folder = tmp_path / "unpacked" / Path(shard).stem
        folder.mkdir(parents=True)
        done = subprocess.run(["tar", "-xf", shard, "-C", folder], capture_output=True, check=True)
        assert done.stderr == b""
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        with tarfile.open(shard) as tar:
            assert {info.name: tar.extractfile(info).read() for info in tar} == files  # type: ignore[union-attr]
        unpacked |= files
    for row in packed.rows:
        assert json.loads(unpacked.pop(f"{row.key}.json")) == row.document
    assert unpacked == wanted


@UNCLOSED[0]
@UNCLOSED[1]
@pytest.mark.parametrize("what", ["singles", "edits", "albums"])
def test_webdataset_sees_one_sample_where_images_are_named_by_extension(make: Make, what: str) -> None:
    import webdataset

    packed = make(what, "extension")
    found = list(webdataset.WebDataset(packed.shards, shardshuffle=False).decode("pil"))
    assert len(found) == ROWS
    for sample, row in zip(found, packed.rows, strict=True):
        images = {name.partition(".")[2]: data for name, data in row.members("extension").items()}
        assert {name for name in sample if not name.startswith("__")} == {"json", *images}
        assert (sample["__key__"], sample["json"]) == (row.key, row.document)
        assert all(same(sample[name], data) for name, data in images.items())


@UNCLOSED[0]
@UNCLOSED[1]
@pytest.mark.parametrize("what", ["singles", "edits"])
def test_webdataset_sees_numbered_images_as_samples_of_their_own(make: Make, what: str) -> None:
    # It knows no such numbers: each member is there, under a key that tells whose image it is.
    import webdataset

    packed = make(what, "numbered")
    found = list(webdataset.WebDataset(packed.shards, shardshuffle=False).decode("pil"))
    by_key = {sample["__key__"]: sample for sample in found}
    assert len(by_key) == len(found) == sum(1 + len(row.images) for row in packed.rows)
    for row in packed.rows:
        assert by_key[row.key]["json"] == row.document
        for name, data in row.members("numbered").items():
            stem, _, kind = name.partition(".")
            assert same(by_key[stem][kind], data)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", ["edits", "albums"])
def test_our_interleaved_dataset_reads_both(make: Make, what: str, layout: str) -> None:
    packed = make(what, layout)
    found = list(InterleavedDataset(packed.root, shuffle=False, on_bad="raise"))
    assert [sample["__key__"] for sample in found] == [row.key for row in packed.rows]
    for n, (sample, row) in enumerate(zip(found, packed.rows, strict=True)):
        images = [data for _, data in row.images]
        if what == "edits":
            first, text, second = sample["segments"]
            assert text == f"edit {n}" and same(first, images[0]) and same(second, images[1])
        else:
            assert all(map(same, sample["segments"], reversed(images))) and len(sample["segments"]) == 11


@pytest.mark.parametrize("layout", LAYOUTS)
def test_our_pairs_and_samples_read_both(make: Make, layout: str) -> None:
    packed = make("singles", layout)
    pairs = ImageTextDataset(packed.root, shuffle=False, on_bad="raise")
    samples = SampleDataset(packed.root, shuffle=False, on_bad="raise")
    for n, (pair, sample, row) in enumerate(zip(pairs, samples, packed.rows, strict=True)):
        assert pair["text"] == f"picture {n}: é 日本" and same(pair["image"], row.images[0][1])
        assert sample.keys() == {"__key__", ".json", ".jpg"}
        assert sample[".json"] == row.document and same(sample[".jpg"], row.images[0][1])


def test_our_samples_have_an_entry_for_each_extension(make: Make) -> None:
    packed = make("edits", "extension")
    for sample, row in zip(SampleDataset(packed.root, shuffle=False), packed.rows, strict=True):
        assert list(sample) == ["__key__", ".json", ".0.jpg", ".1.png"]
        assert same(sample[".0.jpg"], row.images[0][1]) and same(sample[".1.png"], row.images[1][1])


HUGGING_FACE = """
import hashlib, json, sys
import datasets
cache, refused, *folders = sys.argv[1:]

def load(folder, streaming):
    files = {"train": folder + "/*.tar"}
    return datasets.load_dataset(
        "webdataset", data_files=files, split="train", streaming=streaming, cache_dir=cache
    )

for folder in folders:
    for streaming in (True, False):
        for row in load(folder, streaming):
            images = {
                name: hashlib.sha256(value.convert("RGB").tobytes()).hexdigest()
                for name, value in row.items() if not name.startswith("__") and name != "json"
            }
            print(json.dumps([folder, streaming, row["__key__"], row["json"], images]))
try:
    next(iter(load(refused, True)))
except ValueError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.slow
def test_hugging_face_datasets(make: Make, tmp_path: Path) -> None:
    # In a process of its own: it reads its settings on import, and must not reach for the network.
    settings = {
        **environment(),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "home"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    packed = [make(what, "extension") for what in ("singles", "edits", "albums")]
    refused = make("singles", "numbered").root
    folders = [dataset.root for dataset in packed]
    with python(HUGGING_FACE, tmp_path / "cache", refused, *folders, env=settings) as child:
        shown, errors = child.communicate(timeout=240)
    assert child.returncode == 0, errors
    *found, refusal = (json.loads(line) for line in shown.splitlines())
    wanted = [
        [dataset.root, streaming, row.key, row.document, digests(row)]
        for dataset in packed
        for streaming in (True, False)
        for row in dataset.rows
    ]
    assert found == wanted
    assert "don't share the same prefix" in refusal


def digests(row: Row) -> dict[str, str]:
    """Column → digest of the pixels."""
    members = row.members("extension").items()
    return {
        name.partition(".")[2]: hashlib.sha256(pixels(data).tobytes()).hexdigest() for name, data in members
    }
