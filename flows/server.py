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
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from flows.home import running
from flows.server_process import Say, ServerProcess, ServerUnreachable
from loader.errors import ShardflowError

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
_CHECK = (
    "Start one (shardflow up), correct PREFECT_API_URL, unset it for an embedded server, or run without Prefect with "
    "--direct"
)
# As Prefect starts its own: no UI, few services.
_ADVICE = (
    "Run without Prefect with --direct, or start a server of your own (shardflow up) and set PREFECT_API_URL"
)
_EMBEDDED = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


class NoPrefect(ShardflowError, ImportError):
    """Prefect is not installed."""


def require_prefect() -> None:
    """NoPrefect if it is not there."""
    if importlib.util.find_spec("prefect") is None:
        raise NoPrefect(
            "Prefect is not installed: pip install 'shardflow[flows]' brings it, or run the same steps without it "
            "with --direct"
        )


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


def _forget() -> None:
    """Drop the events and logs that wait in this process, as far as Prefect lets us.

    At exit it would try for each of them, for seconds, to reach a server that is gone.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for kind in (EventsWorker, APILogWorker):
        for worker in list(getattr(kind, "_instances", {}).values()):
            waiting = getattr(worker, "_queue", None)
            with contextlib.suppress(queue.Empty, AttributeError):
                while True:
                    waiting.get_nowait()


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
    require_prefect()
    set_environment()
    from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

    settings = get_current_settings()
    if url := settings.api.url:
        check(url)
        yield Api(url, embedded=False)
    elif url := running(settings.home):  # `shardflow up` on these records
        check(url)
        with temporary_settings({PREFECT_API_URL: url}):
            yield Api(url, embedded=False)
    else:
        with embedded(say) as started:
            yield started


def check(url: str, advice: str = _CHECK) -> None:
    """ServerUnreachable if no Prefect API answers at `url`; `advice` says what to do then."""
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
    raise ServerUnreachable(f"no Prefect API answers at {shown} ({reason}). {advice}")


def asked(call: Callable[[], Any]) -> Any:
    """What a call gives that talks to the API all along; ServerUnreachable if it is lost on the way."""
    from httpx import TransportError

    try:
        return call()
    except TransportError as error:
        _forget()
        raise ServerUnreachable(
            f"Prefect's server does not answer any more ({error}): start it again, and run this again. What is done is kept"
        ) from None


def pages(url: str) -> str:
    """Where a browser finds the pages that belong to an API."""
    from prefect.settings import get_current_settings

    return (get_current_settings().ui_url or url.removesuffix("/api")).rstrip("/")


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
    with ServerProcess({**settings, **_EMBEDDED}, "127.0.0.1", 0, _ADVICE) as process:
        process.wait_ready(say)
        say(f"Prefect's embedded server is up after {time.monotonic() - began:.1f} s")
        with temporary_settings({PREFECT_API_URL: process.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            try:
                yield Api(process.url, embedded=True)
            except BaseException:
                flush(1.0)  # that the run was interrupted, say; nothing can be sent later
                raise
