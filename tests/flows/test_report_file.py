from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from running import SECRET

from flows.report import LeftOut, Report, StepReport
from flows.report_file import check_address, save
from loader.errors import BadConfig

PACKED = StepReport(
    "pack",
    (("samples", "59 of 60 rows"),),
    left_out=(LeftOut("read: No such file or directory", 1, "/data/a.jsonl, row 18 (read): <none>.jpg"),),
    look=lambda: [("000000007", "a <b>red</b> square", [Image.new("RGB", (30, 20), "red")], {})],
)
FAILED = StepReport("gen_meta", (("tars", "3"),), (("a<1>.tar", "cut short"),), "no room")


@pytest.mark.parametrize("name", ["report.html", "report.HTM", "s3://bucket/report.md", "", "a.markdown"])
def test_names_that_say_what_is_to_be_written(name: str) -> None:
    check_address(name)


@pytest.mark.parametrize("name", ["report", "report.pdf", "html", "/data/photos/"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(BadConfig, match=r"a file that ends in \.html or \.md was expected"):
        check_address(name)


def test_a_page_with_everything_and_nothing_beside_it(tmp_path: Path) -> None:
    report = Report("prepare", (PACKED,), "shardflow prepare job.yaml")
    assert save(report, str(tmp_path / "there" / "report.html")) is report
    page = (tmp_path / "there" / "report.html").read_text()
    for part in (
        "<h1>prepare: done</h1>", "1 sample · 1 picture", "<dt>samples</dt><dd>59 of 60 rows</dd>",
        "<h2>pack: left out, by reason</h2>", "1 row, such as /data/a.jsonl, row 18 (read): &lt;none&gt;.jpg",
        "data:image/jpeg;base64,", "a &lt;b&gt;red&lt;/b&gt; square", "default-src 'none'",
    ):  # fmt: skip
        assert part in page, part
    assert "http://" not in page and "https://" not in page


def test_a_failed_run_says_how_to_go_on(tmp_path: Path) -> None:
    report = Report("prepare", (PACKED, FAILED), "shardflow prepare 'my job.yaml'")
    assert save(report, str(tmp_path / "report.html")) is report
    page = (tmp_path / "report.html").read_text()
    for part in ("prepare: failed", "shardflow prepare &#x27;my job.yaml&#x27;", "<dt>a&lt;1&gt;.tar</dt><dd>cut short</dd>",
                 "<dt>problem</dt><dd>no room</dd>"):  # fmt: skip
        assert part in page, part
    assert "data:image" not in page.partition("<main>")[2], "half a dataset is not shown as if it were one"

    assert save(report, str(tmp_path / "report.md")) is report
    text = (tmp_path / "report.md").read_text()
    assert "```\nshardflow prepare 'my job.yaml'\n```" in text
    assert r"| read: No such file or directory | 1 | /data/a.jsonl, row 18 (read): \<none\>.jpg |" in text


def test_a_file_that_cannot_be_written_is_a_failure_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    report = Report("pack", (PACKED,), "shardflow pack job.yaml")
    found = save(report, str(tmp_path / "file" / "report.html"), {"secret": SECRET})
    assert not found.ok
    assert found.steps[-1].step == "report" and "can't be written" in found.steps[-1].problem
