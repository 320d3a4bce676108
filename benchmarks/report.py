"""Answers as a table for the terminal, as Markdown with pictures, and as JSON with machine, versions and commit."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import plot
from harness import HERE, PEERS_PYTHON, Answer, Cell

RESULTS = os.path.join(HERE, "results")
ORDER = (
    "index",
    "open",
    "random",
    "pack",
    "reencode",
    "stream",
    "cold",
    "remote",
    "remote-index",
    "decode",
    "resume",
    "overhead",
    "scale",
    "prefect",
)  # of the questions, on the page and in a run of all
_OURS = ("shardflow", "numpy", "torch", "pillow", "fsspec")
_PEERS = (
    "webdataset",
    "wids",
    "itar",
    "litdata",
    "mosaicml-streaming",
    "megatron-energon",
    "img2dataset",
    "numpy",
    "torch",
    "pillow",
)
_HEADINGS = ("against", "{unit}", "CPU s", "ratio", "spread", "target", "")


def surroundings() -> dict[str, Any]:
    """Machine, versions and commit: what one must know to judge a number."""
    script = (
        f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {_PEERS!r}}}))"
    )
    peers = subprocess.run([PEERS_PYTHON, "-c", script], capture_output=True, text=True)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "load at start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "tar": subprocess.run(["tar", "--version"], capture_output=True, text=True).stdout.split("\n", 1)[0],
        "ours": {name: _version(name) for name in _OURS},
        "peers": json.loads(peers.stdout) if peers.returncode == 0 else {},
    }


def _git(*command: str) -> str:
    done = subprocess.run(["git", "-C", HERE, *command], capture_output=True, text=True)
    return done.stdout.strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def rows(answer: Answer) -> list[tuple[str, ...]]:
    """The table of one answer: a line for ours, then one a peer, then ours' limits."""
    table = [(answer.ours, number(answer.ours_value), f"{answer.ours_cpu:.3g}", "", "", "", "")]
    table += [_row(cell) for cell in answer.cells]
    for limit in answer.limits:
        word = "met" if limit["met"] else "NOT MET"
        per, unit = limit.get("per", 1e6), limit.get("unit", "MB")
        value, most = (f"{number(limit[key] / per)} {unit}".rstrip() for key in ("bytes", "limit"))
        table.append((limit["title"], value, "", "", "", f"< {most}", word))
    return table


def _row(cell: Cell) -> tuple[str, ...]:
    extra = "".join(f" ({name} {size / 1e6:.0f} MB)" for name, size in cell.peer_extra.items())
    target = "" if cell.target is None else "ahead" if cell.target == 1 else f"{cell.target:.3g} ×"
    return (
        cell.peer + extra,
        number(cell.peer_value),
        f"{cell.peer_cpu:.3g}",
        f"{number(cell.ratio)} ×",
        f"{number(cell.low)} – {number(cell.high)}",
        target,
        judged(cell),
    )


def judged(cell: Cell) -> str:
    """The verdict; and whether the runs differ by more from each other than ours from the peer."""
    parts = [cell.verdict] if cell.verdict else []
    if cell.high - cell.low > abs(cell.ratio - 1) and "within noise" not in cell.verdict:
        parts.append("spread above difference")
    return "; ".join(parts)


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _headings(answer: Answer) -> tuple[str, ...]:
    return tuple(heading.format(unit=answer.unit) for heading in _HEADINGS)


def _foot(answer: Answer) -> str:
    share = (
        f"Other processes took {answer.others_cpu:.2f} of a core meanwhile; {answer.waited:.0%} of the wall time was "
        "waiting for a core, and is taken off."
    )
    return " ".join([part for part in (answer.note, share) if part] + [f"{p}." for p in answer.problems])


def unmet(answers: Sequence[Answer]) -> list[str]:
    """One line for each target that is not met, "within noise" or not."""
    return [
        f"{answer.title}: {row[0]}: {row[3] or row[1]}, target {row[5]}: {row[6].partition(';')[0]}"
        for answer in answers
        for row in rows(answer)
        if row[6].startswith("NOT MET")
    ]


def text(answer: Answer) -> str:
    table = [_headings(answer), *rows(answer)]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [answer.title]
    for row in table:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  " + "  ".join([*cells, row[-1]]).rstrip())
    return "\n".join([*lines, "  " + _foot(answer), ""])


def markdown(results: Mapping[str, dict[str, Any]]) -> str:
    """One page of all results, each as `write` left it."""
    parts = [
        "# Benchmark results",
        "",
        "Written by `benchmarks/run.py`. A ratio above 1 says how many times as fast ours is; it is the median of",
        "pairs that were run in turn, and its spread is their smallest and largest. Trust ratios over absolutes.",
        "",
    ]
    for name, result in results.items():
        parts += [f"![{name}: ours against each]({name}.svg)", ""]
        for answer in answers_of(result):
            parts += [f"## {answer.title}", "", _line(_headings(answer))]
            parts += [_line(["---"] + ["---:"] * 5 + ["---"])]
            parts += [_line(row) for row in rows(answer)]
            parts += ["", _foot(answer), ""]
        where = result["where"]
        parts += [
            (
                f"Measured {where['date']} at commit {where['commit']}{' (with changes)' if where['changed'] else ''}, "
                f"load {where['load at start']} at the start."
            ),
            "",
        ]
    return "\n".join([*parts, *_machines(results)]) + "\n"


def machine(where: Mapping[str, Any]) -> list[str]:
    """A line for each thing that stays the same from run to run: the machine, and the versions of everything."""
    lines = []
    for key, value in where.items():
        if isinstance(value, dict):
            value = ", ".join(f"{package} {version}" for package, version in value.items())
        if key not in ("date", "commit", "changed", "load at start"):
            lines.append(f"- {key}: {value}")
    return lines


def _machines(results: Mapping[str, dict[str, Any]]) -> list[str]:
    """The surroundings, each once, with the names of the questions that were asked there."""
    asked: dict[str, list[str]] = {}
    for name, result in results.items():
        asked.setdefault("\n".join(machine(result["where"])), []).append(name)
    parts = ["## Where", ""]
    for lines, names in asked.items():
        parts += [f"{', '.join(names)}:", "", lines, ""]
    return parts[:-1]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write(name: str, answers: Sequence[Answer], around: dict[str, Any], quick: bool) -> str:
    """Write NAME.json, and README.md anew from all that are there, in results/ or results/quick/."""
    folder = os.path.join(RESULTS, "quick") if quick else RESULTS
    os.makedirs(folder, exist_ok=True)
    content = {"where": around, "answers": [answer.as_json() for answer in answers]}
    with open(os.path.join(folder, name + ".json"), "w") as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.write("\n")
    return write_page(folder)


def read(folder: str = RESULTS) -> dict[str, dict[str, Any]]:
    """Name of a question → what was found, of all that have been asked, in the order of the page."""
    results = {}
    for each in ORDER:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, each + ".json")) as file:
            results[each] = json.load(file)
    return results


def answers_of(result: Mapping[str, Any]) -> list[Answer]:
    return [Answer.from_json(each) for each in result["answers"]]


def write_page(folder: str) -> str:
    """README.md and the pictures, from the results that lie there."""
    results = read(folder)
    for name, result in results.items():
        with open(os.path.join(folder, name + ".svg"), "w") as file:
            file.write(plot.svg(answers_of(result)))
    page = os.path.join(folder, "README.md")
    with open(page, "w") as file:
        file.write(markdown(results))
    return page
