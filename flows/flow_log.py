"""What the log of a run leaves out, so that a line a group of shards is left. No Prefect in here."""

from __future__ import annotations

import logging

_DONE = "Finished in state Completed()"
_TRACEBACK = "Engine execution exited with unexpected exception"


def leave_out_good_ends() -> None:
    """A task run has said how many items it has done: that it is completed needs no second line."""
    logging.getLogger("prefect.task_runs").addFilter(_no_good_end)


def leave_out_traceback() -> None:
    """For a run that has said what went wrong: Prefect adds forty lines about its own insides."""
    logging.getLogger("prefect.flow_runs").addFilter(_no_traceback)


def _no_good_end(record: logging.LogRecord) -> bool:
    return record.msg != _DONE


def _no_traceback(record: logging.LogRecord) -> bool:
    return record.msg != _TRACEBACK
