from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loader.errors import BadConfig, ShardflowError
from loader.pool import Pool
from tasks import workforce
from tasks.workforce import Crew, NoRunner

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("runner", "address", "reason"),
    [
        ("slurm", "", "runner is 'slurm': one of local, dask, ray was expected"),
        ("", "", "runner is ''"),
        ("local", "tcp://10.0.0.1:8786", "but the runner is local: choose runner dask"),
        ("ray", "tcp://10.0.0.1:8786", "but the runner is ray"),
    ],
)
def test_what_cannot_be_meant(runner: str, address: str, reason: str) -> None:
    with pytest.raises(BadConfig, match=reason):
        workforce.check(runner, address)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    workforce.check("local")
    monkeypatch.setattr(workforce, "find_spec", lambda name: None)
    for runner, extra in (("dask", "dask"), ("ray", "ray")):
        with pytest.raises(NoRunner, match=rf"pip install 'shardflow\[{extra}\]'") as found:
            workforce.check(runner)
        assert isinstance(found.value, (ShardflowError, ImportError))
    workforce.check("local")


def test_neither_is_imported_unless_chosen() -> None:
    code = (
        "import sys\nfrom tasks import groups, pack\nfrom tasks.workforce import Crew, check\n"
        "check('dask'); check('ray')\n"
        "with Crew() as crew:\n    print(list(crew.get(1, 3).run_all(abs, [-1])))\n"
        "print(sorted({'ray', 'dask', 'distributed'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[(-1, 1)]\n[]\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_one_pool_for_all_steps_unless_a_larger_one_is_needed() -> None:
    with Crew() as crew:
        first = crew.get(2, 1)
        assert isinstance(first, Pool) and first.n_jobs == 1
        second = crew.get(2, 10)
        assert second.n_jobs == 2
        assert crew.get(2, 1) is crew.get(1, 10) is second
