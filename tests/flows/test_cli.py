"""`shardflow` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, SECRET, digests, finish, make_corpus, session_members, start

from flows import server

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def there(api: server.Api) -> dict[str, str]:
    """The environment that leads to the tests' server."""
    return {"PREFECT_API_URL": api.url}


@pytest.mark.parametrize(
    ("command", "texts"),
    [
        (
            (),
            ["prepare", "pack", "gen-meta", "warmup", "show", "demo", "shardflow prepare job.yaml --direct"],
        ),
        (("prepare",), ["CONFIG.yaml", "--max-samples", "--direct", "default: 10000", "130 after Ctrl-C"]),
        (("pack",), ["--source", "--recipe", "s3://bucket/photos"]),
        (("gen-meta",), ["DIR", "--meta-save-path", "--n-jobs", "shardflow gen-meta /data/photos"]),
        (("warmup",), ["PATTERNS", "--registry", "configs/datasets.json"]),
        (("show",), ["PATH", "#NUMBER", "--limit"]),
        (("demo",), ["OUT", "demo-out"]),
    ],
)
def test_help_has_examples(
    command: tuple[str, ...], texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.cli import main

    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    for text in texts:
        assert text in shown


@pytest.mark.parametrize(
    "arguments",
    [[], ["prepar"], ["gen-meta"], ["prepare", "--max-samples", "-1"], ["prepare", "--max-bad-fraction", "7"],
     ["pack", "--on-error", "ignore"], ["warmup", "a", "--n-jobs", "-1"], ["show"]],
)  # fmt: skip
def test_a_wrong_command_line_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from flows.cli import main

    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: shardflow" in capsys.readouterr().err


def test_version(shardflow: Command) -> None:
    shown = shardflow("--version")
    assert shown.returncode == 0 and shown.stdout.startswith("shardflow ")


def test_direct_prepares_shows_and_needs_no_prefect(corpus: Path, tmp_path: Path) -> None:
    """As on a machine where Prefect isn't installed."""
    out = tmp_path / "out"
    code = (
        "import sys; sys.modules['prefect'] = None\n"
        "from flows.cli import main\n"
        "if __name__ == '__main__': sys.exit(main(sys.argv[1:]))\n"
    )
    script = tmp_path / "without_prefect.py"
    script.write_text(code)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = run("prepare", str(corpus / "job.yaml"), "--output", str(out), "--direct")
    assert done.returncode == 0, done.stderr
    for text in ("59 of 60 rows", "0 built, 6 were there", "errors.jsonl", "warmup"):
        assert text in done.stdout
    assert json.loads((out / "meta_stats.json").read_text())["total_samples"] == 59

    shown = run("show", str(out), "--limit", "2")
    assert shown.returncode == 0 and "shard-000001.tar" in shown.stdout and "the first 2 of 6" in shown.stdout
    shown = run("show", f"{out}#000000003", f"{out}/shard-000001.tar#0", f"{out}#none")
    assert shown.returncode == 1
    assert "picture 3" in shown.stdout and "picture 10" in shown.stdout and "none" in shown.stderr

    refused = run("prepare", str(corpus / "job.yaml"), "--output", str(out))
    assert refused.returncode == 1
    assert refused.stderr == (
        "shardflow prepare: Prefect is not installed: pip install 'shardflow[flows]' brings it, or run the same steps "
        "without it with --direct\n"
    )


def test_a_flow_on_a_server_shows_progress_and_a_table(
    corpus: Path, tmp_path: Path, there: dict[str, str], shardflow: Command
) -> None:
    done = shardflow("prepare", str(corpus / "job.yaml"), "--output", str(tmp_path / "a"), env=there)
    assert done.returncode == 0, done.stderr
    assert "59 of 60 rows" in done.stdout and "warmup" in done.stdout
    assert "pack slots 1 to 2 of 6: 2 done" in done.stderr
    assert "embedded" not in done.stderr
    direct = shardflow("prepare", str(corpus / "job.yaml"), "--output", str(tmp_path / "b"), "--direct")
    assert direct.returncode == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_failures_are_1_and_name_the_way_on(
    tmp_path: Path, there: dict[str, str], shardflow: Command
) -> None:
    (tmp_path / "bad.tar").write_bytes(b"no tar" * 500)
    for mode, env in (("--direct", {}), ("--n-jobs=1", there)):
        done = shardflow("gen-meta", str(tmp_path), mode, env=env)
        assert done.returncode == 1
        assert "bad.tar" in done.stdout
        assert f"this does the rest: shardflow gen-meta {tmp_path}" in done.stderr
        assert "Traceback" not in done.stderr


def test_gen_meta_says_what_became_of_meta_json(tmp_path: Path, shardflow: Command) -> None:
    (tmp_path / "bad.tar").write_bytes(b"no tar" * 500)
    assert f"{tmp_path}/meta.json: not written" in shardflow("gen-meta", str(tmp_path), "--direct").stdout
    (tmp_path / "meta.json").write_text("{}")
    assert f"{tmp_path}/meta.json: left as it was" in shardflow("gen-meta", str(tmp_path), "--direct").stdout


def test_gen_meta_of_a_read_only_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.cli import main

    (tmp_path / "a.tar").write_bytes(bytes(10240))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert main(["gen-meta", str(tmp_path), "--direct"]) == 1
    assert capsys.readouterr().err == (
        f"shardflow gen-meta: {tmp_path}/meta.json can't be written: {tmp_path} is read-only. Put it elsewhere with "
        "--meta_save_path, and the indexes with --index_root\n"
    )
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["prepare", "/nowhere/job.yaml"], "/nowhere/job.yaml is not there"),
        (["prepare"], "source is missing"),
        (["pack", "--source", "x.jsonl", "--output", "s3://k:hush@bucket/x"], "output has a password"),
        (["prepare", "a::b"], "fsspec chain"),
    ],
)
def test_wrong_input_is_one_line_before_anything_starts(
    arguments: list[str], reason: str, shardflow: Command
) -> None:
    for mode in ([], ["--direct"]):
        done = shardflow(*arguments, *mode)
        assert done.returncode == 1 and not done.stdout
        assert reason in done.stderr and len(done.stderr.splitlines()) == 1
        assert "hush" not in done.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "http://me:hush@127.0.0.1:9/api", "nonsense"])
def test_an_unreachable_server_is_one_line(url: str, corpus: Path, shardflow: Command) -> None:
    done = shardflow("prepare", str(corpus / "job.yaml"), env={"PREFECT_API_URL": url})
    assert done.returncode == 1 and not done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "no Prefect API answers at" in done.stderr and "--direct" in done.stderr
    assert "hush" not in done.stderr


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough work to be interrupted: some seconds for two processes."""
    folder = make_corpus(tmp_path_factory.mktemp("large"), 60, side=900)
    records = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(records * 40)
    return folder


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("mode", ["direct", "server"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_cleanly(
    mode: str, number: signal.Signals, large: Path, tmp_path: Path, there: dict[str, str]
) -> None:
    """As a terminal does it: Ctrl-C goes to every process of the group. SIGTERM goes to the one."""
    out = tmp_path / "out"
    arguments = [
        "prepare",
        str(large / "job.yaml"),
        "--output",
        str(out),
        *(["--direct"] if mode == "direct" else []),
    ]
    process = start(*arguments, env={**os.environ, **(there if mode == "server" else {})})
    wait_for(lambda: len(list(out.glob("*.tar"))) >= 3, process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    done = finish(process)
    assert len(list(out.glob("*.tar"))) < 200, "of 240: it didn't go on to its end"
    assert done.returncode == 128 + number
    assert "Traceback" not in done.stderr
    if number == signal.SIGINT:
        assert done.stderr.splitlines()[-1].startswith("shardflow prepare: interrupted")
    wait_until_alone(process.pid)
    assert not list(out.rglob("*.part")), "workers removed what was half-written"


def wait_until_alone(leader: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while members := session_members(leader):
        assert time.monotonic() < deadline, members
        time.sleep(0.02)


@pytest.mark.slow
def test_the_embedded_server_says_itself_works_and_goes(corpus: Path, tmp_path: Path) -> None:
    """With a home of its own, so that what it recorded can be looked at afterwards."""
    home = tmp_path / "prefect"
    env = {**os.environ, "PREFECT_HOME": str(home)}
    process = start("prepare", str(corpus / "job.yaml"), "--output", str(tmp_path / "out"), env=env)
    done = finish(process)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "still starting" not in line]  # on a busy machine
    assert (
        lines[0]
        == "shardflow: starting Prefect's embedded server, 8 to 13 seconds (none is needed with --direct)…"
    )
    assert lines[1].startswith("shardflow: Prefect's embedded server is up after ")
    assert all(line[2] == ":" and " | INFO " in line for line in lines[2:]), "nothing but the log of the run"
    assert "View at" not in done.stderr
    wait_until_alone(process.pid)

    import sqlite3

    with sqlite3.connect(home / "prefect.db") as database:
        states = database.execute("select state_type, count(*) from task_run group by 1").fetchall()
        (flow_runs,) = database.execute(
            "select count(*) from flow_run where state_type = 'COMPLETED'"
        ).fetchone()
        (parameters,) = database.execute("select parameters from flow_run").fetchone()
    database.close()
    runs = sum("Task run '" in line for line in lines)
    assert states == [("COMPLETED", runs)] and flow_runs == 1
    assert json.loads(parameters)["config"] == str(corpus / "job.yaml")
    for file in home.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "starting"), (signal.SIGINT, "working"), (signal.SIGKILL, "working")],
)
def test_the_embedded_server_goes_with_its_run(
    number: signal.Signals, moment: str, large: Path, tmp_path: Path
) -> None:
    """Ctrl-C reaches the server too: it lives on until it has been told that its run was interrupted."""
    out = tmp_path / "out"
    process = start("prepare", str(large / "job.yaml"), "--output", str(out), env=dict(os.environ))
    if moment == "starting":
        wait_for(lambda: any("embedded.py" in line for line in session_members(process.pid)), process)
        time.sleep(0.5)
    else:
        wait_for(lambda: list(out.glob("*.tar")), process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    done = finish(process)
    assert done.returncode == (130 if number == signal.SIGINT else -9)
    assert "Traceback" not in done.stderr and "Error logging to API" not in done.stderr
    if (number, moment) == (signal.SIGINT, "working"):
        assert "Finished in state Crashed('Execution was aborted by an interrupt signal.')" in done.stderr
    wait_until_alone(process.pid)
