"""What README and docs show is run as it stands, in a small copy of what `make demo` leaves.

Of each page, in order: a block ```yaml or ```json that begins with the comment of a file's name is written there,
```python and ```bash are run, and a ```text block shows what the ```bash before it prints. It was taken from real
photographs: what a table's lines begin with is compared, its values aren't. What can't be run here is ```console.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path

import pytest

from loader import index
from loader.meta import ShardMeta, write_meta
from loader.writer import ShardWriter
from tasks import config

ROOT = Path(__file__).parent.parent
PAGES = [
    *(name for name in ("README.md", "CONTRIBUTING.md") if (ROOT / name).exists()),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
]
SAMPLES = 42
PHOTOS = ("cat.png", "coffee.png", "moon.png")


def make_demo(folder: Path) -> Path:
    """A folder with ``demo-out``, configs and examples in it, as in a checkout after `make demo`, in small."""
    root = str(folder / "demo-out" / "dataset")
    picture = (ROOT / "tests/golden/tiny.png").read_bytes()
    with ShardWriter(root, max_samples=10) as writer:
        for number in range(SAMPLES):
            writer.write(
                {"__key__": f"{number:09d}", ".json": {"caption": f"caption {number}"}, ".png": picture}
            )
    write_meta(root, {s.path: ShardMeta(s.num_samples, s.size, s.checksum) for s in writer.shards})
    photos = folder / "demo-out" / "photos"
    photos.mkdir()
    for name in PHOTOS:
        (photos / name).write_bytes(picture)
    records = [{"image": name, "caption": f"It is {name}."} for name in PHOTOS]
    (photos / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folder / "configs").mkdir()
    shutil.copy(ROOT / "configs/datasets.json", folder / "configs")
    shutil.copytree(ROOT / "docs/examples", folder / "docs/examples")
    return folder


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for those that only read."""
    return make_demo(tmp_path_factory.mktemp("docs"))


def run(folder: Path, *command: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),  # locks go there
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """(language, text) of the fenced blocks of a page, in order."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_so(page: str, tmp_path: Path) -> None:
    folder, printed = make_demo(tmp_path), ""
    for language, text in blocks(page):
        if language in ("yaml", "json"):
            if name := re.match(r"(?:#|//) (\S+\.(?:yaml|json|py))\n", text):
                (folder / name[1]).write_text(text[name.end() :])
        elif language == "python":
            assert said(text) == run(folder, sys.executable, "-c", text).splitlines()[: len(said(text))]
        elif language == "bash":
            printed = run(folder, "bash", "-euc", text)
        elif language == "text":
            assert labels(text) and labels(text) <= labels(printed), (
                f"{page} shows {text}now it is\n{printed}"
            )
        else:
            assert language in ("console", ""), f"{page}: is a block of {language!r} to be run?"


def said(code: str) -> list[str]:
    """What a block of Python says that it prints: ``print(x)  # this``."""
    return re.findall(r"^ *print\(.*\) +# (.*)$", code, re.M)


def labels(printed: str) -> set[str]:
    """The words that the lines of tables begin with: ``samples``, ``pack``; after a step's name the second, too."""
    rows = re.findall(r"^ *(?:(pack|gen_meta|warmup) +)?([a-z_]+)(?= {2,}|:|$)", printed, re.M)
    return {word for row in rows for word in row} - {
        "",
        "rate",
    }  # a rate is shown if there was enough to measure


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target, _, anchor in (
        link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text())
    ):
        if target.startswith(("http:", "https:")):
            continue
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{page} links to {target}#{anchor}"


def test_the_page_on_packing_has_every_field_of_a_config() -> None:
    types = {"str": "text", "int": "whole number", "float": "number", "bool": "yes or no"}
    rows = []
    for field in config.fields():
        text, _, unset = field.description.partition(" Empty: ")
        usual = unset.rstrip(".") or ("required" if field.default is MISSING else field.default)
        usual = "–" if usual in ("", None) else "no" if usual is False else usual
        rows.append(f"| `{field.name}` | {types.get(field.type, 'options')} | {usual} | {text} |\n")
    table = "".join(rows)
    assert table in (ROOT / "docs/packing.md").read_text(), f"docs/packing.md should have\n{table}"


def test_the_page_on_formats_has_every_array_of_an_index() -> None:
    shown: dict[str, str] = {}
    row = r"^\| (`\w+`(?:, `\w+`)*) \| (u\d+(?:, u\d+)*) \|"
    for names, types in re.findall(row, (ROOT / "docs/format.md").read_text(), re.M):
        each = re.findall(r"\w+", types)
        for place, name in enumerate(re.findall(r"\w+", names)):
            shown[name] = each[min(place, len(each) - 1)].upper()
    assert shown == index._ARRAYS


def test_the_recipe_on_the_page_is_the_example() -> None:
    page = (ROOT / "docs/packing.md").read_text()
    for file, language in (("my_recipe.py", "python"), ("job.yaml", "yaml")):
        example = (ROOT / "docs/examples/recipe" / file).read_text()
        assert f"```{language}\n{example}```" in page, f"docs/packing.md should have\n{example}"


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
