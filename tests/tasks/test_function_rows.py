from __future__ import annotations

import json
import os
import signal
import time
import tracemalloc
from pathlib import Path

import pytest
from places import python

from loader.errors import BadConfig
from loader.indexed_tar_samples import IndexedTarSamples
from loader.meta import read_meta
from tasks import pack
from tasks.config import PackConfig
from tasks.slot import SlotReport
from tasks.source import plan_slots


@pytest.fixture
def config(tmp_path: Path) -> PackConfig:
    """A job whose module is made by `module`."""
    name = f"fn_{tmp_path.name}".replace("[", "_").replace("]", "_")
    return PackConfig(
        f"{name}:records", str(tmp_path / "out"), max_samples=4, n_jobs=1, recipe_folder=str(tmp_path)
    )


def module(config: PackConfig, text: str) -> None:
    (Path(config.recipe_folder) / f"{config.source.partition(':')[0]}.py").write_text(text)


def texts(config: PackConfig) -> list[str]:
    found = []
    for name in read_meta(config.output):
        with IndexedTarSamples(f"{config.output}/{name}") as tar:
            found += [sample[".json"]["caption"] for sample in tar]
    return found


def test_what_a_function_gives(config: PackConfig, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff")
    module(
        config,
        "import math\n"
        "def records():\n"
        "    yield {'text': 'one', 'nested': {'a': [1, {'b': 2}]}}\n"
        "    yield 'no dict'\n"
        "    yield {'text': 'two', 'odd': {1, 2}}\n"
        "    yield {'text': 'three', 'odd': math.nan}\n"
        "    yield {'image': 'a.jpg', 'caption': 'relative to the config'}\n"
        "    yield {'images': [b'', bytearray(b'x')], 'caption': '<image_0> <image_1>'}\n"
        "    yield {'text': 'four'}\n",
    )
    summary = pack.pack(PackConfig(**{**vars(config), "max_bad_fraction": 1.0}))
    assert texts(config) == ["one", "four"]
    assert summary.bad == 5
    reasons = [
        json.loads(line)["reason"] for line in (tmp_path / "out/errors.jsonl").read_text().splitlines()
    ]
    wanted = (
        "a dict was expected, found str",
        "can't be written down as JSON",
        "metadata.odd",
        f"{tmp_path}/a.jpg: ",
        "images[0] is bytes b'': the address of a picture was expected",
    )
    for reason, expected in zip(reasons, wanted, strict=True):
        assert expected in reason


def test_one_record_at_a_time_is_in_memory(config: PackConfig) -> None:
    module(
        config,
        "def records():\n    for n in range(64):\n        yield {'text': 'x', 'image': bytes(1 << 20)}\n",
    )
    large = PackConfig(**{**vars(config), "max_samples": 1000})
    tracemalloc.start()
    try:
        (slot,) = plan_slots(large)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert slot.rows == 64
    assert slot.segments[0].file.size > 64 << 20


def test_what_a_function_raises(config: PackConfig) -> None:
    module(
        config, "def records():\n    yield {'text': 'one'}\n    raise LookupError('the database is gone')\n"
    )
    with pytest.raises(BadConfig, match=r"raised LookupError after 1 records: the database is gone"):
        pack.pack(config)


@pytest.mark.parametrize("function", ["gone_entirely:records", "json:nothing"])
def test_no_such_function(config: PackConfig, function: str) -> None:
    with pytest.raises(BadConfig, match="source '"):
        pack.pack(PackConfig(function, config.output))


def test_slots_are_packed_while_the_function_waits(config: PackConfig, tmp_path: Path) -> None:
    module(
        config,
        "import os, time\n"
        f"shard = {str(tmp_path / 'out')!r} + '/shard-000000.tar.index'\n"
        "def records():\n"
        "    for n in range(9):\n"
        "        while n == 5 and not os.path.exists(shard):\n"
        "            time.sleep(0.01)\n"  # a queue with nothing in it, until the first shard is there
        "        yield {'text': str(n)}\n",
    )
    assert pack.pack(config).shards == 3
    assert texts(config) == [str(n) for n in range(9)]


def test_a_dataset_that_is_never_done_can_be_read(
    config: PackConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "SHOWN_EVERY", 0.0)
    module(
        config,
        "import json, time\nfrom pathlib import Path\n"
        f"meta = {config.output!r} + '/meta.json'\n"
        "def samples():\n"
        "    try:\n"
        "        return sum(shard['num_samples'] for shard in json.loads(Path(meta).read_text()).values())\n"
        "    except FileNotFoundError:\n"
        "        return 0\n"
        "def records():\n"
        "    for n in range(11):\n"
        "        while samples() < (n - 1) // 4 * 4:\n"
        "            time.sleep(0.01)\n"
        "        yield {'text': str(n)}\n",
    )
    assert pack.pack(config).samples == 11
    assert texts(config) == [str(n) for n in range(11)]


QUEUE = """
import os, pathlib, time
here = pathlib.Path(__file__).parent

def records(start):
    with (here / "starts").open("a") as file:
        file.write(f"{start}\\n")
    taken = start
    while True:
        lines = (here / "queue").read_text().splitlines()
        if len(lines) > taken:
            taken += 1
            if lines[taken - 1] == "end":
                return
            yield {"text": lines[taken - 1]}
        else:
            time.sleep(0.01)
"""


def test_a_live_queue_is_killed_and_loses_nothing(config: PackConfig, tmp_path: Path) -> None:
    module(config, QUEUE)
    (tmp_path / "queue").write_text("".join(f"{n}\n" for n in range(10)))
    code = "import sys\nfrom tasks import pack\nfrom tasks.config import PackConfig\npack.pack(PackConfig(sys.argv[1], sys.argv[2], max_samples=4, n_jobs=1, recipe_folder=sys.argv[3]))"
    with python(code, config.source, config.output, config.recipe_folder) as process:
        try:
            waited = 0.0
            while not (tmp_path / "out/.shardflow/slot-000001.json").exists() and waited < 60:
                time.sleep(0.05)
                waited += 0.05
            assert process.poll() is None  # it waits for the eleventh
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
    with (tmp_path / "queue").open("a") as file:
        file.write("10\n11\n12\nend\n")
    reports: list[SlotReport] = []
    summary = pack.pack(config, reports.append)
    assert (tmp_path / "starts").read_text().split() == ["0", "8"]
    assert (summary.samples, summary.kept) == (13, 2)
    assert texts(config) == [str(n) for n in range(13)]
    # Later there is more, and the next run goes on behind what is packed.
    (tmp_path / "queue").write_text((tmp_path / "queue").read_text().replace("end", "13") + "14\nend\n")
    summary = pack.pack(config)
    assert (tmp_path / "starts").read_text().split()[-1] == "13"
    assert (summary.samples, summary.shards) == (15, 5)
    assert texts(config) == [str(n) for n in range(15)]
    (tmp_path / "out/shard-000000.tar").unlink()
    with pytest.raises(BadConfig, match="they can't be packed again"):
        pack.pack(config)


def test_a_queue_can_not_be_shuffled(config: PackConfig) -> None:
    module(config, QUEUE)
    with pytest.raises(BadConfig, match="takes start: so its rows are packed as they come"):
        pack.pack(PackConfig(**{**vars(config), "order": "shuffled"}))


def test_duplicates_of_a_stream_are_dropped(config: PackConfig) -> None:
    module(config, "def records():\n    for n in range(20):\n        yield {'text': str(n % 7)}\n")
    summary = pack.pack(PackConfig(**{**vars(config), "duplicates": "drop"}))
    assert (summary.samples, summary.duplicates) == (7, 13)
    assert texts(config) == [str(n) for n in range(7)]
