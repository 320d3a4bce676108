"""What killed writers leave is found again, and nothing else is taken for it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from fault_proxy import FaultProxy
from places import python
from s3_server import Place

from loader import storage

WRITER = """
import sys
from loader import storage
with storage.publish(sys.argv[1]) as file:
    file.write(bytes(1_000_000))
    print("half", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_leaves_only_what_sweep_removes(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    odd = folder / "x\n.tar"
    with python(WRITER, odd, stdin=-1) as child:
        assert child.stdout is not None and child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
    (left,) = folder.iterdir()
    assert left != odd and left.name.startswith(".")
    assert storage.list_files(str(tmp_path)) == []
    keep = [
        folder / name
        for name in (".x.part", ".x.tar.1234567g.part", "x.tar.12345678.part", ".DS_Store", "y.tar")
    ]
    for path in keep:
        path.write_bytes(b"")
    assert storage.sweep(str(tmp_path), older_than=3600) == []
    assert storage.sweep(str(tmp_path)) == [str(left)]
    assert sorted(folder.iterdir()) == sorted(keep)
    assert storage.sweep(str(tmp_path)) == storage.sweep(str(tmp_path / "none")) == []
    assert storage.sweep("memory://x") == []


STORE_WRITER = """
import json, sys
from loader import storage
with storage.publish(sys.argv[1], json.loads(sys.argv[2])) as file:
    for _ in range(3):
        file.write(bytes(16 << 20))
    print("sent", flush=True)
    sys.stdin.read()
"""


def test_a_writer_killed_in_an_upload_leaves_only_what_sweep_uploads_aborts(s3: Place) -> None:
    address = s3.address("deep/x.tar")
    with python(STORE_WRITER, address, json.dumps(s3.storage_options), stdin=-1) as child:
        assert child.stdout is not None and child.stdout.readline() == "sent\n"
        child.send_signal(signal.SIGKILL)
    options = s3.storage_options
    assert not storage.exists(address, options) and storage.list_files(s3.root, "", options) == []
    assert storage.sweep_uploads(s3.root, options) == []  # somebody may still be writing it
    assert storage.sweep_uploads(s3.address("dee"), options, 0) == []  # another folder
    assert storage.sweep_uploads(s3.address("deep"), options, 0) == [address]
    assert storage.sweep_uploads(s3.root, options, 0) == []


def test_who_may_not_list_uploads_sweeps_none(faulty: Place, faults: FaultProxy) -> None:
    faults.reset(rules=(faults.rule("403", path="uploads"),))
    assert storage.sweep_uploads(faulty.root, faulty.storage_options, 0) == []
    assert faults.stats()["failed"] == 1
