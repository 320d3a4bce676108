"""``PATH#sample`` in its parts; `tests/loader/test_show.py` and test_extract.py go through all that it can mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from tars import make_dataset, make_tar

from loader.errors import BadAddress
from loader.find_sample import dataset_root, datasets_at, find_sample, index_of, split_address
from loader.gen_meta import gen_meta


def test_addresses_are_split_where_a_file_ends(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "a#b.tar", [("x#y.txt", b"1")])
    assert split_address(tar, None) == (tar, None)
    assert split_address(f"{tar}#x#y", None) == (tar, "x#y")
    assert split_address(f"{tmp_path}/none#1", None) == (f"{tmp_path}/none", "1")
    assert find_sample(tar, "x#y")[2] == 0


def test_over_all_shards(tmp_path: Path) -> None:
    tars = make_dataset(tmp_path, [2, 0, 3])
    for described in (False, True):
        assert find_sample(str(tmp_path), "4")[::2] == (tars[2], 2)
        assert find_sample(str(tmp_path), "-5")[::2] == (tars[0], 0)
        assert find_sample(str(tmp_path), "000003")[::2] == (tars[2], 1)
        with pytest.raises(BadAddress, match="holds 5 samples: there is no sample 5"):
            find_sample(str(tmp_path), "5")
        if not described:
            gen_meta(str(tmp_path), meta_save_path=str(tmp_path / "x" / "meta.json"), n_jobs=1)
            assert dataset_root(str(tmp_path / "x" / "meta.json"), None) == str(tmp_path)
            gen_meta(str(tmp_path), n_jobs=1)


def test_datasets_at_an_address(tmp_path: Path) -> None:
    tars = make_dataset(tmp_path / "a", [1]) + make_dataset(tmp_path / "b" / "c", [1])
    assert datasets_at(str(tmp_path), None) == [str(tmp_path)]  # nobody says what it is: one
    for folder in ("a", "b/c"):
        gen_meta(str(tmp_path / folder), n_jobs=1)
    assert datasets_at(str(tmp_path), None) == [str(tmp_path / "a"), str(tmp_path / "b" / "c")]
    assert datasets_at(tars[0], None) == tars[:1]
    gen_meta(str(tmp_path), n_jobs=1)
    assert datasets_at(str(tmp_path), None) == [str(tmp_path)]


def test_no_index_is_written(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", [("a.txt", b"1")])
    index, state = index_of(tar, None)
    assert (index.num_samples, state) == (1, "missing (read from the tar)")
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]
