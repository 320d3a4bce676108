from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import BadConfig
from tasks.config import PackConfig
from tasks.source import Row, plan_slots, rows


def read(file: Path | str, most: int = 2, **options: Any) -> list[Row]:
    config = PackConfig(str(file), "/nowhere/out", max_samples=most, **options)
    return [row for slot in plan_slots(config) for row in rows(slot, config)]


def test_lines_in_quotes_are_one_row(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(
        b'\xef\xbb\xbfimage,caption,stars\r\na.jpg,"two\r\nlines, ""quoted""",3\r\n\r\nb.jpg,caf\xc3\xa9,\r\nc.jpg,5" disk,1'
    )
    found = read(file)
    assert [row.record for row in found] == [
        {"image": "a.jpg", "caption": 'two\r\nlines, "quoted"', "stars": "3"},
        {"image": "b.jpg", "caption": "café", "stars": ""},
        {"image": "c.jpg", "caption": '5" disk', "stars": "1"},
    ]
    assert [row.row for row in found] == [2, 3, 4]  # records of the file, of which the first names the fields


def test_the_delimiter_is_that_of_the_first_line(tmp_path: Path) -> None:
    for name, delimiter in (("a.csv", ";"), ("b.csv", "\t"), ("c.tsv", "\t"), ("d.csv", "|")):
        (tmp_path / name).write_text(f"image{delimiter}caption\na.jpg{delimiter}one, two\n")
        assert [row.record for row in read(tmp_path / name)] == [{"image": "a.jpg", "caption": "one, two"}]


def test_fields_can_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("TEXT\turl\na cat\thttps://example.com/cat.jpg\n")
    (row,) = read(tmp_path / "a.tsv", columns="url=image, TEXT=caption")
    assert row.record == {"image": "https://example.com/cat.jpg", "caption": "a cat"}


def test_a_bad_row_costs_itself(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    good = b"a.jpg,fine\n"
    file.write_bytes(b"image,caption\n" + good.join((b"", b"a,b,c\n", b"alone\n", b"a.jpg,\xff\n", b"")))
    found = read(file)
    assert [bool(row.error) for row in found] == [False, True, False, True, False, True, False][: len(found)]
    assert [row.error for row in found if row.error] == [
        "3 fields, but the first line names 2: is a quote missing?",
        "1 fields, but the first line names 2: is a quote missing?",
        "not UTF-8: invalid start byte",
    ]


def test_a_quote_that_is_never_closed_costs_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('image,caption\na.jpg,fine\nb.jpg,"open\n' + "c.jpg,fine and long enough\n" * 8000)
    found = read(file, 5000)
    assert len(found) == 8002
    assert [row.row for row in found if row.error] == [3]
    assert "a quote is never closed" in found[1].error


def test_a_first_line_that_names_a_field_twice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,image\na,b\n")
    with pytest.raises(BadConfig, match="names the field 'image' twice"):
        read(tmp_path / "a.csv")


def test_nothing_and_a_first_line_alone(tmp_path: Path) -> None:
    for text in ("", "image,caption", "image,caption\n\n"):
        (tmp_path / "a.csv").write_text(text)
        assert read(tmp_path / "a.csv") == []


cells = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=2, max_size=2
)


@settings(deadline=None, max_examples=100)
@given(st.lists(cells, max_size=8), st.integers(1, 4), st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
def test_what_python_writes_is_read_from_any_slot(values: list[list[str]], most: int, quoting: Any) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=quoting).writerows([["one", "two"], *values])
    fsspec.filesystem("memory").pipe_file("/csv/a.csv", text.getvalue().encode())
    wanted = [dict(zip(("one", "two"), pair, strict=True)) for pair in values]
    assert [row.record for row in read("memory://csv/a.csv", most)] == wanted
