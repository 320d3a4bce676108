"""What Prefect costs: groups without any work in them, as the flows run them, against the least that Prefect can."""

from __future__ import annotations

from harness import Contender, Question
from questions import Corpora


def prefect_questions(data: Corpora) -> list[Question]:
    groups = 200 if data.quick else 1000
    least = Contender("a Prefect task that is called in a loop", "prefect_groups.py", "groups_least", 1)
    plain = Contender("the same groups without Prefect", "prefect_groups.py", "groups_plain")
    ours = Contender("ours: a group as a task run", "prefect_groups.py", "groups_ours")
    return [
        Question(
            name="prefect client",
            title=f"{groups:,} groups as Prefect task runs: what the flow's process takes for each",
            ours=ours,
            peers=[least, plain],
            unit="ms a group",
            scale=lambda seconds: seconds / groups * 1e3,
            args={"groups": groups, "clock": "client"},
            limits=[("memory that they leave in the flow's process", "grown", 25e6)],
            note="A server of its own on this machine, as `shardflow up` sets it up. Groups are made to last 20 s.",
        ),
        Question(
            name="prefect server",
            title=f"{groups:,} groups as Prefect task runs: CPU of the server for each",
            ours=ours,
            peers=[least],
            unit="ms a group",
            scale=lambda seconds: seconds / groups * 1e3,
            args={"groups": groups, "clock": "server"},
            note="Until the server has written all of them.",
        ),
    ]
