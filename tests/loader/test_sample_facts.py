"""What is said of samples without decoding them, against what decoding them says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pictures import encoded, photo, turned
from sidecars import facts
from tars import make_tar

from loader.gen_meta import gen_meta
from loader.images import decode_image
from loader.sample_facts import UNREADABLE, contents_of, is_picture

PICTURES = {
    ".jpg": encoded(photo(40, 60)),
    ".1.jpg": encoded(photo(40, 60), exif=turned(6)),
    ".png": encoded(photo(300, 200), "PNG"),
    ".webp": encoded(photo(20, 70), "WEBP", exif=turned(8)),
    ".jpeg": encoded(photo(9, 9), "PNG"),  # content decides
}


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    """Samples of every kind."""
    long_header = encoded(photo(33, 44), icc_profile=bytes(60_000))
    members = [
        *((f"a{extension}", data) for extension, data in PICTURES.items()),
        ("a.json", json.dumps({"caption": "<image_0>hello", "n": 1}).encode()),
        ("b.json", b"{"),
        ("b.jpg", long_header),
        ("c.txt", b"from a text"),
        ("c.png", b"no picture"),
        ("d.json", b'{"caption": "one"}'),
        ("d.JSON", b'{"caption": "two"}'),
        ("e.txt", b"\xff"),
        ("e.seg.png", b"no picture of the sample"),
        ("f.json", b'["a list"]'),
        ("g.json", b'{"caption": ["x", "y"], "metadata": 5}'),
    ]
    made = make_tar(tmp_path / "ds" / "x.tar", members)
    gen_meta(str(tmp_path / "ds"), n_jobs=1)
    return Path(made)


def test_they_are_what_decoding_says(tar: Path) -> None:
    first = facts(tar)[0]
    assert (first.key, first.caption, first.outcome) == ("a", "<image_0>hello", None)
    assert first.document == {"caption": "<image_0>hello", "n": 1}
    by_name = {picture.name: picture for picture in first.pictures}
    for extension, data in PICTURES.items():
        picture, seen = by_name[f"a{extension}"], decode_image(data)
        assert (picture.width, picture.height) == seen.size
        assert (picture.bytes, picture.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert [by_name[f"a{e}"].format for e in (".jpg", ".jpeg", ".webp")] == ["jpeg", "png", "webp"]


def test_what_is_damaged_is_said(tar: Path) -> None:
    _, b, c, d, e, f, g = facts(tar)
    assert b.document is UNREADABLE and b.caption is None
    assert b.pictures[0][2:4] == (44, 33)  # whose header is longer than what is looked at first
    assert c.caption == "from a text" and c.document is None
    assert c.pictures[0][2:5] == (None, None, None)
    assert d.document == [{"caption": "one"}, {"caption": "two"}]
    assert e.pictures == () and e.caption is None
    assert f.document == ["a list"] and f.caption is None
    assert g.caption == "x" and g.document == {"caption": ["x", "y"], "metadata": 5}


def test_what_they_come_to(tar: Path) -> None:
    found = contents_of(facts(tar))
    assert found.unreadable == 1
    assert found.widths.count == found.heights.count == 6
    assert (found.widths.low, found.widths.high) == (9, 200)
    assert (found.heights.low, found.heights.high) == (9, 300)
    assert (found.captions.count, found.captions.total) == (3, 5 + 11 + 1)


def test_which_members_are_pictures() -> None:
    assert [is_picture(e) for e in (".jpg", ".0.jpg", ".png")] == [True] * 3
    assert [is_picture(e) for e in (".seg.jpg", ".json", ".mp4", ".avif")] == [False] * 4
    assert is_picture(".avif", (".avif",))
