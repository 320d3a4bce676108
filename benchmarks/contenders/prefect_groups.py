"""What Prefect costs for each group: groups that have nothing to do, against a server of their own on this machine."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import Args, Report, Stopwatch, main, private_bytes

WARM = 100  # groups after which memory should have settled


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """A fresh server, as `shardflow up` sets it up, and its process id."""
    os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="bench-prefect-")
    os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"
    from flows import server

    server.set_environment()
    from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

    from flows.server_process import ServerProcess

    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    with ServerProcess(settings, "127.0.0.1", 0, "") as process:
        process.wait_ready(lambda text: None)
        with temporary_settings({PREFECT_API_URL: process.url}):
            (child,) = _children()
            yield child


def _children() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measured(groups: int, one: Callable[[int], object]) -> Report:
    """Run `one` for each group within a flow; seconds of the loop, CPU of the server until it has written all."""
    from prefect import flow

    from flows.server import _finished

    watch = Stopwatch()
    grown: list[int] = []

    @flow(name="bench", persist_result=False)
    def bench() -> Any:
        for number in range(WARM):
            one(number)
        grown.append(private_bytes())
        with watch:
            for number in range(WARM, groups + WARM):
                one(number)
        grown.append(private_bytes())
        return None

    with _server() as server:
        before = _cpu(server)
        state = bench(return_state=True)
        from flows.server import Api

        if not Api("", embedded=True).settle(state, groups + WARM):
            raise RuntimeError(
                f"{_finished(state.state_details.flow_run_id)} of {groups + WARM} were recorded"
            )
        served = _cpu(server) - before
    return watch.report(
        server=served / (groups + WARM), grown=(grown[1] - grown[0]) / groups, check={"groups": groups}
    )


def groups_ours(args: Args) -> Report:
    """Groups as the flows run them: one item each, progress told, no work in it."""
    from loader.pool import Pool
    from tasks.group import Group, Work
    from tasks.groups import TASKS, Shift

    items = list(range(args["groups"] + WARM))
    work: Work[Any, Any] = Work(
        kind="warmup", unit="tars", items=items, function=abs, arguments=(), label=str, size=int,
        kept=lambda result: False, explain=lambda error, item: str(error),
    )  # fmt: skip
    with Pool(1) as pool:
        return _measured(
            args["groups"],
            lambda number: TASKS["warmup"](Group(work, number, [number]), Shift(pool), return_state=True),
        )


def groups_least(args: Args) -> Report:
    """The least that a Prefect task is: called in a loop, with a number and no options."""
    from prefect import task

    @task
    def least(number: int) -> int:
        return abs(number)

    return _measured(args["groups"], least)


def groups_plain(args: Args) -> Report:
    """The same groups without Prefect."""
    from loader.pool import Pool
    from tasks.group import Group, Work

    work: Work[Any, Any] = Work(
        kind="warmup", unit="tars", items=[0], function=abs, arguments=(), label=str, size=int,
        kept=lambda result: False, explain=lambda error, item: str(error),
    )  # fmt: skip
    watch = Stopwatch()
    with Pool(1) as pool, watch:
        for number in range(args["groups"]):
            Group(work, number, [number]).attempt(pool)
    return watch.report(check={"groups": args["groups"]})


if __name__ == "__main__":
    main({name: value for name, value in globals().items() if name.startswith("groups_")})
