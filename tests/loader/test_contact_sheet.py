"""A page that shows what it is given, and nothing that it is given can make it do more."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from loader.contact_sheet import contact_sheet


class Page(HTMLParser):
    """What a browser makes of the file: elements in order, the text of each caption, key and detail."""

    def __init__(self, html):
        super().__init__()
        self.elements = []
        self.text = {"h1": [], "p": [], "code": [], "dt": [], "dd": []}
        self._open = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)
        if tag in self.text:
            self.text[tag].append("")

    def handle_endtag(self, tag):
        assert tag in self._open, f"</{tag}> closes nothing"
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        for tag in reversed(self._open):
            if tag in self.text:
                self.text[tag][-1] += data
                break

    def pictures(self):
        prefix = "data:image/jpeg;base64,"
        sources = [attributes["src"] for tag, attributes in self.elements if tag == "img"]
        assert all(source.startswith(prefix) for source in sources)
        return [Image.open(io.BytesIO(base64.b64decode(source[len(prefix) :]))) for source in sources]


def picture(colour="red", size=(30, 20)):
    return Image.new("RGB", size, colour)


def sheet(tmp_path, samples, title="A title"):
    path = tmp_path / "sheet.html"
    contact_sheet(samples, str(path), title)
    return path.read_text("utf-8")


def test_pictures_captions_keys_and_details_in_order(tmp_path):
    samples = [
        ("k1", "<image_0>one red", [picture("red")], {"shard": "s0.tar"}),
        ("k2", "<image_0>make it blue<image_1>", [picture("lime"), picture("blue")], {}),
        ("k3", "words alone", [], {"row": 7, "credits": "me"}),
    ]
    page = Page(sheet(tmp_path, iter(samples)))
    assert page.text["h1"] == ["A title"]
    assert page.text["p"] == ["3 samples · 3 pictures", "one red", "0make it blue1", "words alone"]
    assert page.text["code"] == ["k1", "k2", "k3"]
    assert list(zip(page.text["dt"], page.text["dd"], strict=True)) == [
        *(("shard", "s0.tar"), ("row", "7"), ("credits", "me")),
    ]
    colours = [image.getpixel((10, 10)) for image in page.pictures()]
    assert [max(range(3), key=lambda band: colour[band]) for colour in colours] == [0, 1, 2]


def test_thumbnails_are_small_and_keep_their_shape(tmp_path):
    page = Page(sheet(tmp_path, [("k", "", [picture(size=(4000, 1000))], {})]))
    (thumbnail,) = page.pictures()
    assert thumbnail.width <= 600 and abs(thumbnail.width / thumbnail.height - 4) < 0.05
    assert [attributes["title"] for tag, attributes in page.elements if tag == "img"] == ["4000 × 1000"]
    assert page.text["p"] == ["1 sample · 1 picture", "no caption"]


HOSTILE = (
    "<script>alert(1)</script>",
    "</p></article></main><h1>pwned</h1>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<image_9> <image_00000000000000000000000001> <image_-1> &lt;image_0&gt; &amp;",
    "<!-- <style>*{display:none}</style>",
    "]]><svg/onload=alert(1)>",
    "\u202egnp.exe \x00 \x1b[31m {title} {0} %s",
    "half a pair: \ud83d",
)


def shown(text):
    """What is left of a text on the page: UTF-8 has no half surrogates, and HTML no carriage returns."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\r\n", "\n").replace("\r", "\n")


def elements_without_pictures(page):
    return [(tag, attributes) for tag, attributes in page.elements if tag != "img"]


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60)), st.sampled_from(HOSTILE))
def test_hostile_text_is_only_text(tmp_path, text, other):
    plain = Page(sheet(tmp_path, [("k", "word", [picture(), picture()], {"d": "v"})], "title"))
    html = sheet(tmp_path, [(text, "x " + text, [picture(), picture()], {text: other})], other)
    page = Page(html)
    marks = [("span", {"class": "mark"})]
    found = [element for element in elements_without_pictures(page) if element not in marks]
    assert found == [element for element in elements_without_pictures(plain) if element not in marks]
    for image in page.elements:
        assert not any(name.startswith("on") for name in image[1])
    assert page.text["code"] == [shown(text)] == page.text["dt"]
    assert page.text["dd"] == [shown(other)]


def test_a_placeholder_without_its_picture_stays_to_be_seen(tmp_path):
    page = Page(sheet(tmp_path, [("k", "<image_0> and <image_2>", [picture(), picture()], {})]))
    assert page.text["p"][1] == "0 and <image_2>"


def test_the_page_needs_nothing_and_may_do_nothing(tmp_path):
    html = sheet(tmp_path, [("k", "c", [picture()], {})])
    page = Page(html)
    policy = [a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert not {"script", "link", "iframe", "object", "a"} & {tag for tag, _ in page.elements}
    assert not re.search(r"https?://|url\(|@import", html)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 11])
def test_any_number_of_pictures(tmp_path, count):
    page = Page(sheet(tmp_path, [("k", "c", [picture()] * count, {})]))
    assert len(page.pictures()) == count


def test_whole_or_not_at_all_at_any_address(tmp_path):
    def broken():
        yield ("k", "c", [picture()], {})
        raise RuntimeError("the reader failed")

    with pytest.raises(RuntimeError):
        contact_sheet(broken(), str(tmp_path / "sheet.html"), "t")
    assert list(tmp_path.iterdir()) == []
    contact_sheet([], "memory://sheets/empty.html", "t")
    assert b"0 samples" in fsspec.filesystem("memory").cat("/sheets/empty.html")


def test_pictures_given_are_left_as_they_were(tmp_path):
    given_picture = picture(size=(2000, 1000))
    sheet(tmp_path, [("k", "c", [given_picture, picture().convert("RGBA")], {})])
    assert given_picture.size == (2000, 1000)
