"""Serve the flows to a Prefect server: `prepare` by its form, `warmup` every night.

PREFECT_API_URL=http://127.0.0.1:4200/api python docs/examples/serve.py
"""

from prefect import serve
from prefect.schedules import Cron

from flows.prepare import prepare
from flows.warmup import warmup


def deployments():
    return [
        prepare.to_deployment("by-form"),
        warmup.to_deployment(
            "nightly", schedule=Cron("0 3 * * *", timezone="UTC"), parameters={"patterns": "demo/*"}
        ),
    ]


if __name__ == "__main__":
    serve(*deployments())
