"""For all tests: a real S3 server, and a proxy before it that makes it fail.

In CI, hypothesis draws the same examples each time, so that a run says something about the change; and a machine that
stalls while it draws them is no fault of a test's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from fault_proxy import FaultProxy
from hypothesis import HealthCheck, settings
from s3_server import Place, S3Server
from s3_server import s3_server as started

settings.register_profile("ci", derandomize=True, suppress_health_check=[HealthCheck.too_slow])
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The S3 server of this session, started for the first test that asks."""
    with started(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> Place:
    """An empty folder on it: `root`, `storage_options`."""
    return s3_server.place()


@pytest.fixture(scope="session")
def _proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    proxy = FaultProxy(s3_server.port)
    yield proxy
    proxy.stop()


@pytest.fixture
def faults(_proxy: FaultProxy) -> FaultProxy:
    """The proxy before it, faultless until `reset` says otherwise; `faulty` is the way through it."""
    _proxy.reset()
    return _proxy


@pytest.fixture
def faulty(s3: Place, faults: FaultProxy) -> Place:
    """The folder of `s3`, as seen through `faults`."""
    return Place(s3.root, {**s3.storage_options, "endpoint_url": faults.url})
