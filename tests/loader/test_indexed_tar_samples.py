"""The samples of one open tar: grouped, decoded, chosen by extension, each by its number."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from PIL import Image
from strategies import samples
from tarmaker import by_tarfile
from tars import make_tar

from loader.errors import (
    BadSample,
    UnsafePickle,
)
from loader.indexed_tar import IndexedTar
from loader.indexed_tar_samples import IndexedTarSamples
from loader.writer import ShardWriter, write_shard

MEMBERS = [
    ("a.jpg", b"a-jpg"),
    ("a.txt", b"a text"),
    ("README", b"no sample"),
    ("b.txt", b"b text"),
    ("./d/c.JPG", b"c-jpg"),
    ("d/c.txt", b"c text"),
    ("b.jpg", b"b-jpg"),
]
TAR = by_tarfile(MEMBERS, "ustar")
NAMES = ["a.jpg", "a.txt", "b.txt", "b.jpg", "d/c.JPG", "d/c.txt"]
CONTENT = [b"a-jpg", b"a text", b"b text", b"b-jpg", b"c-jpg", b"c text"]


def jpeg(color: tuple[int, int, int] = (200, 10, 10)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), color).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "x.tar").write_bytes(TAR)
    return str(tmp_path / "x.tar")


def test_samples(path: str) -> None:
    with IndexedTarSamples(path, decode=False) as tar:
        wanted = [
            {"__key__": "a", ".jpg": b"a-jpg", ".txt": b"a text"},
            {"__key__": "b", ".txt": b"b text", ".jpg": b"b-jpg"},
            {"__key__": "d/c", ".jpg": b"c-jpg", ".txt": b"c text"},
        ]
        assert len(tar) == tar.num_samples == 3 and list(tar) == wanted and tar.extensions == (".jpg", ".txt")
        assert [tar[i] for i in (0, 1, 2, -1, -2, -3, np.int64(1))] == [
            wanted[i] for i in (0, 1, 2, -1, -2, -3, 1)
        ]
        for which in (slice(None), slice(1, None), slice(None, None, -1), slice(-1, -3, -1), slice(9, 12)):
            assert tar[which] == wanted[which]
        for i in (3, -4, 10**30):
            for call in (tar.__getitem__, tar.raw, tar.decoded, tar.key, tar.members):
                with pytest.raises(IndexError, match="3 samples: there is no sample"):
                    call(i)
        assert list(tar.keys()) == ["a", "b", "d/c"] == [tar.key(i) for i in range(3)]
        assert [tar.find(key) for key in ("a", "b", "d/c")] == [0, 1, 2]
        with pytest.raises(KeyError, match="no sample 'c'"):
            tar.find("c")
        assert tar.members(2) == [("d/c.JPG", ".jpg", b"c-jpg"), ("d/c.txt", ".txt", b"c text")]
        assert "3 samples of .jpg, .txt" in repr(tar)


@given(samples())
@settings(deadline=None, max_examples=40)
def test_what_the_packer_writes(shard: list[tuple[str, list[tuple[str, bytes]]]]) -> None:
    address = "memory://indexed-tar-property/x.tar"
    write_shard(address, shard)
    with IndexedTarSamples(address, backend="memory", decode=False) as tar:
        assert len(tar) == len(shard)
        for sample, (key, members) in zip(tar, shard, strict=True):
            wanted: dict[str, list[bytes]] = {}
            for suffix, data in members:
                wanted.setdefault(suffix[suffix.index(".") :], []).append(data)
            assert sample == {"__key__": key} | {e: d if len(d) > 1 else d[0] for e, d in wanted.items()}


def test_several_members_of_one_extension_are_a_list(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    content = [("k-1.jpg", b"1"), ("k-2.png", b"2"), ("k.json", b"{}"), ("k-0.jpg", b"0"), ("m.json", b"{}")]
    path.write_bytes(by_tarfile(content, "ustar"))
    with IndexedTarSamples(path, decode=False) as tar:
        assert tar[0] == {"__key__": "k", ".json": b"{}", ".jpg": [b"0", b"1"], ".png": b"2"}
        assert [name for name, _, _ in tar.members(0)] == ["k.json", "k-0.jpg", "k-1.jpg", "k-2.png"]
    content = [("a.JPG", b"A"), ("a.jpg", b"a"), ("a.Jpg", b"Aa")]
    path.write_bytes(by_tarfile(content, "ustar"))
    with IndexedTarSamples(path, decode=False) as tar:
        assert list(tar) == [{"__key__": "a", ".jpg": [b"A", b"a", b"Aa"]}]


def test_values_and_bytes(tmp_path: Path) -> None:
    array = np.arange(4)
    with ShardWriter(str(tmp_path)) as writer:
        writer.write(
            {
                "__key__": "a",
                ".json": {"x": 1},
                ".txt": "é",
                ".npy": array,
                ".jpg": jpeg(),
                ".seg.PNG": b"",
                ".xyz": b"?",
            }
        )
    path = tmp_path / "shard-000000.tar"
    with IndexedTarSamples(path, extensions=[".json", "txt", ".npy", ".jpg", ".xyz"]) as tar:
        sample = tar[0]
        assert (sample[".json"], sample[".txt"], sample[".xyz"]) == ({"x": 1}, "é", b"?")
        assert (sample[".npy"] == array).all()
        assert sample[".jpg"].mode == "RGB" and sample[".jpg"].size == (8, 6)
        assert tar.raw(0)[".txt"] == "é".encode()
        assert tar.decoded(0)[".txt"] == "é"
        assert tar.extensions == (".json", ".txt", ".npy", ".jpg", ".xyz")
    with IndexedTarSamples(path, decode=False) as tar:
        assert tar[0][".json"] == b'{"x":1}' and ".seg.png" in tar[0]


def test_extensions_leave_the_others_untouched(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    original = os.pread

    def pread(number: int, size: int, start: int) -> bytes:
        read.append((start, start + size))
        return original(number, size, start)

    with IndexedTarSamples(path, extensions=[".TXT", ".none"], backend="read") as tar:
        assert tar.extensions == (".txt",)
        monkeypatch.setattr("loader.indexed_tar_samples.pread", pread)
        assert list(tar) == [{"__key__": k, ".txt": f"{k[-1]} text"} for k in ("a", "b", "d/c")]
        assert read == [tar.index.span(tar.index.find_name(name)) for name in ("a.txt", "b.txt", "d/c.txt")]
        assert [name for name, _, _ in tar.members(0)] == ["a.txt"]
    with IndexedTarSamples(path, extensions=[]) as tar:
        assert tar[0] == {"__key__": "a"} and tar.extensions == ()
    with pytest.raises(ValueError, match=r"a list such as \['\.txt'\]"):
        IndexedTarSamples(path, extensions=".txt")


class Watched:
    """A mapped tar that tells which bytes were taken from it."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer, self.taken = buffer, list[tuple[int, int]]()

    def __getitem__(self, part: slice) -> bytes:
        self.taken.append((part.start, part.stop))
        return self.buffer[part]


def test_extensions_leave_the_others_untouched_in_the_map(path: str) -> None:
    with IndexedTarSamples(path, extensions=[".txt"]) as tar:
        watched = Watched(tar.tar.buffer)  # type: ignore[arg-type]
        tar.tar.plain = watched  # type: ignore[assignment]
        assert [sample["__key__"] for sample in tar] == ["a", "b", "d/c"]
        names = ["a.txt", "b.txt", "d/c.txt"]
        assert watched.taken == [tar.index.span(tar.index.find_name(name)) for name in names]


def test_numbered_extensions_are_meant_by_their_kind(tmp_path: Path) -> None:
    names = ["k.10.jpg", "k.9.JPG", "k.seg.jpg", "k.0.seg.jpg", "k.2.png", "k.json", "k.jpg"]
    path = make_tar(tmp_path / "x.tar", [(name, b"{}") for name in names])
    for wanted, found in (
        ([".jpg"], ["k.jpg", "k.9.JPG", "k.10.jpg"]),
        ([".seg.jpg"], ["k.seg.jpg", "k.0.seg.jpg"]),
        ([".9.jpg", ".png"], ["k.2.png", "k.9.JPG"]),
        (None, ["k.seg.jpg", "k.json", "k.jpg", "k.0.seg.jpg", "k.2.png", "k.9.JPG", "k.10.jpg"]),
    ):
        with IndexedTarSamples(path, extensions=wanted, decode=False) as tar:
            assert [name for name, _, _ in tar.members(0)] == found
            assert {e for _, e, _ in tar.members(0)} == set(tar[0]) - {"__key__"} == set(tar.extensions)


def shout(data: bytes) -> str:
    return data.decode().upper()


def test_handlers_for_this_object_alone(path: str) -> None:
    with IndexedTarSamples(path, handlers={".txt": shout, ".jpg": bytes}) as tar:
        assert tar[1] == {"__key__": "b", ".txt": "B TEXT", ".jpg": b"b-jpg"}
    with IndexedTarSamples(path, handlers={".JPG": len}) as tar:
        assert tar[1] == {"__key__": "b", ".txt": "b text", ".jpg": 5}


def test_a_handler_may_raise_anything(path: str) -> None:
    def fail(data: bytes) -> None:
        raise ZeroDivisionError("of my own")

    with IndexedTarSamples(path, handlers={".txt": fail}, extensions=["txt"]) as tar:
        with pytest.raises(BadSample) as caught:
            tar[2]
        message = str(caught.value)
        assert (
            path in message
            and "'d/c'" in message
            and "'d/c.txt'" in message
            and "ZeroDivisionError: of my own" in message
        )
        assert f"byte {TAR.index(b'c text')}" in message
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert tar.raw(2) == {"__key__": "d/c", ".txt": b"c text"}


def test_bytes_that_are_no_picture(path: str) -> None:
    with (
        IndexedTarSamples(path) as tar,
        pytest.raises(BadSample, match=r"x\.tar: sample 'a', member 'a\.jpg' at byte 512: "),
    ):
        tar[0]


def test_pickles_load_only_when_asked_for(tmp_path: Path) -> None:
    objects = io.BytesIO()
    np.save(objects, np.array([{"x": 1}]), allow_pickle=True)
    with ShardWriter(str(tmp_path)) as writer:
        writer.write({"__key__": "a", ".pickle": pickle.dumps({"x": 1}), ".txt": ""})
        writer.write({"__key__": "b", ".npy": objects.getvalue(), ".txt": ""})
    path = tmp_path / "shard-000000.tar"
    with IndexedTarSamples(path) as tar:
        for i, name in enumerate(("a.pickle", "b.npy")):
            with pytest.raises(
                UnsafePickle, match=rf"sample '{name[0]}', member '{name}' .*allow_pickle=True"
            ):
                tar[i]
        assert isinstance(tar.raw(0)[".pickle"], bytes)
    with IndexedTarSamples(path, extensions=[".txt"]) as tar:
        assert len(list(tar)) == 2
    with IndexedTarSamples(path, allow_pickle=True) as tar:
        assert tar[0][".pickle"] == {"x": 1} and tar[1][".npy"][0] == {"x": 1}


def test_an_open_tar_keeps_its_own_arguments(path: str) -> None:
    with IndexedTar(path) as tar:
        assert len(IndexedTarSamples(tar)) == 3
        for options in ({"backend": "memory"}, {"storage_options": {"anon": True}}, {"grouping": "plain"}):
            with pytest.raises(ValueError, match="open already"):
                IndexedTarSamples(tar, **options)  # type: ignore[arg-type]


# -- cost


def test_a_sample_costs_a_few_slices(tmp_path: Path) -> None:
    path = str(tmp_path / "x.tar")
    content = [(f"{n:05d}.{end}", bytes(200)) for n in range(5000) for end in ("txt", "cls")]
    Path(path).write_bytes(by_tarfile(content, "ustar"))
    with IndexedTarSamples(path, decode=False) as tar:
        spans = [tar.index.span(n) for n in range(len(tar.tar))]
        buffer = tar.tar.buffer

        def seconds(work: Callable[[int], Any]) -> float:
            start = time.process_time()
            for n in range(5000):
                work(n)
            return time.process_time() - start

        def bare(n: int) -> dict[str, Any]:
            (a, b), (c, d) = spans[2 * n], spans[2 * n + 1]
            return {"__key__": n, ".txt": buffer[a:b], ".cls": buffer[c:d]}

        assert min(seconds(tar.raw) for _ in range(5)) < 12 * min(seconds(bare) for _ in range(5))
