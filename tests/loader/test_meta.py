from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from growth import growth
from hypothesis import given, settings
from hypothesis import strategies as st

from loader import meta, storage
from loader.errors import BadMeta, ShardflowError
from loader.meta import ShardMeta, read_meta, read_stats, write_meta

GOOD = {"num_samples": 3, "size": 10240, "checksum": 4026531841}

part_names = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda part: part not in (".", "..") and ":" not in part
)
paths = st.lists(part_names, min_size=1, max_size=3).map("/".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
shard_metas = st.builds(
    ShardMeta,
    num_samples=st.integers(0, 1 << 40),
    size=st.integers(0, (1 << 63) - 1),
    checksum=st.integers(0, (1 << 32) - 1) | st.none(),
    extra=st.dictionaries(st.text().filter(lambda key: key not in GOOD), json_values, max_size=3),
)


def put(folder: Path, text: str | bytes) -> str:
    data = text if isinstance(text, bytes) else text.encode()
    (folder / "meta.json").write_bytes(data)
    return str(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(deadline=None, max_examples=100)
@given(shards=st.dictionaries(paths, shard_metas, max_size=5), data=st.data())
def test_what_is_written_is_read_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, shards: dict[str, ShardMeta], data: st.DataObject
) -> None:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    write_meta(str(one), shards)
    write_meta(str(two), dict(data.draw(st.permutations(list(shards.items())))))
    assert read_meta(str(one)) == shards
    assert list(read_meta(str(one))) == sorted(shards)
    assert files(one) == files(two)
    assert json.loads((one / "meta_stats.json").read_bytes()) == {
        "total_samples": sum(shard.num_samples for shard in shards.values()),
        "total_files": len(shards),
        "total_size": sum(shard.size for shard in shards.values()),
        "dataset_path": ".",
    }
    write_meta(str(two), read_meta(str(one)))
    assert files(one) == files(two)


def test_the_very_bytes(tmp_path: Path) -> None:
    shards = {
        "b.tar": ShardMeta(2, 20480, 7, {"z": 1, "a": [None, "é"]}),
        "a/shard-000000.tar": ShardMeta(1, 10240, 4294967295),
    }
    write_meta(str(tmp_path), shards, stats={"extensions": {".jpg": 3}})
    assert (tmp_path / "meta.json").read_text() == (
        "{\n"
        '"a/shard-000000.tar": {"num_samples": 1, "size": 10240, "checksum": 4294967295},\n'
        '"b.tar": {"num_samples": 2, "size": 20480, "checksum": 7, "a": [null, "\\u00e9"], "z": 1}\n'
        "}\n"
    )
    assert read_stats(str(tmp_path)) == {
        "total_samples": 3,
        "total_files": 2,
        "total_size": 30720,
        "dataset_path": ".",
        "extensions": {".jpg": 3},
    }


def test_no_shards_are_a_dataset_too(tmp_path: Path) -> None:
    write_meta(str(tmp_path), {})
    assert read_meta(str(tmp_path)) == {}
    assert json.loads((tmp_path / "meta.json").read_bytes()) == {}


def test_folder_file_and_url_are_read_alike(tmp_path: Path) -> None:
    shards = {"a.tar": ShardMeta(1, 2, 3)}
    write_meta(str(tmp_path), shards)
    for address in (str(tmp_path), f"{tmp_path}/", f"file://{tmp_path}", str(tmp_path / "meta.json")):
        assert read_meta(address) == shards
    write_meta("memory://meta-test/set", shards)
    assert read_meta("memory://meta-test/set/") == read_meta("memory://meta-test/set/meta.json") == shards
    assert storage.list_files("memory://meta-test/set") == [
        "memory://meta-test/set/meta.json",
        "memory://meta-test/set/meta_stats.json",
    ]


def test_written_elsewhere_the_stats_say_where_the_tars_lie(tmp_path: Path) -> None:
    shards = {"a.tar": ShardMeta(1, 2, 3)}
    root = tmp_path / "data"
    write_meta(str(root), shards, address=str(tmp_path / "x" / "photos.json"))
    write_meta(str(root), shards, address=str(tmp_path / "y"))
    assert sorted(os.listdir(tmp_path / "x")) == ["photos.json", "photos_stats.json"]
    assert sorted(os.listdir(tmp_path / "y")) == ["meta.json", "meta_stats.json"]
    assert not root.exists()
    for place in (tmp_path / "x" / "photos.json", tmp_path / "y"):
        assert read_meta(str(place)) == shards
        assert read_stats(str(place))["dataset_path"] == str(root)


def test_a_second_write_of_the_same_touches_nothing(tmp_path: Path) -> None:
    shards = {"a.tar": ShardMeta(1, 2, 3)}
    write_meta(str(tmp_path), shards)
    before = {path.name: path.stat() for path in tmp_path.iterdir()}
    write_meta(str(tmp_path), shards)
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == {
        name: stat.st_ino for name, stat in before.items()
    }
    write_meta(str(tmp_path), {"a.tar": ShardMeta(1, 2, 4)})
    assert read_meta(str(tmp_path))["a.tar"].checksum == 4


def test_a_name_that_is_no_utf8_survives(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.tar")
    write_meta(str(tmp_path), {name: ShardMeta(1, 2, 3)})
    assert os.fsencode(next(iter(read_meta(str(tmp_path))))) == b"caf\xe9.tar"


def test_files_of_other_tools(tmp_path: Path) -> None:
    entry = {**GOOD, "columns": {"jpg": 3}, "created": "2024-01-01"}
    root = put(tmp_path, "\ufeff" + json.dumps({"./b.tar": entry, "a/c.tar": GOOD}, indent=4))
    shards = read_meta(root)
    assert list(shards) == ["a/c.tar", "b.tar"]
    assert shards["a/c.tar"] == ShardMeta(3, 10240, 4026531841)
    assert shards["b.tar"].extra == {"columns": {"jpg": 3}, "created": "2024-01-01"}


def test_a_shard_is_hashable_and_small_to_send() -> None:
    shard = ShardMeta(1, 2, 3, {"a": [1]})
    assert pickle.loads(pickle.dumps(shard)) == shard
    assert len({shard, ShardMeta(1, 2, 3, {"b": 2}), ShardMeta(1, 2, 3, {"a": [1]})}) == 2


def entry(**changes: Any) -> str:
    return json.dumps({"good.tar": GOOD, "bad.tar": {**GOOD, **changes}})


def path(name: str) -> str:
    return json.dumps({name: GOOD})


HOSTILE: Mapping[str, tuple[str | bytes, str]] = {
    "empty": ("", "no JSON"),
    "half": ('{"a.tar": {"num_sam', "no JSON"),
    "not json": ("<html>", "no JSON"),
    "binary": (b"\x93NUMPY\x01\x00", "no JSON"),
    "two documents": ("{}{}", "no JSON"),
    "zeros": (b"\0" * 512, "no JSON"),
    "list": ("[]", "a list of 0"),
    "text": ('"meta"', "'meta'"),
    "null": ("null", "None"),
    "entry is a number": ('{"bad.tar": 5}', "'bad.tar' is 5"),
    "entry is a list": ('{"bad.tar": [1, 2, 3]}', "'bad.tar' is a list of 3"),
    "entry is null": ('{"bad.tar": null}', "'bad.tar' is None"),
    "key missing": ('{"bad.tar": {"size": 1, "checksum": 2}}', "'bad.tar': num_samples is missing"),
    "text for number": (entry(size="10240"), "'bad.tar': size is '10240'"),
    "bool for number": (entry(num_samples=True), "'bad.tar': num_samples is True"),
    "float for number": (entry(size=1024.0), "'bad.tar': size is 1024.0"),
    "null for number": (entry(num_samples=None), "'bad.tar': num_samples is None"),
    "object for number": (entry(checksum={}), "'bad.tar': checksum is an object"),
    "negative": (entry(num_samples=-1), "'bad.tar': num_samples is -1"),
    "checksum too large": (entry(checksum=1 << 32), "'bad.tar': checksum is 4294967296"),
    "size too large": (entry(size=1 << 63), "'bad.tar': size is 9223372036854775808"),
    "many digits": ('{"bad.tar": {"num_samples": 1' + "0" * 400 + "}}", "number of many digits"),
    "far too many digits": ('{"bad.tar": {"num_samples": 1' + "0" * 10_000 + "}}", "no JSON"),
    "NaN": ('{"bad.tar": {"num_samples": NaN, "size": 1, "checksum": 1}}', "NaN"),
    "infinity in extra": (entry(x=-float("inf")), "-Infinity is no number"),
    "1e999 in extra": ('{"bad.tar": {"num_samples": 1, "size": 1, "checksum": 1, "x": 1e999}}', "too large"),
    "total beyond 2**63": (
        json.dumps({f"{i}.tar": {**GOOD, "num_samples": (1 << 63) - 1} for i in range(2)}),
        "samples in all",
    ),
    "absolute": (path("/etc/passwd.tar"), "'/etc/passwd.tar' could lead out"),
    "parent": (path("../other/a.tar"), "'../other/a.tar' could lead out"),
    "parent inside": (path("a/../../b.tar"), "could lead out"),
    "parent after dot": (path("./../b.tar"), "could lead out"),
    "dot inside": (path("a/./b.tar"), "could lead out"),
    "double slash": (path("a//b.tar"), "could lead out"),
    "trailing slash": (path("a/"), "could lead out"),
    "empty path": (path(""), "could lead out"),
    "url": (path("s3://other/a.tar"), "could lead out"),
    "chain": (path("simplecache::a.tar"), "could lead out"),
    "nul": (path("a\0.tar"), "could lead out"),
    "two spellings": (json.dumps({"./a.tar": GOOD, "a.tar": GOOD}), "'a.tar' twice"),
    "doubled entry": ('{"bad.tar": {}, "b.tar": {}, "bad.tar": {}}', "key 'bad.tar' more than once"),
    "doubled key": (
        '{"good.tar": {}, "bad.tar": {"size": 1, "size": 2}}',
        "'bad.tar': gives the key 'size' more than once",
    ),
    "doubled key in extra": (
        '{"bad.tar": {"num_samples": 1, "size": 1, "checksum": 1, "x": [{"y": 1, "y": 2}]}}',
        "key 'y' more than once",
    ),
    "deep list": ("[" * 200_000, "nested too deeply"),
    "deep object": ('{"a":' * 200_000, "nested too deeply"),
    "deep and whole": ('{"bad.tar": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deeply"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_give_one_clear_error(tmp_path: Path, case: str) -> None:
    text, said = HOSTILE[case]
    root = put(tmp_path, text)
    with pytest.raises(BadMeta) as caught:
        read_meta(root)
    message = str(caught.value)
    assert f"{tmp_path}/meta.json" in message
    assert said in message
    assert "expected" in message
    assert "gen_meta" in message
    assert len(message) < 500
    assert message.isprintable()
    assert isinstance(caught.value, ShardflowError) and isinstance(caught.value, ValueError)


@settings(deadline=None, max_examples=200)
@given(
    document=json_values
    | st.dictionaries(st.text(), json_values)
    | st.dictionaries(st.text(), st.dictionaries(st.sampled_from([*GOOD, "x"]), json_values))
)
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    put(folder, json.dumps(document))
    try:
        shards = read_meta(str(folder))
    except BadMeta:
        return
    write_meta(str(folder), shards)
    assert read_meta(str(folder)) == shards


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = put(tmp_path_factory.mktemp("bytes"), data)
    with contextlib.suppress(BadMeta):
        assert read_meta(root) == {}


def test_escapes_in_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    root = put(tmp_path, json.dumps({"\x1b[2J/../\u202e.tar": GOOD}))
    with pytest.raises(BadMeta) as caught:
        read_meta(root)
    assert "\x1b" not in str(caught.value)
    assert "\u202e" not in str(caught.value)


def test_missing_files_say_what_to_run(tmp_path: Path) -> None:
    for address in (
        str(tmp_path),
        str(tmp_path / "gone"),
        str(tmp_path / "x.json"),
        "memory://nothing/there",
    ):
        with pytest.raises(BadMeta, match=r"is not there.*gen_meta") as caught:
            read_meta(address)
        assert meta.meta_address(address) in str(caught.value)
    (tmp_path / "file").write_text("{}")
    with pytest.raises(BadMeta, match="is not there"):
        read_meta(str(tmp_path / "file"))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(BadMeta, match="is a folder"):
        read_meta(str(tmp_path / "folder.json"))


def test_an_enormous_file_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, "{}")
    os.truncate(tmp_path / "meta.json", meta.MAX_BYTES + 1)
    with pytest.raises(BadMeta, match="bytes; expected at most"):
        read_meta(str(tmp_path))


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ({"../a.tar": ShardMeta(1, 2, 3)}, "could lead out"),
        ({"/a.tar": ShardMeta(1, 2, 3)}, "could lead out"),
        ({"a.tar": ShardMeta(-1, 2, 3)}, "num_samples is -1"),
        ({"a.tar": ShardMeta(1, 2, 3, {"size": 5})}, "extra repeats"),
        ({"a.tar": ShardMeta(1, 2, 3, {"x": float("nan")})}, "JSON can hold"),
        ({"a.tar": ShardMeta(1, 2, 3, {"x": b"bytes"})}, "JSON can hold"),
    ],
)
def test_nothing_is_written_that_would_be_refused(
    tmp_path: Path, shards: dict[str, ShardMeta], said: str
) -> None:
    write_meta(str(tmp_path), {"old.tar": ShardMeta(1, 2, 3)})
    before = files(tmp_path)
    with pytest.raises(BadMeta, match=said):
        write_meta(str(tmp_path), shards)
    assert files(tmp_path) == before


def test_bad_statistics_leave_meta_alone(tmp_path: Path) -> None:
    for stats in ({"total_samples": 5}, {"x": {1, 2}}):
        with pytest.raises(BadMeta):
            write_meta(str(tmp_path), {"a.tar": ShardMeta(1, 2, 3)}, stats=stats)
        assert files(tmp_path) == {}


def test_stats_that_are_no_object(tmp_path: Path) -> None:
    (tmp_path / "meta_stats.json").write_text("[1]")
    with pytest.raises(BadMeta, match=r"meta_stats\.json.*a list of 1"):
        read_stats(str(tmp_path))


def test_many_shards_are_read_in_linear_time(tmp_path: Path) -> None:
    few, many = str(tmp_path / "few"), str(tmp_path / "many")
    for root, count in ((few, 1_000), (many, 20_000)):
        names = (f"part-{i // 1000}/shard-{i:06d}.tar" for i in range(count))
        write_meta(root, {name: ShardMeta(10_000, 1 << 30, i) for i, name in enumerate(names)})
    assert len(read_meta(many)) == 20_000
    assert growth(lambda: read_meta(few), lambda: read_meta(many)) < 150  # quadratic: 400
