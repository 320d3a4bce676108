"""Where runs are recorded: the API that PREFECT_API_URL (or the Prefect profile) names, or an embedded server.

::

    with connected(print) as api:      # sets up Prefect's environment: import no flow before
        state = some_flow(return_state=True)
        api.settle(state, task_runs=12)

Prefect is imported in here, not with this module.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from loader.errors import ShardflowError

Say = Callable[[str], None]

_START = 120.0  # seconds; 8 to 13 on an idle machine
_PATIENCE = 15.0  # seconds before it is said again what is waited for
_SETTLE = 60.0  # seconds for the embedded server to write what it was told
_FAR = 10.0  # seconds for a server elsewhere to answer

# What makes Prefect silent offline, and its server cheap. A user's own settings win.
_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
}
# As Prefect starts its own: no UI, few services.
_EMBEDDED = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


class NoPrefect(ShardflowError, ImportError):
    """Prefect is not installed."""


class ServerUnreachable(ShardflowError, ConnectionError):
    """No Prefect API answers, there or from the embedded server."""


def set_environment() -> None:
    """The settings above as defaults of the environment; call it before Prefect is imported."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


class Api:
    """A Prefect API that answers; `embedded` if it goes with this process."""

    def __init__(self, url: str, embedded: bool) -> None:
        self.url = url
        self.embedded = embedded

    def settle(self, state: Any, task_runs: int) -> bool:
        """Wait until an embedded server has written the flow run of `state`: it forgets the rest as it stops.

        `task_runs` is how many there were. A server that stays up needs no waiting. False if it took too long.
        """
        flush()
        run = state.state_details.flow_run_id
        if not self.embedded or run is None:
            return True
        deadline = time.monotonic() + _SETTLE
        while _finished(run) < task_runs:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True


def flush(seconds: float = 10.0) -> None:
    """Send the events and logs that wait in this process; after so many seconds, forget them."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    # It warns of what is left to send, in the very moment in which it begins to.
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)
    EventsWorker.drain_all(timeout=seconds)
    APILogWorker.drain_all(timeout=seconds)


def _finished(flow_run: Any) -> int:
    """Task runs of a flow run that are recorded in a final state."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        TaskRunFilter,
        TaskRunFilterState,
    )
    from prefect.client.schemas.filters import TaskRunFilterStateType as Type
    from prefect.client.schemas.objects import TERMINAL_STATES

    final = TaskRunFilter(state=TaskRunFilterState(type=Type(any_=list(TERMINAL_STATES))))
    mine = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    count = 0
    with get_client(sync_client=True) as client:
        while found := client.read_task_runs(
            flow_run_filter=mine, task_run_filter=final, limit=200, offset=count
        ):
            count += len(found)
    return count


@contextlib.contextmanager
def connected(say: Say) -> Iterator[Api]:
    """A Prefect API for the flows inside; `say` is told what is waited for. Call it from the main thread.

    NoPrefect, ServerUnreachable. Inside, flow runs send no heartbeats to an embedded server: each would cost
    a second, and nobody listens.
    """
    if importlib.util.find_spec("prefect") is None:
        raise NoPrefect(
            "Prefect is not installed: pip install 'shardflow[flows]' brings it, or run the same steps without it "
            "with --direct"
        )
    set_environment()
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    if url:
        check(url)
        yield Api(url, embedded=False)
    else:
        with embedded(say) as started:
            yield started


def check(url: str) -> None:
    """ServerUnreachable if no Prefect API answers at `url`."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    shown = without_credentials(url)
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True, httpx_settings={"timeout": _FAR}) as client,
        ):
            failure = client.api_healthcheck()
    except Exception as error:  # noqa: BLE001 - of many libraries; whatever it is, there is no way to the API
        failure = error
    if failure is None:
        return
    reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
    raise ServerUnreachable(
        f"no Prefect API answers at {shown} ({reason}). Start one (prefect server start), correct PREFECT_API_URL, "
        "unset it for an embedded server, or run without Prefect with --direct"
    )


def without_credentials(url: str) -> str:
    """`url` without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@contextlib.contextmanager
def embedded(say: Say) -> Iterator[Api]:
    """A Prefect server that lives as long as the block. It keeps its records in PREFECT_HOME (~/.prefect)."""
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        get_current_settings,
        temporary_settings,
    )

    say("starting Prefect's embedded server, 8 to 13 seconds (none is needed with --direct)…")
    began = time.monotonic()
    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    with _Process({**settings, **_EMBEDDED}) as process:
        process.wait_ready(say)
        say(f"Prefect's embedded server is up after {time.monotonic() - began:.1f} s")
        with temporary_settings({PREFECT_API_URL: process.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            try:
                yield Api(process.url, embedded=True)
            except BaseException:
                flush(1.0)  # that the run was interrupted, say; nothing can be sent later
                raise


class _Process:
    """The server's process; leaving the context ends it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._quiet = threading.Event()
        self._said: list[str] = []

    def __enter__(self) -> _Process:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
            script = str(Path(__file__).with_name("embedded.py"))
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the child keeps it blocked
            try:
                self._child = subprocess.Popen(
                    [sys.executable, script, str(listening.fileno()), str(os.getpid())],
                    env={**os.environ, **self._environment},
                    pass_fds=[listening.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._reader = threading.Thread(target=self._forward, args=(self._child.stderr,), daemon=True)
        self._reader.start()
        return self

    def _forward(self, stream: IO[str]) -> None:
        """What the server complains of, until it is told to stop: what it says then is of no use to anybody."""
        for line in stream:
            self._said.append(line)
            del self._said[:-20]
            if not self._quiet.is_set():
                sys.stderr.write(f"Prefect server: {line}")

    def wait_ready(self, say: Say) -> None:
        """Return when the API answers; ServerUnreachable if the process ends, or takes too long."""
        began = told = time.monotonic()
        while (now := time.monotonic()) < began + _START:
            if now - told > _PATIENCE:
                told = now
                say(f"still starting, after {now - began:.0f} s: a busy machine, or the first start of all")
            if self._child.poll() is not None:
                self._reader.join(1)
                last = self._said[-1].strip() if self._said else "it said nothing"
                raise ServerUnreachable(
                    f"Prefect's embedded server ended as it started, with status {self._child.returncode} ({last}). "
                    "Run without Prefect with --direct, or start a server of your own and set PREFECT_API_URL"
                )
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                    if answer.status == 200:
                        return
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(0.1)
        raise ServerUnreachable(
            f"Prefect's embedded server did not answer within {_START:.0f} seconds. Run without Prefect with --direct, "
            "or start a server of your own and set PREFECT_API_URL"
        )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._quiet.set()
        self._child.terminate()
        in_a_hurry = kind is not None and not issubclass(kind, Exception)
        try:
            self._child.wait(0.5 if in_a_hurry else 10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join(1)
        if self._child.stderr:
            self._child.stderr.close()
