"""The runner behind `shardflow up`: registers the deployments and runs them in children of this process.

Imports Prefect and the flows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.runner import Runner
from prefect.states import Crashed

from flows import lifeline
from flows.blocks import register_block
from flows.deployments import TAG, deployments, keep_switches, remove_others
from flows.interrupts import Interrupts
from flows.schedules import Schedule
from flows.server_process import Say, ServerProcess, ServerUnreachable

_UNFINISHED = (StateType.RUNNING, StateType.PENDING, StateType.CANCELLING)
_WATCHED = 1.0  # seconds between two looks at the server


class Serving:
    """All deployments, for a server of our own or one elsewhere (`own` is None)."""

    def __init__(
        self, planned: Sequence[Schedule], own: ServerProcess | None, query_seconds: float | None
    ) -> None:
        self._own = own
        self._wanted = deployments(planned)
        # Elsewhere, what falls due while nobody serves it would wait there, and come all at once.
        self._runner = Runner("shardflow", query_seconds=query_seconds, pause_on_shutdown=own is None)

    def register(self, say: Say) -> None:
        """Make the server know them. On one of our own nothing else can be at work: tidy up."""
        register_block()
        with get_client(sync_client=True) as client:
            if self._own:
                for name in remove_others(self._wanted, client):
                    say(f"the schedule {name} is not in the file any more: removed")
                for name in _end_orphans(client):
                    say(f"{name} ended with an earlier shardflow up: marked as crashed, run it again")
            keep_switches(self._wanted, client)
        for one in self._wanted:
            if not self._own:
                one.paused = False  # the last runner paused it when it ended
            self._runner.add_deployment(one)

    def run(self, interrupts: Interrupts, say: Say) -> None:
        """Serve until Ctrl-C or SIGTERM; ServerUnreachable if a server of our own goes away."""
        os.environ[lifeline.VARIABLE] = str(os.getpid())
        os.environ.setdefault(
            "PREFECT_LOGGING_TO_API_BATCH_INTERVAL", "0.5"
        )  # seconds: somebody may be watching
        asyncio.run(self._run(interrupts, say))

    async def _run(self, interrupts: Interrupts, say: Say) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        interrupts.action = lambda: loop.call_soon_threadsafe(stop.set)
        serving = asyncio.create_task(self._runner.start())
        stopping = asyncio.create_task(stop.wait())
        while not serving.done():
            await asyncio.wait({serving, stopping}, timeout=_WATCHED, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set() and self._runner.started:
                say("ending: what is at work is cancelled, what is finished stays")
                await self._runner.astop()
                break
            if self._own and self._own.ended and not serving.done():
                raise ServerUnreachable(
                    "Prefect's server is gone. Start shardflow up again: what is done is kept"
                )
        stopping.cancel()
        await serving


def _end_orphans(client: SyncPrefectClient) -> list[str]:
    """Mark runs as crashed whose processes went with an earlier life of this server; returns their names."""
    unfinished = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(_UNFINISHED))))
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    runs = client.read_flow_runs(flow_run_filter=unfinished, deployment_filter=ours)
    for run in runs:
        client.set_flow_run_state(
            run.id,
            Crashed(message="its process ended with an earlier shardflow up: run it again"),
            force=True,
        )
    return [run.name for run in runs]
