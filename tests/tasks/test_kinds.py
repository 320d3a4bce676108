"""Every kind of source, from real files to shards: what is in them, and that the bytes are always the same."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from places import python
from s3_server import Place
from source_kinds import COUNT, KINDS, caption, picture

from loader.errors import BadConfig
from loader.indexed_tar_samples import IndexedTarSamples
from loader.meta import read_meta
from loader.pool import Pool
from loader.workers import Workers
from tasks import manifest, pack, source
from tasks.config import PackConfig
from tasks.lock import exclusive
from tasks.on_dask import DaskWorkers


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PackConfig]:
    jobs = {}
    for name, make in KINDS.items():
        folder = tmp_path_factory.mktemp(name.replace(".", "_"))
        jobs[name] = PackConfig(
            make(folder), str(folder / "out"), max_samples=4, n_jobs=1, recipe_folder=str(folder)
        )
    return jobs


def tree(root: str) -> dict[str, bytes]:
    return {
        str(file.relative_to(root)): file.read_bytes() for file in Path(root).rglob("*") if file.is_file()
    }


def samples(config: PackConfig) -> Iterator[dict[str, Any]]:
    for name in read_meta(config.output):
        with IndexedTarSamples(f"{config.output}/{name}", decode=False) as tar:
            yield from tar


def said(sample: dict[str, Any]) -> str:
    return str(json.loads(sample[".json"])["caption"]).removeprefix("<image_0>")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored(corpora: dict[str, PackConfig], kind: str) -> None:
    config = corpora[kind]
    summary = pack.pack(config)
    assert (summary.rows, summary.samples, summary.bad) == (COUNT, COUNT, 0)
    found = list(samples(config))
    pictures = [
        value for sample in found for name, value in sample.items() if name[1:] in ("jpg", "png", "webp")
    ]
    originals = [picture(number)[0] for number in range(COUNT)]
    if kind == "classes":  # folder by folder
        originals = originals[::2] + originals[1::2]
        assert [said(sample) for sample in found] == ["a dog"] * 12 + ["cat"] * 11
    else:
        assert [said(sample) for sample in found] == [caption(number) for number in range(COUNT)]
    assert pictures == originals
    number = "k{:03d}" if kind == "tar" else "{:09d}"
    assert [sample["__key__"] for sample in found] == [number.format(n) for n in range(COUNT)]
    assert not (Path(config.output) / ".shardflow" / "sources").exists() or not any(
        (Path(config.output) / ".shardflow" / "sources").iterdir()
    )
    assert pack.pack(config).kept == summary.slots


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Workers]]:
    with Pool(2) as two, Pool(12) as twelve, DaskWorkers(2) as dask:
        yield {"2": two, "12": twelve, "dask": dask}


def packed_by(config: PackConfig, pool: Workers) -> dict[str, bytes]:
    with exclusive(config.output):
        job = pack.plan(config)
        pack.prepare_output(config)
        slots = list(reversed(range(len(job.slots))))
        pack.finish_pack(job, pack.pack_group(job, slots, pool))
    return tree(config.output)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_workers_and_a_kill_give_the_same_bytes(
    corpora: dict[str, PackConfig],
    workers: dict[str, Workers],
    killer: subprocess.Popen[str],
    tmp_path: Path,
    kind: str,
) -> None:
    for options in ({}, {"order": "shuffled", "seed": 5, "split": "train=0.8, test=0.2"}):
        config = dataclasses.replace(corpora[kind], output=str(tmp_path / f"one{len(options)}"), **options)
        pack.pack(config)
        wanted = tree(config.output)
        assert sum(name.endswith(".tar") for name in wanted) == 6 + bool(options)
        for name, pool in workers.items():
            other = dataclasses.replace(config, output=f"{config.output}-{name}")
            assert packed_by(other, pool) == wanted
        killed = dataclasses.replace(config, output=f"{config.output}-killed")
        kill_while_packing(killed, killer)
        assert len(manifest.slots(killed.output)) == 2
        assert not any(name.endswith("meta.json") for name in tree(killed.output))
        pack.pack(killed)
        assert tree(killed.output) == wanted


# A process without threads, which forks one for each job that it reads: packs, and is killed when it has two slots and
# the tar of a third.
KILLED = """
import json, os, signal, sys
from tasks import manifest, pack
from tasks.config import PackConfig

store = manifest.store

def last_words(found, *arguments):
    if found.slot == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    store(found, *arguments)

manifest.store = last_words
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        pack.pack(PackConfig(**json.loads(line)))
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def killer() -> Iterator[subprocess.Popen[str]]:
    with python(KILLED, stdin=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


def kill_while_packing(config: PackConfig, killer: subprocess.Popen[str]) -> None:
    killer.stdin.write(json.dumps(dataclasses.asdict(config)) + "\n")
    killer.stdin.flush()
    assert int(killer.stdout.readline()) == signal.SIGKILL


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_source_gives_shards_of_the_same_name(
    corpora: dict[str, PackConfig], tmp_path: Path, kind: str
) -> None:
    config = corpora[kind]
    named = dataclasses.replace(
        config,
        output=str(tmp_path / "a"),
        shard_names="images-{hash}-{index:06d}.tar",
        deterministic_name="true",
    )
    pack.pack(named)
    names = sorted(name for name in tree(named.output) if name.endswith(".tar"))
    assert len(names) == len({name[7:19] for name in names}) == 6
    if kind != "function":
        moved = tmp_path / "elsewhere"
        shutil.copytree(config.recipe_folder, moved, ignore=shutil.ignore_patterns("out"))
        place = config.source.replace(config.recipe_folder, str(moved))
        named = dataclasses.replace(named, source=place)
    again = dataclasses.replace(named, output=str(tmp_path / "b"))
    pack.pack(again)
    first, second = ({n: d for n, d in tree(o.output).items() if n.endswith(".tar")} for o in (named, again))
    assert first == second


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "function"])
def test_a_source_in_a_store_gives_the_same(
    corpora: dict[str, PackConfig], tmp_path: Path, kind: str
) -> None:
    config = dataclasses.replace(corpora[kind], output=str(tmp_path / "here"))
    folder = Path(config.recipe_folder)
    memory = fsspec.filesystem("memory")
    for file in folder.rglob("*"):
        if file.is_file() and "out" not in file.relative_to(folder).parts:
            memory.pipe_file(f"/{kind}/{file.relative_to(folder)}", file.read_bytes())
    for options in ({}, {"order": "shuffled"}):
        here = dataclasses.replace(config, output=f"{config.output}{len(options)}", **options)
        there = dataclasses.replace(
            here, source=config.source.replace(str(folder), f"memory://{kind}"), output=f"{here.output}-there"
        )
        pack.pack(here)
        pack.pack(there)
        first, second = (
            {n: d for n, d in tree(o.output).items() if n.endswith(".tar")} for o in (here, there)
        )
        assert len(first) == 6
        assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet", "captions", "tar"])
def test_from_s3_to_s3_by_several_processes(
    corpora: dict[str, PackConfig], workers: dict[str, Workers], s3: Place, tmp_path: Path, kind: str
) -> None:
    config = corpora[kind]
    here = dataclasses.replace(config, output=str(tmp_path / "here"), order="shuffled")
    pack.pack(here)
    fs = fsspec.filesystem("s3", **s3.storage_options)
    folder = Path(config.recipe_folder)
    for file in folder.rglob("*"):
        if file.is_file() and "out" not in file.relative_to(folder).parts:
            fs.pipe_file(s3.address("in", str(file.relative_to(folder))), file.read_bytes())
    there = dataclasses.replace(
        here,
        source=config.source.replace(str(folder), s3.address("in")),
        output=s3.address("out"),
        storage_options=s3.storage_options,
    )
    with exclusive(there.output):
        job = pack.plan(there)
        pack.prepare_output(there)
        pack.finish_pack(job, pack.pack_group(job, range(len(job.slots)), workers["2"]))
    tars = {name: data for name, data in tree(here.output).items() if name.endswith(".tar")}
    assert {name: fs.cat_file(s3.address("out", name)) for name in tars} == tars
    assert len(tars) == 6
    left = fs.find(s3.address("out", ".shardflow/sources"))
    assert all(name.endswith("/sources") for name in left)  # a folder that this server shows as a file


def packing_nothing(folder: Path) -> dict[str, Any]:
    """An empty source of each kind: what to write, and what its name is."""
    table, tar = io.BytesIO(), bytes(10240)
    pq.write_table(pa.table({"image": pa.array([], pa.string())}), table)
    files = {
        "a.json": b"[]",
        "a.jsonl": b"\n\n",
        "a.jsonl.gz": gzip.compress(b""),
        "a.csv": b"image,caption\n",
        "a.parquet": table.getvalue(),
        "a.tar": tar,
        "metadata.csv": b"file_name,text\n",
        "none.py": b"def records():\n    return []\n",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: "none:records" if name == "none.py" else str(folder / name) for name in files}


@pytest.mark.parametrize(
    "options", [{}, {"order": "shuffled"}, {"split": "a=0.5,b=0.5"}, {"duplicates": "drop"}]
)
def test_no_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    for number, (name, place) in enumerate(packing_nothing(tmp_path).items()):
        config = PackConfig(
            place, str(tmp_path / f"out{number}"), n_jobs=1, recipe_folder=str(tmp_path), **options
        )
        summary = pack.pack(config)
        assert (summary.rows, summary.samples, summary.shards) == (0, 0, 0), name
        assert read_meta(config.output) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_can_be_said(corpora: dict[str, PackConfig], kind: str) -> None:
    said = {"jsonl.gz": "jsonl", "json.zst": "json", "parquet-bytes": "parquet", "function": "python"}.get(
        kind, kind
    )
    config = corpora[kind]
    found = [slot.rows for slot in source.plan_slots(dataclasses.replace(config, source_kind=said))]
    assert found == [slot.rows for slot in source.plan_slots(config)]
    if kind not in ("function", "tsv", "csv", "tar", "captions", "classes"):
        wrong = "parquet" if said != "parquet" else "tar"
        with pytest.raises(BadConfig, match="source"):
            source.plan_slots(dataclasses.replace(config, source_kind=wrong))
