"""For all tests: in CI, hypothesis draws the same examples each time, so that a run says something about the change."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
