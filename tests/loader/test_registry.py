from __future__ import annotations

import contextlib
import json
import os
import pickle
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from loader import registry, storage
from loader.errors import BadMeta, ShardflowError, UnknownDataset
from loader.registry import DatasetEntry, load_registry, resolve

SECRET = "hunter2-do-not-show"
ENTRY = {"data_type": "text2image", "dir": "/data/x"}


def put(folder: Path, document: Any, name: str = "datasets.json") -> str:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / name).write_text(text)
    return str(folder / name)


def names(pattern: str, known: Mapping[str, DatasetEntry]) -> list[str]:
    return [entry.name for entry in resolve(pattern, known)]


def make(*known: str) -> dict[str, DatasetEntry]:
    return {name: DatasetEntry(name, "t", f"/data/{name}", f"/data/{name}/meta.json") for name in known}


KNOWN = make(
    "text2image/BLIP3o-60k",
    "text2image/JourneyDB",
    "edit/OmniEdit",
    "edit/large/UltraEdit",
    "captions",
    "edit2/x",
)


@pytest.mark.parametrize("kind", ["json", "yaml", "yml"])
def test_all_fields(tmp_path: Path, kind: str) -> None:
    document = {
        "text2image/BLIP3o-60k": {
            "data_type": "text2image",
            "dir": "s3://bucket/blip",
            "tar_meta_path": "/metas/blip.json",
            "num_samples": 60_000,
            "description": "Generated pictures",
            "storage_options": {"key": "k", "client_kwargs": {"endpoint_url": "http://localhost"}},
            "homepage": "https://example.org",
        },
        "b": ENTRY,
    }
    text = json.dumps(document) if kind == "json" else yaml.safe_dump(document, sort_keys=False)
    found = load_registry(put(tmp_path, text, f"datasets.{kind}"))
    assert list(found) == ["text2image/BLIP3o-60k", "b"]
    assert found["text2image/BLIP3o-60k"] == DatasetEntry(
        name="text2image/BLIP3o-60k",
        data_type="text2image",
        dir="s3://bucket/blip",
        tar_meta_path="/metas/blip.json",
        num_samples=60_000,
        description="Generated pictures",
        storage_options={"key": "k", "client_kwargs": {"endpoint_url": "http://localhost"}},
    )
    assert found["b"] == DatasetEntry("b", "text2image", "/data/x", "/data/x/meta.json")


def test_relative_paths_mean_the_registry_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    document = {
        "a": {**ENTRY, "dir": "../data/a/"},
        "b": {**ENTRY, "dir": "b", "tar_meta_path": "../m/b.json"},
    }
    file = put(tmp_path / "configs", document)
    monkeypatch.chdir(tmp_path)
    for path in (file, "configs/datasets.json", "./configs/../configs/datasets.json", f"file://{file}"):
        found = load_registry(path)
        assert found["a"].dir == f"{tmp_path}/data/a"
        assert found["a"].tar_meta_path == f"{tmp_path}/data/a/meta.json"
        assert found["b"].dir == f"{tmp_path}/configs/b"
        assert found["b"].tar_meta_path == f"{tmp_path}/m/b.json"


def test_relative_paths_in_a_remote_registry() -> None:
    text = json.dumps({"a": {**ENTRY, "dir": "../data/a"}, "b": {**ENTRY, "dir": "s3://else/b"}})
    storage.write_bytes("memory://registry-test/configs/datasets.json", text.encode())
    found = load_registry("memory://registry-test/configs/datasets.json")
    assert found["a"].dir == "memory://registry-test/data/a"
    assert found["b"].dir == "s3://else/b"
    storage.write_bytes("memory://up/d.json", json.dumps({"a": {**ENTRY, "dir": "../../../a"}}).encode())
    with pytest.raises(BadMeta, match="above the top of memory://"):
        load_registry("memory://up/d.json")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    file = put(tmp_path, {"a": {**ENTRY, "dir": "~/data", "tar_meta_path": None}})
    assert load_registry(file)["a"].tar_meta_path == "/home/ada/data/meta.json"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("captions", ["captions"]),
        ("text2image/JourneyDB", ["text2image/JourneyDB"]),
        ("text2image", ["text2image/BLIP3o-60k", "text2image/JourneyDB"]),
        ("text2image/", ["text2image/BLIP3o-60k", "text2image/JourneyDB"]),
        ("text2image/*", ["text2image/BLIP3o-60k", "text2image/JourneyDB"]),
        ("edit", ["edit/OmniEdit", "edit/large/UltraEdit"]),  # and not edit2
        ("edit/*", ["edit/OmniEdit", "edit/large/UltraEdit"]),
        ("edit/large", ["edit/large/UltraEdit"]),
        ("*/[BJ]*", ["text2image/BLIP3o-60k", "text2image/JourneyDB"]),
        ("edit?", ["edit2/x"]),
        ("*", list(KNOWN)),
        ("captions, edit/*,", ["captions", "edit/OmniEdit", "edit/large/UltraEdit"]),
        ("edit/large,edit", ["edit/large/UltraEdit", "edit/OmniEdit"]),
        ("captions,captions,*", ["captions", *(name for name in KNOWN if name != "captions")]),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    assert names(pattern, KNOWN) == expected


def test_an_exact_name_is_itself_even_if_it_looks_like_a_glob_or_folder() -> None:
    known = make("a", "a/b", "x[1]", "x1")
    assert names("a", known) == ["a"]
    assert names("a/*", known) == ["a/b"]
    assert names("x[1]", known) == ["x[1]"]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("text2image/BLIP3o-60K", "text2image/BLIP3o-60k"),
        ("BLIP3o-60k", "text2image/BLIP3o-60k"),
        ("text2imag", "text2image"),
        ("JourneyDB", "text2image/JourneyDB"),
        ("TEXT2IMAGE", "text2image"),
        ("captions,edit/OmniEdt", "edit/OmniEdit"),
        ("zzzzzzzzz", "captions"),
        ("%%%%", "It holds: captions, edit/OmniEdit"),
    ],
)
def test_no_match_lists_the_nearest(pattern: str, said: str) -> None:
    with pytest.raises(UnknownDataset) as caught:
        resolve(pattern, KNOWN)
    assert said in str(caught.value)
    assert pattern.split(",")[-1] in str(caught.value)
    assert isinstance(caught.value, LookupError) and isinstance(caught.value, ShardflowError)


@pytest.mark.parametrize("pattern", ["", " ", ",", " , /"])
def test_an_empty_pattern_is_said_to_be_one(pattern: str) -> None:
    with pytest.raises(UnknownDataset, match="names no dataset"):
        resolve(pattern, KNOWN)


def test_an_empty_registry() -> None:
    with pytest.raises(UnknownDataset, match="none of the 0 datasets"):
        resolve("a", {})


parts = st.text("ab1-_.", min_size=1, max_size=4).filter(lambda part: part not in (".", ".."))
known_names = st.lists(st.lists(parts, min_size=1, max_size=3).map("/".join), min_size=1, unique=True)


@settings(deadline=None, max_examples=200)
@given(known_names, st.data())
def test_each_name_folder_and_star_finds_what_it_should(known: list[str], data: st.DataObject) -> None:
    entries = make(*known)
    assert names("*", entries) == known
    name = data.draw(st.sampled_from(known))
    assert names(name, entries) == [name]
    folder = name.rpartition("/")[0]
    if folder and folder not in known:
        below = [other for other in known if other.startswith(folder + "/")]
        assert names(folder, entries) == names(folder + "/*", entries) == below
    both = ",".join(data.draw(st.permutations(known)))
    assert sorted(names(both, entries)) == sorted(known)


# -- secrets


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    file = put(tmp_path, {"a": {**ENTRY, "storage_options": {"secret": SECRET}}})
    entry = load_registry(file)["a"]
    assert entry.storage_options == {"secret": SECRET}
    for text in (repr(entry), str(entry), f"{entry}", repr({"a": entry}), repr([entry])):
        assert SECRET not in text
        assert "/data/x" in text
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert hash(entry)
    with pytest.raises(UnknownDataset) as caught:
        resolve("b", {"a": entry})
    assert SECRET not in str(caught.value)


def test_texts_of_others_are_redacted() -> None:
    options = {
        "key": "abcdef",
        "client_kwargs": {
            "endpoint_url": "http://host",
            "region_name": "eu-west-1",
            "tokens": ["abcdefgh", 12345],
        },
    }
    redact = registry.redactor(options, None, {"anon": True, "user": "ada"})
    text = "abcdefgh at http://host in eu-west-1, abcdef: ada 12345"
    assert redact(text) == "*** at http://host in eu-west-1, ***: ada 12345"
    assert registry.redactor()("as it is") == "as it is"
    itself: dict[str, Any] = {"secret": SECRET}
    itself["again"] = itself
    assert SECRET not in registry.redactor(itself)(f"x {SECRET}")
    many: list[Any] = [SECRET]
    for _ in range(50):
        many = [many] * 50
    assert registry.redactor({"x": many})(f"x {SECRET}") == "x ***"


LEAKY = {
    "options are a text": json.dumps({"a": {**ENTRY, "storage_options": SECRET}}),
    "options are a list": json.dumps({"a": {**ENTRY, "storage_options": [SECRET]}}),
    "other field wrong": json.dumps({"a": {"data_type": 1, "dir": "/x", "storage_options": {"s": SECRET}}}),
    "no JSON after it": '{"a": {"storage_options": {"secret": "' + SECRET + '"}, nonsense',
    "no JSON at it": '{"a": {"storage_options": {"secret": ' + SECRET + "}}}",
    "control character in it": '{"a": {"storage_options": {"secret": "' + SECRET + '\n"}}}',
    "given twice": '{"a": {"storage_options": {"s": "' + SECRET + '", "s": "' + SECRET + '"}}}',
    "password in the URL": json.dumps({"a": {**ENTRY, "dir": f"ftp://ada:{SECRET}@host/x"}}),
    "password in the meta URL": json.dumps({"a": {**ENTRY, "tar_meta_path": f"ftp://ada:{SECRET}@host/x"}}),
    "yaml indentation": f"a:\n  storage_options:\n    secret: {SECRET}\n   key: b\n",
    "yaml tab": f"a:\n  storage_options:\n    secret: {SECRET}\n\tkey: {SECRET}\n",
    "yaml alias": f"a:\n  storage_options:\n    secret: *{SECRET}\n",
    "yaml tag": f"a:\n  storage_options:\n    secret: !{SECRET}\n",
    "yaml python tag": f"a:\n  storage_options:\n    secret: !!python/object/apply:os.system ['{SECRET}']\n",
    "yaml quote": f"a:\n  storage_options:\n    secret: '{SECRET}\n",
    "yaml twice": f"a:\n  storage_options:\n    secret: {SECRET}\n    secret: {SECRET}\n",
    "yaml colon": f"a:\n  storage_options:\n    secret: {SECRET}: {SECRET}\n",
    "yaml bad int": f"a:\n  storage_options:\n    secret: !!int '{SECRET}'\n",
}


@pytest.mark.parametrize("case", LEAKY)
def test_no_error_shows_a_secret(tmp_path: Path, case: str) -> None:
    file = put(tmp_path, LEAKY[case], "datasets.yaml" if case.startswith("yaml") else "datasets.json")
    with pytest.raises(BadMeta) as caught:
        load_registry(file)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert file in str(caught.value)
    assert "expected" in str(caught.value)


# -- hostile files

DEEP = 100_000
HOSTILE: Mapping[str, tuple[str, str, str]] = {
    "empty": ("json", "", "no JSON"),
    "list": ("json", "[]", "a list"),
    "entry is a list": ("json", '{"a": []}', "'a' is a list"),
    "entry is null": ("json", '{"a": null}', "'a' is nothing"),
    "no dir": ("json", '{"a": {"data_type": "t"}}', "'a': dir is missing"),
    "empty dir": ("json", '{"a": {"data_type": "t", "dir": ""}}', "'a': dir is a text that is empty"),
    "dir is a number": ("json", '{"a": {"data_type": "t", "dir": 5}}', "'a': dir is a number"),
    "no type": ("json", '{"a": {"dir": "/x"}}', "'a': data_type is missing"),
    "description is a list": (
        "json",
        json.dumps({"a": {**ENTRY, "description": []}}),
        "description is a list",
    ),
    "count is text": ("json", json.dumps({"a": {**ENTRY, "num_samples": "5"}}), "num_samples is a text"),
    "count is bool": ("json", json.dumps({"a": {**ENTRY, "num_samples": True}}), "num_samples is true or"),
    "count is negative": ("json", json.dumps({"a": {**ENTRY, "num_samples": -1}}), "num_samples is a number"),
    "slip of the pen": ("json", json.dumps({"a": {**ENTRY, "storage_option": {}}}), "'storage_options'"),
    "chain": ("json", json.dumps({"a": {**ENTRY, "dir": "simplecache::s3://x"}}), "one URL"),
    "nul": ("json", json.dumps({"a": {**ENTRY, "dir": "/x\0y"}}), "one URL"),
    "name with comma": ("json", json.dumps({"a,b": ENTRY}), "the name 'a,b'"),
    "name with spaces": ("json", json.dumps({" a": ENTRY}), "the name ' a'"),
    "empty name": ("json", json.dumps({"": ENTRY}), "the name ''"),
    "absolute name": ("json", json.dumps({"/a": ENTRY}), "the name '/a'"),
    "name with empty part": ("json", json.dumps({"a//b": ENTRY}), "the name 'a//b'"),
    "name with ..": ("json", json.dumps({"a/../b": ENTRY}), "the name 'a/../b'"),
    "name with escape": ("json", json.dumps({"a\x1b[2J": ENTRY}), r"the name 'a\x1b[2J'"),
    "doubled name": ("json", '{"a": {}, "a": {}}', "key 'a' more than once"),
    "NaN": ("json", '{"a": {"num_samples": NaN}}', "NaN"),
    "deep": ("json", '{"a":' * DEEP, "nested too deeply"),
    "options with a number for key": (
        "yaml",
        "a: {data_type: t, dir: /x, storage_options: {1: 2}}",
        "an object, as fsspec",
    ),
    "yaml empty": ("yaml", "", "holds nothing"),
    "yaml number as name": ("yaml", "1: {data_type: t, dir: /x}", "a name is a number"),
    "yaml doubled name": ("yaml", "a: {}\na: {}\n", "more than once"),
    "yaml doubled field": ("yaml", "a:\n  dir: /x\n  dir: /y\n", "more than once"),
    "yaml two documents": ("yaml", "a: {}\n---\nb: {}\n", "no YAML"),
    "yaml deep": ("yaml", "[" * DEEP, "nested too deeply"),
    "yaml deep blocks": ("yaml", "- " * DEEP, "nested too deeply"),
    "yaml object": ("yaml", "a: !!python/object/apply:os.system [touch pwned]", "no YAML"),
    "yaml list as key": ("yaml", "? [a, b]\n: 1\n", "no YAML"),
    "yaml odd int": ("yaml", 'a: !!int ""', "no YAML"),
    "yaml odd bool": ("yaml", "a: !!bool x", "no YAML"),
    "yaml odd time": ("yaml", "a: !!timestamp x", "no YAML"),
    "yaml no such day": ("yaml", "a: 2024-13-45", "no YAML"),
    "yaml control character": ("yaml", "a: \x01", "no YAML"),
    "yaml itself": ("yaml", "&a {a: *a}", "dir is missing"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_registries_give_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    kind, text, said = HOSTILE[case]
    monkeypatch.chdir(tmp_path)
    file = put(tmp_path, text, f"datasets.{kind}")
    with pytest.raises(BadMeta) as caught:
        load_registry(file)
    message = str(caught.value)
    assert file in message
    assert said in message
    assert "expected" in message
    assert len(message) < 500
    assert message.isprintable()
    assert os.listdir(tmp_path) == [f"datasets.{kind}"]


def test_aliases_that_multiply_cost_nothing(tmp_path: Path) -> None:
    layers = "".join(
        f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" if i else "l0: &l0 [x]\n" for i in range(20)
    )
    with pytest.raises(BadMeta, match="'l0' is a list"):
        load_registry(put(tmp_path, layers, "d.yaml"))
    shared = (
        "a: {data_type: t, dir: /a, storage_options: &o {key: k}}\n"
        "b: {data_type: t, dir: /b, storage_options: *o}\n"
    )
    found = load_registry(put(tmp_path, shared, "e.yaml"))
    assert found["b"].storage_options == {"key": "k"}


def test_merge_keys_may_override(tmp_path: Path) -> None:
    text = "a: &a {data_type: t, dir: /a}\nb: {<<: *a, dir: /b}\n"
    assert load_registry(put(tmp_path, text, "d.yaml"))["b"].dir == "/b"


@settings(deadline=None, max_examples=300)
@given(text=st.text(st.sampled_from("a:- []{},&*!'\"\n\t#|>?1.<%@\\"), max_size=40))
def test_any_yaml_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = put(tmp_path_factory.getbasetemp(), text, "any.yaml")
    with contextlib.suppress(BadMeta):
        load_registry(file)


def test_a_missing_or_enormous_file(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.json", tmp_path, tmp_path / "file" / "x.yaml"):
        (tmp_path / "file").touch()
        with pytest.raises(BadMeta, match=r"is no file.*configs/datasets\.json"):
            load_registry(str(path))
    for name, limit in (("big.json", registry.MAX_BYTES), ("big.yaml", registry.MAX_YAML_BYTES)):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, limit + 1)
        with pytest.raises(BadMeta, match="bytes; expected at most"):
            load_registry(str(tmp_path / name))


def test_the_registry_that_comes_with_the_project() -> None:
    file = Path(__file__).parents[2] / "configs" / "datasets.json"
    found = load_registry(str(file))
    assert found
    for entry in found.values():
        assert entry.description
        assert storage.is_local(entry.dir)
