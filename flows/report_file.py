"""The report as a file, for those who see no Prefect pages: HTML with samples to look at, or Markdown."""

from __future__ import annotations

from dataclasses import replace

from flows.report import Report, StepReport
from loader import storage
from loader.contact_sheet import contact_sheet
from loader.errors import BadConfig, ShardflowError
from loader.registry import redactor
from loader.storage import StorageOptions

_HTML, _MARKDOWN = (".html", ".htm"), (".md", ".markdown")


def check_address(address: str) -> None:
    """BadConfig for a name that doesn't say what is to be written."""
    if address and not address.lower().endswith(_HTML + _MARKDOWN):
        raise BadConfig(f"report is {address}: a file that ends in .html or .md was expected")


def save(report: Report, address: str, storage_options: StorageOptions | None = None) -> Report:
    """Write it, whole or not at all; the report, with one more step if that failed."""
    address = storage.normalise(address)
    try:
        if address.lower().endswith(_HTML):
            title = f"{report.job}: {'done' if report.ok else 'failed'}"
            contact_sheet(report.samples(), address, title, storage_options, report.tables())
        else:
            text = report.markdown(report.samples()).encode("utf-8", "backslashreplace")
            storage.write_bytes(address, text, storage_options)
    except (ShardflowError, OSError) as error:
        reason = redactor(storage_options)(str(error) or type(error).__name__)
        return replace(
            report,
            steps=(*report.steps, StepReport("report", problem=f"{address} can't be written: {reason}")),
        )
    return report
