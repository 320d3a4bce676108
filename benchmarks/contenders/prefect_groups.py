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


def _measured(args: Args, body: Callable[[int, Callable[[int], None]], object]) -> Report:
    """Run `body` within a flow: so many groups, each told by its number when it is done.

    The clock runs from group `WARM` on; the server's CPU is counted until it has written all.
    """
    from prefect import flow

    from flows.server import Api

    watch, grown, total = Stopwatch(), [0], args["groups"] + WARM

    def told(done: int) -> None:
        if done == WARM:
            grown[0] = private_bytes()
            watch.__enter__()
        elif done == total:
            watch.__exit__(None, None, None)
            grown[0] = private_bytes() - grown[0]

    @flow(name="bench", persist_result=False)
    def bench() -> None:
        body(total, told)

    with _server() as server:
        before = _cpu(server)
        state = bench(return_state=True)
        if not any(Api("", embedded=True).settle(state, total) for _ in range(5)):
            raise RuntimeError("the server has not recorded all task runs")
        served = (_cpu(server) - before) * args["groups"] / total
    report = watch.report(grown=grown[0], check={"groups": args["groups"]})
    if args["clock"] == "server":
        report |= {"seconds": served, "wall": served, "waited": 0.0, "cpu": served}
    return report


def groups_ours(args: Args) -> Report:
    """As the flows do it, artifacts of progress and all; a group is one item, and there is nothing to do to it."""
    from flows import grouped
    from flows.flow_log import leave_out_good_ends
    from tasks.workforce import Crew

    leave_out_good_ends()  # as `grouped.conclude` begins
    grouped.group_size = lambda *_: 1  # type: ignore[assignment]

    def body(total: int, told: Callable[[int], None]) -> None:
        with Crew() as crew:
            grouped.Groups(crew)(_work(total), 1, lambda results: told(len(results)))

    return _measured(args, body)


def groups_least(args: Args) -> Report:
    """The least that a Prefect task is: called in a loop, with a number and no options."""
    from prefect import task

    @task
    def least(number: int) -> int:
        return abs(number)

    def body(total: int, told: Callable[[int], None]) -> None:
        for number in range(total):
            least(number)
            told(number + 1)

    return _measured(args, body)


def _work(items: int) -> Any:
    from tasks.group import Work

    return Work(
        kind="warmup", unit="tars", items=range(items), function=abs, arguments=(), label=str, size=int,
        kept=lambda result: False, explain=lambda error, item: str(error),
    )  # fmt: skip


def groups_plain(args: Args) -> Report:
    """The same groups without Prefect."""
    from loader.pool import Pool
    from tasks.group import Group

    work = _work(args["groups"])
    watch = Stopwatch()
    with Pool(1) as pool, watch:
        for number in range(args["groups"]):
            Group(work, number, work.items[number : number + 1]).attempt(pool)
    return watch.report(grown=0, check={"groups": args["groups"]})


if __name__ == "__main__":
    main({name: value for name, value in globals().items() if name.startswith("groups_")})
