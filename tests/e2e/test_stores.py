"""From records to samples with everything in a store: sources, pictures, config, shards, indexes, meta, registry."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy
from PIL import Image
from places import ROOT, environment
from s3_server import KEY, SECRET, Place, S3Server

from loader import IndexedTarSamples, ShardWriter, storage
from loader.gen_meta import gen_meta
from loader.warmup import find_targets, warmup
from tasks.config import PackConfig
from tasks.pack import pack

COUNT = 40
pytestmark = pytest.mark.slow


def put_corpus(place: Place) -> None:
    """records.jsonl and pictures that don't compress, so that shards are worth a while."""
    noise, records = random.Random(3), []
    for number in range(COUNT):
        picture = io.BytesIO()
        Image.frombytes("RGB", (120, 90), noise.randbytes(120 * 90 * 3)).save(picture, "JPEG", quality=95)
        storage.write_bytes(
            place.address(f"in/img/{number:03d}.jpg"), picture.getvalue(), place.storage_options
        )
        records.append(json.dumps({"image": f"img/{number:03d}.jpg", "caption": f"caption {number}"}) + "\n")
    storage.write_bytes(place.address("in/records.jsonl"), "".join(records).encode(), place.storage_options)


def job(place: Place, output: str, **more: Any) -> str:
    """The address of a packing job's config, in the store as well."""
    config = {
        "source": place.address("in/records.jsonl"), "output": place.address(output), "max_samples": 10, "n_jobs": 2,
        "storage_options": {"max_tries": 5}, **more,
    }  # fmt: skip
    address = place.address(f"{output}.yaml")
    storage.write_bytes(address, json.dumps(config).encode(), place.storage_options)
    return address


def variables(place: Place, home: Path) -> Mapping[str, str]:
    """Who it is and where, for all commands."""
    found = {name: value for name, value in environment().items() if not name.startswith(("AWS_", "FSSPEC_"))}
    url = place.storage_options["endpoint_url"]
    return {
        **found, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": url, "HOME": str(home),
    }  # fmt: skip


def started(place: Place, home: Path, module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], env=variables(place, home), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def run(place: Place, home: Path, module: str, *arguments: str) -> str:
    process = started(place, home, module, *arguments)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    return out


def tree(place: Place, folder: str) -> dict[str, bytes]:
    """All files, the hidden ones too."""
    fs, path = storage.filesystem(place.address(folder), place.storage_options)
    return {file[len(path) :]: fs.cat_file(file) for file in fs.find(path)}


def check_samples(place: Place, folder: str) -> None:
    tars = storage.list_files(place.address(folder), ".tar", place.storage_options)
    assert len(tars) == COUNT // 10
    seen = []
    for tar in tars:
        for sample in IndexedTarSamples(tar, backend="memory", storage_options=place.storage_options):
            seen.append(sample[".json"]["caption"])
            assert sample[".jpg"].size == (120, 90)
    assert seen == [f"<image_0>caption {number}" for number in range(COUNT)]


@pytest.fixture
def corpus(s3: Place) -> Place:
    put_corpus(s3)
    return s3


def test_from_records_to_samples(corpus: Place, faults: FaultProxy, tmp_path: Path) -> None:
    """Through a proxy that fails each tenth request in some way."""
    faulty = Place(corpus.root, {**corpus.storage_options, "endpoint_url": faults.url})
    kinds = ("503", "reset", "cut", "500")
    faults.reset(rules=tuple(faults.rule(kind, every=40, after=n * 8) for n, kind in enumerate(kinds)))
    out = run(faulty, tmp_path, "flows.cli", "prepare", job(corpus, "out"), "--direct")
    assert faults.stats()["failed"] > 10, out
    first = tree(corpus, "out")
    assert {"/meta.json", "/meta_stats.json", "/shard-000000.tar", "/shard-000000.tar.index"} <= first.keys()
    check_samples(corpus, "out")

    # Again: nothing is written, nothing read but what says that all is done.
    faults.reset()
    run(faulty, tmp_path, "flows.cli", "prepare", job(corpus, "out"), "--direct")
    methods = faults.stats()["methods"]
    writes = [
        each
        for each in faults.stats()["log"]
        if each[0] in ("PUT", "POST", "DELETE") and "uploads" not in each[1]
    ]
    assert not [each for each in writes if ".tar" in each[1]], writes
    assert tree(corpus, "out") == first and methods["GET"]

    # What others packed: no indexes and no meta.json, beside a registry that lies there too.
    for file in first:
        if not file.endswith(".tar"):
            storage.remove(corpus.address("out") + file, corpus.storage_options)
    run(corpus, tmp_path, "loader.gen_meta", corpus.address("out"), "--n_jobs", "2")
    registry = {"photos/noise": {"data_type": "image_text", "dir": corpus.address("out")}}
    storage.write_bytes(
        corpus.address("datasets.json"), json.dumps(registry).encode(), corpus.storage_options
    )
    warm = ("photos/*", "--registry", corpus.address("datasets.json"), "--n_jobs", "2")
    storage.remove(corpus.address("out/shard-000002.tar.index"), corpus.storage_options)
    assert "1 built, 3 were there" in run(corpus, tmp_path, "loader.warmup", *warm)
    again = tree(corpus, "out")
    assert {name: again[name] for name in again if not name.endswith("_stats.json")} == {
        name: first[name] for name in again if not name.endswith("_stats.json")
    }


def test_a_read_only_bucket(s3_server: S3Server, tmp_path: Path) -> None:
    """Nobody signs, nobody may write: indexes and meta.json lie on this machine, mirrored by address."""
    shards = s3_server.place("open")
    with ShardWriter(shards.root, max_samples=10, storage_options=shards.storage_options) as writer:
        for number in range(20):
            writer.write({"__key__": f"{number:06d}", ".txt": f"caption {number}"})
    for index in storage.list_files(shards.root, ".index", shards.storage_options):
        storage.remove(index, shards.storage_options)
    nobody = {"anon": True, "endpoint_url": s3_server.url}
    index_root, meta = str(tmp_path / "indexes"), str(tmp_path / "meta" / "meta.json")
    outcome = gen_meta(shards.root, meta, 1, nobody, index_root=index_root)
    assert outcome.written and {report.index for report in outcome.reports.values()} == {"built"}
    targets = find_targets(shards.root, storage_options=nobody)
    assert not any(report.built for report in warmup(targets, 1, index_root=index_root).reports.values())
    refused = warmup(targets, 1)
    assert not refused.reports and all("--index_root" in why for why in refused.failures.values())
    assert json.loads(Path(meta).read_text())["shard-000000.tar"]["num_samples"] == 10
    mirrored = sorted(str(file.relative_to(index_root)) for file in Path(index_root).rglob("*.index"))
    prefix = shards.root.replace("://", "/")
    assert mirrored == [f"{prefix}/shard-{number:06d}.tar.index" for number in range(2)]
    tar = shards.address("shard-000001.tar")
    samples = IndexedTarSamples(tar, backend="memory", storage_options=nobody, index_root=index_root)
    assert samples[0][".txt"] == "caption 10"


def test_killed_in_the_middle_it_ends_with_the_same_bytes(
    corpus: Place, faults: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # for locks
    source, options = corpus.address("in/records.jsonl"), corpus.storage_options
    whole = PackConfig(source, corpus.address("whole"), max_samples=10, n_jobs=1, storage_options=options)
    pack(whole)
    wanted = tree(corpus, "whole")
    slow = Place(corpus.root, {**options, "endpoint_url": faults.url})
    config = job(corpus, "out")
    faults.reset(latency=0.02)
    killed = started(slow, tmp_path, "flows.cli", "pack", config, "--direct")
    while killed.poll() is None and not storage.list_files(corpus.address("out"), ".tar", options):
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not storage.exists(corpus.address("out/meta.json"), options)
    pack(replace(whole, output=corpus.address("out")))
    found = tree(corpus, "out")
    assert found.keys() == wanted.keys()
    assert [name for name in found if found[name] != wanted[name]] == []


def test_a_chain_is_refused(tmp_path: Path) -> None:
    for chain in ("simplecache::s3://b/x", "filecache::s3://b/x"):
        done = subprocess.run(
            [sys.executable, "-m", "loader.gen_meta", chain], cwd=ROOT, env=environment(), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 1 and "Shardflow's own cache" in " ".join(
            (done.stdout + done.stderr).split()
        )


@pytest.mark.parametrize("job", [("gen-meta", "d"), ("warmup", "d/*.tar")])
def test_flows_that_read_little_more_than_headers(
    job: tuple[str, str], s3: Place, faults: FaultProxy, tmp_path: Path
) -> None:
    counted = Place(s3.root, {**s3.storage_options, "endpoint_url": faults.url})
    with ShardWriter(s3.address("d"), max_samples=8, storage_options=s3.storage_options) as writer:
        for number in range(16):
            writer.write({"__key__": f"{number:03d}", ".bin": random.Random(number).randbytes(1 << 20)})
    for tar in storage.list_files(s3.address("d"), ".tar", s3.storage_options):
        storage.remove(tar + ".index", s3.storage_options)
    name, what = job
    faults.reset()
    run(counted, tmp_path, "flows.cli", name, s3.address(what), "--save-bytes", "--direct")
    assert faults.stats()["down"] < 1 << 20
    tars = storage.list_files(s3.address("d"), ".tar", s3.storage_options)
    assert all(storage.exists(tar + ".index", s3.storage_options) for tar in tars)
    if name == "gen-meta":
        meta = json.loads(storage.read_bytes(s3.address("d/meta.json"), s3.storage_options))
        assert json.dumps(meta).count('"checksum": null') == len(tars) == 2
