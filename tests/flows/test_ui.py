"""Prefect's pages as a newcomer uses them, in a real browser on a real `shardflow up`. Each test leaves screenshots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, screenshot, why_not
from running import SECRET, session_members
from upping import Up, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    if reason := why_not():
        pytest.skip(reason)
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dozen real photographs, their records, and a config with a secret in it."""
    import json

    from flows.photos import make_photos

    folder = tmp_path_factory.mktemp("photos")
    records = make_photos(str(folder))[:24]
    records[7] = {"image": "missing.png", "caption": "This one is not there."}
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folder / "job.yaml").write_text(
        f"source: records.jsonl\noutput: elsewhere\nmax_samples: 10\nstorage_options: {{secret: {SECRET}}}\n"
    )
    return folder


def fill(page: Any, **fields: object) -> None:
    for name, value in fields.items():
        page.get_by_label(f"{name} (Optional)", exact=True).fill(str(value))


def submit(page: Any, up: Up) -> None:
    """Submit the form, and look at the run. Its notice with a link to it goes too soon for a busy machine."""
    before = runs(up)
    asked = click_submit(page)
    (run,) = wait_for(lambda: runs(up) - before, lambda: (asked, up.said()))
    page.goto(f"{up.address}/v2/runs/flow-run/{run}")


def click_submit(page: Any) -> str:
    """Click until the page asks the server for a run: while it draws the form anew, a click goes nowhere."""
    from playwright.sync_api import TimeoutError as PageTimeoutError

    for _ in range(3):
        try:
            with page.expect_request(re.compile("create_flow_run"), timeout=20_000) as request:
                page.get_by_role("button", name="Submit").click()
            return str(request.value.url)
        except PageTimeoutError:  # noqa: PERF203 - three at most
            screenshot(page, "not-submitted")
    raise AssertionError("the form was not submitted; see the screenshot not-submitted")


def form(page: Any, up: Up, deployment: str) -> None:
    page.goto(f"{up.address}/v2/deployments/deployment/{up.deployment(deployment)['id']}")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    page.get_by_role("button", name="Submit").wait_for()


def test_a_newcomer_prepares_a_dataset(up: Up, page: Any, photos: Path, tmp_path: Path) -> None:
    """From the first page to the pictures in the report."""
    page.goto(up.address)
    page.get_by_role("link", name="Deployments").click()
    for name in ("prepare", "pack", "gen-meta", "warmup", "verify", "nightly-warmup"):
        page.get_by_role("link", name=name, exact=True).first.wait_for()
    screenshot(page, "1-deployments")
    page.get_by_role("link", name="prepare", exact=True).first.click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    output = tmp_path / "photos"
    fill(page, config=photos / "job.yaml", output=output, max_samples=8)
    page.get_by_label("config (Optional)", exact=True).scroll_into_view_if_needed()
    screenshot(page, "2-form")
    submit(page, up)
    page.get_by_text("Completed", exact=True).first.wait_for()
    assert len(list(output.glob("*.tar"))) == 3, "the form's max_samples, not the config's"
    page.reload()  # logs come a moment after the state
    page.get_by_text(re.compile(r"^pack slots 1 to \d of 3: \d done, .*/s$")).wait_for()
    screenshot(page, "3-run")
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_role("link").filter(has_text="prepare-report").click()
    page.get_by_role("heading", name=re.compile("prepare")).first.wait_for()
    picture = page.locator("img[src^='data:']").first
    picture.wait_for()
    assert picture.evaluate("image => image.complete && image.naturalWidth > 0"), "shown, without a network"
    assert "missing.png" in page.content()
    screenshot(page, "4-report")
    picture.scroll_into_view_if_needed()
    screenshot(page, "5-samples")
    assert SECRET not in page.content()


def test_what_is_wrong_is_refused_in_the_form(up: Up, page: Any) -> None:
    before = runs(up)
    form(page, up, "prepare/prepare")
    number = page.get_by_label("max_samples (Optional)", exact=True)
    number.fill("-5")
    page.get_by_role("button", name="Submit").click()
    assert "greater than or equal to -1" in number.evaluate("input => input.validationMessage")
    screenshot(page, "6-refused-number")
    form(page, up, "warmup/warmup")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("'patterns' is a required property").wait_for()
    screenshot(page, "7-refused-empty")
    assert runs(up) == before, "nothing ran"


def test_what_only_the_flow_can_know_is_refused_first_thing(up: Up, page: Any, tmp_path: Path) -> None:
    form(page, up, "prepare/prepare")
    fill(page, source=tmp_path / "nowhere.jsonl", output=tmp_path / "out")
    submit(page, up)
    page.get_by_text("Failed", exact=True).first.wait_for()
    page.get_by_role("tab", name="Details").click()
    page.get_by_text(re.compile("pack: .*nowhere.jsonl")).first.wait_for()
    screenshot(page, "8-failed")
    assert "Traceback" not in page.content()
    assert not (tmp_path / "out").exists()

    # Once that is put right, the same run does it.
    (tmp_path / "nowhere.jsonl").write_text('{"caption": "There now."}\n')
    page.get_by_role("button", name="Open menu").click()
    page.get_by_role("menuitem", name="Retry").click()
    page.get_by_role("button", name="Retry").last.click()
    page.get_by_text("Completed", exact=True).first.wait_for()
    assert (tmp_path / "out" / "meta.json").exists()


def test_a_schedule_is_switched_on(up: Up, page: Any) -> None:
    nightly = up.deployment("warmup/nightly-warmup")
    page.goto(f"{up.address}/v2/deployments/deployment/{nightly['id']}")
    switch = page.get_by_role("switch", name="toggle At 03:00 AM")
    assert switch.get_attribute("aria-checked") == "false"
    switch.click()
    wait_for(lambda: up.deployment("warmup/nightly-warmup")["schedules"][0]["active"], up.said)
    mine = {"deployments": {"id": {"any_": [nightly["id"]]}}}
    wait_for(lambda: up.ask("flow_runs/filter", **mine), up.said)
    page.reload()
    page.get_by_text("Next Run").wait_for()
    screenshot(page, "9-schedule")
    switch.click()
    wait_for(lambda: not up.deployment("warmup/nightly-warmup")["schedules"][0]["active"], up.said)


def test_a_run_is_cancelled(up: Up, page: Any, large: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = up.start("prepare/prepare", config=str(large / "job.yaml"), output=str(out))
    page.goto(f"{up.address}/v2/runs/flow-run/{run}")
    page.get_by_text("Running", exact=True).first.wait_for()
    page.get_by_text(re.compile(r"^pack slots \d to \d of 600: ")).first.wait_for()
    assert any("prefect.engine" in line for line in session_members(up.process.pid))
    screenshot(page, "10-running")
    page.get_by_role("button", name="Open menu").click()
    page.get_by_role("menuitem", name="Cancel").click()
    page.get_by_role("button", name=re.compile("^Cancel")).last.click()
    wait_for(lambda: not any("prefect.engine" in line for line in session_members(up.process.pid)), up.said)
    page.get_by_text("Cancelled", exact=True).first.wait_for()
    screenshot(page, "11-cancelled")
    assert not list(out.rglob("*.part")), "nothing half-written is left"


def runs(up: Up) -> set[str]:
    """All runs that somebody has asked for."""
    return {run["id"] for run in up.ask("flow_runs/filter", limit=200) if not run["auto_scheduled"]}
