"""Headless Chromium for tests of Prefect's pages: Debian's, driven by Playwright, without anything from the internet."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCREENSHOTS = Path(__file__).parents[1] / "screenshots"
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def why_not() -> str:
    """Why there can be none here; empty if there can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (pip install playwright)"
    return "" if shutil.which("chromium") else "Chromium is not installed (apt-get install chromium)"


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A page of 1200 × 900 points."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
        page = chromium.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(60_000)
        page.route("**/*amplitude*/**", lambda route: route.abort())
        yield page
        chromium.close()


def screenshot(page: Any, name: str) -> None:
    """Keep what is seen now as screenshots/NAME.png, for whoever looks at them."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.wait_for_timeout(300)  # whatever slides in or out
    # A notice would lie over what is to be seen.
    page.screenshot(path=SCREENSHOTS / f"{name}.png", style="[data-sonner-toaster] { display: none }")
