"""A corpus of each kind that can be packed, with the same pictures and captions, made by the libraries that people use."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from loader.writer import ShardWriter

COUNT = 23
FORMATS = (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"))


def picture(number: int) -> tuple[bytes, str]:
    """A small picture that is like no other, and its extension."""
    kind, extension = FORMATS[number % 3]
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((24 + number, 16)).convert("RGB").save(buffer, kind)
    return buffer.getvalue(), extension


def caption(number: int) -> str:
    """A text that a careless reader would damage."""
    return f'picture {number}: "naïve", with\na line break, and a comma'


def pictures(folder: Path, count: int = COUNT) -> list[str]:
    """Pictures in a folder; their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(count):
        data, extension = picture(number)
        names.append(f"{number:03d}.{extension}")
        (folder / names[-1]).write_bytes(data)
    return names


def _records(folder: Path) -> list[dict[str, Any]]:
    names = pictures(folder / "img")
    return [{"image": f"img/{name}", "caption": caption(n), "n": n} for n, name in enumerate(names)]


def _json(folder: Path) -> str:
    (folder / "records.json").write_text(json.dumps(_records(folder), indent=1))
    return str(folder / "records.json")


def _jsonl(folder: Path) -> str:
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in _records(folder)))
    return str(folder / "records.jsonl")


def _gzip(folder: Path) -> str:
    with gzip.open(folder / "records.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in _records(folder))
    return str(folder / "records.jsonl.gz")


def _zstd(folder: Path) -> str:
    import zstandard

    data = json.dumps(_records(folder)).encode()
    (folder / "records.json.zst").write_bytes(zstandard.compress(data[:500]) + zstandard.compress(data[500:]))
    return str(folder / "records.json.zst")


def _csv(folder: Path, name: str = "records.csv", delimiter: str = ",") -> str:
    records = _records(folder)
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(records[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(records)
    return str(folder / name)


def _tsv(folder: Path) -> str:
    return _csv(folder, "records.tsv", "\t")


def _parquet(folder: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(_records(folder)), folder / "records.parquet", row_group_size=4)
    return str(folder / "records.parquet")


def _parquet_bytes(folder: Path) -> str:
    """As Hugging Face writes pictures."""
    from datasets import Dataset, Image as HfImage  # noqa: I001

    rows = [
        {"image": {"bytes": picture(n)[0], "path": f"{n}.jpg"}, "caption": caption(n)} for n in range(COUNT)
    ]
    data = Dataset.from_list(rows).cast_column("image", HfImage(decode=False))
    data.to_parquet(str(folder / "train.parquet"), batch_size=5)
    return str(folder / "train.parquet")


def _datasets(folder: Path) -> str:
    from datasets import Dataset, DatasetDict, Image as HfImage  # noqa: I001

    rows = [{"image": {"bytes": picture(n)[0], "path": None}, "text": caption(n)} for n in range(COUNT)]
    data = Dataset.from_list(rows).cast_column("image", HfImage(decode=True))
    # Chosen rows in another order: the files hold all, an index of its own says which.
    DatasetDict({"a": data.select(range(15)), "b": data.select(range(15, COUNT))}).save_to_disk(
        str(folder / "saved")
    )
    return str(folder / "saved")


def _captions(folder: Path) -> str:
    for number, name in enumerate(pictures(folder / "pictures")):
        text = folder / "pictures" / f"{name[:3]}.txt"
        if number % 2:
            text.write_text(caption(number) + "\n", encoding="utf-8")
        else:
            text.with_suffix(".json").write_text(json.dumps({"caption": caption(number), "n": number}))
    return str(folder / "pictures")


def _classes(folder: Path) -> str:
    for number, name in enumerate(pictures(folder / "all")):
        label = folder / "classes" / ("cat" if number % 2 else "a dog")
        label.mkdir(parents=True, exist_ok=True)
        os.rename(folder / "all" / name, label / name)
    return str(folder / "classes")


def _imagefolder(folder: Path) -> str:
    names = pictures(folder / "pictures" / "train")
    with (folder / "pictures" / "train" / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "text", "stars"])
        writer.writerows([name, caption(number), number] for number, name in enumerate(names))
    return str(folder / "pictures")


def _tar(folder: Path) -> str:
    with ShardWriter(str(folder / "shards"), max_samples=10) as writer:
        for number in range(COUNT):
            data, extension = picture(number)
            writer.write(
                {"__key__": f"k{number:03d}", ".json": {"caption": caption(number)}, f".{extension}": data}
            )
    for index in (folder / "shards").glob("*.index"):
        index.unlink()  # as another tool leaves them
    return str(folder / "shards")


def _function(folder: Path) -> str:
    module = f"made_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(
        "from source_kinds import COUNT, caption, picture\n\n\n"
        "def records():\n"
        "    for n in range(COUNT):\n"
        "        yield {'image': picture(n)[0], 'caption': caption(n), 'n': n}\n"
    )
    return f"{module}:records"


KINDS: dict[str, Callable[[Path], str]] = {
    "json": _json,
    "jsonl": _jsonl,
    "jsonl.gz": _gzip,
    "json.zst": _zstd,
    "csv": _csv,
    "tsv": _tsv,
    "parquet": _parquet,
    "parquet-bytes": _parquet_bytes,
    "datasets": _datasets,
    "captions": _captions,
    "classes": _classes,
    "imagefolder": _imagefolder,
    "tar": _tar,
    "function": _function,
}
