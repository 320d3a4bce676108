"""Writing shards: equal samples give equal bytes, and what is written is what is read."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import golden_tars
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import python
from strategies import payloads, samples
from tarmaker import BLOCK
from tarmaker import members_of as members

from loader import storage
from loader.index import index_path, load_index
from loader.indexed_tar_samples import IndexedTarSamples
from loader.indexing import build, find_fresh
from loader.tar_writer import TarWriter
from loader.writer import Shard, ShardInfo, ShardWriter, encode, encode_sample, write_shard

Sample = tuple[str, list[tuple[str, bytes]]]


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path)
        return
    yield f"memory://{tmp_path.name}"
    if storage.exists(f"memory://{tmp_path.name}"):
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


def read(address: str) -> list[Sample]:
    with IndexedTarSamples(address, backend="memory", decode=False) as tar:
        return [
            (tar.key(i), [(name[len(tar.key(i)) :], data) for name, _, data in tar.members(i)])
            for i in range(len(tar))
        ]


def snapshot(root: str) -> dict[str, str]:
    return {
        storage.relative(file, storage.normalise(root)): hashlib.sha256(storage.read_bytes(file)).hexdigest()
        for file in storage.list_files(root)
    }


# -- one shard


@given(samples(max_samples=8))
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_read_and_indexed_as_a_scan_would(shard: list[Sample]) -> None:
    root = "memory://writer-property"
    address = f"{root}/a.tar"
    info = write_shard(address, shard)
    data = storage.read_bytes(address)
    assert info == ShardInfo("a.tar", len(shard), len(data), zlib.adler32(data))
    assert read(address) == shard
    assert storage.read_bytes(index_path(address)) == build(data, address)
    assert find_fresh(address)[1] == "fresh"
    before = snapshot(root)
    write_shard(address, iter(shard))
    assert snapshot(root) == before


keys = st.text(
    st.characters(codec="utf-8", exclude_characters=".\0", exclude_categories=("Cs",)), min_size=1, max_size=8
)
wild_keys = st.one_of(
    st.builds("{}{}".format, st.sampled_from(("a", "b", "d/a", "a-b/a")), st.sampled_from(("", "-0", "-1", "-x", "-01"))),
    keys,
)  # fmt: skip
suffixes = st.sampled_from(
    (".json", ".jpg", "-0.jpg", "-1.jpg", "-1.png", "-2.jpg", ".JSON", ".txt", "-x.jpg", "x.jpg", "-0", "")
)


@given(st.lists(st.tuples(wild_keys, st.lists(suffixes, max_size=4)), max_size=6))
@settings(deadline=None, max_examples=300)
def test_a_sample_is_refused_or_comes_back(shard: list[tuple[str, list[str]]]) -> None:
    written: list[Sample] = []
    address = "memory://writer-property/b.tar"
    with Shard(address) as writer:
        for key, ends in shard:
            members = [(suffix, f"{key}{suffix}".encode()) for suffix in ends]
            size = writer.size
            try:
                writer.add(key, members)
            except ValueError:
                assert writer.size == size  # nothing of it was written
            else:
                written.append((key, members))
    assert [key for key, _ in read(address)] == [key for key, _ in written]
    assert [sorted(members) for _, members in read(address)] == [sorted(members) for _, members in written]
    assert storage.read_bytes(index_path(address)) == build(storage.read_bytes(address), address)


def test_golden_shard(tmp_path: Path) -> None:
    """The bytes of a shard and its index, as they were when the format was laid down."""
    write_shard(str(tmp_path / "shard.tar"), golden_tars.OURS)
    for name in ("shard.tar", "shard.tar.index"):
        assert (tmp_path / name).read_bytes() == (golden_tars.FOLDER / name).read_bytes(), (
            f"{name} has changed"
        )


def test_nothing_of_clock_user_or_place(tmp_path: Path) -> None:
    shard = [("a", [(".txt", b"a")])]
    write_shard(str(tmp_path / "x" / "a.tar"), shard)
    code = "import os, sys; os.umask(0o77); from loader.writer import write_shard; write_shard(sys.argv[1], [('a', [('.txt', b'a')])])"
    with python(code, tmp_path / "y" / "other.tar") as child:
        assert child.wait() == 0
    assert (tmp_path / "x" / "a.tar").read_bytes() == (tmp_path / "y" / "other.tar").read_bytes()
    assert (tmp_path / "x" / "a.tar.index").read_bytes() == (tmp_path / "y" / "other.tar.index").read_bytes()


def test_a_shard_without_samples_is_a_valid_tar(root: str) -> None:
    address = storage.join(root, "a.tar")
    assert write_shard(address, []) == ShardInfo("a.tar", 0, 1024, zlib.adler32(bytes(1024)))
    assert storage.read_bytes(address) == bytes(1024)
    assert read(address) == []


def test_tiny_samples_are_not_doubled_in_size(tmp_path: Path) -> None:
    info = write_shard(
        str(tmp_path / "a.tar"), [(f"{n:09d}", [(".txt", b"x"), (".cls", b"1")]) for n in range(100)]
    )
    assert info.size == 200 * 1024 + 1024


@pytest.mark.parametrize(
    ("key", "suffixes", "reason"),
    [
        ("", [".json"], "read back"),
        ("a.b", [".json"], "read back"),
        ("a/b.c/d.e", [".json"], "read back"),
        (".a", [".json"], "read back"),
        ("x/.y/a", [".json"], "read back"),
        ("/a", [".json"], "read back"),
        ("./a", [".json"], "read back"),
        ("../a", [".json"], "read back"),
        ("x/../a", [".json"], "read back"),
        ("x/", [".json"], "read back"),
        ("__MACOSX/a", [".json"], "read back"),
        ("a", [""], "read back"),
        ("a", ["."], "read back"),
        ("a", ["-0"], "read back"),
        ("a", ["jpg"], "read back"),
        ("a", [".json", "x.jpg"], "read back"),
        ("a", [".json", "-x.jpg"], "read back"),
        ("a", [".json", "-00.jpg"], "read back"),
        ("a", [".json", "-1234567890.jpg"], "read back"),
        ("a", [".json/b.jpg"], "read back"),
        ("a", [], "no members"),
        ("a", [".jpg", ".jpg"], "two members of one name"),
        ("a", [".json", "-0.jpg", "-0.png"], r"\[0, 0\]"),
        ("a", [".json", "-1.jpg"], r"\[1\]"),
        ("a", ["-0.jpg"], r"one '\.json'"),
        ("a", [".txt", "-0.jpg"], r"one '\.json'"),
        ("a", [".json", ".txt", "-0.jpg"], r"one '\.json'"),
        ("a-b", [".json", "-0.jpg"], "hyphen"),
        ("a\0", [".json"], "NUL"),
        ("a\ud800", [".json"], "no text"),
        ("k" * 65532, [".json"], "65536 bytes"),
    ],
)
def test_samples_that_would_not_come_back(tmp_path: Path, key: str, suffixes: list[str], reason: str) -> None:
    address = str(tmp_path / "a.tar")
    with Shard(address) as shard:
        shard.add("good", [(".json", b"{}"), ("-0.jpg", b"0"), ("-1.jpg", b"1")])
        before = shard.size
        with pytest.raises(ValueError, match=reason):
            shard.add(key, [(suffix, b"x") for suffix in suffixes])
        assert shard.size == before
        shard.add("too", [(".json", b"{}")])
    assert [key for key, _ in read(address)] == ["good", "too"]


@pytest.mark.parametrize("value", ["text", None, 5, [b"x"]])
def test_what_is_no_bytes(tmp_path: Path, value: Any) -> None:
    with Shard(str(tmp_path / "a.tar")) as shard:
        before = shard.size
        with pytest.raises(TypeError, match="bytes were expected"):
            shard.add("a", [(".json", b"{}"), (".txt", value)])
        assert shard.size == before
        shard.add("a", [(".json", memoryview(b"{}")), (".txt", bytearray(b"t"))])
    assert read(str(tmp_path / "a.tar")) == [("a", [(".json", b"{}"), (".txt", b"t")])]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("s", [".json", "-0.jpg"]), ("x-1", [".json"])),
        (("x-1", [".json"]), ("s", [".json", "-0.jpg"])),
        (("s", [".json"]), ("s-0", [".jpg"])),
        (("s-0", [".jpg"]), ("s", [".json"])),
        (("s", [".JSON"]), ("s-0", [".jpg"])),
        (("d/s-0", [".json"]), ("d/s", [".json"])),
    ],
)
def test_keys_that_would_be_taken_for_images(tmp_path: Path, first: Any, second: Any) -> None:
    address = str(tmp_path / "a.tar")
    with Shard(address) as shard:
        shard.add(first[0], [(suffix, b"x") for suffix in first[1]])
        with pytest.raises(ValueError, match="looks like a numbered image"):
            shard.add(second[0], [(suffix, b"x") for suffix in second[1]])
        shard.add("t", [(".json", b"x")])  # one that was refused stands in nobody's way
        if first[0] == "s":
            shard.add("u", [(".json", b"x"), ("-0.jpg", b"x")])
    assert [key for key, _ in read(address)] == [first[0], "t"] + ["u"] * (first[0] == "s")


def test_hyphens_of_ones_own_are_no_trouble_without_numbered_members(tmp_path: Path) -> None:
    address = str(tmp_path / "a.tar")
    with Shard(address) as shard:
        for key in ("img-1", "img-2", "img", "a-b", "a-b-0"):
            shard.add(key, [(".jpg", b"x"), (".json", b"{}")])
        shard.add("c-d", [(".json", b"{}")])
        shard.add("c-d-0", [(".json", b"{}")])  # a key with a hyphen has no numbered images
    assert [key for key, _ in read(address)] == ["img-1", "img-2", "img", "a-b", "a-b-0", "c-d", "c-d-0"]


def test_a_key_twice(tmp_path: Path) -> None:
    with Shard(str(tmp_path / "a.tar")) as shard:
        shard.add("a", [(".json", b"{}")])
        with pytest.raises(ValueError, match="twice"):
            shard.add("a", [(".jpg", b"")])


# -- whole or not at all


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_exception_leaves_nothing_or_what_was_there(root: str, error: type[BaseException]) -> None:
    address = storage.join(root, "a.tar")
    for before in (False, True):
        if before:
            write_shard(address, [("old", [(".txt", b"old")])])
        files = snapshot(root)
        with pytest.raises(error), Shard(address) as shard:
            shard.add("a", [(".txt", b"x" * 3_000_000)])
            raise error
        assert snapshot(root) == files
        assert not before or len(files) == 2
    if storage.is_local(root):
        assert len(os.listdir(root)) == 2  # hidden files included


def test_a_sample_in_part_is_never_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever skips what fails must not skip half a sample: all numbers behind it would be wrong.
    shard = Shard(str(tmp_path / "a.tar"))
    shard.add("a", [(".txt", b"a")])
    original = TarWriter.add

    def add(self: TarWriter, name: bytes, data: bytes) -> int:
        if name == b"b.txt":
            raise MemoryError
        return original(self, name, data)

    monkeypatch.setattr(TarWriter, "add", add)
    with pytest.raises(RuntimeError, match="written in part"), shard:
        with pytest.raises(MemoryError):
            shard.add("b", [(".json", b"{}"), (".txt", b"b")])
        with pytest.raises(RuntimeError, match="written in part"):
            shard.add("c", [(".txt", b"c")])
    assert os.listdir(tmp_path) == []


def test_samples_that_raise_on_the_way(tmp_path: Path) -> None:
    def source() -> Iterator[Sample]:
        yield "a", [(".txt", b"x")]
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        write_shard(str(tmp_path / "a.tar"), source())
    assert list(tmp_path.iterdir()) == []


def test_an_old_index_goes_before_its_tar_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Same size, same first and last member: were we killed between tar and index, the old index would seem fresh.
    address = str(tmp_path / "a.tar")
    middle = [
        [("b", [(".txt", b"b" * 700)]), ("c", [(".txt", b"c")])],
        [("b", [(".txt", b"b")]), ("c", [(".txt", b"c" * 700)])],
    ]

    def shard(number: int) -> list[Sample]:
        return [("a", [(".txt", b"a")]), *middle[number], ("d", [(".txt", b"d")])]  # type: ignore[list-item]

    write_shard(address, shard(0))
    kept = Path(index_path(address)).read_bytes()
    write_shard(address, shard(1))
    changed = Path(index_path(address)).read_bytes()
    Path(index_path(address)).write_bytes(kept)
    assert find_fresh(address)[1] == "fresh"  # which is why
    Path(index_path(address)).write_bytes(changed)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        write_shard(address, shard(0))
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["a.tar"]
    assert [key for key, _ in read(address)] == ["a", "b", "c", "d"]
    assert dict(read(address))["b"] == [(".txt", b"b" * 700)]


KILLED = """
import sys
from loader.tar_writer import TarWriter
from loader.writer import ShardWriter
with ShardWriter(sys.argv[1], max_samples=3) as writer:
    for n in range(8):
        writer.write({"__key__": f"{n:03d}", ".bin": bytes(1_500_000)})
    print("written", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer(tmp_path: Path) -> None:
    with python(KILLED, tmp_path, stdin=-1) as child:
        assert child.stdout is not None and child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
    finished = ["shard-000000.tar", "shard-000000.tar.index", "shard-000001.tar", "shard-000001.tar.index"]
    assert [storage.name(path) for path in storage.list_files(str(tmp_path))] == finished
    assert len(os.listdir(tmp_path)) == 5
    (left,) = storage.sweep(str(tmp_path))
    assert "shard-000002.tar" in left
    assert sorted(os.listdir(tmp_path)) == finished
    assert [key for key, _ in read(str(tmp_path / "shard-000001.tar"))] == ["003", "004", "005"]


# -- many shards


def test_limits_by_samples(root: str) -> None:
    with ShardWriter(root, max_samples=4) as writer:
        for n in range(9):
            writer.write({"__key__": f"{n:03d}", ".json": {"n": n}, ".jpg": b"jpg"})
    assert [(info.path, info.num_samples) for info in writer.shards] == [
        ("shard-000000.tar", 4),
        ("shard-000001.tar", 4),
        ("shard-000002.tar", 1),
    ]
    for info in writer.shards:
        data = storage.read_bytes(storage.join(root, info.path))
        assert (info.size, info.checksum) == (len(data), zlib.adler32(data))
        index = load_index(index_path(storage.join(root, info.path)))
        assert (index.num_samples, index.tar_size, index.checksum) == (
            info.num_samples,
            info.size,
            info.checksum,
        )
    assert sorted(snapshot(root)) == sorted(
        name for info in writer.shards for name in (info.path, info.path + ".index")
    )


@given(st.lists(payloads(4000), min_size=1, max_size=12), st.integers(1, 12_000))
@settings(deadline=None, max_examples=60)
def test_limits_by_bytes(sizes: list[bytes], limit: int) -> None:
    root = "memory://writer-limits"
    with ShardWriter(root, max_bytes=limit) as writer:
        for n, data in enumerate(sizes):
            writer.write({"__key__": "k" * 101 + f"{n}", ".bin": data})
    assert sum(info.num_samples for info in writer.shards) == len(sizes)
    for info in writer.shards:
        assert info.size <= limit or info.num_samples == 1
    for info, following in itertools.pairwise(writer.shards):
        first = members(storage.read_bytes(f"{root}/{following.path}"))[0]
        needed = 2 * BLOCK * 2 + first[2] + -first[2] % BLOCK  # a pax record and a header before the payload
        assert info.size + needed > limit  # what begins a shard had no place in the one before
    keys = [key for info in writer.shards for key, _ in read(f"{root}/{info.path}")]
    assert keys == ["k" * 101 + f"{n}" for n in range(len(sizes))]


def test_no_sample_no_shard(root: str) -> None:
    with ShardWriter(root) as writer:
        pass
    assert writer.shards == [] and storage.list_files(root) == []
    with ShardWriter(root) as writer, pytest.raises(ValueError, match="read back"):
        writer.write({"__key__": "a.b", ".txt": "x"})
    assert writer.shards == [] and storage.list_files(root) == []


def test_a_refused_sample_leaves_no_gap(root: str) -> None:
    with ShardWriter(root, max_samples=1) as writer:
        for key in ("a", "b.c", "b", "b", "c.d", "c"):
            with contextlib.suppress(ValueError):
                writer.write({"__key__": key, ".txt": key})
    # A key is unique within its shard only: a key again, in the next shard, is another sample.
    assert [info.path for info in writer.shards] == [f"shard-00000{n}.tar" for n in range(4)]


def test_an_exception_keeps_the_shards_before(root: str) -> None:
    with pytest.raises(KeyError), ShardWriter(root, max_samples=2) as writer:
        for n in range(5):
            writer.write({"__key__": str(n), ".txt": "x"})
        raise KeyError
    assert [info.path for info in writer.shards] == ["shard-000000.tar", "shard-000001.tar"]
    assert len(storage.list_files(root)) == 4


def test_start_name_and_folders(root: str) -> None:
    with ShardWriter(root, name="part/{:03d}.tar", start=7, max_samples=1) as writer:
        for n in range(2):
            writer.write({"__key__": str(n), "txt": "x"})
    assert [info.path for info in writer.shards] == ["part/007.tar", "part/008.tar"]
    assert [key for key, _ in read(storage.join(root, "part/008.tar"))] == ["1"]


def test_close_without_a_context(root: str) -> None:
    writer = ShardWriter(root)
    writer.write({"__key__": "a", ".txt": "x"})
    assert storage.list_files(root) == []
    writer.close()
    writer.close()
    assert len(writer.shards) == 1


@pytest.mark.parametrize(
    "name",
    [
        "shard.tar",
        "shard-{}.zip",
        "shard-{}",
        "{x}.tar",
        "{}{}.tar",
        "{",
        "/else/{}.tar",
        "../{}.tar",
        "s3://x/{}.tar",
    ],
)
def test_names_that_are_no_pattern(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a pattern such as"):
        ShardWriter(str(tmp_path), name=name)


def test_limits_below_one(tmp_path: Path) -> None:
    for limits in ({"max_samples": 0}, {"max_bytes": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            ShardWriter(str(tmp_path), **limits)  # type: ignore[arg-type]


# -- values


def test_values_come_back(root: str) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    sample = {
        "__key__": "a/0001",
        "__url__": "left out",
        ".json": {"caption": "é <image_0>", "list": [1, None]},
        "txt": "é\n",
        ".npy": array,
        ".meta.json": [1, 2],
        ".bin": bytearray(b"123"),
        ".CLS": "7",
    }
    with ShardWriter(root) as writer:
        writer.write(sample)
    with IndexedTarSamples(storage.join(root, "shard-000000.tar"), backend="memory") as tar:
        (value,) = list(tar)
        assert list(tar.raw(0)) == ["__key__", ".json", ".txt", ".npy", ".meta.json", ".bin", ".cls"]
    assert value["__key__"] == "a/0001"
    assert (value[".json"], value[".txt"], value[".bin"], value[".cls"]) == (
        sample[".json"],
        "é\n",
        b"123",
        7,
    )
    assert value[".meta.json"] == [1, 2]
    assert (value[".npy"] == array).all()


def test_lists_become_numbered_members(root: str) -> None:
    with ShardWriter(root) as writer:
        writer.write({"__key__": "a", ".jpg": [b"%d" % n for n in range(11)], ".png": [b"p"], ".json": {}})
        writer.write({"__key__": "b", ".jpg": [], ".json": [1]})
    with IndexedTarSamples(storage.join(root, "shard-000000.tar"), backend="memory", decode=False) as tar:
        assert tar[0] == {
            "__key__": "a",
            ".json": b"{}",
            ".jpg": [b"%d" % n for n in range(11)],
            ".png": b"p",
        }
        assert [name for name, _, _ in tar.members(0)][-1] == "a-11.png"
        assert tar[1] == {"__key__": "b", ".json": b"[1]"}
        assert tar.index.grouping == "numbered"


@pytest.mark.parametrize(
    ("sample", "error", "reason"),
    [
        ({}, ValueError, "__key__"),
        ({"__key__": ""}, ValueError, "__key__"),
        ({"__key__": 5, ".txt": ""}, ValueError, "5"),
        ({"__key__": "a", 5: b""}, TypeError, "5 is no extension"),
        ({"__key__": "a", ".json": {"x": b"bytes"}}, TypeError, r"'\.json'.*bytes"),
        ({"__key__": "a", ".json": {"x": float("nan")}}, ValueError, r"'\.json'"),
        ({"__key__": "a", ".json": "half \ud83d"}, ValueError, r"'\.json'"),
        ({"__key__": "a", ".txt": "half \ud83d"}, ValueError, r"'\.txt'.*give bytes"),
        ({"__key__": "a", ".txt": 5}, TypeError, r"'\.txt' holds a int"),
        ({"__key__": "a", ".npy": np.array([None])}, ValueError, "allow_pickle"),
        ({"__key__": "a", ".jpg": [b"", None], ".json": {}}, TypeError, r"'\.jpg' holds a NoneType"),
    ],
)
def test_values_that_cannot_be_written(sample: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        encode_sample(sample)


def test_json_is_the_same_wherever_it_is_written() -> None:
    assert encode(".json", {"b": "é", "a": 1}) == '{"b":"é","a":1}'.encode()
    assert encode(".json", "text") == b'"text"'
    assert encode(".json", b'{"ready": 1}') == b'{"ready": 1}'
    assert json.loads(encode(".x.JSON", [1])) == [1]


def test_names_of_any_bytes(root: str) -> None:
    with ShardWriter(root) as writer:
        for key in ("caf\udce9", "café", "two\nlines", "back\\slash", " spaces ", "k" * 300):
            writer.write({"__key__": key, ".txt": key.encode("utf-8", "surrogateescape")})
    with IndexedTarSamples(storage.join(root, "shard-000000.tar"), backend="memory", decode=False) as tar:
        assert [sample["__key__"].encode("utf-8", "surrogateescape") for sample in tar] == [
            sample[".txt"] for sample in tar
        ]


def test_the_tar_is_closed_properly(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path)) as writer:
        writer.write({"__key__": "a", ".txt": "x"})
    with tarfile.open(tmp_path / "shard-000000.tar") as tar:
        assert tar.getnames() == ["a.txt"]
    assert (tmp_path / "shard-000000.tar").read_bytes()[-1024:] == bytes(1024)
