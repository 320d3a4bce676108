"""The index as a document: laid out as specified, and no way to make it run code, read outside, or blow up."""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import resource
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checks
import golden_tars
import pytest
from growth import growth
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load as load_safetensors
from strategies import tar_members
from tarmaker import END, by_tarfile, member

from loader.errors import BadAddress, BadIndex, ShardflowError, UnknownIndexVersion
from loader.index import Entries, Index, foreign, index_path, load_index, pack_entries
from loader.indexing import build
from loader.sample import group

TAR = (
    b"".join(member(b"%d.%s" % (n, end), b"%d" % n * n) for n in range(4) for end in (b"jpg", b"json"))
    + member(b"README", b"no sample")
    + member("caf\xe9.txt".encode("latin-1"), b"latin")
    + END
)
GOOD = build(TAR, "x.tar")


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def packed(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def altered(change: Callable[[dict[str, Any]], Any]) -> bytes:
    header, body = parts(GOOD)
    result = change(header)
    return packed(header if result is None else result, body)


def with_array(name: str, values: list[int]) -> bytes:
    """The good index with other numbers in one array; as many as before."""
    header, body = parts(GOOD)
    first, last = header[name]["data_offsets"]
    width = int(header[name]["dtype"][1:]) // 8
    data = b"".join(value.to_bytes(width, "little") for value in values)
    assert len(data) == last - first
    return packed(header, body[:first] + data + body[last:])


def explore(data: bytes) -> list[Any]:
    """Everything that an index of these bytes can be asked."""
    return checks.explore(Index(data, "x.index"))


# -- what it says


def test_the_arrays_are_as_the_format_says() -> None:
    header, body = parts(GOOD)
    assert (len(GOOD) - len(body)) % 8 == 0
    at = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        width = int(entry["dtype"][1:]) // 8
        assert first == at and first % width == 0 and last - first == entry["shape"][0] * width
        at = last
    assert at == len(body)
    arrays = load_safetensors(GOOD)
    assert [arrays["offset"].dtype, arrays["key_size"].dtype, arrays["name"].dtype] == ["<u8", "<u4", "u1"]
    assert set(arrays) == {
        "offset", "size", "sample_begin", "key_size", "name", "name_begin", "extension", "extension_name",
        "extension_begin", "name_crc32", "name_member", "crc32",
    }  # fmt: skip
    assert arrays["size"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 5]
    assert arrays["sample_begin"].tolist() == [0, 2, 4, 6, 8, 9]
    assert bytes(arrays["name"]).startswith(b"0.jpg0.json1.jpg")
    assert bytes(arrays["extension_name"]) == b".jpg.json.txt"
    assert (arrays["name_crc32"][1:] >= arrays["name_crc32"][:-1]).all()


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(GOOD)
    with safe_open(tmp_path / "x.index", "numpy") as file:  # type: ignore[no-untyped-call]
        metadata = file.metadata()
        assert file.get_tensor("offset").tolist() == list(load_index(str(tmp_path / "x.index")).offset)
    assert (metadata["format"], metadata["version"], metadata["tar_size"]) == (
        "shardflow.index",
        "1",
        str(len(TAR)),
    )


@pytest.mark.parametrize("name", golden_tars.TARS)
def test_golden_indexes(name: str) -> None:
    data = (golden_tars.FOLDER / f"{name}.tar").read_bytes()
    index = (golden_tars.FOLDER / f"{name}.tar.index").read_bytes()
    expected = json.loads((golden_tars.FOLDER / "tars.json").read_text())[name]
    assert golden_tars.describe(load_index(str(golden_tars.FOLDER / f"{name}.tar.index"))) == expected
    assert build(data, name) == index, "the index format has changed"
    for stored, first, last, extension, _ in expected["members"]:
        assert stored.endswith(extension) or stored.lower().endswith(extension)
        assert 512 <= first <= last <= len(data)


@given(tar_members(unique=False), st.sampled_from(("gnu", "pax")))
@settings(deadline=None, max_examples=60)
def test_every_member_is_found_by_name_and_number(content: list[tuple[str, bytes]], form: str) -> None:
    data = by_tarfile(content, form)
    groups = group([name for name, _ in content])
    index = Index(build(data, "x.tar"), "x.index")
    index.verify()
    assert index.names() == [groups.names[number] for number in groups.order]
    assert index.keys() == groups.keys == [index.key(s) for s in range(index.num_samples)]
    assert [len(index.members(s)) for s in range(index.num_samples)] == [
        last - first for first, last in itertools.pairwise(groups.begins)
    ]
    for number, name in enumerate(index.names()):
        assert index.find_name(name) == number
        start, end = index.span(number)
        assert data[start:end] == content[groups.order[number]][1]
        assert index.member_name(number) == name
        assert name.lower().endswith(index.member_extension(number))
    for sample, key in enumerate(groups.keys):
        assert index.find_key(key) == sample


def test_names_that_are_not_there() -> None:
    index = Index(GOOD, "x.index")
    for name in ("", "README", "0", "0.jpgx", "\ud800", "0.JPG"):
        with pytest.raises(KeyError):
            index.find_name(name)
        if name != "0":
            with pytest.raises(KeyError):
                index.find_key(name)
    empty = Index(build(END, "x.tar"), "x.index")
    assert (empty.num_members, empty.num_samples, empty.names(), empty.keys(), empty.extensions) == (
        0,
        0,
        [],
        [],
        (),
    )
    with pytest.raises(KeyError):
        empty.find_name("a.jpg")
    with pytest.raises(KeyError):
        empty.find_key("a")


def test_names_of_one_crc_are_told_apart() -> None:
    names = ["d/plumless.jpg", "d/buckeroo.jpg", "d/other.jpg"]
    assert zlib.crc32(names[0].encode()) == zlib.crc32(names[1].encode())
    for order in (names, names[::-1]):
        index = Index(build(b"".join(member(name.encode(), b"") for name in order) + END, "x.tar"), "x.index")
        assert [index.find_name(name) for name in order] == [0, 1, 2]


def test_keys_in_other_cases_and_grouped_ones_are_found() -> None:
    names = ["A.JPG", "a.jpg", "k-0.jpg", "k.json", "k-1.jpg", "m.JSON"]
    index = Index(build(b"".join(member(name.encode(), b"") for name in names) + END, "x.tar"), "x.index")
    assert index.grouping == "numbered"
    assert {key: index.find_key(key) for key in ("A", "a", "k", "m")} == {"A": 0, "a": 1, "k": 2, "m": 3}
    with pytest.raises(KeyError):
        index.find_key("k-0")


def test_equal_tars_give_equal_bytes_and_others_do_not() -> None:
    assert build(TAR, "y.tar") == GOOD
    assert build(TAR.replace(b"latin", b"LATIN"), "x.tar") != GOOD


def test_what_is_skipped_is_told() -> None:
    assert Index(GOOD, "x").skipped == {"no extension": {"count": 1, "names": ["README"]}}
    data = (
        b"".join(member(b".%d" % n + b"h" * 90, b"") for n in range(9))
        + member(b"l", b"", b"2")
        + END
        + b"rest"
    )
    skipped = Index(build(data, "x.tar"), "x").skipped
    assert skipped["hidden"]["count"] == 9 and len(skipped["hidden"]["names"]) == 5
    assert skipped["symbolic link"] == {"count": 1, "names": ["l"]}
    assert skipped["bytes after the end of the archive"] == {"count": 4, "names": []}


def test_without_checksums() -> None:
    index = Index(build(TAR, "x.tar", checksum=False), "x")
    assert index.checksum is None and index.crc32 is None
    index.verify()


# -- where it lies


def test_index_path() -> None:
    assert index_path("/d/a.tar") == "/d/a.tar.index"
    assert index_path("a.tar") == "a.tar.index"
    assert index_path("s3://b/d/a.tar") == "s3://b/d/a.tar.index"
    assert index_path("/d/a.tar", "/i") == "/i/d/a.tar.index"
    assert index_path("s3://b/d/a.tar", "/i/") == "/i/s3/b/d/a.tar.index"
    assert index_path("file:///d/../e/a.tar", "/i") == "/i/e/a.tar.index"
    assert index_path("a.tar", "/i") == "/i" + os.path.abspath("a.tar") + ".index"
    with pytest.raises(BadAddress, match=r"'\.\.'"):
        index_path("s3://b/../../../etc/a.tar", "/i")


# -- what is none


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"\x80", "no index of ours"),
        (b"x" * 7, "no index of ours"),
        (b"[1, 2, 3]" * 9, "no index of ours"),
        (pickle.dumps([1, 2], 0), "no index of ours"),
        *((pickle.dumps({"a": b"x" * 1000}, protocol), "a pickle") for protocol in range(2, 6)),
        (b"\x00" * 100, "no index of ours"),
        (b"\xff" * 8 + b"{" + b"}" * 100, "no index of ours"),
        (GOOD[:500], "cut short"),
        (GOOD[:-1], "doesn't fit"),
        (packed(b"{", b""), "no JSON"),
        (packed(b"{" * 100_000, b""), "no JSON"),
        (packed(b'{"a":' + b"[" * 100_000, b""), "no JSON"),
        (packed(b"{\xff}", b""), "no JSON"),
        (packed(b'{"a": 1' + b"0" * 5000 + b"}", b""), "no JSON"),
        (packed({}, b""), "safetensors"),
        (packed({"__metadata__": []}, b""), "safetensors"),
        (packed({"__metadata__": {"format": "pt"}}, b""), "safetensors"),
        (altered(lambda h: h["__metadata__"].update(tar_size=5)), "something else than text"),
        (altered(lambda h: h["__metadata__"].update(tar_size="-5")), "tar_size"),
        (altered(lambda h: h["__metadata__"].update(tar_size="²")), "tar_size"),
        (altered(lambda h: h["__metadata__"].update(tar_size="9" * 20)), "tar_size"),
        (altered(lambda h: h["__metadata__"].update(tar_adler32="x")), "tar_adler32"),
        (altered(lambda h: h["__metadata__"].pop("tar_size") and None), "tar_size"),
        *((altered(lambda h, n=n: h.pop(n) and None), "missing") for n in ("offset", "name", "key_size", "extension_begin")),
        *(
            (altered(lambda h, e=e: h.update(offset=e)), "doesn't fit")
            for e in (
                None, [], 5, "text", {}, {"dtype": "U64", "shape": [9]},
                {"dtype": "U64", "shape": [9], "data_offsets": [0]},
                {"dtype": "U64", "shape": [9], "data_offsets": "ab"},
                {"dtype": "U64", "shape": [9], "data_offsets": [0, 72.0]},
                {"dtype": "U64", "shape": [True], "data_offsets": [0, 8]},
                {"dtype": "U64", "shape": [3, 3], "data_offsets": [0, 72]},
                {"dtype": "U32", "shape": [18], "data_offsets": [0, 72]},
                {"dtype": "U64", "shape": [9], "data_offsets": [-72, 0]},
                {"dtype": "U64", "shape": [9], "data_offsets": [72, 0]},
                {"dtype": "U64", "shape": [-9], "data_offsets": [72, 0]},
                {"dtype": "U64", "shape": [9], "data_offsets": [10**6, 10**6 + 72]},
                {"dtype": "U64", "shape": [2**61], "data_offsets": [0, 2**64]},
                {"dtype": "U64", "shape": [10**30], "data_offsets": [0, 8 * 10**30]},
            )
        ),
        (altered(lambda h: h["size"].update(shape=[8], data_offsets=[0, 64])), "9 were expected"),
        (altered(lambda h: h["sample_begin"].update(shape=[0], data_offsets=[0, 0])), "expected"),
        (with_array("sample_begin", [1, 2, 4, 6, 8, 9]), "sample_begin"),
        (with_array("sample_begin", [0, 2, 4, 6, 8, 8]), "sample_begin"),
        (with_array("name_begin", [0] * 10), "name_begin"),
        (with_array("extension_begin", [0, 9, 4, 13]), "one after the other"),
    ],
)  # fmt: skip
def test_files_that_are_no_index(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.tar.index"
    path.write_bytes(data)
    with pytest.raises(BadIndex) as caught:
        load_index(str(path))
    message = str(caught.value)
    assert reason in message and message.startswith(str(path)) and "elete it" in message
    assert len(message) < 600


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("was-unpickled",)


def test_a_pickle_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in range(6):
        (tmp_path / "x.tar.index").write_bytes(pickle.dumps(Evil(), protocol))
        with pytest.raises(BadIndex):
            load_index("x.tar.index")
    assert os.listdir() == ["x.tar.index"]


@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580, 0x680])
def test_an_index_that_begins_like_a_pickle(length: int) -> None:
    header, body = parts(GOOD)
    text = json.dumps(header).encode().ljust(length if length > 0x580 else 0x1480)
    data = len(text).to_bytes(8, "little") + text + body
    assert explore(data) == explore(GOOD)
    assert foreign(length.to_bytes(8, "little") + b"{") is None


def test_a_later_version_is_refused_as_such() -> None:
    for version in ("2", "10", "1.1", ""):
        with pytest.raises(UnknownIndexVersion, match="upgrade"):
            Index(altered(lambda h, v=version: h["__metadata__"].update(version=v)), "x.index")


def test_unknown_arrays_and_metadata_are_let_be() -> None:
    def change(header: dict[str, Any]) -> None:
        header["__metadata__"]["by"] = "somebody"
        header["later"] = {"dtype": "BF16", "shape": [1, 1], "data_offsets": [0, 2]}

    assert explore(altered(change)) == explore(GOOD)


# -- what lies


@pytest.mark.parametrize(
    "data",
    [
        with_array("offset", [2**64 - 1] * 9),
        with_array("size", [2**64 - 1] * 9),
        with_array("size", [len(TAR)] * 9),
        with_array("sample_begin", [0, 4, 2, 6, 8, 9]),
        with_array("sample_begin", [0, 2, 2, 6, 8, 9]),
        with_array("sample_begin", [0, 2**63, 2**64 - 1, 6, 8, 9]),
        with_array("extension", [3] * 9),
        with_array("extension", [2**32 - 1] * 9),
        with_array("key_size", [2**32 - 1] * 5),
        with_array("name_member", [2**32 - 1] * 9),
        with_array(
            "name_begin",
            [0, *[2**64 - 1] * 8, parts(GOOD)[0]["name"]["shape"][0]],
        ),
        with_array("name_begin", [0, 9, 5, 9, 5, 9, 5, 9, 5, parts(GOOD)[0]["name"]["shape"][0]]),
        altered(lambda h: h["__metadata__"].update(skipped="[")),
        altered(lambda h: h["__metadata__"].update(skipped="[]")),
        altered(lambda h: h["__metadata__"].update(skipped='{"a": 5}')),
        altered(lambda h: h["__metadata__"].update(skipped='{"a": {"count": Infinity, "names": []}}')),
        altered(lambda h: h["__metadata__"].update(skipped="[" * 100_000)),
    ],
)
def test_lies_are_found_where_they_are_used(data: bytes) -> None:
    with pytest.raises(BadIndex, match=r"x\.index: damaged"):
        explore(data)
    with pytest.raises(BadIndex, match="have changed"):
        Index(data, "x.index").verify()


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_flipped_bytes(data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(GOOD) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.just(len(GOOD)) | st.integers(0, len(GOOD)))
    broken = bytes(damaged[:cut])
    try:
        index = Index(broken, "x.index")
        if broken != GOOD:
            # What decides where bytes are read is covered by the digest; so a change that it lets pass is none.
            index.verify()
            assert explore(broken) == explore(GOOD)
    except ShardflowError:
        pass
    checks.check_index(broken, TAR)


def test_overlapping_texts_cost_no_more_than_the_file() -> None:
    # 60,000 names that all claim the same megabyte would be 60 GB.
    import numpy as np

    count, size = 60_000, 1 << 20
    claims = np.zeros(count + 1, "<u8")
    claims[1::2] = size
    claims[-1] = size
    arrays = {
        "offset": np.zeros(count, "<u8"), "size": np.zeros(count, "<u8"), "name_begin": claims,
        "sample_begin": np.arange(count + 1, dtype="<u8"), "extension_begin": claims,
        "name_crc32": np.zeros(count, "<u4"), "name_member": np.zeros(count, "<u4"), "extension": np.zeros(count, "<u4"),
        "key_size": np.full(count, size, "<u4"), "name": np.zeros(size, "u1"), "extension_name": np.zeros(size, "u1"),
    }  # fmt: skip

    def file(extension_begin: Any) -> bytes:
        header: dict[str, Any] = {"__metadata__": parts(GOOD)[0]["__metadata__"]}
        body = b""
        for name, array in {**arrays, "extension_begin": extension_begin}.items():
            kind = {"<u8": "U64", "<u4": "U32", "|u1": "U8"}[array.dtype.str]
            header[name] = {
                "dtype": kind,
                "shape": [len(array)],
                "data_offsets": [len(body), len(body) + array.nbytes],
            }
            body += array.tobytes()
        return packed(header, body)

    tracemalloc.start()
    try:
        with pytest.raises(BadIndex):
            Index(file(claims), "x.index")
        index = Index(file(np.array([0, size], "<u8")), "x.index")
        for call in (index.names, index.keys, lambda: index.member_name(1)):
            with pytest.raises(BadIndex):
                call()
        with pytest.raises(KeyError):
            index.find_name("\0" * 7)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


# -- cost


def large(count: int) -> bytes:
    names = [f"{n:08d}{end}" for n in range(count // 2) for end in (".txt", ".cls")]
    entries = Entries(
        names=[name.encode() for name in names],
        offsets=[512 + 1024 * n for n in range(count)],
        sizes=[200] * count,
        crcs=list(range(count)),
        first_header=bytes(512),
        last_header=bytes(512),
        tar_size=1024 * count + 2048,
    )
    return pack_entries(entries, group(names))


def test_opening_does_not_read_the_arrays(tmp_path: Path) -> None:
    small, path = str(tmp_path / "small.index"), str(tmp_path / "x.index")
    Path(small).write_bytes(large(2_000))
    Path(path).write_bytes(large(200_000))
    assert growth(lambda: load_index(small), lambda: load_index(path)) < 10  # 100 times the members
    tracemalloc.start()
    index = load_index(path)
    key = index.key(77_777), index.find_name("00077777.cls"), index.find_key("00099999")
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert key == ("00077777", 155_555, 99_999)
    assert held < 100_000 and most < 1_000_000


def test_closed_with_its_last_reference(tmp_path: Path) -> None:
    path = str(tmp_path / "x.index")
    Path(path).write_bytes(GOOD)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        explore_index = load_index(path)
        explore_index.names()
    del explore_index
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 50
