from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.report import Report, StepReport, refuse_credentials, show
from loader.errors import BadConfig

DONE = StepReport("pack", (("samples", "59 of 60 rows"),))
FAILED = StepReport(
    "gen_meta", (("tars", "5, 2 of them failed"),), (("a.tar", "cut short"), ("b.tar", "no | tar"))
)


def test_a_good_report(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("prepare", (DONE,), "shardflow prepare job.yaml")
    assert report.ok and not report.failures
    assert show(report, "shardflow prepare") == 0
    told = capsys.readouterr()
    assert "59 of 60 rows" in told.out and not told.err
    assert "shardflow prepare job.yaml" not in report.markdown()


def test_failures_are_named_with_the_way_on(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("prepare", (DONE, FAILED), "shardflow prepare job.yaml")
    assert not report.ok
    assert report.message() == (
        "gen_meta: a.tar, b.tar failed (cut short). What is done is kept; this does the rest: "
        "shardflow prepare job.yaml"
    )
    assert show(report, "shardflow prepare") == 1
    told = capsys.readouterr()
    assert "a.tar" in told.out and "cut short" in told.out
    assert (
        told.err
        == "shardflow prepare: What is done is kept; this does the rest: shardflow prepare job.yaml\n"
    )
    page = report.markdown()
    assert "| a.tar | cut short |" in page and r"no \| tar" in page
    assert "```\nshardflow prepare job.yaml\n```" in page
    assert {"step": "gen_meta", "what": "failed: a.tar", "value": "cut short"} in report.rows()


def test_a_problem_of_many_lines(capsys: pytest.CaptureFixture[str]) -> None:
    step = StepReport("pack", problem="3 of 10 rows could not be packed:\n  a.jsonl, row 1: no picture")
    report = Report("pack", (step,), "shardflow pack job.yaml")
    assert show(report, "shardflow pack") == 1
    assert capsys.readouterr().err == (
        "shardflow pack: 3 of 10 rows could not be packed:\n  a.jsonl, row 1: no picture\n"
    )
    assert report.message().endswith("Once that is put right: shardflow pack job.yaml")


def test_many_failures_are_cut_with_their_number() -> None:
    failures = tuple((f"{n}.tar", "gone") for n in range(2345))
    report = Report("gen-meta", (StepReport("gen_meta", (), failures),), "shardflow gen-meta /d")
    assert "0.tar, 1.tar, 2.tar and 2,342 more failed" in report.message()
    assert "… and 1,345 more" in report.markdown()
    assert len(report.rows()) == 1000
    assert len(report.markdown()) < 40_000


@settings(deadline=None, max_examples=50)
@given(st.text(), st.text())
def test_a_name_can_neither_break_the_table_nor_make_markup(item: str, reason: str) -> None:
    report = Report("gen-meta", (StepReport("gen_meta", (), ((item, reason),)),), "shardflow gen-meta /d")
    lines = report.markdown().split("\n")
    start = lines.index("| what | why |") + 2
    row = lines[start]
    assert row.startswith("| ") and row.endswith(" |") and lines[start + 1] == ""
    bare = row.replace("\\\\", "").replace("\\|", "").replace("\\<", "").replace("\\[", "")
    assert bare.count("|") == 3 and "<" not in bare and "[" not in bare


@pytest.mark.parametrize("address", ["s3://key:secret@bucket/x", "a,s3://key:secret@bucket/x"])
def test_passwords_in_addresses_are_refused_unseen(address: str) -> None:
    with pytest.raises(BadConfig, match="output has a password") as caught:
        refuse_credentials(source="/data", output=address)
    assert "secret" not in str(caught.value)


def test_addresses_without_passwords_are_not() -> None:
    refuse_credentials(a="/x", b="s3://bucket/a@b:c", c="http://user@host/x", d="", e="text2image/*")
