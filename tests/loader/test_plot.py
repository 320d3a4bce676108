"""Pages and pictures of statistics, and hostile names in them."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from loader.contents import Contents, Histogram
from loader.errors import BadConfig
from loader.plot import charts, draw, page, picture
from loader.stats import Stats

EVIL = "</title><script>alert(1)</script>\x1b[31m"


def made(**changes: object) -> Stats:
    numbers = Histogram.of([300] * 7 + [512] * 3 + [2000])
    values = {
        "path": "/data/photos", "source": "the tars", "samples": 11, "tars": 2, "size": 5 << 20,
        "extensions": {".jpg": 11, ".json": 11}, "bytes": {".jpg": 5 << 20, ".json": 900},
        "contents": Contents(numbers, numbers, Histogram.of(range(50))),
    } | changes  # fmt: skip
    return Stats(**values)  # type: ignore[arg-type]


def test_what_is_drawn() -> None:
    titles = [chart.title for chart in charts(made(outcomes={"as it is": 3}, skipped_rows={"read: gone": 1}))]
    assert titles == [
        "Width of pictures, pixels", "Height of pictures, pixels", "Length of captions, characters", "Members", "Bytes",
        "Pictures as packed", "Rows that were left out",
    ]  # fmt: skip
    empty = made(contents=Contents(), extensions={}, bytes={})
    assert charts(empty) == []
    page([empty]), picture([empty])


def test_the_page_says_every_number_and_loads_nothing() -> None:
    text = page([made(), made(path="/other")]).decode()
    for piece in ("/data/photos", "/other", "11 samples in 2 tars, 5.00 MiB", ">5.00 MiB<", ">256 …<", ">7<"):
        assert piece in text
    for forbidden in ("http:", "https:", "<script", "src=", "url("):
        assert forbidden not in text
    for svg in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + svg.split("</svg>")[0] + "</svg>")


def test_names_are_text_and_nothing_else() -> None:
    hostile = made(path=EVIL, extensions={EVIL: 5}, bytes={EVIL: 5}, skipped_rows={EVIL: 1})
    text = page([hostile]).decode()
    assert "<script" not in text and "\x1b" not in text and "&lt;script&gt;" in text
    picture([hostile])


def test_bars_are_as_long_as_their_numbers() -> None:
    data = picture([made()])
    with Image.open(io.BytesIO(data)) as image:
        blue = Counter(y for y in range(image.height) for x in range(image.width) if image.getpixel((x, y)) == (36, 86, 201))  # fmt: skip
    lengths = sorted(set(blue.values()), reverse=True)
    assert lengths[0] == 461  # the longest fills its room
    assert data == picture([made()])


def test_very_many_bars_are_put_together() -> None:
    many = made(extensions={f".x{n}": 100 - n for n in range(60)})
    (members,) = (chart for chart in charts(many) if chart.title == "Members")
    assert len(members.bars) == 24 and members.bars[-1][0] == "(others)"
    assert sum(value for _, value, _ in members.bars) == sum(100 - n for n in range(60))


def test_the_name_says_which(tmp_path: Path) -> None:
    draw(str(tmp_path / "deep" / "a.PNG"), [made()])
    draw(str(tmp_path / "a.html"), [made()])
    assert (tmp_path / "deep" / "a.PNG").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.html").read_bytes().startswith(b"<!DOCTYPE html>")
    with pytest.raises(BadConfig, match=r"\.html or \.png"):
        draw(str(tmp_path / "a.svg"), [made()])
