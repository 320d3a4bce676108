from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from source_kinds import picture

from loader.indexed_tar_samples import IndexedTarSamples
from loader.meta import read_meta
from tasks import duplicates, pack
from tasks.config import PackConfig
from tasks.manifest import Manifest, PackedShard, Seen


@pytest.fixture
def config(tmp_path: Path) -> PackConfig:
    """Twelve rows with five pictures, which lie in two files each, and two equal texts."""
    for number in range(5):
        for copy in range(2):
            (tmp_path / f"{number}-{copy}.jpg").write_bytes(picture(number)[0])
    records: list[dict[str, Any]] = [
        {"image": f"{n % 5}-{n % 2}.jpg", "caption": f"row {n}"} for n in range(10)
    ]
    records += [{"text": "the same"}, {"text": "the same"}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return PackConfig(str(tmp_path / "a.jsonl"), str(tmp_path / "out"), max_samples=4, n_jobs=1)


def captions(config: PackConfig) -> list[str]:
    found = []
    for name in read_meta(config.output):
        with IndexedTarSamples(f"{config.output}/{name}") as tar:
            found += [sample[".json"]["caption"].removeprefix("<image_0>") for sample in tar]
    return found


def listed(config: PackConfig) -> list[tuple[str, str]]:
    lines = (Path(config.output) / "duplicates.jsonl").read_text().splitlines()
    return [(entry["key"][-2:], entry["same_as"][-2:]) for entry in map(json.loads, lines)]


WANTED = [(f"{n + 5:02d}", f"{n:02d}") for n in range(5)] + [("11", "10")]


def test_they_are_reported(config: PackConfig) -> None:
    config = dataclasses.replace(config, duplicates="report")
    summary = pack.pack(config)
    assert (summary.samples, summary.duplicates, summary.bad) == (12, 6, 0)
    assert listed(config) == WANTED
    assert pack.pack(config).kept == summary.slots


def test_they_are_dropped_across_slots(config: PackConfig) -> None:
    config = dataclasses.replace(config, duplicates="drop")
    summary = pack.pack(config)
    assert (summary.samples, summary.duplicates, summary.bad, summary.shards) == (6, 6, 0, 3)
    assert listed(config) == WANTED
    assert captions(config) == [*(f"row {n}" for n in range(5)), "the same"]
    assert pack.pack(config).kept == summary.slots
    first = {file: file.read_bytes() for file in Path(config.output).glob("*.tar")}
    other = dataclasses.replace(config, output=f"{config.output}-2", n_jobs=2)
    pack.pack(other)
    assert {file.name: data for file, data in first.items()} == {
        file.name: file.read_bytes() for file in Path(other.output).glob("*.tar")
    }


def test_a_slot_of_doubles_alone_has_no_shard(config: PackConfig) -> None:
    lines = Path(config.source).read_text().splitlines()
    Path(config.source).write_text("\n".join([*lines[:4], *lines[:4], lines[4]]))
    config = dataclasses.replace(config, duplicates="drop")
    summary = pack.pack(config)
    assert (summary.samples, summary.shards) == (5, 2)
    assert list(read_meta(config.output)) == ["shard-000000.tar", "shard-000002.tar"]


def test_when_the_first_goes_the_second_comes_back(config: PackConfig) -> None:
    config = dataclasses.replace(config, duplicates="drop")
    pack.pack(config)
    lines = Path(config.source).read_text().splitlines()
    Path(config.source).write_text("\n".join(['{"text": "another"}', *lines[1:]]))
    pack.pack(config)
    assert captions(config) == ["another", *(f"row {n}" for n in range(1, 6)), "the same"]


def test_keep_lists_nothing(config: PackConfig) -> None:
    pack.pack(dataclasses.replace(config, duplicates="report"))
    summary = pack.pack(config)
    assert summary.samples == 12
    assert not (Path(config.output) / "duplicates.jsonl").exists()


def test_what_counts_as_the_same() -> None:
    a, b = (".jpg", b"a"), (".png", b"b")
    assert duplicates.digest_of([(".json", b"1"), a]) == duplicates.digest_of([(".json", b"2"), a])
    assert duplicates.digest_of([a, b]) != duplicates.digest_of([b, a])
    assert duplicates.digest_of([(".json", b"1")]) != duplicates.digest_of([(".json", b"2")])
    assert duplicates.digest_of([("-0.jpg", b"ab"), ("-1.jpg", b"c")]) != duplicates.digest_of(
        [("-0.jpg", b"a"), ("-1.jpg", b"bc")]
    )


def test_the_first_in_the_order_of_the_shards_stays() -> None:
    def slot(number: int, digests: str, dropped: tuple[int, ...] = ()) -> Manifest:
        seen = tuple(
            Seen(10 * number + n, "s", n, f"k{number}{n}", digit * 32) for n, digit in enumerate(digests)
        )
        shard = PackedShard("a.tar", len(digests) - len(dropped), 1, 1, {})
        return Manifest(number, "", len(digests), (shard,), (), 0, seen, dropped)

    manifests = [slot(0, "abca"), slot(1, "dbe", (11,)), slot(2, "eaf")]
    found = [(number, seen.key, first) for number, seen, first in duplicates.find(lambda: manifests)]
    assert found == [(0, "k03", "k00"), (1, "k11", "k01"), (2, "k20", "k12"), (2, "k21", "k00")]
    assert duplicates.to_drop(lambda: manifests) == {0: (3,), 2: (20, 21)}
    assert duplicates.to_drop(lambda: []) == {}
