from __future__ import annotations

import io
import json
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tars import make_dataset, make_tar, pairs, snapshot

from loader import show as module
from loader import storage
from loader.errors import BadAddress, BadIndex, BadMeta, BadTar
from loader.gen_meta import gen_meta
from loader.index import index_path
from loader.meta import ShardMeta, write_meta
from loader.show import Page, describe, main, show, value_lines


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "teal").save(file, "JPEG")
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def facts(page: Page) -> dict[str, object]:
    return dict(page.facts)


def rows(page: Page, title: str) -> list[list[object]]:
    (section,) = [section for section in page.sections if section.title.startswith(title)]
    return [list(row) for row in section.rows]


@pytest.fixture
def tar(tmp_path: Path) -> str:
    return make_tar(
        tmp_path / "a.tar",
        [
            (".DS_Store", b""),
            ("x/01.json", b'{"caption": "a cat"}'),
            ("x/01.jpg", jpeg()),
            ("x/02.json", b"{}"),
            ("x/02.JPG", jpeg()),
            ("x/02.txt", b"two\nlines"),
        ],
    )


def test_a_tar(tar: str) -> None:
    page = describe(tar)
    assert page.title == "tar"
    assert facts(page)["samples"] == 2
    assert facts(page)["members"] == 5
    assert facts(page)["index"] == "missing (read from the tar)"
    assert [row[:2] for row in rows(page, "Extensions")] == [[".jpg", 2], [".json", 2], [".txt", 1]]
    assert [row[:3] for row in rows(page, "Samples")] == [
        [0, "x/01", ".json .jpg"],
        [1, "x/02", ".json .jpg .txt"],
    ]
    assert rows(page, "Left out") == [["hidden", 1, "'.DS_Store'"]]
    assert rows(describe(tar, limit=1), "Samples: the first 1 of 2") == rows(page, "Samples")[:1]


def test_looking_changes_nothing(tmp_path: Path, tar: str) -> None:
    before = snapshot(tmp_path)
    for path in (tar, str(tmp_path), f"{tar}#0", f"{tmp_path}#x/02"):
        describe(path)
    assert snapshot(tmp_path) == before


def test_an_index(tmp_path: Path, tar: str) -> None:
    gen_meta(str(tmp_path), n_jobs=1)
    assert facts(describe(tar))["index"] == "fresh"
    page = describe(index_path(tar))
    assert page.title == "index"
    assert facts(page)["state"] == "fresh"
    assert facts(page)["samples"] == 2
    make_tar(tar, pairs(40))
    assert "made for a tar of" in str(facts(describe(index_path(tar)))["state"])
    assert facts(describe(tar))["samples"] == 40
    os.unlink(tar)
    assert facts(describe(index_path(tar)))["state"] == "its tar is not beside it"


def test_a_dataset(tmp_path: Path) -> None:
    tars = make_dataset(tmp_path, [3, 2, 1])
    page = describe(str(tmp_path), limit=2)
    assert facts(page)["shards"] == 3
    assert "run gen_meta" in str(facts(page)["meta"])
    assert [row[0] for row in rows(page, "Shards: the first 2 of 3")] == [
        "shard-000000.tar",
        "shard-000001.tar",
    ]
    gen_meta(str(tmp_path), n_jobs=1)
    for path in (str(tmp_path), str(tmp_path / "meta.json")):
        page = describe(path)
        assert (facts(page)["shards"], facts(page)["samples"]) == (3, 6)
        assert [row[1] for row in rows(page, "Shards")] == [3, 2, 1]
        assert {row[4] for row in rows(page, "Shards")} == {"fresh"}
    make_tar(tars[0], pairs(50))
    os.unlink(tars[1])
    os.unlink(index_path(tars[2]))
    assert [row[4] for row in rows(describe(str(tmp_path)), "Shards")] == [
        "the tar has another size than meta.json says", "no such tar", "missing",
    ]  # fmt: skip


def test_a_meta_that_lies_elsewhere_leads_to_its_tars(tmp_path: Path) -> None:
    tars = make_dataset(tmp_path / "data", [3, 2])
    meta = str(tmp_path / "described" / "data.json")
    gen_meta(str(tmp_path / "data"), meta, n_jobs=1)
    assert {row[4] for row in rows(describe(meta), "Shards")} == {"fresh"}
    assert facts(describe(f"{meta}#4"))["tar"] == tars[1]
    stats = tmp_path / "described" / "data_stats.json"
    for said in ('{"dataset_path": "s3://elsewhere"}', '{"dataset_path": 7}', "no json"):
        stats.write_text(said)
        assert {row[4] for row in rows(describe(meta), "Shards")} == {"no such tar"}


@pytest.mark.parametrize("which", ["1", "x/02", "-1"])
def test_a_sample(tmp_path: Path, tar: str, which: str) -> None:
    for path in (f"{tar}#{which}", f"{tmp_path}#{which}"):
        page = describe(path)
        assert facts(page) == {"tar": tar, "number": 1, "key": "x/02"}
        assert [row[0] for row in rows(page, "")] == ["x/02.json", "x/02.JPG", "x/02.txt"]
        assert page.values[0] == ("x/02.json", ["{}"])
        assert page.values[1][1][0].startswith("jpg, 40 × 30 pixels")
        assert page.values[2] == ("x/02.txt", ["two", "lines"])


def test_numbers_run_over_all_shards_of_a_dataset(tmp_path: Path) -> None:
    tars = make_dataset(tmp_path, [3, 0, 2])
    for _ in range(2):
        found = [facts(describe(f"{tmp_path}#{number}")) for number in (0, 2, 3, 4, -5)]
        assert [(fact["tar"], fact["number"]) for fact in found] == [
            (tars[0], 0), (tars[0], 2), (tars[2], 0), (tars[2], 1), (tars[0], 0),
        ]  # fmt: skip
        # Digits with leading zeros are a key, others a number, or a key where there is no such number.
        assert facts(describe(f"{tmp_path}#000004"))["key"] == "000004"
        gen_meta(str(tmp_path), n_jobs=1)
    assert facts(describe(f"{tmp_path}/meta.json#4"))["key"] == "000004"
    make_tar(tmp_path / "b" / "y.tar", [("77.txt", b"")])
    assert facts(describe(f"{tmp_path}/b#77"))["key"] == "77"
    write_meta(str(tmp_path), {"shard-000002.tar": ShardMeta(9, os.path.getsize(tars[2]), 1)})
    with pytest.raises(BadMeta, match="2 samples"):
        describe(f"{tmp_path}#0")


def test_a_number_sign_in_a_path_or_key(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "n#1.tar", [("k#2.txt", b"here")])
    assert describe(tar).title == "tar"
    for path in (f"{tar}#0", f"{tar}#k#2"):
        assert facts(describe(path))["key"] == "k#2"


def test_a_remote_tar(tar: str) -> None:
    storage.write_bytes("memory://show/a.tar", Path(tar).read_bytes())
    assert facts(describe("memory://show/a.tar"))["samples"] == 2
    assert facts(describe("memory://show/a.tar#x/02"))["number"] == 1
    assert facts(describe("memory://show#0"))["key"] == "x/01"
    assert storage.list_files("memory://show") == ["memory://show/a.tar"]


def test_a_cut_tar_shows_what_is_left_of_it(tar: str) -> None:
    os.truncate(tar, 6 * 512)
    page = describe(tar)
    assert facts(page)["samples"] == 1
    assert "cut short" in str(facts(page)["index"])


def test_bytes_that_have_changed(tmp_path: Path) -> None:
    (tar,) = make_dataset(tmp_path, [3])
    gen_meta(str(tmp_path), n_jobs=1)
    data = bytearray(Path(tar).read_bytes())
    data[data.index(b"txt 1")] ^= 1
    Path(tar).write_bytes(data)
    assert "CHANGED" in describe(f"{tar}#1").values[0][1][0]
    assert "CHANGED" not in str(describe(f"{tar}#0").values)


def test_an_enormous_member_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = make_tar(tmp_path / "a.tar", [("a.mp4", bytes(100))])
    monkeypatch.setattr(module, "_LARGEST", 99)
    assert describe(f"{tar}#0").values[0][1][-1] == "too large to be shown"


def test_what_is_not_there(tmp_path: Path, tar: str) -> None:
    for path, error, said in (
        ("gone.tar", FileNotFoundError, "gone.tar"),
        ("gone.tar#3", FileNotFoundError, "gone.tar"),
        ("a.tar#2", BadAddress, "holds 2 samples: there is no sample 2"),
        ("a.tar#-3", BadAddress, "no sample -3"),
        ("a.tar#x/3", BadAddress, "no sample with the key 'x/3'"),
        ("a.tar#", BadAddress, "no sample with the key ''"),
        ("gone.json", BadMeta, "is not there"),
        ("gone.tar.index", FileNotFoundError, "gone.tar.index"),
    ):
        with pytest.raises(error, match=re.escape(said)):
            describe(f"{tmp_path}/{path}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"neither a meta\.json nor any \.tar"):
        describe(str(tmp_path / "empty"))
    (tmp_path / "no.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(BadTar):
        describe(str(tmp_path / "no.tar"))
    (tmp_path / "a.tar.index").write_bytes(pickle.dumps({}))
    with pytest.raises(BadIndex, match="pickle"):
        describe(str(tmp_path / "a.tar.index"))


# -- values


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


HUGE = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
    + b"\n"
)


@pytest.mark.parametrize(
    ("extension", "data", "expected"),
    [
        (".txt", "été\n猫".encode(), ["été", "猫"]),
        (".txt", b"", ["(empty)"]),
        (".cls", b"7", ["7"]),
        (".json", '{"caption": "猫", "n": [1]}'.encode(),
         ["{", '  "caption": "猫",', '  "n": [', "    1", "  ]", "}"]),
        (".seg.png", jpeg(), ["jpg, 40 × 30 pixels as seen, "]),
        (".npy", npy(np.zeros((2, 3), np.float32)), ["array of float32, shape (2, 3)"]),
        (".npy", HUGE, ["array of float64, shape (1000000000000,)"]),
        (".npz", npz(a=np.zeros(4, np.int8), b=np.zeros((), bool)),
         ["a: array of int8, shape (4,)", "b: array of bool, shape ()"]),
        (".pickle", pickle.dumps(Bomb()), ["a pickle of "]),
        (".npy", npy(np.array([Bomb()], object)), ["array of object, shape (1,)"]),
        (".mp4", b"\0\1\2", ["3 bytes: 00 01 02"]),
        (".bin", bytes(100), ["100 bytes: 00"]),
        ("", b"", ["0 bytes: "]),
    ],
)  # fmt: skip
def test_values(
    extension: str, data: bytes, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = value_lines(extension, data)
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("extension", "data"),
    [
        (".txt", b"\xff\xfe\xfd"),
        (".json", b"{"),
        (".json", b"[" * 100_000),
        (".jpg", b"\xff\xd8\xff\xe0 nothing"),
        (".jpg", b""),
        (".png", jpeg()[:300]),
        (".npy", b"\x93NUMPY\x01\x00v\x00 nonsense"),
        (".npy", b""),
        (".npz", b"PK nothing"),
    ],
)
def test_bad_values_are_described(extension: str, data: bytes) -> None:
    first, second = value_lines(extension, data)
    assert first.startswith("cannot be read: ")
    assert second.startswith(f"{len(data):,} bytes")


def test_long_values_are_cut() -> None:
    lines = value_lines(".txt", b"x\n" * 1000 + b"y" * 5000)
    assert len(lines) == 61
    assert lines[-1] == "... and 941 more lines"
    assert len(value_lines(".txt", b"y" * 5000)[0]) == 2004


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([".txt", ".json", ".jpg", ".png", ".webp", ".npy", ".npz", ".pickle", ".x"]),
    st.binary(max_size=200),
    st.sampled_from(
        [b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF"]
    ),
)
def test_no_value_raises(extension: str, data: bytes, head: bytes) -> None:
    assert value_lines(extension, head + data)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_no_damaged_npy_or_npz_raises(data: st.DataObject) -> None:
    extension, whole = data.draw(
        st.sampled_from([(".npy", npy(np.zeros(3))), (".npz", npz(a=np.zeros(3), b=np.ones(2)))])
    )
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert value_lines(extension, bytes(damaged))


def test_zip_members_under_a_password() -> None:
    data = bytearray(npz(a=np.zeros(3)))
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + at] |= 1
    assert value_lines(".npz", bytes(data))[0].startswith("cannot be read: ")
    assert zipfile.is_zipfile(io.BytesIO(data))


# -- what is printed


def test_escapes_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;pwned\x07\x9b2J\u202e[red]"
    tar = make_tar(
        tmp_path / f"{evil}.tar",
        [
            (f"{evil}.json", json.dumps({"caption": evil}, ensure_ascii=False).encode()),
            (f"{evil}.txt", f"{evil}\r\nsecond line\n{evil}".encode()),
            (f"{evil}.{evil}", b""),
            (f"._{evil}", b""),
        ],
    )
    gen_meta(str(tmp_path), n_jobs=1)
    for path in (str(tmp_path), tar, index_path(tar), f"{tar}#0"):
        show(path)
    out, err = capsys.readouterr()
    assert err == ""
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)
    assert r"\x1b]0;pwned\x07\x9b2J\u202e[red]" in out
    assert "second line" in out


def test_what_a_person_sees(tar: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(f"{tar}#0")
    out = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert out[:4] == ["sample", f"tar     {tar}", "number  0", "key     x/01"]
    assert "x/01.json" in out
    assert '    "caption": "a cat"' in out


def test_the_command_goes_on_after_a_bad_path(
    tmp_path: Path, tar: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{tar}#0"]) == 0
    capsys.readouterr()
    assert main([str(tmp_path / "gone\x1b.tar"), f"{tar}#9", tar]) == 1
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in err.splitlines()] == ["shardflow show"] * 2
    assert r"gone\x1b.tar" in err
    assert tar in out
