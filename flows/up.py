"""``shardflow up``: a Prefect server with its pages, the deployments, and a runner that does what they are asked.

::

    up.main()                                   # records in ~/.prefect, pages at http://127.0.0.1:4200, until Ctrl-C
    up.main(port=0, home="/data/prefect")       # any free port; its records there

The server is a child and dies with this process; flows run in children of this process, and die with it as well
(`flows.lifeline`). Where PREFECT_API_URL names a server, that one is used. Prefect is imported in `main`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows import schedules, server
from flows.home import held
from flows.interrupts import Interrupts
from flows.schedules import Schedule
from flows.server_process import ServerProcess
from loader.progress import printable, table

_NAME = "shardflow up"
_POLL = 2.0  # seconds between two looks at what is to be run: our own server can bear it
_DAMAGED = "Its records may be of a newer Prefect, or damaged: --home chooses another folder for them"
_UNSET = "Start that server, correct PREFECT_API_URL, or unset it: then a server is started here"
_ANYWHERE = ("0.0.0.0", "::")
_SERVER = {
    "PREFECT__SERVER_FINAL": "1",
    # In memory, a server that is started again knows nothing of the slots that runs of its last life hold.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}


def main(host: str = "127.0.0.1", port: int | None = None, home: str = "", schedule_file: str = "") -> int:
    """Serve until Ctrl-C or SIGTERM; returns the exit status."""
    server.require_prefect()
    if not schedule_file and os.path.exists(schedules.FILE):
        schedule_file = schedules.FILE
    planned = schedules.load(schedule_file) if schedule_file else []
    if home:
        os.environ["PREFECT_HOME"] = os.path.abspath(os.path.expanduser(home))
        os.makedirs(os.environ["PREFECT_HOME"], exist_ok=True)
    server.set_environment()
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

        settings = get_current_settings()
        place = stack.enter_context(held(settings.home))
        url, own = settings.api.url, None
        if url:
            server.check(url, _UNSET)
        else:
            port = settings.server.api.port if port is None else port
            own = stack.enter_context(_server(host, port, place.folder))
            url = own.url
        stack.enter_context(temporary_settings({PREFECT_API_URL: url}))
        from flows.serving import Serving  # while the server starts: it takes a second

        serving = Serving(planned, own, _POLL if own else None)
        if own:
            began = time.monotonic()
            own.wait_ready(_say)
            _say(f"the server is up after {time.monotonic() - began:.1f} s more")
        place.announce(url)
        serving.register(_say)
        pages = own.address if own else server.pages(url)
        _welcome(pages, url, own, place.folder, planned)
        serving.run(interrupts, _say)
    return 0


@contextlib.contextmanager
def _server(host: str, port: int, folder: Path) -> Iterator[ServerProcess]:
    from prefect.settings import get_current_settings

    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    process = ServerProcess({**settings, **_SERVER}, host, port, _DAMAGED)
    # Where a browser finds the API: from anywhere, it is where the page came from.
    process.environment["PREFECT_UI_API_URL"] = "/api" if host in _ANYWHERE else process.url
    _say(f"starting Prefect's server, some 5 seconds, 10 for the first time; its records are in {folder}")
    with process:
        yield process


def _welcome(
    pages: str, url: str, own: ServerProcess | None, folder: Path, planned: Sequence[Schedule]
) -> None:
    rows = [("pages", pages)]
    if own and own.host in _ANYWHERE:
        rows.append(("from elsewhere", f"http://{socket.gethostname()}:{own.port}"))
    rows.append(("API", f"PREFECT_API_URL={server.without_credentials(url)}"))
    if own:
        rows.append(("records", str(folder)))
    rows += [
        ("schedule", f"{one.name}: {one.flow}, {one}" + ("" if one.active else " (off at first)"))
        for one in planned
    ]
    table("", [_NAME, ""], rows)
    sys.stdout.flush()
    _say("ready; Ctrl-C ends it")


def _say(text: str) -> None:
    sys.stderr.write(f"{_NAME}: {printable(text)}\n")
    sys.stderr.flush()
