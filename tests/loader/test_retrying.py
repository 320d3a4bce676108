"""What a store fails is tried again; what it answers is not; and the error that is left says what happened."""

from __future__ import annotations

import pickle
import re
import time
from typing import Any

import pytest
from fault_proxy import FaultProxy
from s3_server import Place

from loader import retrying, storage
from loader.errors import BadAddress, ShardflowError, StoreError

CLIENTS = ("fsspec", "obstore")
DATA = bytes(range(256)) * 1000


@pytest.fixture(params=CLIENTS)
def place(faulty: Place, s3: Place, request: pytest.FixtureRequest) -> Place:
    """A folder behind the proxy that holds x.bin, as one client sees it, which gives up soon."""
    storage.write_bytes(s3.address("x.bin"), DATA, s3.storage_options)
    limits = {"client": request.param, "max_tries": 3, "config_kwargs": {"read_timeout": 1}}
    return Place(faulty.root, {**faulty.storage_options, **limits})


def read(place: Place) -> bytes:
    return storage.read_bytes(place.address("x.bin"), place.storage_options, 0, len(DATA))


PASSING = ["503", "500", "429", "reset", "cut", "cut_reset", "short", "stall", "stall_body"]


@pytest.mark.parametrize("kind", PASSING)
def test_passing_failures(place: Place, faults: FaultProxy, kind: str) -> None:
    rule = faults.rule(kind, method="GET", times=1, seconds=2)
    faults.reset(rules=(rule,))
    assert read(place) == DATA
    assert faults.stats()["failed"] == 1


@pytest.mark.parametrize("kind", ["503", "cut", "reset", "short"])
def test_lasting_ones_name_address_tries_and_cause(place: Place, faults: FaultProxy, kind: str) -> None:
    faults.reset(rules=(faults.rule(kind, method="GET"),))
    with pytest.raises(StoreError) as caught:
        read(place)
    text = str(caught.value)
    assert re.match(
        rf"{re.escape(place.address('x.bin'))}: reading failed 3 times in \d+\.\d s, the last time by \w+",
        text,
    )
    assert faults.stats()["failed"] in (3, 6)  # aiohttp itself sends a GET again where a connection is gone
    assert {"503": "SlowDown", "short": "got 128000 of them"}.get(kind, "") in text
    assert "only-known-to-tests" not in text and "\n" not in text
    assert isinstance(caught.value, OSError) and isinstance(caught.value, ShardflowError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == text  # from a worker to the trainer


@pytest.mark.parametrize(
    ("kind", "error"), [("403", PermissionError), ("404", FileNotFoundError), ("400", OSError)]
)
def test_answers_are_final(place: Place, faults: FaultProxy, kind: str, error: type[OSError]) -> None:
    faults.reset(rules=(faults.rule(kind, method="GET"),))
    with pytest.raises(error, match=r"s3://\S+x\.bin: "):
        read(place)
    assert faults.stats()["failed"] == 1


@pytest.mark.parametrize("place", ["fsspec"], indirect=True)
def test_every_operation_is_tried_again(place: Place, faults: FaultProxy) -> None:
    options = place.storage_options
    for name, call in {
        "stat": lambda: storage.stat(place.address("x.bin"), options),
        "exists": lambda: storage.exists(place.address("x.bin"), options),
        "is_dir": lambda: storage.is_dir(place.root, options),
        "list": lambda: storage.list_files(place.root, "", options),
        "glob": lambda: storage.expand(place.address("*.bin"), "", options),
        "whole": lambda: storage.read_bytes(place.address("x.bin"), options),
        "open": lambda: storage.open_read(place.address("x.bin"), options).read(),
        "in order": lambda: list(storage.read_in_order(place.address("x.bin"), len(DATA), options)),
        "write": lambda: storage.write_bytes(place.address("y.bin"), b"y", options),
        "remove": lambda: storage.remove(place.address("y.bin"), options),
    }.items():
        faults.reset(rules=(faults.rule("503", times=1),))
        call()  # type: ignore[no-untyped-call]
        assert faults.stats()["failed"] == 1, name


def test_waits_grow_and_differ(
    faulty: Place, s3: Place, faults: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    storage.write_bytes(s3.address("x.bin"), DATA, s3.storage_options)
    faults.reset(rules=(faults.rule("503"),))
    waits = []
    caplog.set_level("INFO", "loader.retrying")
    for _ in range(4):  # each is told rounded: two may look alike
        caplog.clear()
        with pytest.raises(StoreError, match="failed 4 times"):
            storage.read_bytes(faulty.address("x.bin"), {**faulty.storage_options, "max_tries": 4}, 0, 5)
        waits.append([float(re.findall(r"in ([\d.]+) s", text)[-1]) for text in caplog.messages])
    assert all(len(each) == 3 and each[0] < each[2] for each in waits)
    assert len({sum(each) for each in waits}) > 1


def test_time_is_limited_as_well(faulty: Place, s3: Place, faults: FaultProxy) -> None:
    faults.reset(rules=(faults.rule("503"),))
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"failed \d+ times"):
        storage.stat(
            faulty.address("x.bin"), {**faulty.storage_options, "max_tries": 1000, "max_seconds": 0.5}
        )
    assert faults.stats()["failed"] < 20 and time.monotonic() - began < 60


def test_nobody_at_the_endpoint() -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9", "max_tries": 2}
    for client in CLIENTS:
        with pytest.raises(StoreError, match=r"s3://b/x: \w[\w ]+ failed 2 times"):
            storage.read_bytes("s3://b/x", {**options, "client": client}, 0, 5)


@pytest.mark.parametrize(
    ("option", "value"), [("client", "boto"), ("max_tries", 0), ("max_tries", "3"), ("max_seconds", -1)]
)
def test_limits_that_cannot_be_meant(option: str, value: Any) -> None:
    with pytest.raises(BadAddress, match=rf"storage_options: {option} is {value!r}: .+ was expected"):
        storage.stat("s3://b/x", {option: value})


# -- credentials


def test_expired_credentials_are_looked_up_once(place: Place, faults: FaultProxy) -> None:
    faults.reset(rules=(faults.rule("expired", method="GET", times=1),))
    assert read(place) == DATA
    faults.reset(rules=(faults.rule("expired", method="GET"),))
    with pytest.raises(PermissionError, match=r"x\.bin: .*credentials have expired"):
        read(place)
    assert faults.stats()["failed"] == 2
    faults.reset(rules=(faults.rule("expired", method="HEAD", times=1),))  # which has no body to say why
    assert storage.stat(place.address("x.bin"), place.storage_options).size == len(DATA)


def test_what_is_final_by_its_kind() -> None:
    for error in (
        FileNotFoundError(),
        PermissionError(),
        ValueError(),
        KeyError(),
        BadAddress("x"),
        OSError(22, "x"),
        OSError(28, "x"),
    ):
        assert not retrying.passing(error)
    for other in (
        TimeoutError(),
        ConnectionResetError(),
        OSError(16, "busy"),
        OSError("no number"),
        retrying.ShortBody("x"),
    ):
        assert retrying.passing(other)
