"""What the pages say about speed, made from benchmarks/results: `python benchmarks/tables.py [--check]`.

README.md and docs/speed.md hold blocks between ``<!-- benchmarks: NAME -->`` and ``<!-- end -->``, and results/TARGETS.md
is written whole. Nobody types a ratio; with --check, exit status 1 where a page says anything else than the results.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import profiles
import report
import targets
from harness import HERE, Answer, Cell

ROOT = os.path.dirname(HERE)
PAGES = ("README.md", os.path.join("docs", "speed.md"))
_BLOCK = re.compile(r"(<!-- benchmarks: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)
NONE = "–"  # a cell that isn't measured


class Results:
    """The answers that lie in results/, by name."""

    def __init__(self, results: Mapping[str, Mapping[str, object]]) -> None:
        self.answers: dict[str, Answer] = {}
        for result in results.values():
            self.answers.update({answer.name: answer for answer in report.answers_of(result)})

    def cell(self, answer: str, peer: str) -> Cell | None:
        """Of a race, a title goes on with what else is known of a peer: "wids, 1.1 shards a batch"."""
        if answer in self.answers:
            for cell in self.answers[answer].cells:
                if cell.peer == peer or cell.peer.startswith(peer + ","):
                    return cell
        return None

    def ratio(self, answer: str, peer: str) -> str:
        cell = self.cell(answer, peer)
        return f"{report.number(cell.ratio)} ×" if cell else NONE


# -- blocks


PACKED_AND_READ = (
    (
        "header walk",
        "index {}",
        ("tarfile getmembers", "wids MMIndexedTar", "itar index.build", "GNU tar -t"),
    ),
    ("header walk", "index {}", ("bare mmap walk",)),
    ("open a saved index", "open {}", ("unpickle (name, offset, size) tuples", "itar open")),
    (
        "random sample",
        "random {}",
        ("bare mmap slices", "wids IndexedTarSamples", "itar", "MosaicML LocalDataset"),
    ),
    (
        "pack loose JPEGs",
        "pack {}",
        ("webdataset ShardWriter", "LitData optimize, 1 worker", "MosaicML MDSWriter"),
    ),
    ("pack loose JPEGs", "pack {}", ("img2dataset's writer, Parquet included",)),
    (
        "pack loose JPEGs",
        "pack {}",
        ("GNU tar, same members", "GNU tar, same members, flushed", "cp -r of the files"),
    ),
)
LOADERS = ("webdataset", "MosaicML", "Energon", "wids", "LitData")
PEERS = (*LOADERS, "bare mmap slices")
STREAM = (
    ("no workers", "stream {} 0"),
    ("2 workers", "stream {} 2"),
    ("first batch", "first {} 0"),
    ("first batch, 2 workers", "first {} 2"),
    ("memory", "memory read {} 0"),
    ("memory, 2 workers", "memory read {} 2"),
)
DECODE = (
    ("Pillow, no workers", "decode 0 Pillow"),
    ("Pillow, 2 workers", "decode 2 Pillow"),
    ('`images="array"`, no workers', "decode 0 array"),
    ('`images="array"`, 2 workers', "decode 2 array"),
)
REMOTE = tuple(
    (f"{head}, {where}", f"remote {kind} {where}")
    for where in ("0 ms", "20 ms")
    for head, kind in (("first batch", "first"), ("first epoch", "cold"), ("second epoch", "cached"))
)
COLD = (
    ("no workers", "cold stream 0"),
    ("2 workers", "cold stream 2"),
    ("first batch", "cold first 0"),
    ("first batch, 2 workers", "cold first 2"),
)


def packed_and_read(results: Results) -> Iterator[str]:
    rows = []
    for what, answer, peers in PACKED_AND_READ:
        for peer in peers:
            cells = [results.ratio(answer.format(corpus), peer) for corpus in ("A", "B")]
            rows.append((f"{what}: {peer}", *cells))
    yield from table(("ours against", "A", "B"), rows)


def by_peer(
    results: Results,
    columns: Sequence[tuple[str, str]],
    shards: str | None = None,
    peers: Sequence[str] = PEERS,
) -> Iterator[str]:
    """A row a peer, a column an answer; `shards`: the answer whose titles say how many shards a batch touches."""
    rows = []
    for peer in peers:
        cells = [results.ratio(answer, peer) for _, answer in columns]
        if shards is not None:
            cell = results.cell(shards, peer)
            found = re.search(r"([\d.]+) shards a batch", cell.peer if cell else "")
            cells.insert(0, found[1] if found else NONE)
        rows.append((peer, *cells))
    heads = [head for head, _ in columns]
    yield from table(("ours against", *(["shards a batch"] if shards else []), *heads), rows)


def streams(corpus: str) -> Callable[[Results], Iterator[str]]:
    columns = [(head, answer.format(corpus)) for head, answer in STREAM]
    return lambda results: by_peer(results, columns, f"stream {corpus} 0" if corpus == "A" else None)


def resume(results: Results) -> Iterator[str]:
    rows = [
        (peer, results.ratio("resume A", peer), results.ratio("state A", peer))
        for peer in ("LitData", "MosaicML", "Energon")
    ]
    yield from table(("ours against", "time to the next batch", "size of the state"), rows)


def headline(results: Results) -> Iterator[str]:
    """A line a kind of work: the peer that comes closest, of those that do the same."""
    kinds = (
        (
            "pack loose JPEGs",
            "pack A",
            ("webdataset ShardWriter", "LitData optimize, 1 worker", "MosaicML MDSWriter"),
        ),
        ("index a tar of tiny samples", "index B", ("tarfile getmembers", "wids MMIndexedTar", "GNU tar -t")),
        (
            "a random sample of tiny ones",
            "random B",
            ("wids IndexedTarSamples", "itar", "MosaicML LocalDataset"),
        ),
        ("stream photographs as raw bytes, no workers", "stream A 0", LOADERS),
        ("stream photographs as raw bytes, 2 workers", "stream A 2", LOADERS),
        ("stream decoded pictures, 2 workers", "decode 2 array", LOADERS),
        ("resume in mid-epoch", "resume A", ("LitData", "MosaicML", "Energon")),
    )
    rows = []
    for what, answer, peers in kinds:
        cells = [cell for peer in peers if (cell := results.cell(answer, peer))]
        if cells:
            closest = min(cells, key=lambda cell: cell.ratio)
            others = max(cells, key=lambda cell: cell.ratio)
            name = closest.peer.partition(",")[0]
            rows.append(
                (what, f"{report.number(closest.ratio)} × {name}", f"{report.number(others.ratio)} ×")
            )
    yield from table(("ours", "against the closest", "against the slowest"), rows)


def profile(_: Results) -> Iterator[str]:
    """Whose code runs, of each hot path, from profiles.json."""
    found = profiles.saved()
    owners = [
        owner
        for owner in profiles.OWNERS
        if any(each["shares"].get(owner, 0) >= 0.005 for each in found.values())
    ]
    rows = []
    for name, each in found.items():
        rows.append((name, *(f"{each['shares'].get(owner, 0):.0%}" for owner in owners)))
    yield from table(("", *owners), rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Markdown; without rows that nobody has measured."""
    rows = [row for row in rows if any(cell != NONE for cell in row[1:])]
    if not rows:
        yield "*Not measured yet.*"
        return
    yield "| " + " | ".join(heads) + " |"
    yield "| --- |" + " ---: |" * (len(heads) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


BLOCKS: dict[str, Callable[[Results], Iterator[str]]] = {
    "headline": headline,
    "packed-and-read": packed_and_read,
    "stream-A": streams("A"),
    "stream-B": streams("B"),
    "cold": lambda results: by_peer(
        results, COLD, peers=(*LOADERS, "bare: tars read whole, in order, not shuffled")
    ),
    "remote": lambda results: by_peer(results, REMOTE, peers=("webdataset", "MosaicML", "LitData")),
    "decode": lambda results: by_peer(results, DECODE),
    "resume": resume,
    "profile": profile,
    "targets": lambda results: iter([targets.summary(results.answers)]),
}


# -- pages


def pages() -> dict[str, tuple[str, str]]:
    """Path → (what it says, what it should say)."""
    results = Results(report.read())
    found = {}
    for page in PAGES:
        path = os.path.join(ROOT, page)
        with open(path) as file:
            text = file.read()
        found[path] = (text, _BLOCK.sub(lambda match: filled(match, results), text))
    path = os.path.join(report.RESULTS, "TARGETS.md")
    text = ""
    if os.path.exists(path):
        with open(path) as file:
            text = file.read()
    found[path] = (text, targets.page(report.read()))
    return found


def filled(match: re.Match[str], results: Results) -> str:
    head, name, _, end = match.groups()
    if name not in BLOCKS:
        raise SystemExit(f"no block is called {name!r}; there are {', '.join(BLOCKS)}")
    return head + "\n".join(BLOCKS[name](results)) + "\n" + end


def update() -> list[str]:
    """Bring all pages up to date; their paths, where anything was to do."""
    changed = []
    for path, (is_now, should_be) in pages().items():
        if is_now != should_be:
            with open(path, "w") as file:
                file.write(should_be)
            changed.append(path)
    return changed


def main() -> int:
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__)
        return 2
    if sys.argv[1:]:
        stale = [path for path, (is_now, should_be) in pages().items() if is_now != should_be]
    else:
        stale = []
        report.write_page(report.RESULTS)
        for path in update():
            print("written:", os.path.relpath(path, ROOT))
    for path in stale:
        print(f"{os.path.relpath(path, ROOT)} differs from benchmarks/results: run benchmarks/tables.py")
    for line in targets.without_reason(report.read()):
        print("a target is missed and benchmarks/targets.yaml says not why:", line)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
