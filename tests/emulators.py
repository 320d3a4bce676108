"""Google's and Azure's stores, as far as emulators that run here know them.

Google's comes as a wheel (`gcp-storage-emulator`); it ignores conditions and can't abort an upload. Azure's is
Azurite, out of npm (``npm install -g azurite``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec
from s3_server import BUCKET, Place

AZURITE = shutil.which("azurite-blob")
# What Azurite takes for the key of its only account, as its manual says.
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def gcs(folder: Path) -> Iterator[Place]:
    """A bucket of Google's, in memory."""
    # Without this, gcsfs asks by gRPC first what kind of bucket it is, and no emulator answers.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    port = _free_port()
    program = os.path.join(os.path.dirname(sys.executable), "gcp-storage-emulator")
    command = [
        program,
        "start",
        "--host=127.0.0.1",
        f"--port={port}",
        "--in-memory",
        f"--default-bucket={BUCKET}",
    ]
    with _running(command, port, folder):
        yield Place(
            f"gs://{BUCKET}",
            {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon", "project": "tests"},
        )


@contextlib.contextmanager
def azure(folder: Path) -> Iterator[Place]:
    """A container of Azure's, in memory, where there is `AZURITE`."""
    port = _free_port()
    command = [str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent",
               "--skipApiVersionCheck", "--disableTelemetry"]  # fmt: skip
    account = "devstoreaccount1"
    options = {
        "account_name": account,
        "connection_string": f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={_AZURITE_KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{account};",
    }
    with _running(command, port, folder):
        fsspec.filesystem("az", **options).mkdir(BUCKET)
        yield Place(f"az://{BUCKET}", options)


def folder_of(place: Place) -> Place:
    """A fresh folder in it."""
    return Place(place.address(uuid.uuid4().hex[:12]), dict(place.storage_options))


@contextlib.contextmanager
def _running(
    command: list[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment)
    try:
        for _ in range(1000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
