from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.manifest import BadRow
from tasks.reasons import by_reason, kind


def row(number: int, stage: str, reason: str) -> BadRow:
    return BadRow(number, "/data/a.jsonl", number + 1, f"{number:09d}", stage, reason)


def test_what_belongs_to_one_row_alone_is_no_reason_of_its_own() -> None:
    rows = [row(n, "read", f"/data/img dir/{n}.jpg: No such file or directory") for n in range(5)]
    rows += [row(n, "read", f"s3://bucket/img/{n}.jpg: HTTP 404") for n in range(5, 8)]
    rows += [row(8, "parse", "not JSON: Expecting value at character 15 of the row")]
    rows += [row(9, "parse", "not JSON: Expecting value at character 1,203 of the row")]
    rows += [row(10, "recipe", "no caption: the fields are 'id', 'image'"), row(11, "picture", "")]
    assert [(found.kind, found.rows) for found in by_reason(rows)] == [
        ("read: No such file or directory", 5),
        ("read: HTTP N", 3),
        ("parse: not JSON: Expecting value at character N of the row", 2),
        ("picture: ", 1),
        ("recipe: no caption: the fields are '…', '…'", 1),
    ]
    assert (
        by_reason(rows)[0].example
        == "/data/a.jsonl, row 1 (read): /data/img dir/0.jpg: No such file or directory"
    )


def test_a_long_reason_is_cut() -> None:
    assert len(kind(row(0, "recipe", "x" * 5000))) < 140


@given(st.lists(st.tuples(st.sampled_from(["read", "recipe"]), st.text(max_size=20)), max_size=200))
def test_every_row_is_counted_once(rows: list[tuple[str, str]]) -> None:
    found = by_reason(row(n, stage, reason) for n, (stage, reason) in enumerate(rows))
    assert sum(each.rows for each in found) == len(rows)
    assert len(found) <= 21
    counts = [each.rows for each in found[:20]]
    assert counts == sorted(counts, reverse=True)
