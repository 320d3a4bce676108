"""Statistics as a picture: one HTML page, or one PNG, with bars and nothing from anywhere else."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import NamedTuple

from loader import storage
from loader.errors import BadConfig
from loader.progress import human_size, printable
from loader.stats import Stats, bins, counted, histograms

_MOST = 24  # bars of a chart
_BAR_HEIGHT, _LABELS, _BARS, _VALUES = 22, 300, 460, 140  # pixels
_WIDTH = _LABELS + _BARS + _VALUES
_STYLE = """
:root { color-scheme: light dark; --paper: #f4f3ef; --ink: #1d1d1f; --soft: #6d6d72; --bar: #2456c9; }
@media (prefers-color-scheme: dark) { :root { --paper: #141416; --ink: #ececef; --soft: #9b9ba2; --bar: #8fb1ff; } }
body { background: var(--paper); color: var(--ink); margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  font: 16px/1.5 system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
p { color: var(--soft); margin: 0; } svg { width: 100%; height: auto; display: block; }
text { fill: var(--ink); font: 13px system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
rect { fill: var(--bar); }
"""


class Chart(NamedTuple):
    """Bars below a title: (label, length, what is written behind it)."""

    title: str
    bars: Sequence[tuple[str, float, str]]


def draw(address: str, found: Sequence[Stats]) -> None:
    """Write an ``.html`` or ``.png`` file; BadConfig for another name."""
    check(address)
    made = page(found) if address.lower().endswith(".html") else picture(found)
    storage.write_bytes(storage.normalise(address), made)


def check(address: str) -> None:
    """BadConfig, before hours of counting, for a name that says neither kind."""
    if not address.lower().endswith((".html", ".png")):
        raise BadConfig(f"{address}: a name that ends in .html or .png was expected")


def charts(found: Stats) -> list[Chart]:
    """What there is to draw."""
    made = [
        Chart(f"{title}, {unit}", [(f"{low:,} …", count, f"{count:,}") for low, count in bins(histogram)])
        for title, unit, histogram in histograms(found.contents)
    ]
    made.append(Chart("Members", [(kind, count, f"{count:,}") for kind, count in found.extensions.items()]))
    made.append(Chart("Bytes", [(kind, size, human_size(size)) for kind, size in found.bytes.items()]))
    made += [
        Chart(title, [(name, count, f"{count:,}") for name, count in counts.items()])
        for title, _, counts in counted(found)
    ]
    return [
        chart._replace(bars=[(_short(label), *rest) for label, *rest in _most(chart.bars)])  # type: ignore[misc]
        for chart in made
        if chart.bars
    ]


def _most(bars: Sequence[tuple[str, float, str]]) -> Sequence[tuple[str, float, str]]:
    if len(bars) <= _MOST:
        return bars
    rest = sum(value for _, value, _ in bars[_MOST - 1 :])
    return [*bars[: _MOST - 1], ("(others)", rest, f"{rest:,.0f}")]


def _short(label: str) -> str:
    text = printable(label)
    return text if len(text) <= 44 else text[:43] + "…"


def _summary(found: Stats) -> str:
    return f"{found.samples:,} samples in {found.tars:,} tars, {human_size(found.size)}"


def page(found: Sequence[Stats]) -> bytes:
    """An HTML page. Whatever names and reasons say is text; the page may load nothing."""
    parts = []
    for one in found:
        parts.append(f"<h1>{_text(one.path)}</h1>\n<p>{_text(_summary(one))}</p>")
        parts += [f"<h2>{_text(chart.title)}</h2>\n{_svg(chart)}" for chart in charts(one)]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Statistics</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    ).encode()


def _text(text: str) -> str:
    return html.escape(printable(text))


def _svg(chart: Chart) -> str:
    most = max(value for _, value, _ in chart.bars) or 1
    lines = []
    for number, (label, value, told) in enumerate(chart.bars):
        top = number * _BAR_HEIGHT
        length = _BARS * value / most
        lines.append(
            f'<text x="{_LABELS - 10}" y="{top + 15}" text-anchor="end">{_text(label)}</text>'
            f'<rect x="{_LABELS}" y="{top + 3}" width="{length:.1f}" height="{_BAR_HEIGHT - 6}" rx="2"/>'
            f'<text x="{_LABELS + length + 8:.1f}" y="{top + 15}">{_text(told)}</text>'
        )
    height = len(chart.bars) * _BAR_HEIGHT
    body = "\n".join(lines)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_text(chart.title)}">\n{body}\n</svg>'
    )


def picture(found: Sequence[Stats]) -> bytes:
    """The same as a PNG."""
    from PIL import Image, ImageDraw, ImageFont

    small, large = ImageFont.load_default(13), ImageFont.load_default(18)
    every = [(one, charts(one)) for one in found]
    height = sum(60 + sum(50 + len(chart.bars) * _BAR_HEIGHT for chart in drawn) + 20 for _, drawn in every)
    image = Image.new("RGB", (_WIDTH + 40, height), "white")
    pen = ImageDraw.Draw(image)
    top = 0
    for one, drawn in every:
        pen.text((20, top + 12), printable(one.path), "black", large)
        pen.text((20, top + 38), _summary(one), "#6d6d72", small)
        top += 60
        for chart in drawn:
            pen.text((20, top + 18), chart.title, "black", large)
            top += 50
            most = max(value for _, value, _ in chart.bars) or 1
            for label, value, told in chart.bars:
                length = _BARS * value / most
                pen.text((_LABELS + 10, top + 3), label, "black", small, anchor="ra")
                pen.rectangle(
                    (_LABELS + 20, top + 3, _LABELS + 20 + length, top + _BAR_HEIGHT - 4), "#2456c9"
                )
                pen.text((_LABELS + 28 + length, top + 3), told, "black", small)
                top += _BAR_HEIGHT
        top += 20
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
