"""The file of schedules: what it may say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import ROOT

from flows.deployments import deployments
from flows.schedules import FILE, Schedule, load
from loader.errors import BadConfig


def write(folder: Path, text: str) -> str:
    (folder / "schedules.yaml").write_text(text)
    return str(folder / "schedules.yaml")


def test_an_entry_is_a_schedule(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "nightly:\n  flow: warmup\n  parameters: {patterns: 'a/*'}\n  cron: '0 3 * * *'\n  timezone: Asia/Shanghai\n"
        "after:\n  flow: warmup\n  after: gen-meta\n  overlap: wait\n  active: true\n",
    )
    nightly, after = load(path)
    assert nightly == Schedule("nightly", "warmup", {"patterns": "a/*"}, "0 3 * * *", "Asia/Shanghai")
    assert not nightly.active and not nightly.wait
    assert after == Schedule("after", "warmup", after="gen-meta", wait=True, active=True)
    assert (str(nightly), str(after)) == ("0 3 * * * Asia/Shanghai", "after gen-meta")


def test_an_empty_file_is_no_schedule(tmp_path: Path) -> None:
    assert load(write(tmp_path, "# nothing yet\n")) == []


def test_the_file_that_is_shipped_is_a_good_one_and_off() -> None:
    shipped = load(str(ROOT / FILE))
    assert {one.flow for one in shipped} == {"warmup", "verify"}
    assert not any(one.active for one in shipped)
    assert len(deployments(shipped)) == len(deployments()) + len(shipped)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "holds list"),
        ("a: [", "is no YAML"),
        ("Nightly: {flow: warmup}", "Nightly: a name of small letters"),
        ("warmup: {flow: warmup}", "warmup: is the name of a flow"),
        ("n: warmup", "n: 'flow: …' and other fields"),
        ("n: {flow: warmup, corn: '0 3 * * *'}", "unknown field 'corn'"),
        ("n: {flow: dance}", "flow is 'dance'"),
        ("n: {flow: warmup}", "either 'cron', or 'after'"),
        ("n: {flow: warmup, cron: '0 3 * * *', after: pack}", "either 'cron', or 'after'"),
        ("n: {flow: warmup, cron: '0 3 * * *'}", "timezone is missing"),
        ("n: {flow: warmup, cron: '0 3 * * *', timezone: Mars/Base}", "timezone is 'Mars/Base'"),
        ("n: {flow: warmup, cron: 3, timezone: UTC}", "cron is 3"),
        ("n: {flow: warmup, after: dinner}", "after is 'dinner'"),
        ("n: {flow: warmup, after: pack, overlap: maybe}", "overlap is 'maybe'"),
        ("n: {flow: warmup, after: pack, active: 'yes'}", "active is 'yes'"),
        ("n: {flow: warmup, after: pack, parameters: [a]}", "parameters: 'name: value' lines"),
        ("n: {flow: warmup, after: pack, parameters: {patterns: 's3://k:hush@b/x'}}", "has a password"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as refused:
        load(write(tmp_path, text))
    assert reason in str(refused.value) and "hush" not in str(refused.value)


def test_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="is not there"):
        load(str(tmp_path / "none.yaml"))
