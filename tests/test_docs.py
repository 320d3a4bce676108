"""What README and docs show is run as it stands: every Python block, and the example scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loader.meta import ShardMeta, write_meta
from loader.writer import ShardWriter

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
SAMPLES = 42


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``demo-out/dataset`` in it, as `make demo` leaves it, in small."""
    folder = tmp_path_factory.mktemp("docs")
    root = str(folder / "demo-out" / "dataset")
    picture = (ROOT / "tests/golden/tiny.png").read_bytes()
    with ShardWriter(root, max_samples=10) as writer:
        for number in range(SAMPLES):
            writer.write(
                {"__key__": f"{number:09d}", ".json": {"caption": f"caption {number}"}, ".png": picture}
            )
    write_meta(root, {s.path: ShardMeta(s.num_samples, s.size, s.checksum) for s in writer.shards})
    return folder


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str, dataset: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    for block in blocks:
        run(dataset, sys.executable, "-c", block)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text()):
        if not target.startswith(("http:", "https:")):
            assert (folder / target).exists(), f"{page} links to {target}"


def test_one_device_goes_on_after_a_stop(dataset: Path, tmp_path: Path) -> None:
    script = str(ROOT / "docs/examples/train.py")
    whole = run(dataset, sys.executable, script, "demo-out/dataset", str(tmp_path / "whole")).splitlines()
    checkpoint = str(tmp_path / "stopped")
    first = run(
        dataset, sys.executable, script, "demo-out/dataset", checkpoint, "--stop-after", "5"
    ).splitlines()
    rest = run(dataset, sys.executable, script, "demo-out/dataset", checkpoint).splitlines()
    # The checkpoint is of step 3: two steps come again, and then what an uninterrupted run shows.
    assert first == whole[:5]
    assert rest == whole[3:]


@pytest.mark.slow
def test_ddp_goes_on_with_another_number_of_ranks(dataset: Path, tmp_path: Path) -> None:
    record, checkpoint = tmp_path / "record", tmp_path / "checkpoint"
    script = [str(ROOT / "docs/examples/train_ddp.py"), "demo-out/dataset", str(checkpoint)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    run(dataset, *torchrun, "2", *script, "--record", str(record), "--stop-after", "2")
    run(dataset, *torchrun, "4", *script, "--record", str(record))
    steps: dict[int, list[str]] = {}
    for line in record.read_text().splitlines():
        step, _, *keys = line.split()
        steps.setdefault(int(step), []).extend(keys)
    seen = [key for step in sorted(steps) for key in steps[step]]
    assert sorted(set(seen)) == [f"{number:09d}" for number in range(SAMPLES)]
    assert len(seen) == SAMPLES + SAMPLES % 4  # made even for four ranks
    alone = tmp_path / "alone"
    run(dataset, *torchrun, "1", *script[:2], str(tmp_path / "other"), "--record", str(alone))
    for line in alone.read_text().splitlines()[: SAMPLES // 8]:
        step, _, *keys = line.split()
        assert sorted(keys) == sorted(steps[int(step)]), f"global batch {step} differs"
