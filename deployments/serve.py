"""Serve the flows on this machine: to be started by their forms, from a terminal, or every night. One command::

    python deployments/serve.py
    python deployments/serve.py --nightly "text2image/*,edit/*"     # a warmup at three o'clock (UTC)

The server is the one that PREFECT_API_URL (or the Prefect profile) names. Without one it is http://127.0.0.1:4200, with
its pages: started if it isn't running, and ended with this. Runs are processes of this machine, in this folder.
For several machines, or runs that wait for a worker: prefect.yaml beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from flows.server import ServerUnreachable, check, set_environment

_START = 120.0  # seconds for a server to answer
_ENDING = 15.0  # seconds for it to end


def deployments(nightly: str = "") -> list[Any]:
    """All four flows as ``FLOW/served``; a warmup of the patterns `nightly` has a schedule."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import EntrypointType
    from prefect.schedules import Cron

    from flows.gen_meta import gen_meta
    from flows.pack import pack
    from flows.prepare import prepare
    from flows.warmup import warmup

    # A run of these uses all cores: the next one waits.
    alone = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
    plan: dict[Any, dict[str, Any]] = {
        prepare: {"concurrency_limit": alone},
        pack: {"concurrency_limit": alone},
        gen_meta: {},
        warmup: {},
    }
    if nightly:
        plan[warmup] = {"parameters": {"patterns": nightly}, "schedule": Cron("0 3 * * *", timezone="UTC")}
    return [
        flow.to_deployment("served", entrypoint_type=EntrypointType.MODULE_PATH, **options)
        for flow, options in plan.items()
    ]


@contextlib.contextmanager
def server(url: str) -> Iterator[None]:
    """A Prefect server that listens at `url`, to which Prefect's settings lead, if none does yet."""
    with contextlib.suppress(ServerUnreachable):
        check(url)
        yield
        return
    sys.stderr.write(f"starting Prefect's server, some 10 seconds: {url.removesuffix('/api')}\n")
    command = [sys.executable, "-m", "prefect", "server", "start"]
    # In a session of its own: Ctrl-C is for what is served, which then has to say goodbye to it.
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START
        while True:
            try:
                check(url)
                break
            except ServerUnreachable:
                if child.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.3)
        yield
    finally:
        child.terminate()
        try:
            child.wait(_ENDING)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description="Serve the flows prepare, pack, gen-meta and warmup.")
    parser.add_argument("--nightly", metavar="PATTERNS", default="", help="warm these up at 03:00 UTC")
    options = parser.parse_args()
    set_environment()
    os.environ.setdefault("PREFECT_SERVER_API_HOST", "127.0.0.1")  # nobody else's business

    from prefect import serve
    from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

    settings = get_current_settings()
    with contextlib.ExitStack() as stack:
        if settings.api.url:
            check(settings.api.url)
        else:
            url = f"http://127.0.0.1:{settings.server.api.port}/api"
            stack.enter_context(temporary_settings({PREFECT_API_URL: url}))
            stack.enter_context(server(url))
        serve(*deployments(options.nightly))


if __name__ == "__main__":
    try:
        main()
    except ServerUnreachable as error:
        sys.exit(f"serve.py: {error}")
