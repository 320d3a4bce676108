"""A server of our own: where it listens, and what is said if it doesn't come up."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from flows.server_process import AddressTaken, ServerProcess, ServerUnreachable


def test_an_address_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressTaken, match=rf"nothing can listen at http://127.0.0.1:{port} .*--port"):
            ServerProcess({}, "127.0.0.1", port, "")


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1"), ("0.0.0.0", "http://127.0.0.1"), ("::1", "http://[::1]")],
)
def test_where_it_is_found_from_here(host: str, address: str) -> None:
    try:
        process = ServerProcess({}, host, 0, "")
    except AddressTaken:
        pytest.skip(f"this machine has no {host}")
    assert process.address == f"{address}:{process.port}" and process.url == f"{process.address}/api"
    process._socket.close()


@pytest.mark.slow
def test_one_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/nowhere/prefect.db"
    environment = {**os.environ, "PREFECT_API_DATABASE_CONNECTION_URL": url, "PREFECT_HOME": str(tmp_path)}
    with ServerProcess(environment, "127.0.0.1", 0, "Try something else") as process:
        with pytest.raises(ServerUnreachable, match=r"(?s)ended as it started.*Try something else"):
            process.wait_ready(lambda text: None)
        assert process.ended
