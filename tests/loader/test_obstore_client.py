"""obstore: used where it is safe and can be told everything, refused where it would hang."""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

import pytest
from places import python
from s3_server import Place

from loader import obstore_client, storage
from loader.errors import BadAddress


def test_it_is_chosen_where_nothing_can_fork(s3: Place) -> None:
    code = """
import json, multiprocessing, sys
from loader import obstore_client, storage
address, options = sys.argv[1], json.loads(sys.argv[2])
def tell(queue):
    queue.put((obstore_client.chosen(address, options), storage.read_bytes(address, options, 2, 5)))
def ask(method, daemon):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=tell, args=(queue,), daemon=daemon)
    child.start()
    found = queue.get()
    child.join()
    return found
if __name__ == "__main__":
    storage.read_bytes(address, options, 2, 5)
    print(obstore_client.chosen(address, options), ask("fork", True), ask("fork", False))
    storage.read_bytes(address, {**options, "client": "obstore"}, 2, 5)
    print(ask("fork", True))  # for which it would hang: s3fs instead
"""
    address = s3.address("x.bin")
    storage.write_bytes(address, b"0123456789", s3.storage_options)
    out, err = python(code, address, json.dumps(s3.storage_options)).communicate(timeout=120)
    assert out.splitlines() == ["False (True, b'234') (False, b'234')", "(False, b'234')"] and not err


def test_in_a_child_of_a_user_it_is_an_error_rather_than_a_hang(s3: Place) -> None:
    code = """
import json, multiprocessing, sys
from loader import storage
address, options = sys.argv[1], json.loads(sys.argv[2])
def read(queue):
    try:
        queue.put(storage.read_bytes(address, options, 2, 5))
    except ValueError as error:
        queue.put(str(error))
for used in (False, True):
    if used:
        storage.read_bytes(address, options, 2, 5)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=read, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
"""
    address = s3.address("x.bin")
    storage.write_bytes(address, b"0123456789", s3.storage_options)
    options = {**s3.storage_options, "client": "obstore"}
    out, err = python(code, address, json.dumps(options)).communicate(timeout=120)
    first, second = out.splitlines()
    assert first == "b'234'" and not err
    assert second.startswith(f"{address}: obstore was used in process ") and "spawn" in second


@pytest.mark.parametrize(
    ("address", "options", "reason"),
    [
        ("memory://x", {}, "reads s3:// alone"),
        ("gs://b/x", {}, "reads s3:// alone"),
        ("s3://b/x", {"session": 1}, "can't be told session of"),
        ("s3://b/x", {"client_kwargs": {"verify": False}}, r"can't be told client_kwargs\.verify of"),
        (
            "s3://b/x",
            {"config_kwargs": {"proxies": {}}, "acl": 1},
            r"can't be told acl, config_kwargs\.proxies of",
        ),
    ],
)
def test_what_it_cannot_be_told(address: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadAddress, match=reason):
        obstore_client.chosen(address, {**options, "client": "obstore"})
    assert not obstore_client.chosen(address, {**options, "client": "fsspec"})
    assert not obstore_client.chosen(address, options)


def test_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setattr(obstore_client, "_installed", lambda: False)
    with pytest.raises(BadAddress, match=r"obstore is not installed: pip install 'shardflow\[obstore\]'"):
        obstore_client.chosen("s3://b/x", {"client": "obstore"})
    assert not obstore_client.chosen("s3://b/x", {})
    assert not multiprocessing.current_process().daemon
