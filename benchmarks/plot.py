"""A picture of a question's answers: for each peer the ratio, its spread and its target, on one logarithmic axis.

Written as SVG by hand: the same bytes for the same numbers, no library, and a picture that a diff can show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from harness import Answer

WIDTH, LEFT, RIGHT, LINE = 900, 350, 80, 20
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
MET, MISSED, PLAIN = "#2a7d4f", "#c0392b", "#5b6b7b"


@dataclass(frozen=True)
class Point:
    """One line: how many times as good ours is. `target` in the same unit."""

    label: str
    ratio: float
    low: float
    high: float
    target: float | None
    verdict: str

    @property
    def colour(self) -> str:
        if self.target is None:
            return PLAIN
        return MISSED if self.verdict.startswith("NOT MET") else MET


def points(answer: Answer) -> list[Point]:
    """Peers, then limits: of these, how many times what was measured would fit into the limit."""
    found = [Point(c.peer, c.ratio, c.low, c.high, c.target, c.verdict) for c in answer.cells]
    for limit in answer.limits:
        values = limit.get("values") or [limit["bytes"]]
        room = [limit["limit"] / max(value, limit["limit"] * 1e-3) for value in (limit["bytes"], *values)]
        word = "met" if limit["met"] else "NOT MET"
        found.append(Point(f"limit ÷ {limit['title']}", room[0], min(room), max(room), 1.0, word))
    return found


def svg(answers: Sequence[Answer]) -> str:
    """All answers below each other, on one axis."""
    groups = [(answer.title, points(answer)) for answer in answers]
    groups = [group for group in groups if group[1]]
    every = [point for _, found in groups for point in found]
    if not every:
        return _page(LINE, [])
    low = min(0.8, *(min(p.low, p.target or p.low) for p in every))
    high = max(1.25, *(max(p.high, p.target or p.high) for p in every))
    begin, span = math.log(low) - 0.05, math.log(high) - math.log(low) + 0.1

    def x(value: float) -> float:
        return LEFT + (math.log(value) - begin) / span * (WIDTH - LEFT - RIGHT)

    body: list[str] = []
    y = 10.0
    for title, found in groups:
        y += LINE
        body.append(_text(10, y, title, weight="bold"))
        for point in found:
            y += LINE
            body += _line(point, x, y)
        y += LINE / 2
    axis = [
        f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="14" y2="{y:.1f}" stroke="{"#222" if tick == 1 else "#e3e6ea"}"/>'
        + _text(x(tick), y + 16, f"{tick:g} ×", anchor="middle")
        for tick in TICKS
        if low <= tick <= high
    ]
    foot = "Ours against each: right of 1 ours is faster (or smaller). Line: all runs. Tick: target."
    return _page(y + 46, [*axis, *body, _text(10, y + 36, foot)])


def _line(point: Point, x: Callable[[float], float], y: float) -> list[str]:
    middle, colour = y - 4, point.colour
    parts = [
        _text(LEFT - 12, y, point.label, anchor="end"),
        (
            f'<line x1="{x(point.low):.1f}" x2="{x(point.high):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" '
            f'stroke="{colour}" stroke-width="3" opacity="0.45"/>'
        ),
        f'<circle cx="{x(point.ratio):.1f}" cy="{middle:.1f}" r="4.5" fill="{colour}"/>',
        _text(WIDTH - RIGHT + 12, y, f"{point.ratio:.3g} ×", colour=colour),
    ]
    if point.target is not None:
        at = x(point.target)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{middle - 7:.1f}" y2="{middle + 7:.1f}" stroke="#222" '
            'stroke-width="2"/>'
        )
    return parts


def _text(
    x: float, y: float, text: str, anchor: str = "start", weight: str = "normal", colour: str = "#222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def _page(height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"
