"""For the tests of the flows and their command: corpora, processes, and what is on disk."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
SECRET = "hush-hush-4711"


def make_corpus(folder: Path, rows: int, bad: int = -1, side: int = 24) -> Path:
    """Write a corpus; row `bad` (from 0) names a picture that isn't there."""
    (folder / "img").mkdir()
    records: list[dict[str, Any]] = []
    for n in range(rows):
        buffer = io.BytesIO()
        Image.effect_noise((side, side), 40 + n % 50).convert("RGB").save(buffer, "JPEG", quality=90)
        (folder / "img" / f"{n:04d}.jpg").write_bytes(buffer.getvalue())
        name = "img/none.jpg" if n == bad else f"img/{n:04d}.jpg"
        records.append({"image": name, "caption": f"picture {n}"})
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folder / "job.yaml").write_text(
        f"source: records.jsonl\noutput: out\nmax_samples: 10\nn_jobs: 2\nstorage_options: {{secret: {SECRET}}}\n"
    )
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Every file under a folder, hidden ones too, and what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`shardflow` as a process of its own, in a session of its own: what it starts can be told by that."""
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **options,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], seconds: float = 100) -> subprocess.CompletedProcess[str]:
    """Wait for a process from `start`."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def session_members(leader: int) -> list[str]:
    """Living processes of the session that `start` made."""
    listing = subprocess.run(
        ["ps", "-eo", "sid,stat,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()[1:]]
    return [arguments for session, state, arguments in rows if session == str(leader) and state[0] != "Z"]
