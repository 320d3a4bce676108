"""A PostgreSQL of the test's own, by Debian's binaries."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def binaries() -> Path | None:
    """The folder of initdb and postgres; Debian keeps it off PATH."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None


def why_not() -> str:
    """Why there can be none here; empty if there can."""
    if binaries() is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    if os.getuid() == 0 and not _user():
        return "PostgreSQL refuses to run as root, and there is no user postgres or nobody"
    return ""


def _user() -> str:
    """Whom it runs as, if we are root."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), "")


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database, as Prefect wants it; on a socket in a folder of its own, not on a port."""
    bin_folder = binaries()
    assert bin_folder is not None
    with tempfile.TemporaryDirectory(
        prefix="shardflow-pg-"
    ) as folder:  # pytest's own is closed to other users
        options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        if os.getuid() == 0:
            options["user"] = _user()
            os.chown(folder, pwd.getpwnam(_user()).pw_uid, -1)
        data = f"{folder}/data"
        command = [
            bin_folder / "initdb",
            "--pgdata",
            data,
            "--username",
            "prefect",
            "--auth",
            "trust",
            "--no-sync",
        ]
        subprocess.run(command, check=True, **options)
        server = subprocess.Popen(
            [bin_folder / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"], **options
        )  # fmt: skip
        try:
            ready = [bin_folder / "pg_isready", "--host", folder, "--timeout", "30", "--dbname", "postgres"]
            while subprocess.run(ready, check=False, **options).returncode and server.poll() is None:
                pass
            assert server.poll() is None, "PostgreSQL ended as it started"
            yield f"postgresql+asyncpg://prefect@/postgres?host={folder}"
        finally:
            server.terminate()
            server.wait(30)
