from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from loader import storage
from loader.pool import Pool, processes

ROOT = Path(__file__).parents[2]


def double(item: int, add: int = 0) -> int:
    return 2 * item + add


def fail_on_odd(item: int) -> int:
    if item % 2:
        raise ValueError(f"{item} is odd")
    return item


class Homesick(Exception):
    """Can't be rebuilt from its arguments, as many in the field can't."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")


def homesick(item: int) -> int:
    raise Homesick("here", str(item))


def die_on(item: int, victims: list[int], folder: str) -> int:
    """Ends like a process that the kernel killed; for a victim > 100 only the first time."""
    mark = Path(folder) / str(item)
    if item in victims and (item <= 100 or not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def publish_slowly(item: int, folder: str) -> None:
    with storage.publish(f"{folder}/{item}.bin") as file:
        file.write(b"half")
        (Path(folder) / f"started-{item}").touch()
        time.sleep(60)


def test_processes() -> None:
    cores = len(os.sched_getaffinity(0))
    assert processes(64, 1000) == processes(0, 1000) == cores
    assert processes(1, 1000) == processes(64, 1) == processes(0, 0) == 1
    with pytest.raises(ValueError, match="n_jobs is -1"):
        processes(-1, 5)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_results_and_errors_are_results(n_jobs: int) -> None:
    with Pool(n_jobs) as pool:
        assert sorted(pool.run(double, [1, 2, 3], 5)) == [(1, 7), (2, 9), (3, 11)]
        outcomes = dict(pool.run_all(fail_on_odd, range(4)))
    assert {item: str(outcome) for item, outcome in outcomes.items()} == {
        0: "0", 1: "1 is odd", 2: "2", 3: "3 is odd",
    }  # fmt: skip
    assert isinstance(outcomes[1], ValueError)


def test_an_error_that_cannot_travel_breaks_nothing() -> None:
    with Pool(2) as pool:
        outcomes = dict(pool.run(homesick, range(3)))
        assert [repr(outcomes[item]) for item in range(3)] == [
            f"RuntimeError('Homesick: here: {item}')" for item in range(3)
        ]
        assert dict(pool.run(double, [1])) == {1: 2}


def test_a_killed_child_costs_its_item_alone(tmp_path: Path) -> None:
    with Pool(2) as pool:
        with pytest.raises(BrokenProcessPool):
            list(pool.run(die_on, range(5), [3], str(tmp_path)))
        outcomes = dict(pool.run_all(die_on, [*range(6), 101], [3, 101], str(tmp_path)))
        assert dict(pool.run(double, [1])) == {1: 2}
    broken = outcomes.pop(3)
    assert isinstance(broken, BrokenProcessPool)
    assert "killed" in str(broken)
    assert outcomes == {item: item for item in (0, 1, 2, 4, 5, 101)}


def test_items_may_be_equal() -> None:
    with Pool(1) as pool:
        assert list(pool.run_all(double, [1, 1])) == [(1, 2), (1, 2)]


def test_stopping_early_leaves_nothing_half_written(tmp_path: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt), Pool(2) as pool:
        run = pool.run(publish_slowly, range(2), str(tmp_path))
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            while len(list(tmp_path.glob("started-*"))) < 2:
                signal.setitimer(signal.ITIMER_REAL, 1.0)
                next(run)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # What they were writing is neither there nor half there: nobody waited for them.
    assert sorted(os.listdir(tmp_path)) in ([], ["started-0"], ["started-0", "started-1"], ["started-1"])


PROGRAM = """
    import os, sys, time
    sys.path.insert(0, {root!r})
    sys.path.insert(0, {tests!r})
    from loader.pool import Pool
    import test_pool
    if __name__ == "__main__":
        with Pool(2) as pool:
            run = pool.run(test_pool.publish_slowly, range(2), {folder!r})
            print(os.getpid(), flush=True)
            next(run)
"""


def children_of(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def start(tmp_path: Path) -> subprocess.Popen[bytes]:
    program = tmp_path / "program.py"
    folder = tmp_path / "out"
    folder.mkdir()
    program.write_text(
        textwrap.dedent(PROGRAM).format(root=str(ROOT), tests=str(Path(__file__).parent), folder=str(folder))
    )
    return subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15, None])
def test_ctrl_c_ends_all_quietly(tmp_path: Path, delay: float | None) -> None:
    """At once, while the children are started, and in mid-work: the terminal sends it to the whole group."""
    with start(tmp_path) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.readline()
        if delay is None:
            while len(list((tmp_path / "out").glob("started-*"))) < 2:
                time.sleep(0.01)
        else:
            time.sleep(delay)
        os.killpg(child.pid, signal.SIGINT)
        shown = child.stderr.read().decode()
        assert child.wait(30) != 0
    assert shown.count("Traceback") == 1  # the parent's own: this program doesn't catch it
    assert "KeyboardInterrupt" in shown
    assert [name for name in os.listdir(tmp_path / "out") if not name.startswith("started")] == []


def test_children_die_with_their_parent(tmp_path: Path) -> None:
    with start(tmp_path) as child:
        while len(list((tmp_path / "out").glob("started-*"))) < 2:
            time.sleep(0.01)
        below = children_of(child.pid)
        assert len(below) >= 2
        child.kill()
        child.wait()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []


def script(tmp_path: Path, lines: str) -> subprocess.CompletedProcess[str]:
    """Run a script that has `Pool` and `CannotStart` imported."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom loader.pool import Pool, CannotStart\n{lines}"
    )
    return subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("items", [2, 1000])
def test_a_script_without_its_guard_is_told_so_once(tmp_path: Path, items: int) -> None:
    done = script(tmp_path, f"with Pool(2) as pool:\n    list(pool.run_all(abs, range({items})))\n")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1 and "BrokenProcessPool" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "loader.pool.CannotStart: the script that was started has to begin its work under `if"
    )


def test_children_that_fail_as_they_start_are_not_tried_again(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        "if __name__ == '__mp_main__':\n    raise KeyError('no such thing')\n"
        "if __name__ == '__main__':\n"
        "    try:\n        list(Pool(2).run_all(abs, range(9)))\n"
        "    except CannotStart as error:\n        print(error)\n",
    )
    assert done.returncode == 0
    assert done.stdout.startswith("the worker processes end with an error as they start: it is shown above.")
    assert done.stderr.count("KeyError: 'no such thing'") in (1, 2)  # children


def exit_with(item: int, status: int) -> None:
    os._exit(status)


@pytest.mark.parametrize("status", [1, 79])
def test_a_child_that_ends_at_work_is_another_matter(status: int) -> None:
    with Pool(2) as pool:
        assert [type(outcome) for _, outcome in pool.run_all(exit_with, range(2), status)] == [
            BrokenProcessPool
        ] * 2


def test_a_child_that_is_asked_to_end(tmp_path: Path) -> None:
    """By a scheduler, say: what it has half-written goes with it."""
    with start(tmp_path) as child:
        while len(list((tmp_path / "out").glob("started-*"))) < 2:
            time.sleep(0.01)
        for pid in children_of(child.pid):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGTERM)
        assert child.stderr is not None
        assert "BrokenProcessPool" in child.stderr.read().decode().splitlines()[-1]
        assert child.wait(30) != 0
    assert [name for name in os.listdir(tmp_path / "out") if not name.startswith("started")] == []


def large(item: int) -> bytes:
    return bytes(1_000_000)


def test_many_items_and_large_results() -> None:
    with Pool(2) as pool:
        assert sum(outcome == 2 * item for item, outcome in pool.run(double, range(5000))) == 5000
        assert [len(outcome) for _, outcome in pool.run(large, range(20))] == [1_000_000] * 20


def test_one_job_needs_no_process() -> None:
    with Pool(1) as pool:
        assert dict(pool.run(lambda item: (item, os.getpid()), [1, 2])) == {
            1: (1, os.getpid()),
            2: (2, os.getpid()),
        }
        assert list(pool.run(double, [])) == []
    with Pool(2) as pool:
        assert list(pool.run(double, [])) == list(pool.run_all(double, [])) == []


def test_a_function_that_cannot_travel_is_a_result() -> None:
    with Pool(2) as pool:
        ((_, outcome),) = pool.run(lambda item: item, [1])
        assert isinstance(outcome, Exception)
        assert dict(pool.run(double, [1])) == {1: 2}
