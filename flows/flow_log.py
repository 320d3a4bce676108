"""What the log of a failed run leaves out. No Prefect in here."""

from __future__ import annotations

import logging

_LOGGER = "prefect.flow_runs"
_TRACEBACK = "Engine execution exited with unexpected exception"


def leave_out_traceback() -> None:
    """For a run that has said what went wrong: Prefect adds forty lines about its own insides."""
    logging.getLogger(_LOGGER).addFilter(_wanted)


def _wanted(record: logging.LogRecord) -> bool:
    return record.msg != _TRACEBACK
