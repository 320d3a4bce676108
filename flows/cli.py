"""The command ``shardflow``.

Prefect is imported when a flow is about to run, and not at all with ``--direct``. Worker processes import this
module too: it stays light.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Collection, Sequence
from dataclasses import MISSING
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

from flows import cached, readers
from flows.parameters import RUN_OPTIONS, UNSET, packing_fields
from loader import progress, storage
from loader.arguments import not_negative, whole
from loader.progress import printable
from tasks.config import Field
from tasks.source_options import normalised

NAME = "shardflow"
_READERS = ("show", "stats", "verify", "extract", "cache")  # modules of the loader with a `main` of their own
_FLOWS = {"prepare": "prepare", "pack": "pack", "gen-meta": "gen_meta", "warmup": "warmup"}
# Made absolute, so that what a server records means the same elsewhere.
_PATHS = {
    "config",
    "source",
    "output",
    "image_root",
    "recipe_folder",
    "dataset",
    "meta_save_path",
    "index_root",
    "registry",
    "report",
}
_ABSOLUTE = {"source": normalised}  # several with commas, or a function
_HOW = """

Runs are recorded by the Prefect server that PREFECT_API_URL names, or by that of 'shardflow up'; without either,
Prefect's embedded server is started, which takes 8 to 13 seconds. With --direct the same steps run without Prefect. The exit status is 0 if
everything was done, 1 if something failed, 2 for a wrong command line, 130 after Ctrl-C. What is done is kept:
run a command again to go on."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    values = vars(_parser().parse_args([_hyphenated(word) for word in words]))
    name = values.pop("command")
    if name in _READERS:
        return int(importlib.import_module(f"loader.{name}").main(**values))
    if name == "demo":
        from flows import demo

        return progress.command(lambda: int(demo.main(values["out"]) or 0), f"{NAME} demo")
    if name == "up":
        from flows import up

        return progress.command(lambda: up.main(**values), f"{NAME} up")
    direct = values.pop("direct")
    return progress.command(lambda: run_job(name, values, direct), f"{NAME} {name}")


def _hyphenated(word: str) -> str:
    """An option as config files and the loader's own commands spell it, ``--n_jobs=3``, as ``--n-jobs=3``."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def run_job(job: str, parameters: dict[str, Any], direct: bool = False) -> int:
    """Do a job and print its report; returns the exit status. BadConfig comes before anything is started."""
    from flows import jobs
    from flows.report import show

    parameters = {
        parameter: _ABSOLUTE.get(parameter, storage.normalise)(value)
        if parameter in _PATHS and value
        else value
        for parameter, value in parameters.items()
    }
    jobs.check(job, parameters)
    if direct:
        jobs.no_blocks(parameters.get("storage_block", ""))
        from flows.direct import Direct

        return show(jobs.perform(job, parameters, Direct), f"{NAME} {job}")
    return show(_with_prefect(job, parameters), f"{NAME} {job}")


def _with_prefect(job: str, parameters: dict[str, Any]) -> Any:
    from flows import server

    with server.connected(_say) as api:
        module = importlib.import_module(f"flows.{_FLOWS[job]}")
        if api.embedded:  # it has no pages to view
            logging.getLogger("prefect.flow_runs").addFilter(_no_links)
        from prefect import tags

        with tags(NAME, job):
            state = server.asked(lambda: getattr(module, _FLOWS[job])(**parameters, return_state=True))
        report = state.result(raise_on_failure=False)
        if isinstance(report, BaseException):
            raise report
        if not api.settle(state, report.task_runs):
            _say("Prefect's server has not recorded every task run; the work itself is not touched by that")
    return report


def _no_links(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("View at ")


def _say(text: str) -> None:
    sys.stderr.write(f"{NAME}: {printable(text)}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Image-text data for distributed PyTorch: pack it as WebDataset shards, describe and index them.",
        epilog="""examples:
  shardflow demo                               pack real photographs, read them back in training order
  shardflow prepare job.yaml                   pack, gen-meta and warmup, in order
  shardflow prepare job.yaml --direct          the same without Prefect
  shardflow up                                 the same from forms in a browser, and every night
  shardflow show /data/photos                  what a dataset holds
  shardflow show /data/photos/shard-000000.tar#17

'shardflow COMMAND --help' has more.""",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_packing(
        commands,
        "prepare",
        "everything before training: pack, gen-meta and warmup, in order",
        """examples:
  shardflow prepare configs/pack-example.yaml
  shardflow prepare job.yaml --max-samples 1000 --n-jobs 8
  shardflow prepare --source records.jsonl --output /data/photos --direct""",
    )
    _add_packing(
        commands,
        "pack",
        "Records, folders, tables, tars → shards, indexes, meta.json",
        """examples:
  shardflow pack job.yaml
  shardflow pack --source 'records/*.jsonl' --output s3://bucket/photos --image-root /photos
  shardflow pack job.yaml --recipe my_recipes:two_captions""",
    )
    _add_gen_meta(commands)
    _add_warmup(commands)
    _add_up(commands)
    show = _add(commands, "show", "print what a tar, an index, a dataset or one sample holds", """examples:
  shardflow show /data/photos                  a dataset's folder
  shardflow show shard-000000.tar              a tar, or its .index
  shardflow show shard-000000.tar#17           one sample by number, or by key: #000000017""")  # fmt: skip
    show.add_argument(
        "--limit", type=_positive, metavar="N", help="rows of long lists, at most (default: 10)"
    )
    show.add_argument("paths", metavar="PATH", nargs="+", help="path or URL; #NUMBER or #KEY for one sample")
    readers.add(commands, _add)
    cached.add(commands, _add)
    demo = _add(
        commands,
        "demo",
        "pack real photographs and read them back in training order",
        """examples:
  shardflow demo
  shardflow demo /tmp/demo""",
    )
    demo.add_argument(
        "out", metavar="OUT", nargs="?", default="demo-out", help="folder for it (default: %(default)s)"
    )
    return parser


def _version() -> str:
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "(not installed)"


def _add(commands: Any, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    return parser


def _add_job(commands: Any, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    parser = _add(commands, name, summary, examples + _HOW)
    parser.add_argument(
        "--direct",
        action="store_true",
        default=False,
        help="without Prefect: the same steps as plain functions",
    )
    return parser


def _add_packing(commands: Any, name: str, summary: str, examples: str) -> None:
    parser = _add_job(commands, name, summary, examples)
    parser.add_argument(
        "config",
        metavar="CONFIG.yaml",
        nargs="?",
        help="YAML file of a packing job, a path or URL; the options below override what it says. Storage options "
        "(endpoints, keys) are said there alone",
    )
    for field in packing_fields():
        option = f"--{field.name.replace('_', '-')}"
        if field.type == "bool":
            parser.add_argument(option, action="store_true", help=field.description.replace("%", "%%"))
            continue
        parser.add_argument(
            option,
            type=_TYPES.get(field.name, _TYPES_BY_KIND.get(field.type, str)),
            choices=field.choices or None,
            metavar=None if field.choices else _METAVARS.get(field.type, "TEXT"),
            help=_described(field).replace("%", "%%"),
        )

    _add_running(parser, but=UNSET)


def _add_running(parser: argparse.ArgumentParser, but: Collection[str] = ()) -> None:
    for name, (kind, usual, text) in RUN_OPTIONS.items():
        if name in but:
            continue
        choices = get_args(kind)
        said = text.partition(". Empty: ")[0].rstrip(".") + (f" (default: {usual})" if usual else "")
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            choices=choices or None,
            metavar=None if choices else "TEXT",
            help=said[0].lower() + said[1:],
        )


def _described(field: Field) -> str:
    """A field's description with its default at the end; a form says it otherwise ("Empty: ...")."""
    text, _, unset = field.description.partition(" Empty: ")
    usual = unset.rstrip(".") or field.default
    return text if usual in (MISSING, "") else f"{text} (default: {usual})"


def _add_gen_meta(commands: Any) -> None:
    parser = _add_job(commands, "gen-meta", "write meta.json, meta_stats.json and the missing indexes of a folder of tars", """examples:
  shardflow gen-meta /data/photos
  shardflow gen-meta /mnt/ro --index-root /tmp/idx --meta-save-path /tmp/photos.json""")  # fmt: skip
    parser.add_argument(
        "dataset", metavar="DIR", help="folder of the tars, sub-folders included: a path or a URL"
    )
    parser.add_argument(
        "--meta-save-path", metavar="P",
        help="where meta.json goes: a folder, or a file that ends in .json (default: DIR/meta.json)",
    )  # fmt: skip
    _add_reading(parser)


def _add_warmup(commands: Any) -> None:
    parser = _add_job(commands, "warmup", "build the missing and stale indexes of the tars that training is about to open", """examples:
  shardflow warmup 'text2image/*,edit/OmniEdit'     datasets by their names in configs/datasets.json
  shardflow warmup '/data/*' --n-jobs 8""")  # fmt: skip
    parser.add_argument(
        "patterns", metavar="PATTERNS",
        help="dataset names, folders of names or of tars, tars, or globs over them; commas between",
    )  # fmt: skip
    parser.add_argument(
        "--registry", metavar="FILE",
        help="the registry of datasets, JSON or YAML (default: configs/datasets.json, where there is one)",
    )  # fmt: skip
    _add_reading(parser)


def _add_up(commands: Any) -> None:
    parser = _add(commands, "up", "a Prefect server with its pages, and everything that it can start", """examples:
  shardflow up                                 pages at http://127.0.0.1:4200
  shardflow up --port 4300 --home /data/prefect
  PREFECT_API_URL=https://prefect.example.org/api shardflow up     serves for that server, starts none

Forms, schedules, progress and reports are in the pages; flows run on this machine, in this folder, until Ctrl-C, which
cancels what is at work. Meanwhile 'shardflow prepare' and the others are recorded there as well.""")  # fmt: skip
    parser.add_argument(
        "--host", metavar="HOST",
        help="where the server listens (default: 127.0.0.1; 0.0.0.0 lets in everybody who can reach this machine: "
        "there is no password)",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=not_negative, metavar="N", help="its port (default: 4200; 0: any that is free)"
    )
    parser.add_argument(
        "--home", metavar="DIR", help="where it keeps its records (default: PREFECT_HOME, else ~/.prefect)"
    )
    parser.add_argument(
        "--schedules", dest="schedule_file", metavar="FILE",
        help="what runs by itself, YAML (default: configs/schedules.yaml, where there is one)",
    )  # fmt: skip


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n-jobs", type=not_negative, metavar="N", help="at most this many processes (default: all cores)"
    )
    parser.add_argument(
        "--index-root", metavar="P", help="keep the indexes under this folder (read-only datasets)"
    )
    parser.add_argument(
        "--grouping", choices=("auto", "numbered", "plain"),
        help="whether k-0.jpg, k-1.jpg are images of sample k (numbered), or samples of their own (plain)",
    )  # fmt: skip
    parser.add_argument(
        "--no-end-ok", action="store_true", help="accept tars without the zero blocks at their end"
    )
    parser.add_argument(
        "--save-bytes", action="store_true",
        help="of tars in a store, read little more than the headers: slow where members are small, and without checksums",
    )  # fmt: skip
    _add_running(parser)


def _positive(text: str) -> int:
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1 was expected")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a share from 0 to 1 was expected, such as 0.05")
    return number


_TYPES = {
    "n_jobs": not_negative,
    "max_bad_fraction": _share,
}
_TYPES_BY_KIND = {"int": not_negative, "float": _number}
_METAVARS = {"int": "N", "float": "SHARE"}


if __name__ == "__main__":
    sys.exit(main())
