"""``shardflow demo``: the whole way on real photographs, from loose files to shuffled batches, with a page to look at."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from loader.progress import table

SEED = 42
BATCH = 8
WORKERS = 2
_SHOWN = 5  # batches printed


def main(out: str) -> int:
    """Pack the photographs into `out`, read one epoch back, write the contact sheet; returns the exit status."""
    from flows.cli import NAME, run_job
    from flows.parameters import command_line
    from flows.photos import make_photos

    out = os.path.abspath(out)
    source, dataset = os.path.join(out, "photos"), os.path.join(out, "dataset")
    _say(f"1. Photographs and captions → {source}")
    records = make_photos(source)
    with open(os.path.join(source, "records.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    _say(f"   {len(records)} records: captions, editing pairs, interleaved texts, text alone\n")

    parameters = {
        "source": os.path.join(source, "records.jsonl"),
        "output": dataset,
        "max_samples": 20,
        "max_bad_fraction": 0.0,
    }
    _say(f"2. {command()}{command_line('prepare', parameters).removeprefix(NAME)}")
    status = run_job("prepare", parameters)
    if status:
        return status

    _say(f"\n3. One shuffled epoch through the loader (seed {SEED}, batches of {BATCH}, {WORKERS} workers)")
    samples = _read_epoch(dataset)
    if len(samples) != len(records) or len({sample["__key__"] for sample in samples}) != len(records):
        sys.stderr.write(f"shardflow demo: {len(samples)} samples were read, {len(records)} were packed\n")
        return 1

    from loader.contact_sheet import contact_sheet

    sheet = os.path.join(out, "contact-sheet.html")
    contact_sheet(_cards(samples), sheet, "Shardflow demo: one epoch, in training order")
    table(
        "What there is now",
        ("what", "where"),
        [
            ("loose photographs and records", source),
            ("shards, indexes, meta.json", dataset),
            ("a page to look at: open it in a browser", sheet),
        ],
    )
    shard = _seen_from_here(os.path.join(dataset, "shard-000000.tar"))
    _say("\nLook into a shard, and at one sample of it:")
    _say(f"  {command()} show {shlex.quote(shard)}")
    _say(f"  {command()} show {shlex.quote(shard + '#0')}")
    return 0


def command() -> str:
    """How ``shardflow`` of this installation is started from a shell as it is: in a venv it may not be on PATH."""
    script = os.path.join(os.path.dirname(sys.executable), "shardflow")
    found = shutil.which("shardflow")
    if not os.path.exists(script):
        return "shardflow" if found else f"{shlex.quote(sys.executable)} -m flows.cli"
    if found and os.path.samefile(found, script):
        return "shardflow"
    return shlex.quote(_seen_from_here(script))


def _seen_from_here(path: str) -> str:
    """A path below the working directory as a relative one."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _read_epoch(dataset: str) -> list[dict[str, Any]]:
    from flows.demo_dataset import DemoDataset
    from loader import ShardedDataLoader

    loader = ShardedDataLoader(
        DemoDataset(dataset, seed=SEED), batch_size=BATCH, num_workers=WORKERS, collate_fn=list, tail="keep"
    )
    samples: list[dict[str, Any]] = []
    started = time.perf_counter()
    rows = []
    for number, batch in enumerate(loader):
        samples += batch
        if number < _SHOWN:
            rows.append(
                (number, " ".join(str(int(sample["__key__"])) for sample in batch), _caption(batch[0]))
            )
    table(
        f"{len(samples)} samples in {len(loader)} batches, {time.perf_counter() - started:.1f} s with starting the "
        "workers; the first ones:",
        ("batch", "samples (their numbers in the source)", "caption of its first"),
        rows,
    )
    return samples


def _caption(sample: dict[str, Any]) -> str:
    text = str(sample[".json"]["caption"])
    return text if len(text) <= 60 else text[:57] + "…"


def _cards(samples: list[dict[str, Any]]) -> Iterator[tuple[str, str, list[Any], dict[str, Any]]]:
    for sample in samples:
        document = sample[".json"]
        details = {**document.get("metadata", {}), **document.get("caption_all", {})}
        shown = {name: ", ".join(map(str, v)) if isinstance(v, list) else v for name, v in details.items()}
        yield sample["__key__"], document["caption"], sample["pictures"], shown


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
