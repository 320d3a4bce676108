from __future__ import annotations

import inspect
import shlex
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import SECRET

from flows import cli
from flows.parameters import RUN_OPTIONS, UNSET, command_line, named, packing_fields, resolve, run_name
from loader.errors import BadConfig
from tasks.config import PackConfig


@pytest.mark.parametrize("name", ["prepare", "pack"])
def test_the_forms_of_packing_have_every_field_but_secrets(name: str) -> None:
    import importlib

    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    defaults = {n: p.default for n, p in inspect.signature(flow.fn).parameters.items()}
    running = {name: default for name, (_, default, _) in RUN_OPTIONS.items()}
    assert defaults == {"config": "", **running, **UNSET}
    assert set(UNSET) == {field.name for field in fields(PackConfig)} - {
        "storage_options",
        "source_storage_options",
    }


@pytest.mark.parametrize("name", ["prepare", "pack", "gen_meta", "warmup"])
def test_forms_are_flat_typed_and_described(name: str) -> None:
    import importlib

    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    schema = flow.parameters
    assert not schema.definitions
    for parameter, shape in schema.properties.items():
        assert shape["type"] in ("string", "integer", "number", "boolean"), parameter
        assert len(shape["description"]) > 20, parameter
        assert "\n" not in shape["description"], parameter
    assert schema.required == {"gen_meta": ["dataset"], "warmup": ["patterns"]}.get(name, [])
    assert schema.properties["n_jobs"]["minimum"] in (0, -1)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(
        "source: in.jsonl\noutput: out\nmax_samples: 7\nn_jobs: 3\non_error: raise\nmax_bad_fraction: 0.5\n"
        f"storage_options: {{secret: {SECRET}}}\n"
    )
    return str(path)


def test_untouched_fields_leave_the_config_as_it_is(config: str, tmp_path: Path) -> None:
    job = resolve(config, UNSET)
    assert (job.source, job.output) == (str(tmp_path / "in.jsonl"), str(tmp_path / "out"))
    assert (job.max_samples, job.n_jobs, job.on_error, job.max_bad_fraction) == (7, 3, "raise", 0.5)
    assert job.storage_options == {"secret": SECRET}


def test_single_fields_override_it(config: str) -> None:
    job = resolve(
        config, {**UNSET, "max_samples": 10_000, "n_jobs": 0, "on_error": "skip", "max_bad_fraction": 0.0}
    )
    assert (job.max_samples, job.n_jobs, job.on_error, job.max_bad_fraction) == (10_000, 0, "skip", 0.0)


def test_without_a_config_the_usual_holds() -> None:
    job = resolve("", {**UNSET, "source": "/a.jsonl", "output": "/out"})
    assert job == PackConfig("/a.jsonl", "/out")


@pytest.mark.parametrize(
    ("given_", "reason"),
    [
        ({}, "source is missing"),
        ({"source": "/a.jsonl"}, "output is missing"),
        ({"source": "/a.jsonl", "output": "/out", "max_bad_fraction": 3.0}, "max_bad_fraction is 3.0"),
        ({"source": "/a.jsonl", "output": "s3://k:pass@b"}, "output has a password"),
        ({"source": "/a.jsonl", "output": "/out", "colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_what_is_wrong_is_named(given_: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadConfig, match=reason):
        resolve("", {**UNSET, **given_})


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda text: not text.startswith("-")
)


@settings(deadline=None, max_examples=60)
@given(
    st.fixed_dictionaries(
        {"config": _TEXT},
        optional={
            "source": _TEXT,
            "output": _TEXT,
            "recipe": _TEXT,
            "key_prefix": _TEXT,
            "max_samples": st.integers(1, 10**9),
            "n_jobs": st.integers(0, 500),
            "on_error": st.sampled_from(["skip", "raise"]),
            "image_names": st.sampled_from(["numbered", "extension"]),
            "max_bad_fraction": st.floats(0, 1),
            "image_max_side": st.integers(0, 10_000),
            "sidecar": st.just(True),
        },
    )
)
def test_the_command_to_rerun_means_the_same(parameters: dict[str, Any]) -> None:
    words = shlex.split(command_line("prepare", {**{"config": ""}, **UNSET, **parameters}))
    assert words[:2] == ["shardflow", "prepare"]
    options = vars(cli._parser().parse_args(words[1:]))
    assert options.pop("command") == "prepare" and options.pop("direct") is False
    assert options == parameters


def test_the_other_commands_to_rerun() -> None:
    usual = {"n_jobs": 0, "index_root": "", "grouping": "auto", "no_end_ok": False}
    assert (
        command_line("gen-meta", {"dataset": "/a b", "meta_save_path": "", **usual})
        == "shardflow gen-meta '/a b'"
    )
    changed = {**usual, "n_jobs": 3, "grouping": "plain", "no_end_ok": True}
    assert command_line("warmup", {"patterns": "a/*,b", "registry": "", **changed}) == (
        "shardflow warmup 'a/*,b' --n-jobs 3 --grouping plain --no-end-ok"
    )


def test_the_command_to_verify_again_is_one() -> None:
    words = shlex.split(
        command_line("verify", {"dataset": "/a b", "repair": True, "n_jobs": 2, "runner": "dask"})
    )
    assert words == ["shardflow", "verify", "/a b", "--repair", "--n-jobs", "2"]
    cli._parser().parse_args(words[1:])


def test_every_field_has_its_option() -> None:
    parser = cli._parser()
    for name in ("prepare", "pack"):
        for field in packing_fields():
            values = field.choices or [{"int": "5", "float": "0.5"}.get(field.type, "text")]
            for value in values if field.type != "bool" else [None]:
                words = [name, f"--{field.name.replace('_', '-')}", value]
                parser.parse_args([word for word in words if word is not None])


@pytest.mark.parametrize("name", ["prepare", "pack"])
def test_forms_and_fields_offer_the_same_choices(name: str) -> None:
    import importlib

    shapes = getattr(importlib.import_module(f"flows.{name}"), name).parameters.properties
    for field in packing_fields():
        wanted = ["as configured", *field.choices] if field.choices else None
        assert shapes[field.name].get("enum") == wanted, field.name


def test_names_of_runs() -> None:
    assert run_name("prepare", "", "s3://bucket/jobs/photos.yaml", "") == "prepare photos.yaml"
    assert run_name("pack") == "pack"
    for made_up in ("wise-otter", "", None):
        assert named(made_up, "pack photos") == "pack photos"
    for typed in ("Tuesday", "photos of May", "run-7", "wise-otter-again"):
        assert named(typed, "pack photos") == typed


@pytest.mark.parametrize(
    ("patterns", "name"),
    [
        ("demo/*", "warmup demo/*"),
        ("text2image/*,/data/photos", "warmup text2image/*,/data/photos"),
        ("x" * 200, f"warmup {'x' * 92}…"),
    ],
)
def test_a_warmup_is_called_by_its_patterns(
    patterns: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    module = importlib.import_module("flows.warmup")
    monkeypatch.setattr(
        module, "flow_run", SimpleNamespace(parameters={"patterns": patterns}, name="wise-otter")
    )
    assert module._name() == name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-samples", "many"], "--max-samples: 'many' is no whole number"),
        (["--n_jobs=many"], "--n-jobs: 'many' is no whole number"),
        (["--max_bad_fraction", "5%"], "--max-bad-fraction: '5%': a share from 0 to 1 was expected"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spelled with underscores, as in config files and by the loader's own commands, an option is the same."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["pack", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_limit_that_help_names_is_the_one(capsys: pytest.CaptureFixture[str]) -> None:
    from loader.show import LIMIT

    with pytest.raises(SystemExit):
        cli.main(["show", "--help"])
    assert f"at most (default: {LIMIT})" in capsys.readouterr().out
