from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import fsspec
import pytest
from growth import cost
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import BadConfig
from tasks import source
from tasks.config import PackConfig
from tasks.source import Row, plan_slots, rows
from tasks.sources import base, json_rows


def find_sources(config: PackConfig) -> list[str]:
    return [file.address for file in source.find_sources(config)]


def job(pattern: str | Path, max_samples: int = 3) -> PackConfig:
    return PackConfig(str(pattern), "/nowhere/out", max_samples=max_samples)


def read(config: PackConfig) -> list[Row]:
    """All rows by way of the plan, whose own arithmetic is checked."""
    found: list[Row] = []
    for index, slot in enumerate(plan_slots(config)):
        mine = list(rows(slot, config))
        assert slot.index == index
        assert slot.first_row == len(found)
        assert len(mine) == slot.rows == sum(segment.rows for segment in slot.segments) <= config.max_samples
        found += mine
    assert [row.number for row in found] == list(range(len(found)))
    assert all(slot.rows == config.max_samples for slot in plan_slots(config)[:-1])
    return found


def records(config: PackConfig) -> list[Any]:
    return [row.record for row in read(config)]


def test_a_list(tmp_path: Path) -> None:
    wanted = [{"a": n, "text": "é" * n + '[{"\\' + "日本"} for n in range(8)]
    file = tmp_path / "a.json"
    for indent in (None, 1):
        for ascii_only in (True, False):
            file.write_text(json.dumps(wanted, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
            found = read(job(file))
            assert [row.record for row in found] == wanted
            assert [row.row for row in found] == list(range(1, 9))
            assert {row.source for row in found} == {str(file)}
            data = file.read_bytes()
            assert all(row.data in data for row in found)


def test_an_object_is_one_record(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('\ufeff \n{"a": {"b": [1]}}\n ', encoding="utf-8")
    assert read(job(file)) == [
        Row(0, str(file), 1, b'{"a": {"b": [1]}}', {"a": {"b": [1]}}, base=str(tmp_path))
    ]


@pytest.mark.parametrize("text", ["[]", " [ \n ] ", "\ufeff[]"])
def test_an_empty_list(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text, encoding="utf-8")
    assert plan_slots(job(file)) == []


def test_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a":0}\n\n  \r\n{"a":1}\r\n\n\n{"a":"\xe2\x80\xa8"}\n{"a":3}\n \n{"a":4}')
    found = read(job(file, 2))
    assert [row.record for row in found] == [{"a": 0}, {"a": 1}, {"a": "\u2028"}, {"a": 3}, {"a": 4}]
    assert [row.row for row in found] == [1, 4, 7, 8, 10]  # lines
    assert [segment.first_row for slot in plan_slots(job(file, 2)) for segment in slot.segments] == [1, 7, 10]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_no_lines(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(data)
    assert plan_slots(job(file)) == []


BAD_LINES = {
    b'{"a":': "not JSON: Expecting value at character 6 of the row",
    b'{"a":1} {"b":2}': "not JSON: Extra data at character 9",
    b'{"a":"\xff"}': "not UTF-8: invalid start byte at byte 7 of the row",
    b'{"a":"caf\xe9"}': "not UTF-8",
    b"[1]": "a JSON object was expected, found list",
    b"null": "a JSON object was expected, found null",
    b"7": "a JSON object was expected, found int",
    b'{"a":"\t"}': "not JSON: Invalid control character",
    b'{"a":\0}': "not JSON",
    b'{"a":1,"b":2,"a":1}': "the field 'a' is there twice: which one is meant?",
    b'{"a":{"b":2,"b":1}}': "the field 'b' is there twice",
    b"[" * 100_000: "nested too deeply",
    b'{"a":' + b"9" * 5000 + b"}": "not usable: Exceeds the limit",
}


def test_a_bad_line_costs_itself(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"".join(b'{"good":1}\n' + bad + b"\n" for bad in BAD_LINES) + b'{"good":1}\n')
    found = read(job(file, 4))
    assert [row.row for row in found] == list(range(1, 2 * len(BAD_LINES) + 2))
    assert [row.record for row in found[::2]] == [{"good": 1}] * (len(BAD_LINES) + 1)
    for row, reason in zip(found[1::2], BAD_LINES.values(), strict=True):
        assert row.record is None
        assert row.error.startswith(reason)


def test_a_line_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_ROW", 100)
    monkeypatch.setattr(json_rows, "_CHUNK", 64)
    file = tmp_path / "a.jsonl"
    long = {"a": "x" * 1000}
    file.write_text("\n".join(json.dumps(value) for value in ({"a": 1}, long, {"a": 2}, long)))
    found = read(job(file))
    assert [row.record for row in found] == [{"a": 1}, None, {"a": 2}, None]
    assert found[1].error == "longer than 100 bytes"
    assert len(found[1].data) <= 101


def test_a_list_of_bad_elements_costs_only_them(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b'[{"a":1}, 7, {"b":"\xff"}, null, {"a":' + b"9" * 5000 + b'}, {"a":"\t"}, {"a":2}]')
    found = read(job(file))
    assert [row.record for row in found] == [{"a": 1}, None, None, None, None, None, {"a": 2}]


def test_a_number_at_the_windows_edge_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    file.write_text("[1234567, -1.5e300,12]")
    for chunk in range(1, 24):
        monkeypatch.setattr(json_rows, "_CHUNK", chunk)
        assert [row.data for row in read(job(file))] == [b"1234567", b"-1.5e300", b"12"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[\n {"a": 1},\n {"é": é}\n]', "Expecting value: line 3, column 8"),
        ('[{"a": 1}, {"a": 2]', "line 1, column 19"),
        ('[{"a": 1} {"a": 2}]', "Expecting ',' or ']': line 1, column 11"),
        ('[{"a": 1},]', "Expecting value: line 1, column 11"),
        ("[,]", "Expecting value: line 1, column 2"),
        ('[{"a": 1}', "Expecting ',' or ']': line 1, column 10"),
        ('[{"a": "x', "Unterminated string starting at: line 1, column 8"),
        ("[", "Expecting value: line 1, column 2"),
        ('[{"a": 1}] x', "more data after the end"),
        ('{"a": 1}\n{"a": 2}\n', "more data after the end (one object a line? then name it .jsonl): line 2"),
        ("", "a list of objects, or one object, was expected: line 1, column 1"),
        ("7", "a list of objects, or one object, was expected"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_a_malformed_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str, chunk: int
) -> None:
    monkeypatch.setattr(json_rows, "_CHUNK", chunk)
    file = tmp_path / "a.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadConfig) as caught:
        plan_slots(job(file))
    assert reason in str(caught.value)
    assert f"source {file} is no JSON" in str(caught.value)


def test_a_list_with_an_element_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_ROW", 1000)
    monkeypatch.setattr(json_rows, "_CHUNK", 64)
    file = tmp_path / "a.json"
    file.write_text('[{"a": 1}, "' + "x" * 100_000)
    with pytest.raises(BadConfig, match="an element of more than 1,000 bytes: line 1, column 12"):
        plan_slots(job(file))


def test_utf16_is_named(tmp_path: Path) -> None:
    for name in ("a.json", "a.jsonl"):
        (tmp_path / name).write_text('[{"a": 1}]', encoding="utf-16")
        with pytest.raises(BadConfig, match="is UTF-16: UTF-8 was expected"):
            plan_slots(job(tmp_path / name))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
json_records = st.lists(st.dictionaries(st.text(max_size=8), json_values, max_size=4), max_size=12)


@settings(deadline=None, max_examples=150)
@given(json_records, st.integers(1, 9), st.integers(1, 40), st.booleans(), st.sampled_from([None, 0, 2]))
def test_any_records_in_any_spelling_through_any_window(
    values: list[dict[str, Any]], most: int, chunk: int, ascii_only: bool, indent: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "_CHUNK", chunk)
        fs = fsspec.filesystem("memory")
        text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
        fs.pipe_file("/source/a.json", text.encode("utf-8", "surrogatepass"))
        lines = (json.dumps(value, ensure_ascii=ascii_only) for value in values)
        fs.pipe_file("/source/a.jsonl", "\n".join(lines).encode("utf-8", "surrogatepass"))
        for name in ("a.json", "a.jsonl"):
            assert records(job(f"memory://source/{name}", most)) == values


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from([b"{}", b"x", b" ", b"\r", b"\n", b"\t\x0b", b"\n\n", b"\xc2\xa0"]), max_size=40).map(b"".join),
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 5),
)  # fmt: skip
def test_lines_that_are_not_blank_are_the_rows(data: bytes, chunk: int, first: int, most: int) -> None:
    lines, at = [], 0
    for number, line in enumerate(data.split(b"\n"), 1):
        end = min(at + len(line) + 1, len(data))
        if line and not line.isspace():
            lines.append(base.Place(at, end, number))
        at = end
    fsspec.filesystem("memory").pipe_file("/source/c.jsonl", data)
    config = job("memory://source/c.jsonl", 2)
    file = base.described(config.source, config, "jsonl")
    with pytest.MonkeyPatch.context() as patch, json_rows.LinesReader(file, config) as reader:
        patch.setattr(json_rows, "_BLOCK", chunk)
        assert list(reader.places()) == lines
        segments = list(reader.segments(first, most))
        assert segments == list(base.cut(lines, file, first, most))
        found = [row.data for segment in segments for row in reader.read(segment)]
    assert found == [data[place.start : place.end] for place in lines]


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=60) | st.text('[]{}",:1\\u \n-Ie', max_size=40).map(str.encode), st.integers(1, 40))
def test_any_bytes_give_rows_or_one_clear_error(data: bytes, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "_CHUNK", chunk)
        fs = fsspec.filesystem("memory")
        for name in ("b.json", "b.jsonl"):
            fs.pipe_file(f"/source/{name}", data)
            config = job(f"memory://source/{name}", 2)
            try:
                found = read(config)
            except BadConfig:
                continue
            assert all((row.record is None) == bool(row.error) for row in found)
            if name == "b.json":  # it was JSON, then, to Python too (which is as lenient with NaN)
                value = json.loads(data.decode("latin-1").removeprefix("ï»¿"), strict=False)
                assert len(found) == (len(value) if isinstance(value, list) else 1)
            else:
                lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
                assert len(found) == sum(bool(line.strip(b" \t\r\v\f")) for line in lines)


def test_folder_glob_and_hidden_files(tmp_path: Path) -> None:
    for name in ("b.json", "a/z.jsonl", "a/y.NDJSON", ".hidden.json", "._b.json", ".cache/c.jsonl", "p.jpg",
                 "c.txt", "d.jsonl.old"):  # fmt: skip
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("- no record" if name in ("p.jpg", "d.jsonl.old") else "{}")
    everything = [f"{tmp_path}/{name}" for name in ("a/y.NDJSON", "a/z.jsonl", "b.json")]
    assert find_sources(job(tmp_path)) == everything
    assert find_sources(job(tmp_path / "**")) == everything
    assert find_sources(job(tmp_path / "*.json")) == [f"{tmp_path}/b.json"]
    assert find_sources(job(tmp_path / "a/*")) == everything[:2]
    assert find_sources(job(tmp_path / ".hidden.json")) == [f"{tmp_path}/.hidden.json"]
    assert [row.record for row in read(job(tmp_path))] == [{}] * 3
    for pattern, reason in {
        "p.jpg": r"a name that ends in \.json, \.jsonl, \.ndjson, .* was expected",
        "d.jsonl.old": "a name that ends in",
        "gone.json": "source: .*gone.json: no file, folder or glob",
        "*.txt": r"no file there ends in \.json",
    }.items():
        with pytest.raises(BadConfig, match=reason):
            find_sources(job(tmp_path / pattern))


def test_its_own_output_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("a.jsonl", "out/meta.json", "out/errors.jsonl"):
        (tmp_path / name).write_text("{}")
    config = PackConfig(str(tmp_path), f"{tmp_path}/out/")
    assert find_sources(config) == [f"{tmp_path}/a.jsonl"]
    with pytest.raises(BadConfig, match="which holds the sources themselves: choose another folder"):
        find_sources(PackConfig(f"{tmp_path}/*.jsonl", str(tmp_path)))


def test_slots_run_on_over_short_files(tmp_path: Path) -> None:
    for n in range(5):
        (tmp_path / f"{n}.jsonl").write_text("".join(f'{{"file":{n},"n":{i}}}\n' for i in range(n)))
        (tmp_path / f"{n}.json").write_text(json.dumps([{"list": n, "n": i} for i in range(n)]))
    found = read(job(tmp_path, 4))
    assert len(found) == 20
    assert [row.row for row in found] == [i for n in range(5) for _ in range(2) for i in range(1, n + 1)]
    assert len(plan_slots(job(tmp_path, 4))) == 5
    assert len(plan_slots(job(tmp_path, 100))) == 1


def test_a_source_that_changes_under_the_run(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"a":1}\n{"a":2}\n')
    slots = plan_slots(job(file))
    file.write_text('{"a":1}\n{"a":2}\n{"a":3}\n')
    with pytest.raises(BadConfig, match=r"a\.jsonl has changed since this run began: run it again"):
        list(rows(slots[0], job(file)))


def test_remote_sources() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/remote/b.jsonl", b'{"a":1}\n{"a":2}\n')
    fs.pipe_file("/remote/a.json", b'[{"a":0}]')
    fs.pipe_file("/remote/.c.json", b'[{"a":9}]')
    for pattern in ("memory://remote", "memory://remote/*", "memory://remote/**"):
        assert records(job(pattern, 2)) == [{"a": 0}, {"a": 1}, {"a": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_million_rows_are_planned_in_linear_time_and_few_bytes(tmp_path: Path, name: str) -> None:
    row = json.dumps({"image": "photographs/000000.jpg", "caption": "a photograph " * 15, "width": 500})
    ends = ("[", ",\n", "]") if name == "a.json" else ("", "\n", "\n")

    def write(count: int) -> Path:
        file = tmp_path / f"{count}-{name}"
        file.write_text(ends[0] + ends[1].join([row] * count) + ends[2])
        return file

    million = job(write(1_000_000), 10_000)
    fewer = job(write(50_000), 10_000)
    slots: list[source.Slot] = []
    once = cost(lambda: slots.extend(plan_slots(million)), 1)
    assert once < 150 * cost(lambda: plan_slots(fewer), 3)  # of 20 times the rows; quadratic: 400
    assert [slot.rows for slot in slots] == [10_000] * 100
    assert len(pickle.dumps(slots[50])) < 1000  # what a worker is sent
    assert sum(1 for _ in rows(slots[50], million)) == 10_000

    some = job(write(100_000), 1_000)  # tracing makes it slow; what is held does not grow with the rows
    tracemalloc.start()
    try:
        plan_slots(some)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
