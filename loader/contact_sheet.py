"""Samples to look at: one HTML file with pictures and captions, which needs nothing beside itself.

Pictures are embedded as small JPEGs. Captions, keys and details come from anywhere and are only ever text: they
are escaped, and the page's own policy forbids scripts and any access to the network should that ever fail.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loader import storage

if TYPE_CHECKING:
    from PIL import Image

# (key, caption, RGB pictures in their order, what else is worth knowing: name → value)
Sample = tuple[str, str, Sequence["Image.Image"], Mapping[str, Any]]

# What is said above the samples: a title, and rows of two cells.
Table = tuple[str, Sequence[tuple[str, str]]]

_SIDE = 560  # pixels of a thumbnail's longer side: twice what a card shows, for sharp screens
_PLACEHOLDER = re.compile(r"&lt;image_(\d+)&gt;")  # in escaped text

_STYLE = """
:root { color-scheme: light dark; --paper: #f4f3ef; --card: #fff; --ink: #1d1d1f; --soft: #6d6d72; --line: #e3e1da;
  --mat: #ebe9e3; --mark: #2456c9; --on-mark: #fff; }
@media (prefers-color-scheme: dark) { :root { --paper: #141416; --card: #1f1f22; --ink: #ececef; --soft: #9b9ba2;
  --line: #323237; --mat: #161618; --mark: #8fb1ff; --on-mark: #10131c; } }
* { box-sizing: border-box; margin: 0; }
body { background: var(--paper); color: var(--ink); padding: clamp(1rem, 3vw, 3rem); max-width: 108rem;
  margin: 0 auto; font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
header { margin-bottom: 2rem; }
h1 { font-size: clamp(1.5rem, 3vw, 2.2rem); line-height: 1.2; letter-spacing: -.015em; overflow-wrap: anywhere; }
header p { color: var(--soft); }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1.25rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 12px; overflow: hidden;
  display: flex; flex-direction: column; min-width: 0; }
.pictures { display: grid; gap: 2px; background: var(--line); height: 14.5rem; }
.of-2 { grid-template-columns: 1fr 1fr; } .of-3 { grid-template-columns: 1fr 1fr 1fr; }
.of-4, .of-more { grid-template-columns: 1fr 1fr; grid-auto-rows: 1fr; }
.of-more { grid-template-columns: 1fr 1fr 1fr; }
figure { position: relative; background: var(--mat); min-width: 0; min-height: 0; }
img { position: absolute; inset: 0; width: 100%; height: 100%; object-fit: contain; }
.mark { background: var(--mark); color: var(--on-mark); border-radius: 5px; font-weight: 650; font-size: .72rem;
  line-height: 1; padding: .2em .45em; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure .mark { position: absolute; left: .5rem; top: .5rem; box-shadow: 0 0 0 1.5px #fff8; }
.words { padding: 1rem 1.1rem; flex: 1; }
.caption { overflow: auto; overflow-wrap: anywhere; max-height: 13.5em; unicode-bidi: isolate;
  white-space: pre-line; }
.caption .mark { position: relative; top: -.1em; margin: 0 .2em; }
.alone { display: flex; align-items: center; padding: 1.6rem 1.6rem .6rem; }
.alone .caption { font: 1.18rem/1.5 Georgia, "Noto Serif", "DejaVu Serif", serif; max-height: 20em; }
.nothing { color: var(--soft); font-style: italic; }
footer { border-top: 1px solid var(--line); color: var(--soft); padding: .6rem 1.1rem .7rem; font-size: .78rem; }
footer code { font: .95em ui-monospace, "SFMono-Regular", Menlo, "DejaVu Sans Mono", monospace; color: var(--ink);
  overflow-wrap: anywhere; }
.top { display: flex; justify-content: space-between; gap: 1rem; }
.top span { font-variant-numeric: tabular-nums; white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .7em; margin-top: .25rem; max-height: 9em;
  overflow: auto; }
dd { overflow-wrap: anywhere; unicode-bidi: isolate; }
section { margin-bottom: 2rem; }
h2 { font-size: 1.05rem; margin-bottom: .4rem; overflow-wrap: anywhere; }
section dl { gap: .15rem 1.5em; max-height: none; grid-template-columns: minmax(6em, max-content) 1fr; }
section dt { color: var(--soft); max-width: 40vw; overflow-wrap: anywhere; }
@media print { body { padding: 0; } article { break-inside: avoid; } }
"""

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{count}</p></header>
{tables}<main>
"""
_TAIL = "</main>\n</body>\n</html>\n"


def contact_sheet(
    samples: Iterable[Sample],
    path: str,
    title: str,
    storage_options: storage.StorageOptions | None = None,
    tables: Iterable[Table] = (),
) -> None:
    """Write the sheet to `path` (any address; whole or not at all), samples in the order in which they come.

    Pictures are shrunk one by one as they come, so `samples` may be a generator over many large ones.
    ``<image_n>`` in a caption becomes a mark like the one on picture n; a single picture needs none. `tables` stand
    above them.
    """
    cards, pictures = [], 0
    for number, sample in enumerate(samples, 1):
        cards.append(_card(sample, number))
        pictures += len(sample[2])
    count = f"{_several(len(cards), 'sample')} · {_several(pictures, 'picture')}"
    above = "".join(map(_table, tables))
    head = _HEAD.format(title=_text(title), style=_STYLE, count=count, tables=above)
    with storage.publish(path, storage_options) as stream:
        for part in (head, *cards, _TAIL):
            # A caption may hold half a surrogate pair, which JSON can and UTF-8 can't.
            stream.write(part.encode("utf-8", "backslashreplace"))


def _card(sample: Sample, number: int) -> str:
    key, caption, pictures, details = sample
    shown = "".join(_figure(picture, n, len(pictures)) for n, picture in enumerate(pictures))
    columns = len(pictures) if len(pictures) <= 4 else "more"
    rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in details.items())
    return (
        "<article>"
        + (f'<div class="pictures of-{columns}">{shown}</div>' if shown else "")
        + f'<div class="words{"" if shown else " alone"}">'
        + f'<p class="caption" dir="auto">{_words(caption, len(pictures))}</p></div>'
        + f'<footer><div class="top"><code>{_text(key)}</code><span>{number:,}</span></div>'
        + (f"<dl>{rows}</dl>" if rows else "")
        + "</footer></article>\n"
    )


def _table(table: Table) -> str:
    title, rows = table
    cells = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows)
    return f"<section><h2>{_text(title)}</h2><dl>{cells}</dl></section>\n"


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _words(caption: str, pictures: int) -> str:
    if not caption.strip():
        return '<span class="nothing">no caption</span>'

    def mark(found: re.Match[str]) -> str:
        # A placeholder that no picture answers to stays as it is written: that is what is wrong with it.
        if len(found[1]) > 8 or int(found[1]) >= pictures:
            return found[0]
        return f'<span class="mark">{int(found[1])}</span>' if pictures > 1 else ""

    return _PLACEHOLDER.sub(mark, _text(caption)).strip()


def _figure(picture: Image.Image, number: int, of: int) -> str:
    side = _SIDE if of == 1 else _SIDE * 2 // 3
    small = picture.convert("RGB")
    small.thumbnail((side, side))
    stream = io.BytesIO()
    # Without the profile: it can weigh more than the thumbnail.
    small.save(stream, "JPEG", quality=82, icc_profile=None)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    mark = f'<span class="mark">{number}</span>' if of > 1 else ""
    size = f"{picture.width} × {picture.height}"
    return (
        f'<figure><img alt="picture {number}, {size}" title="{size}" loading="lazy" '
        f'src="data:image/jpeg;base64,{data}">{mark}</figure>'
    )
