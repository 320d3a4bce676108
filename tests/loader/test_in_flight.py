"""Threads and what they fetched: made where they are needed, bounded, and gone with what they serve."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from pathlib import Path

import pytest
from s3_server import Place
from stored import open_, pack, sample

from loader.indexed_tar_samples import IndexedTarSamples
from loader.remote import Remote


def test_pickles_and_copies_start_without_threads(s3: Place, remote: Remote) -> None:
    pack(s3.root, 1, 5, s3.storage_options)
    with open_(s3, remote, backend="range") as samples:
        assert samples[1] == sample(1)
        assert remote._process is not None
        other = pickle.loads(pickle.dumps(samples))
        assert other[2] == sample(2)
        other.close()


def test_a_fork_reads_on(s3: Place, remote: Remote) -> None:
    pack(s3.root, 1, 6, s3.storage_options)
    options = {**s3.storage_options, "client": "fsspec"}
    with open_(Place(s3.root, options), remote, backend="range") as samples:
        samples.prefetch(range(6))
        assert samples[0] == sample(0)
        child = os.fork()
        if child == 0:
            good = [samples[n] for n in range(6)] == [sample(n) for n in range(6)]
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert samples[5] == sample(5)


def shardflow_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shardflow")]


def test_threads_end_with_what_they_serve(s3: Place, tmp_path: Path) -> None:
    pack(s3.root, 1, 6, s3.storage_options)
    gc.collect()  # what other tests left
    for backend in ("cache", "range"):
        with IndexedTarSamples(
            s3.address("00000.tar"), backend=backend, storage_options=s3.storage_options, decode=False,
            cache_dir=str(tmp_path / "c"),
        ) as samples:  # fmt: skip
            assert samples[2] == sample(2)
            assert shardflow_threads()
        deadline = time.monotonic() + 20
        while shardflow_threads() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not shardflow_threads()


def test_threads_end_with_one_that_nobody_closed(s3: Place, tmp_path: Path) -> None:
    pack(s3.root, 1, 6, s3.storage_options)
    gc.collect()
    before = len(shardflow_threads())
    remote: Remote | None = Remote(str(tmp_path / "c"))
    assert remote is not None
    open_(s3, remote).close()
    assert len(shardflow_threads()) > before
    remote = None
    gc.collect()
    deadline = time.monotonic() + 20
    while len(shardflow_threads()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(shardflow_threads()) <= before


def test_what_is_ahead_is_bounded(s3: Place, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(s3.root, 1, 20, s3.storage_options)
    monkeypatch.setattr("loader.in_flight.BYTES_AHEAD", 100_000)
    with open_(s3, remote, backend="range") as samples:
        samples.prefetch(range(20))
        assert remote.bytes_ahead <= 100_000
        assert [samples[n] for n in range(20)] == [sample(n) for n in range(20)]
        assert remote.bytes_ahead == 0
