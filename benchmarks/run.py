"""Speed, shown: `python benchmarks/run.py index|open|random|pack|reencode|stream|cold|remote|remote-index|decode|resume|overhead|scale|prefect|all [--quick]`.

Makes the corpora where they aren't there yet (benchmarks/make_corpus.py), sets up the peers (benchmarks/setup.sh),
measures ours against each peer in turn, prints a table for each question, and writes all of it to
benchmarks/results/. Exit status 1 if a target is missed beyond noise. benchmarks/README.md says how to read it.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import report
import tables
from cold import cold_questions
from harness import HERE, WORK, Answer, CheckFailed, Question, ask
from prefect_cost import prefect_questions
from questions import Corpora, index_questions, open_questions, pack_questions, random_questions
from races import Race
from reencode import reencode_questions
from remote import remote_questions
from remote_index import remote_index_questions
from streaming import (
    decode_questions,
    overhead_questions,
    resume_questions,
    scale_questions,
    stream_questions,
)

QUESTIONS: dict[str, Callable[[Corpora], Sequence[Question | Race]]] = {
    "index": index_questions,
    "open": open_questions,
    "random": random_questions,
    "pack": pack_questions,
    "reencode": reencode_questions,
    "stream": stream_questions,
    "cold": cold_questions,
    "remote": remote_questions,
    "remote-index": remote_index_questions,
    "decode": decode_questions,
    "resume": resume_questions,
    "overhead": overhead_questions,
    "scale": scale_questions,
    "prefect": prefect_questions,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=[*QUESTIONS, "all"])
    parser.add_argument("--quick", action="store_true", help="small corpora, fewer tables, one round")
    parser.add_argument("--rounds", type=int, help="times that each pair is run (default 5, 1 with --quick)")
    parser.add_argument(
        "--no-save", action="store_true", help="print alone, leave benchmarks/results as it is"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="begin no table after so many; those left out are named",
    )
    args = parser.parse_args(argv)
    os.makedirs(WORK, exist_ok=True)
    subprocess.run([os.path.join(HERE, "setup.sh")], check=True, env={**os.environ, "PYTHON": sys.executable})
    around = report.surroundings()
    print(*report.machine(around), sep="\n")
    corpora = Corpora(quick=args.quick)
    bad: list[str] = []  # what ends the run with an error
    end = time.monotonic() + 60 * args.minutes
    for name in report.ORDER if "all" in args.what else args.what:
        answers: list[Answer] = []
        if time.monotonic() > end:
            print(f"{name}: left out, {args.minutes:g} minutes are over")
            continue
        try:
            for found in _asked(QUESTIONS[name](corpora), args.rounds or (1 if args.quick else 5), end):
                answers += found
                bad += report.unmet(found)
                if not args.no_save:  # each at once: a run takes long, and may be left
                    page = report.write(name, answers, around, args.quick)
                    print("written:", page, *([] if args.quick else tables.update()), file=sys.stderr)
        except (CheckFailed, RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", file=sys.stderr)  # the other questions can be asked all the same
            bad.append(f"{name}: failed, {type(error).__name__}")
    for line in bad:
        print(line)
    return 1 if any(not line.endswith("(within noise)") for line in bad) else 0


def _asked(questions: Sequence[Question | Race], rounds: int, end: float) -> Iterator[list[Answer]]:
    for question in questions:
        if time.monotonic() > end:
            print(f"{question.title}: left out, the minutes are over")
            continue
        found = question.ask(rounds) if isinstance(question, Race) else [ask(question, rounds)]
        for answer in found:
            print(report.text(answer), flush=True)
        yield found


if __name__ == "__main__":
    sys.exit(main())
