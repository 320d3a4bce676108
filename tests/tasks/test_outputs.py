from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from source_kinds import picture

from loader.errors import BadConfig
from loader.gen_meta import gen_meta
from loader.indexed_tar_samples import IndexedTarSamples
from loader.meta import read_meta, read_stats
from loader.writer import ShardWriter
from tasks import pack
from tasks.config import PackConfig


def job(tmp_path: Path, name: str, count: int, **options: Any) -> PackConfig:
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"text": f"{name} {n}"}) + "\n" for n in range(count)))
    return PackConfig(str(file), str(tmp_path / "out"), n_jobs=1, **{"max_samples": 4, **options})


def tree(root: str) -> dict[str, bytes]:
    return {
        str(file.relative_to(root)): file.read_bytes() for file in Path(root).rglob("*") if file.is_file()
    }


def samples(config: PackConfig) -> dict[str, str]:
    found = {}
    for name in read_meta(config.output):
        with IndexedTarSamples(f"{config.output}/{name}") as tar:
            found |= {sample["__key__"]: sample[".json"]["caption"] for sample in tar}
    return found


def test_append_puts_new_shards_behind_the_old(tmp_path: Path) -> None:
    first = job(tmp_path, "a", 6)
    pack.pack(first)
    old = tree(first.output)
    second = job(tmp_path, "b", 5, mode="append")
    summary = pack.pack(second)
    assert (summary.rows, summary.samples, summary.shards) == (5, 5, 2)
    new = tree(first.output)
    assert {name: new[name] for name in old if ".tar" in name} == {
        name: data for name, data in old.items() if ".tar" in name
    }
    wanted = [f"a {n}" for n in range(6)] + [f"b {n}" for n in range(5)]
    assert samples(first) == {f"{n:09d}": text for n, text in enumerate(wanted)}
    assert list(read_meta(first.output)) == [f"shard-{n:06d}.tar" for n in range(4)]
    assert read_stats(first.output)["total_samples"] == 11
    # Again, and after more rows: it goes on with what it is, whether it is told to append or not.
    for mode in ("append", "error", "resume"):
        again = PackConfig(**{**vars(second), "mode": mode})
        assert pack.pack(again).kept == 2
        assert tree(first.output) == new
    third = job(tmp_path, "b", 9, mode="append")
    assert pack.pack(third).kept == 1
    assert list(samples(first).values()) == [*wanted, *(f"b {n}" for n in range(5, 9))]
    pack.pack(job(tmp_path, "c", 1, mode="append"))
    assert list(samples(first).values())[-1] == "c 0"
    assert len(samples(first)) == 16
    with pytest.raises(BadConfig, match="where another job has packed"):
        pack.pack(first)


def test_append_to_what_somebody_else_made(tmp_path: Path) -> None:
    config = job(tmp_path, "a", 5, mode="append")
    with ShardWriter(config.output, max_samples=3) as writer:
        for number in range(7):
            writer.write({"__key__": f"{number:09d}", ".jpg": picture(number)[0]})
    with pytest.raises(BadConfig, match=r"no meta\.json to append to"):
        pack.pack(config)
    gen_meta(config.output, n_jobs=1)
    old = tree(config.output)
    pack.pack(config)
    new = tree(config.output)
    assert {name: new[name] for name in old if ".tar" in name} == {
        n: d for n, d in old.items() if ".tar" in n
    }
    assert list(read_meta(config.output)) == [f"shard-{n:06d}.tar" for n in range(5)]
    stats = read_stats(config.output)
    assert (stats["total_samples"], stats["extensions"]) == (12, {".jpg": 7, ".json": 5})
    assert pack.pack(config).kept == 2
    assert tree(config.output) == new
    # A shard of ours is redone, and there is no meta.json for a while: theirs are in it again, and never touched.
    for damage in ("shard-000004.tar", "meta.json"):
        (tmp_path / "out" / damage).unlink()
        pack.pack(config)
        assert tree(config.output) == new
    pack.pack(job(tmp_path, "a", 1, mode="append"))
    assert list(read_meta(config.output)) == [f"shard-{n:06d}.tar" for n in range(4)]


def test_a_reader_meets_the_old_or_the_new(tmp_path: Path) -> None:
    first = job(tmp_path, "a", 6)
    pack.pack(first)
    found: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            found.add(len(samples(first)))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        pack.pack(job(tmp_path, "b", 30, mode="append"))
    finally:
        done.set()
        reader.join()
    assert found <= {6, 36}
    assert 6 in found


def test_append_is_killed_at_each_slot_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import manifest

    wanted = None
    for stop in (99, 2, 3):  # of the second job's slots 2 and 3
        output = tmp_path / f"out{stop}"
        first = job(tmp_path, "a", 6)
        pack.pack(PackConfig(**{**vars(first), "output": str(output)}))
        second = PackConfig(**{**vars(job(tmp_path, "b", 6, mode="append")), "output": str(output)})
        store = manifest.store

        def killed(found: manifest.Manifest, *arguments: Any, stop: int = stop, store: Any = store) -> None:
            if found.slot == stop:
                raise KeyboardInterrupt
            store(found, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(manifest, "store", killed)
            if stop == 99:
                pack.pack(second)
            else:
                for _ in range(2):  # the second time over shards that the first has left
                    with pytest.raises(KeyboardInterrupt):
                        pack.pack(second)
                    assert len(read_meta(str(output))) == 2
        pack.pack(second)
        wanted = wanted or tree(str(output))
        assert tree(str(output)) == wanted


def test_overwrite_replaces_all_that_is_there(tmp_path: Path) -> None:
    pack.pack(job(tmp_path, "a", 20, shard_names="old-{index}.tar"))
    (tmp_path / "out/notes.txt").write_text("mine")
    config = job(tmp_path, "b", 5)
    with pytest.raises(BadConfig, match="where another job has packed"):
        pack.pack(config)
    overwriting = PackConfig(**{**vars(config), "mode": "overwrite"})
    assert pack.pack(overwriting).shards == 2
    shown = sorted(name for name in tree(config.output) if not name.startswith("."))
    assert shown == [
        "meta.json", "meta_stats.json", "notes.txt",
        "shard-000000.tar", "shard-000000.tar.index", "shard-000001.tar", "shard-000001.tar.index",
    ]  # fmt: skip
    assert list(samples(config).values()) == [f"b {n}" for n in range(5)]
    assert pack.pack(config).kept == 2  # it is this job's now
    assert pack.pack(overwriting).kept == 0  # and is made again if that is asked for


def test_an_overwrite_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import manifest

    pack.pack(job(tmp_path, "a", 12))
    config = job(tmp_path, "b", 12, mode="overwrite")
    store = manifest.store

    def stopped(found: manifest.Manifest, *arguments: Any) -> None:
        if found.slot == 2:
            raise KeyboardInterrupt
        store(found, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "store", stopped)
        with pytest.raises(KeyboardInterrupt):
            pack.pack(config)
    assert not (tmp_path / "out/meta.json").exists()
    assert pack.pack(config).kept == 2
    assert list(samples(config).values()) == [f"b {n}" for n in range(12)]


def test_somebody_elses_output_is_overwritten_only_when_asked(tmp_path: Path) -> None:
    config = job(tmp_path, "a", 2)
    with ShardWriter(f"{config.output}/sub") as writer:
        writer.write({"__key__": "x", ".txt": "x"})
    for mode in ("error", "resume"):
        with pytest.raises(BadConfig, match="was not written by this command"):
            pack.pack(PackConfig(**{**vars(config), "mode": mode}))
    pack.pack(PackConfig(**{**vars(config), "mode": "overwrite"}))
    assert [name for name in tree(config.output) if name.endswith(".tar")] == ["shard-000000.tar"]


def test_resume_goes_on_where_the_job_is_set_otherwise_now(tmp_path: Path) -> None:
    config = job(tmp_path, "a", 12)
    pack.pack(config)
    other = PackConfig(**{**vars(config), "key_prefix": "k"})
    with pytest.raises(BadConfig, match="key_prefix was not set, and is now k"):
        pack.pack(other)
    resumed = PackConfig(**{**vars(other), "mode": "resume"})
    assert pack.pack(resumed).kept == 0
    assert list(samples(config)) == [f"k{n:09d}" for n in range(12)]
    with pytest.raises(BadConfig, match="another job has packed"):
        pack.pack(PackConfig(**{**vars(job(tmp_path, "b", 1)), "mode": "resume"}))
    split = PackConfig(**{**vars(resumed), "split": "a=0.5, b=0.5"})
    pack.pack(split)
    assert sorted(name for name in tree(config.output) if name.endswith((".tar", "meta.json"))) == [
        *(
            f"{folder}/{name}"
            for folder in "ab"
            for name in ("meta.json", "shard-000000.tar", "shard-000001.tar")
        )
    ]


def test_names_follow_from_the_inputs_or_are_random(tmp_path: Path) -> None:
    config = job(tmp_path, "a", 12, shard_names="images-{hash}-{index:03d}.tar")
    pack.pack(config)
    names = list(read_meta(config.output))
    assert all(re.fullmatch(r"images-[0-9a-f]{12}-00\d\.tar", name) for name in names)
    lines = Path(config.source).read_text().splitlines()
    Path(config.source).write_text("\n".join([*lines[:5], '{"text": "changed"}', *lines[6:], ""]))
    assert pack.pack(config).kept == 2
    changed = list(read_meta(config.output))
    assert [old == new for old, new in zip(sorted(names, key=_number), sorted(changed, key=_number), strict=True)] == [
        True, False, True,
    ]  # fmt: skip
    assert {name for name in tree(config.output) if name.endswith(".tar")} == set(
        changed
    )  # the old one is gone
    random = PackConfig(**{**vars(config), "deterministic_name": "false", "output": f"{config.output}2"})
    pack.pack(random)
    first = set(read_meta(random.output))
    assert not first & set(changed)
    assert pack.pack(random).kept == 3
    assert set(read_meta(random.output)) == first


def _number(name: str) -> str:
    return name[-7:]


def test_a_sample_that_is_larger_than_the_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = job(tmp_path, "a", 0, max_samples=0, max_bytes=6000)
    sizes = [100, 20_000, 100, 100, 20_000]
    Path(config.source).write_text("".join(json.dumps({"text": "x" * size}) + "\n" for size in sizes))
    summary = pack.pack(config)
    shards = read_meta(config.output)
    assert [shard.num_samples for shard in shards.values()] == [1, 1, 2, 1]
    assert list(shards)[:2] == ["shard-000000.tar", "shard-000000_001.tar"]
    assert summary.oversized == 2
    assert caplog.text.count("more than max_bytes = 6,000: its one sample is that large") == 2


@pytest.mark.parametrize(
    ("limits", "counts"),
    [
        ({"max_samples": 3, "max_bytes": 0}, [3, 3, 1]),
        ({"max_samples": 0, "max_bytes": 5 * 512 + 1024 - 1}, [2, 2, 2, 1]),
        ({"max_samples": 3, "max_bytes": 5 * 512 + 1024 - 1}, [2, 1, 2, 1, 1]),
    ],
)
def test_limits_by_samples_by_bytes_and_both(
    tmp_path: Path, limits: dict[str, int], counts: list[int]
) -> None:
    config = job(tmp_path, "a", 7, **limits)  # a sample takes two blocks, the end of a tar two more
    pack.pack(config)
    assert [shard.num_samples for shard in read_meta(config.output).values()] == counts
