"""Clients: one set of options for all that is done, from arguments, environment, profiles and fsspec's files."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import fsspec
import pytest
from places import environment, python
from s3_server import KEY, SECRET, Place, S3Server

from loader import storage, stores
from loader.errors import BadAddress
from loader.warmup import Target

ALL = """
import json, sys
from loader import storage
from loader.gen_meta import gen_meta
root, options = sys.argv[1], json.loads(sys.argv[2])
storage.write_bytes(root + "/a/x.bin", b"0123456789", options)
assert storage.stat(root + "/a/x.bin", options).size == 10
assert storage.list_files(root, "", options) == [root + "/a/x.bin"]
assert storage.read_ranges(root + "/a/x.bin", [(1, 3)], options) == [b"12"]
assert storage.is_dir(root + "/a", options)
storage.write_bytes(root + "/y", b"1", options, if_absent=True)
storage.remove(root + "/y", options)
print(storage.read_bytes(root + "/a/x.bin", options).decode())
"""


def aws_free(**more: str) -> dict[str, str]:
    """The environment, without what this machine may say of stores."""
    found = {name: value for name, value in environment().items() if not name.startswith(("AWS_", "FSSPEC_"))}
    return {**found, "AWS_EC2_METADATA_DISABLED": "true", **more}


@pytest.mark.parametrize("way", ["arguments", "environment", "profile", "fsspec variables", "fsspec file"])
@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_wherever_it_is_said_it_holds_for_all(
    s3_server: S3Server, s3: Place, tmp_path: Path, way: str, client: str
) -> None:
    options: dict[str, object] = {"client": client}
    said: dict[str, str] = {}
    if way == "arguments":
        options |= s3.storage_options
    elif way == "environment":
        said = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": s3_server.url}
    elif way == "profile":
        (tmp_path / "credentials").write_text(
            f"[p]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n"
        )
        (tmp_path / "config").write_text(f"[profile p]\nendpoint_url = {s3_server.url}\nregion = eu-x-1\n")
        options["profile"] = "p"
        said = {
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
        }
    elif way == "fsspec variables":
        said = {"FSSPEC_S3_KEY": KEY, "FSSPEC_S3_SECRET": SECRET, "FSSPEC_S3_ENDPOINT_URL": s3_server.url}
    else:
        (tmp_path / "conf.json").write_text(json.dumps({"s3": s3.storage_options}))
        said = {"FSSPEC_CONFIG_DIR": str(tmp_path)}
    out, err = python(ALL, s3.root, json.dumps(options), env=aws_free(**said)).communicate()
    assert (out, err) == ("0123456789\n", "")


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_anonymous(s3_server: S3Server, s3: Place, client: str) -> None:
    open_ = s3_server.place("open")
    nobody = {"anon": True, "endpoint_url": s3_server.url, "client": client}
    for place in (open_, s3):
        storage.write_bytes(place.address("x.bin"), b"0123456789", s3.storage_options)
    assert storage.read_bytes(open_.address("x.bin"), nobody) == b"0123456789"
    assert storage.list_files(open_.root, "", nobody) == [open_.address("x.bin")]
    with pytest.raises(PermissionError, match=r"x\.bin"):
        storage.read_bytes(s3.address("x.bin"), nobody, 2, 5)
    with pytest.raises(PermissionError, match=r"y\.bin"):
        storage.write_bytes(open_.address("y.bin"), b"", nobody)


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_without_credentials(s3_server: S3Server, s3: Place, client: str) -> None:
    storage.write_bytes(s3.address("x.bin"), b"0123456789", s3.storage_options)
    code = (
        "import json, sys\nfrom loader import storage\n"
        "try: storage.read_bytes(sys.argv[1], json.loads(sys.argv[2]), 2, 5)\n"
        "except PermissionError as error: print(error)\n"
    )
    options = json.dumps({"endpoint_url": s3_server.url, "client": client, "max_tries": 2})
    env = aws_free(HOME="/nowhere")
    out, err = python(code, s3.address("x.bin"), options, env=env).communicate()
    assert out.startswith(s3.address("x.bin")) and "Say who you are" in out and not err


def test_a_wrong_secret_is_final_and_never_shown(s3: Place) -> None:
    options = {**s3.storage_options, "secret": "some-other-secret"}
    with pytest.raises(PermissionError) as caught:
        storage.write_bytes(s3.address("x.bin"), b"1", options)
    assert "some-other-secret" not in str(caught.value)


def test_credentials_that_change_while_it_runs(s3_server: S3Server, s3: Place, tmp_path: Path) -> None:
    """A file of credentials, such as a tool refreshes: those in it expire, and the new ones are found."""
    code = """
import json, os, sys
from fault_proxy import FaultProxy
from loader import storage
file, port, root, client = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
def say(key, secret):
    with open(file, "w") as out:
        out.write(f"[default]\\naws_access_key_id={key}\\naws_secret_access_key={secret}\\n")
proxy = FaultProxy(port)
options = {"endpoint_url": proxy.url, "client": client}
say(sys.argv[5], sys.argv[6])
storage.write_bytes(root + "/x.bin", b"0123456789", options)
assert storage.read_bytes(root + "/x.bin", options, 0, 3) == b"012"
fs, _ = storage.filesystem(root, options, tries=1)
before = fs.session
proxy.reset(rules=(proxy.rule("expired", times=1),))
assert storage.read_bytes(root + "/x.bin", options, 3, 6) == b"345"
print(fs.session is not before)
proxy.stop()
"""
    env = aws_free(AWS_SHARED_CREDENTIALS_FILE=str(tmp_path / "credentials"))
    for client in ("fsspec", "obstore"):
        child = python(code, tmp_path / "credentials", s3_server.port, s3.root, client, KEY, SECRET, env=env)
        out, err = child.communicate()
        assert (out, err) == ("True\n", "")


def test_a_pickle_carries_what_was_given(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-environment")
    monkeypatch.setenv("FSSPEC_S3_SECRET", "secret-of-fsspec")
    target = Target(s3.address("x.tar"), {"endpoint_url": "http://127.0.0.1:9", "max_tries": 1})
    with pytest.raises(OSError, match=r"x\.tar"):
        storage.stat(target.address, target.storage_options)
    data = pickle.dumps(target)
    assert b"environment" not in data and b"secret" not in data and "secret" not in repr(target)


def test_a_client_for_each_set_of_options_and_for_each_process(s3: Place) -> None:
    options = s3.storage_options
    fs, path = storage.filesystem(s3.address("x"), options)
    assert storage.filesystem(s3.address("y"), dict(options))[0] is fs and path.endswith("/x")
    assert storage.filesystem(s3.root, {**options, "max_tries": 3})[0] is not fs
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        own = storage.filesystem(s3.address("x"), options)[0]
        os.write(writer, b"own" if own is not fs else b"inherited")
        os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0 and os.read(reader, 9) == b"own"
    os.close(reader)


def test_listings_are_not_remembered(s3: Place) -> None:
    other = fsspec.filesystem("s3", **s3.storage_options)
    assert storage.list_files(s3.root, "", s3.storage_options) == []
    other.pipe_file(s3.address("x.bin"), b"12")
    assert storage.list_files(s3.root, "", s3.storage_options) == [s3.address("x.bin")]
    other.pipe_file(s3.address("x.bin"), b"123")
    assert storage.stat(s3.address("x.bin"), s3.storage_options).size == 3
    other.rm_file(s3.address("x.bin"))
    assert not storage.exists(s3.address("x.bin"), s3.storage_options)


def test_what_a_client_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(BadAddress, match="nosuch://"):
        stores.filesystem("nosuch://x/y.tar")
