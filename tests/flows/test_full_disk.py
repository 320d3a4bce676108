"""No room for what is to be written: the shards that don't fit fail, with the reason, and nothing is left of them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from places import in_mounts, small_disk
from running import digests, finish, make_corpus, start

PACK = """
import sys
from flows.cli import main
print("status", main(["pack", sys.argv[1], "--output", sys.argv[2], "--direct"]))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six slots of about 150 kB."""
    return make_corpus(tmp_path_factory.mktemp("disk"), 60, side=150) / "job.yaml"


def test_a_full_disk(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    code = PACK + (
        "import os\nprint('left', [name for _, _, names in os.walk(sys.argv[2]) for name in names "
        "if name.endswith('.part')], sorted(name for name in os.listdir(sys.argv[2]) if name.endswith('.tar')))\n"
    )
    said = in_mounts(small_disk(out, "600k"), code, job, out)
    assert "status 1" in said and "No space left on device" in said
    assert "not written: it would not hold everything" in said
    packed = said.rpartition("left [] ")[2].strip()
    assert packed.count("shard-") in range(1, 6), said


def test_a_limit_of_files(job: Path, tmp_path: Path) -> None:
    """The same from the kernel without a disk: a process may write so many bytes to a file."""
    out = tmp_path / "out"
    command = ("pack", str(job), "--output", str(out), "--direct", "--n-jobs", "1")
    told = finish(
        start(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)))
    )
    assert told.returncode == 1
    assert "shard-000000.tar (rows 1 to 10)" in told.stdout and "File too large" in told.stdout, told
    assert "What is done is kept; this does the rest: shardflow pack" in told.stderr
    assert not [name for name in os.listdir(out) if name.endswith((".part", ".tar", "meta.json"))]

    assert finish(start(*command)).returncode == 0
    undisturbed = tmp_path / "undisturbed"
    assert finish(start("pack", str(job), "--output", str(undisturbed), "--direct")).returncode == 0
    assert digests(out) == digests(undisturbed)
