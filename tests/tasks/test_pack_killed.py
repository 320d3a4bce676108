"""Real kills: at each single step that changes the disk, and at some moment with workers running."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks import pack
from tasks.config import PackConfig

ROOT = Path(__file__).parents[2]
Encode = Callable[..., bytes]

# Forks a child that packs and is killed before its n-th step, for n = 0, 1, ... until one gets to the end; after
# each, packs again undisturbed and compares. One process for all of them, since starting Python takes long.
EACH_STEP = """
import builtins, os, shutil, signal, sys
from pathlib import Path
from tasks import fetch, pack
from tasks.config import PackConfig

old, new, output, wanted = sys.argv[1:]
config = PackConfig(new, output, n_jobs=1, max_samples=2, max_bytes=20_000, max_bad_fraction=1.0)

def tree(root):
    return {str(file.relative_to(root)): file.read_bytes() for file in Path(root).rglob("*") if file.is_file()}

def counted(function, left):
    def step(*arguments, **named):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return function(*arguments, **named)
    return step

steps = 0
while True:
    shutil.rmtree(output, ignore_errors=True)
    if os.path.exists(old):
        shutil.copytree(old, output)
    child = os.fork()
    if child == 0:
        left = [steps]
        for name in ("fsync", "replace", "unlink"):
            setattr(os, name, counted(getattr(os, name), left))
        fetch.read_local = counted(fetch.read_local, left)  # a tar is half-written then
        pack.pack(config)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    pack.pack(config)
    found = tree(output)
    assert found.keys() == tree(wanted).keys(), (steps, found.keys() ^ tree(wanted).keys())
    assert found == tree(wanted), (steps, [name for name in found if found[name] != tree(wanted)[name]])
    steps += 1
assert tree(output) == tree(wanted)
print(steps)
"""


def tree(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("before", ["nothing", "more and other shards"])
def test_killed_before_each_step(corpus: Path, tmp_path: Path, before: str) -> None:
    lines = (corpus / "records.jsonl").read_text().splitlines()
    fewer = [
        *lines[:3],
        lines[3].replace("picture", "PICTURE"),
        *lines[4:8],
        '{"image":"gone","caption":"x"}',
    ]
    (corpus / "fewer.jsonl").write_text("\n".join(fewer))
    options = {"n_jobs": 1, "max_samples": 2, "max_bytes": 20_000, "max_bad_fraction": 1.0}
    if before != "nothing":
        # the same rows from the same file, so that some shards are kept
        (corpus / "new.jsonl").write_text("\n".join(lines))
        pack.pack(PackConfig(str(corpus / "new.jsonl"), str(tmp_path / "old"), **options))  # type: ignore[arg-type]
    shutil.copy(corpus / "fewer.jsonl", corpus / "new.jsonl")
    pack.pack(PackConfig(str(corpus / "new.jsonl"), str(tmp_path / "wanted"), **options))  # type: ignore[arg-type]
    paths = (tmp_path / "old", corpus / "new.jsonl", tmp_path / "out", tmp_path / "wanted")
    done = subprocess.run(
        [sys.executable, "-c", EACH_STEP, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


@pytest.fixture
def larger(tmp_path: Path, encode: Encode) -> PackConfig:
    """Some 20 MB in 60 shards: a run of about a second."""
    folder = tmp_path / "larger"
    folder.mkdir()
    for n in range(40):
        (folder / f"{n}.jpg").write_bytes(encode("JPEG", n, size=(320, 240), quality=95))
    records = [{"image": f"{n % 40}.jpg", "caption": f"picture {n}"} for n in range(600)]
    (folder / "records.json").write_text(json.dumps(records))
    return PackConfig(
        str(folder / "records.json"), str(tmp_path / "out"), n_jobs=2, max_samples=10, key_prefix="k"
    )


RUN = """
import sys
from tasks import pack
from tasks.config import PackConfig
if __name__ == "__main__":
    pack.pack(PackConfig(sys.argv[1], sys.argv[2], n_jobs=2, max_samples=10, key_prefix="k"))
"""


def start(config: PackConfig) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RUN, config.source, config.output], cwd=ROOT)


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for children in /proc")
def test_killed_at_some_moment_with_workers(larger: PackConfig, tmp_path: Path) -> None:
    output = Path(larger.output)
    wanted = PackConfig(larger.source, str(tmp_path / "wanted"), n_jobs=1, max_samples=10, key_prefix="k")
    pack.pack(wanted)
    chance = random.Random(7)
    killed = 0
    for files in (1, 4, 15, 40, 90, 150):
        process = start(larger)
        try:
            assert wait_for(lambda: output.exists() and sum(1 for _ in output.rglob("*")) >= files)  # noqa: B023
            time.sleep(chance.uniform(0, 0.02))
            workers = children(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            assert wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))  # noqa: B023
        finally:
            process.kill()
            process.wait()
        if files in (4, 90):  # the others go on from a state that was killed twice
            pack.pack(larger)
            assert tree(output) == tree(Path(wanted.output))
            shutil.rmtree(output)
    pack.pack(larger)
    assert tree(output) == tree(Path(wanted.output))
    assert killed >= 3


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for children in /proc")
def test_a_killed_worker_costs_nothing(larger: PackConfig, tmp_path: Path) -> None:
    output = Path(larger.output)
    process = start(larger)
    try:
        assert wait_for(lambda: len(list(output.glob("*.tar"))) >= 5)
        for worker in children(process.pid):
            if b"spawn_main" in Path(f"/proc/{worker}/cmdline").read_bytes():
                os.kill(worker, signal.SIGKILL)
                break
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    found = tree(output)
    shutil.rmtree(output)
    pack.pack(larger)
    assert found == tree(output)
