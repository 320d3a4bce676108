"""What is taken over from an earlier run is what packing it again would give, and nothing of it is read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pictures import encoded, photo
from s3_server import Place
from tars import snapshot

from loader.verify import verify
from loader.writer import write_shard
from tasks import fetch, pack
from tasks.config import PackConfig
from tasks.drafts import Draft
from tasks.earlier import Earlier
from tasks.manifest import Manifest, PackedShard
from tasks.recipes import Record
from tasks.sources.base import Row

BAD = (3, 11, 12)  # rows of twenty


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Twenty rows with a picture or two each, three of which aren't there."""
    folder = tmp_path / "album"
    folder.mkdir()
    records = []
    for number in range(20):
        names = [f"{number:02d}-{n}.{'gif' if number % 3 else 'jpg'}" for n in range(1 + number % 2)]
        for n, name in enumerate(names):
            if number not in BAD:
                write(folder / name, number + n)
        caption = "".join(f"<image_{n}>" for n in range(len(names))) + f"row {number}"
        records.append({"images": names, "caption": caption, "n": number})
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder


def write(path: Path, seed: int) -> None:
    path.write_bytes(encoded(photo(40 + seed, 60, seed), "GIF" if path.suffix == ".gif" else "JPEG"))


def job(album: Path, name: str = "out", **changes: Any) -> PackConfig:
    values = {"source": str(album / "records.jsonl"), "output": str(album.parent / name), "n_jobs": 1}
    usual = {"max_samples": 10, "max_bad_fraction": 1.0, "sidecar": True, "image_max_side": 50}
    return PackConfig(**{**values, **usual, **changes})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pictures that are read."""
    names: list[str] = []
    real: Callable[[str], tuple[bytes, bytes]] = fetch.read_local

    def counting(path: str) -> tuple[bytes, bytes]:
        names.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(fetch, "read_local", counting)
    return names


def repaired(album: Path, numbers: tuple[int, ...] = BAD) -> set[str]:
    names = set()
    for number in numbers:
        for n in range(1 + number % 2):
            name = f"{number:02d}-{n}.{'gif' if number % 3 else 'jpg'}"
            write(album / name, number + n)
            names.add(name)
    return names


def files(config: PackConfig) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(config.output).items() if "pack.json" not in name}


@pytest.mark.parametrize("options", [
    {}, {"max_bytes": 20_000}, {"image_names": "extension"}, {"duplicates": "report"}, {"keys": "number", "sidecar": False},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("retry", [True, False])
def test_only_what_failed_is_read_again(
    album: Path, read: list[str], options: dict[str, Any], retry: bool
) -> None:
    config = job(album, retry_errors=retry, **options)
    assert pack.pack(job(album, **options)).bad == 3
    wanted = repaired(album)
    read.clear()
    assert pack.pack(config).bad == 0
    assert set(read) == wanted
    whole = job(album, "whole", **options)
    pack.pack(whole)
    assert files(config) == files(whole)
    assert verify(config.output, n_jobs=1, deep=True).problems == []
    read.clear()
    assert pack.pack(config).kept == 2 and not read


def test_what_is_still_bad_is_noted_again(album: Path, read: list[str]) -> None:
    config = job(album, retry_errors=True)
    pack.pack(config)
    wanted = repaired(album, (11,))
    before = (Path(config.output) / "errors.jsonl").read_text().splitlines()
    read.clear()
    summary = pack.pack(config)
    assert (summary.bad, summary.kept) == (2, 0)
    assert set(read) == wanted | {"03-0.jpg", "12-0.jpg"}
    assert (Path(config.output) / "errors.jsonl").read_text().splitlines() == [before[0], before[2]]
    whole = job(album, "whole")
    pack.pack(whole)
    assert files(config) == files(whole)


def test_a_permission_is_no_change_that_a_time_tells(album: Path) -> None:
    config = job(album)
    pack.pack(config)
    repaired(album)
    pack.pack(config)
    good = files(config)
    assert pack.pack(config).kept == 2
    assert pack.pack(job(album, retry_errors=True)).kept == 2  # nothing failed
    assert files(config) == good


@pytest.mark.parametrize("change", ["a picture", "a row", "an option", "a tar", "a recipe"])
def test_where_good_rows_have_changed_all_of_the_shard_is_packed(
    album: Path, read: list[str], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, options = job(album), {}
    pack.pack(config)
    repaired(album)
    if change == "a picture":
        write(album / "05-0.gif", 77)
    elif change == "a row":
        file = album / "records.jsonl"
        file.write_text(file.read_text().replace('row 5"', 'row five"'))
    elif change == "an option":
        options = {"image_quality": 70}
    elif change == "a tar":
        tar = Path(config.output, "shard-000000.tar")
        tar.write_bytes(tar.read_bytes()[:-512])
    else:
        from tasks import recipes

        monkeypatch.setattr(recipes, "RECIPE_VERSION", 99)
    read.clear()
    pack.pack(job(album, **options))
    assert {"00-0.jpg", "01-0.gif", "05-1.gif"} <= set(read)
    whole = job(album, "whole", **options)
    pack.pack(whole)
    assert files(job(album)) == files(whole)


def test_bytes_that_have_rotten_are_packed_again(album: Path, read: list[str]) -> None:
    config = job(album)
    pack.pack(config)
    wanted = repaired(album)
    tar = Path(config.output, "shard-000000.tar")
    data = bytearray(tar.read_bytes())
    at = data.index(b'row 1"')
    data[at] ^= 1  # in the JSON of the second sample: its CRC-32 tells
    tar.write_bytes(data)
    read.clear()
    pack.pack(job(album, retry_errors=True))
    assert set(read) == wanted | {"01-0.gif", "01-1.gif"}
    whole = job(album, "whole")
    pack.pack(whole)
    assert files(config) == files(whole)


def test_duplicates_are_dropped_without_reading_the_others(album: Path, read: list[str]) -> None:
    repaired(album)
    for name in ("15-0.jpg", "15-1.jpg"):
        (album / name).write_bytes((album / name.replace("15", "09")).read_bytes())
    config = job(album, duplicates="drop")
    summary = pack.pack(config)
    assert summary.duplicates == 1
    assert sum(name.startswith("02") for name in read) == 1
    whole = job(album, "whole", duplicates="drop", n_jobs=2)
    pack.pack(whole)
    assert files(config) == files(whole)


def test_in_a_bucket(album: Path, s3: Place) -> None:
    names = [path.name for path in album.iterdir()]
    for name in names:
        with fsspec.open(f"{s3.root}/in/{name}", "wb", **s3.storage_options) as file:
            file.write((album / name).read_bytes())
    config = job(
        album, image_root=f"{s3.root}/in", output=f"{s3.root}/out", storage_options=s3.storage_options
    )
    assert pack.pack(config).bad == 3
    for name in repaired(album):
        with fsspec.open(f"{s3.root}/in/{name}", "wb", **s3.storage_options) as file:
            file.write((album / name).read_bytes())
    assert pack.pack(config).bad == 0
    whole = job(
        album, image_root=f"{s3.root}/in", output=f"{s3.root}/whole", storage_options=s3.storage_options
    )
    pack.pack(whole)
    for name in (
        "shard-000000.tar",
        "shard-000001.tar",
        "shard-000001.tar.index",
        "shard-000001.parquet",
        "meta_stats.json",
    ):
        parts = []
        for root in ("out", "whole"):
            with fsspec.open(f"{s3.root}/{root}/{name}", "rb", **s3.storage_options) as file:
                parts.append(file.read())
        assert parts[0] == parts[1], name


def test_a_key_that_two_tars_of_a_slot_have_is_no_name_for_a_row(tmp_path: Path) -> None:
    shards = []
    for name, keys in (("shard-000000.tar", "ab"), ("shard-000000_001.tar", "bc")):
        info = write_shard(str(tmp_path / name), [(key, [(".json", b"{}")]) for key in keys])
        shards.append(PackedShard(info.path, info.num_samples, info.size, info.checksum, {".json": 2}))
    done = Manifest(0, "", 4, tuple(shards), ())
    config = PackConfig("in.jsonl", str(tmp_path))
    record = Record("words", ())
    with Earlier(done, config) as earlier:
        for number, (key, there) in enumerate([("a", True), ("b", False), ("c", True), ("d", False)]):
            draft = Draft(Row(number, "in.jsonl", number + 1, b"", {}), key, record, ())
            assert earlier.has(draft) is there
            assert (earlier.take(draft) is not None) is there
