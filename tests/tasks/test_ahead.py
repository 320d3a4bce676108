"""Threads within a shard: who has how many, and that they change nothing but the time."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pictures import encoded, photo
from tars import snapshot

from loader import pool
from tasks import ahead, images, manifest, pack
from tasks.config import PackConfig


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of them."""
    monkeypatch.setattr(pool.os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """A hundred rows with up to two pictures, of which every tenth row has one that is bad in some way."""
    folder = tmp_path / "album"
    folder.mkdir()
    records = []
    for number in range(100):
        names = [f"{number:03d}-{n}.jpg" for n in range(number % 3)]
        for n, name in enumerate(names):
            data = encoded(photo(20 + number % 7, 30 + n, number))
            bad = number % 10 == 5 and n == number % 20 // 10
            (folder / name).write_bytes(data[:-100] if bad else data)
        if number % 10 == 8 and names:
            (folder / names[-1]).unlink()
        caption = "".join(f"<image_{n}>" for n in range(len(names))) + f"row {number}"
        records.append({"images": names, "caption": caption} if names else {"text": caption})
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder


def job(album: Path, name: str, **changes: Any) -> PackConfig:
    values = {"source": str(album / "records.jsonl"), "output": str(album.parent / name), "sidecar": True}
    return PackConfig(**{**values, "image_format": "webp", "max_bad_fraction": 1.0, **changes})


def files(config: PackConfig) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(config.output).items() if "pack.json" not in name}


@pytest.mark.parametrize(
    ("n_jobs", "shards", "count"),
    [
        (0, 1, 8),
        (0, 2, 4),
        (0, 3, 2),
        (0, 8, 1),
        (0, 900, 1),
        (0, 0, 1),
        (1, 1, 1),
        (4, 1, 4),
        (4, 3, 1),
        (99, 1, 8),
    ],
)
def test_idle_cores_are_shared_out(cores: None, album: Path, n_jobs: int, shards: int, count: int) -> None:
    config = job(album, "out", n_jobs=n_jobs)
    assert ahead.threads(config, shards) == count
    with ahead.crew(config, shards) as threads:
        assert (threads is None) == (count == 1)
    with ahead.crew(job(album, "out", image_format="keep"), shards) as threads:
        assert threads is None  # bytes that are kept want none


@pytest.mark.parametrize("changes", [{}, {"max_bytes": 20_000}, {"duplicates": "drop"}], ids=str)
def test_the_same_bytes_with_and_without_them(
    cores: None, album: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()

    def watched(*arguments: Any) -> Any:
        seen.add(threading.get_ident())
        return images.store(*arguments)

    monkeypatch.setattr(ahead, "store", watched)
    many, one = job(album, "many", **changes), job(album, "one", n_jobs=1, **changes)
    summary = pack.pack(many)
    assert summary.bad == pack.pack(one).bad == 13
    assert files(many) == files(one)
    assert len(seen) > 1 and threading.get_ident() not in seen
    found = manifest.load(many.output, 0)
    assert found is not None and {bad.stage for bad in found.bad} == {"read", "picture"}
    assert not [thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]


def test_samples_of_tars_as_well(cores: None, album: Path) -> None:
    kept = job(album, "kept", image_format="keep", sidecar=False, image_names="extension")
    pack.pack(kept)
    options = {"source": kept.output, "source_kind": "tar", "image_max_side": 16}
    many, one = job(album, "many", **options), job(album, "one", n_jobs=1, **options)
    assert pack.pack(many).samples == pack.pack(one).samples == 87
    assert files(many) == files(one)


def test_the_first_bad_row_ends_it_where_that_is_asked_for(cores: None, album: Path) -> None:
    from loader.errors import BadSample

    reasons = []
    for name, jobs in (("many", 0), ("one", 1)):
        with pytest.raises(BadSample) as caught:
            pack.pack(job(album, name, n_jobs=jobs, on_error="raise"))
        reasons.append(str(caught.value))
    assert reasons[0] == reasons[1] and "row 6 " in reasons[0]


def test_faults_that_are_no_rows_end_it(cores: None, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(ahead.fetch, "read_local", full)
    with pytest.raises(pack.SlotsFailed, match="Too many open files"):
        pack.pack(job(album, "out"))


@pytest.mark.parametrize(
    ("n_jobs", "shards", "idle"),
    [(0, 3, True), (0, 8, False), (0, 900, False), (0, 0, False), (1, 900, True), (8, 900, False)],
)
def test_a_core_that_no_process_takes(cores: None, album: Path, n_jobs: int, shards: int, idle: bool) -> None:
    assert ahead.idle(job(album, "out", n_jobs=n_jobs), shards) == idle
