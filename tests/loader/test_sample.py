"""Names and grouping: one stated rule for packer and reader."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from growth import growth
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import member_names, samples

from loader.errors import BadTar
from loader.sample import (
    HIDDEN,
    NO_EXTENSION,
    SUPERSEDED,
    Groups,
    check_name,
    clean_name,
    group,
    split_name,
    split_number,
    why_no_sample,
)


def grouped(names: list[str], grouping: str = "auto") -> dict[str, list[str]]:
    """Key → the names of its members, in sample order."""
    groups = group(names, grouping)
    spans = itertools.pairwise(groups.begins)
    return {
        key: [groups.names[number] for number in groups.order[first:last]]
        for key, (first, last) in zip(groups.keys, spans, strict=True)
    }


# -- one name


@pytest.mark.parametrize(
    ("name", "key", "extension"),
    [
        ("a.jpg", "a", ".jpg"),
        ("a/b/0001.seg.png", "a/b/0001", ".seg.png"),
        ("p/22.0/1.1.png", "p/22.0/1", ".1.png"),
        ("Track 2.0 (Clean).mp3", "Track 2", ".0 (Clean).mp3"),
        ("IMG_1.JPG", "IMG_1", ".JPG"),
        ("two\nlines.txt", "two\nlines", ".txt"),
        ("back\\slash.txt", "back\\slash", ".txt"),
        (" a b .txt", " a b ", ".txt"),
        ("README", "README", ""),
        ("v1.0/README", "v1.0/README", ""),
        ("", "", ""),
        ("k" * 200 + ".jpg", "k" * 200, ".jpg"),
    ],
)
def test_a_base_name_splits_at_its_first_dot(name: str, key: str, extension: str) -> None:
    assert split_name(name) == (key, extension)


@pytest.mark.parametrize(
    ("extension", "number", "kind"),
    [
        (".0.jpg", 0, ".jpg"),
        (".10.seg.png", 10, ".seg.png"),
        (".007.jpg", 7, ".jpg"),
        (".jpg", -1, ".jpg"),
        (".seg.0.jpg", -1, ".seg.0.jpg"),
        (".0jpg", -1, ".0jpg"),
        (".0", -1, ".0"),
        (".0.", -1, ".0."),
        (".1234567890.jpg", -1, ".1234567890.jpg"),
        (".².jpg", -1, ".².jpg"),
        ("", -1, ""),
    ],
)
def test_an_extension_may_begin_with_a_number(extension: str, number: int, kind: str) -> None:
    assert split_number(extension) == (number, kind)


@given(member_names())
@settings(deadline=None)
def test_key_and_extension_make_the_name_again(name: str) -> None:
    key, extension = split_name(clean_name(name))
    assert key + extension == clean_name(name)
    assert "." not in key[key.rfind("/") + 1 :]


@pytest.mark.parametrize(
    "name", ["./a.jpg", "/a.jpg", "//a.jpg", "././a.jpg", ".//a.jpg", "/./a.jpg", "./././/./a.jpg"]
)
def test_a_leading_slash_or_dot_slash_is_dropped(name: str) -> None:
    assert clean_name(name) == "a.jpg"


@pytest.mark.parametrize("name", ["a.jpg", "a/./b.jpg", "..a.jpg", "a..jpg", "a/..b.jpg", "...", "", "a/b/"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert clean_name(name) == name


@pytest.mark.parametrize("name", ["../a.jpg", "a/../b.jpg", "a/..", "..", "./../a.jpg", "/../a.jpg"])
def test_dot_dot_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"'\.\.'"):
        clean_name(name)
    with pytest.raises(BadTar, match=r"x\.tar: at byte 512 .*'\.\.'"):
        check_name(name.encode(), "x.tar", 512)
    with pytest.raises(ValueError, match=r"'\.\.'"):
        group(["a.jpg", name])


def test_names_need_not_be_utf_8() -> None:
    assert check_name(b"caf\xe9.txt", "x.tar", 0) == "caf\udce9.txt"
    assert check_name("café.txt".encode(), "x.tar", 0) == "café.txt"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".DS_Store", HIDDEN),
        ("a/.DS_Store", HIDDEN),
        ("._a.jpg", HIDDEN),
        ("x/._a.jpg", HIDDEN),
        (".hidden/a.jpg", HIDDEN),
        ("x/.hidden/a.jpg", HIDDEN),
        ("__MACOSX/a.jpg", HIDDEN),
        (".jpg", HIDDEN),
        ("d/", HIDDEN),
        ("", HIDDEN),
        ("README", NO_EXTENSION),
        ("v1.0/README", NO_EXTENSION),
        ("a.", NO_EXTENSION),
        ("a.jpg", None),
        ("_a.jpg", None),
        ("__MACOSXY/a.jpg", None),
        ("a..jpg", None),
        ("v1.0/a.jpg", None),
    ],
)
def test_what_is_no_member_of_a_sample(name: str, reason: str | None) -> None:
    assert why_no_sample(name) == reason
    groups = group([name, "z.txt"])
    assert groups.skipped == ({reason: [name]} if reason else {})
    assert len(groups.keys) == (1 if reason else 2)


# -- samples


def test_a_name_without_a_dot_first() -> None:
    assert grouped(["README", "a.jpg", "a.json", "b.jpg", "b.json"]) == {
        "a": ["a.jpg", "a.json"],
        "b": ["b.jpg", "b.json"],
    }


def test_the_files_of_a_key_apart() -> None:
    assert grouped(["0.a", "1.a", "0.b", "1.b"]) == {"0": ["0.a", "0.b"], "1": ["1.a", "1.b"]}


def test_case_is_kept_in_names_and_told_apart_in_keys() -> None:
    assert grouped(["IMG_1.JPG", "img_1.jpg", "IMG_1.Json", "a.JPG", "a.jpg"]) == {
        "IMG_1": ["IMG_1.JPG", "IMG_1.Json"],
        "img_1": ["img_1.jpg"],
        "a": ["a.JPG", "a.jpg"],
    }


def test_keys_that_are_equal_in_their_first_128_characters() -> None:
    keys = ["k" * 128 + "1", "k" * 128 + "2"]
    assert list(grouped([key + ".jpg" for key in keys])) == keys


def test_of_one_name_twice_the_later_wins() -> None:
    groups = group(["a.jpg", "b.jpg", "./a.jpg", "a.txt", "a.jpg", "README", "README"])
    assert groups.keys == ["b", "a"]
    assert groups.order == [1, 3, 4]
    assert groups.skipped[SUPERSEDED] == ["a.jpg", "a.jpg"]
    assert groups.skipped[NO_EXTENSION] == ["README", "README"]


def test_superseded_members_leave_the_same_order_numbered_or_not() -> None:
    names = ["a.json", "b.json", "a.json", "b-0.jpg"]
    assert list(grouped(names)) == list(grouped(names[:3])) == ["b", "a"]


def test_folders_are_part_of_the_key() -> None:
    assert list(grouped(["x/a.jpg", "y/a.jpg", "./x/a.txt", "/y/a.txt"])) == ["x/a", "y/a"]


def test_nothing() -> None:
    assert group([]) == Groups("plain", [], [], [0], [])


# -- numbered images


def test_numbered_images_in_the_order_of_their_numbers() -> None:
    names = [*(f"k-{n}.jpg" for n in (10, 2, 0, 1, 9, 8, 7, 6, 5, 4, 3)), "k.json", "z.json"]
    assert group(names).rule == "numbered"
    assert grouped(names) == {"k": ["k.json", *(f"k-{n}.jpg" for n in range(11))], "z": ["z.json"]}


def test_numbered_images_of_several_types_and_in_folders_with_hyphens() -> None:
    names = ["a-1/k-0.jpg", "a-1/k.json", "a-1/k-1.png"]
    assert grouped(names) == {"a-1/k": ["a-1/k.json", "a-1/k-0.jpg", "a-1/k-1.png"]}


def test_a_glued_sample_stands_where_its_first_member_stands() -> None:
    assert list(grouped(["b-0.jpg", "a.json", "b.json", "a-0.jpg"])) == ["b", "a"]


FITS = ["k.json", "k-0.jpg", "k-1.jpg", "m.json", "m-0.png", "t.json"]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("k-1.txt", "several members"),  # a hyphen that is part of a key
        ("k-3.jpg", "gap"),
        ("n-0.jpg", "no sample 'n'"),
        ("k.txt", "made of one .json"),
        ("a-b.json a-b-0.jpg", "made of one .json"),
        ("o.txt o-0.jpg", "made of one .json"),
        ("p.json p-1.jpg", "gap"),
    ],
)
def test_one_name_that_does_not_fit_makes_the_whole_tar_plain(extra: str, reason: str) -> None:
    names = [*FITS, *extra.split()]
    assert group(FITS).rule == "numbered"
    groups = group(names)
    assert groups.rule == "plain"
    assert sorted(groups.order) == list(range(len(names)))
    with pytest.raises(ValueError, match=reason):
        group(names, "numbered")


@pytest.mark.parametrize(
    "extra", ["x-00.jpg", "x-01.jpg", "x-a.jpg", "x-.jpg", "x-1a.jpg", "x--.jpg", "x-1-a.jpg"]
)
def test_hyphens_that_are_no_number_of_ours_are_no_obstacle(extra: str) -> None:
    assert grouped([*FITS, extra])[extra[:-4]] == [extra]
    assert group([*FITS, extra]).rule == "numbered"


def test_a_tar_from_elsewhere_is_not_glued() -> None:
    names = ["img-1.jpg", "img-1.txt", "img-2.jpg", "img-2.txt"]
    assert grouped(names) == {"img-1": names[:2], "img-2": names[2:]}
    assert list(grouped(["img-0.jpg", "img-1.jpg", "img.txt"])) == ["img-0", "img-1", "img"]


def test_a_caller_may_override_the_rule() -> None:
    assert list(grouped(FITS, "plain")) == ["k", "k-0", "k-1", "m", "m-0", "t"]
    for nothing_numbered in (["a.json"], ["a-x.json"], []):
        assert group(nothing_numbered, "numbered").rule == "numbered"
    with pytest.raises(ValueError, match="auto, numbered, plain"):
        group(FITS, "hyphen")


# -- what holds for all names


@given(
    st.lists(
        st.one_of(
            member_names(),
            st.builds("{}{}{}".format, st.sampled_from("kmn"), st.sampled_from(("", "-0", "-1", "-2", "-01")),
                      st.sampled_from((".json", ".jpg", ".JSON", ""))),
        ),
        max_size=12,
    ),
    st.sampled_from(("auto", "plain")),
)  # fmt: skip
@settings(deadline=None, max_examples=300)
def test_each_name_is_in_one_sample_or_is_told(names: list[str], grouping: str) -> None:
    groups = group(names, grouping)
    assert groups.names == [clean_name(name) for name in names]
    assert groups.begins[0] == 0 and groups.begins[-1] == len(groups.order)
    assert all(first < last for first, last in itertools.pairwise(groups.begins))
    assert len(set(groups.keys)) == len(groups.keys) == len(groups.begins) - 1
    told = [name for left in groups.skipped.values() for name in left]
    assert Counter(told) + Counter(groups.names[n] for n in groups.order) == Counter(groups.names)
    assert len(set(groups.order)) == len(groups.order)
    firsts = []
    for key, (first, last) in zip(groups.keys, itertools.pairwise(groups.begins), strict=True):
        members = groups.order[first:last]
        firsts.append(min(members))
        stems = [split_name(groups.names[n])[0] for n in members]
        if groups.rule == "plain":
            assert set(stems) == {key} and members == sorted(members)
        else:
            assert stems in ([key] * len(stems), [key, *(f"{key}-{i}" for i in range(len(stems) - 1))])
    assert firsts == sorted(firsts)
    assert group(names, grouping) == groups


@given(samples())
@settings(deadline=None)
def test_what_our_packer_writes_comes_back(shard: list[tuple[str, list[tuple[str, bytes]]]]) -> None:
    names = [key + suffix for key, members in shard for suffix, _ in members]
    assert grouped(names) == {key: [key + suffix for suffix, _ in members] for key, members in shard}


def test_many_names_take_linear_time() -> None:
    few, many = (
        [f"{n:08d}{end}" for n in range(count) for end in (".json", "-0.jpg", "-1.jpg")]
        for count in (1_000, 20_000)
    )
    assert len(group(many).keys) == 20_000
    assert growth(lambda: group(few), lambda: group(many)) < 150  # quadratic: 400


@pytest.mark.parametrize("numbered", [True, False])
def test_one_key_many_members_takes_linear_time(numbered: bool) -> None:
    few, many = (
        ["k.json", *(f"k-{n}.jpg" for n in range(count))] if numbered else ["k.jpg"] * count
        for count in (1_500, 30_000)
    )
    assert len(group(many).keys) == 1
    assert growth(lambda: group(few), lambda: group(many)) < 150  # quadratic: 400
