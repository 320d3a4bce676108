"""What shards hold, counted: members and bytes by extension, sizes of pictures, lengths of captions.

Counts of many shards add up, in any order. Histograms count whole numbers by the power of two, or one and a half
times it, that they reach: 256, 384, 512, 768, 1,024, … . So the usual sizes of pictures begin a bin of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_PLACEHOLDER = re.compile(r"<image_[0-9]+>")
_MOST_KINDS = 64  # extensions that are told apart; the rest is summed up
OTHERS = "(others)"


def bin_of(number: int) -> int:
    """The lower end of the bin that a whole number falls in: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, …"""
    if number < 2:
        return max(number, 0)
    power = 1 << (number.bit_length() - 1)
    return power + power // 2 if number >= power + power // 2 else power


def caption_length(text: str) -> int:
    """Characters of a caption, without its ``<image_n>``."""
    return len(_PLACEHOLDER.sub("", text) if "<image_" in text else text)


@dataclass
class Histogram:
    """Whole numbers, counted in bins."""

    count: int = 0
    total: int = 0
    low: int | None = None
    high: int | None = None
    bins: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Histogram:
        """Of those numbers."""
        counts = Counter(numbers)
        found = cls(counts.total(), sum(number * times for number, times in counts.items()))
        if counts:
            found.low, found.high = min(counts), max(counts)
        for number, times in counts.items():
            found.bins[bin_of(number)] += times
        return found

    def add(self, other: Histogram) -> None:
        """Count the other's numbers as well."""
        self.count += other.count
        self.total += other.total
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        self.low, self.high = min(lows, default=None), max(highs, default=None)
        self.bins.update(other.bins)

    def value(self) -> dict[str, Any]:
        """As JSON holds it; empty if nothing was counted."""
        if not self.count:
            return {}
        bins = {str(low): times for low, times in sorted(self.bins.items())}
        mean = round(self.total / self.count, 3)
        return {
            "count": self.count,
            "total": self.total,
            "mean": mean,
            "min": self.low,
            "max": self.high,
            "bins": bins,
        }

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Histogram:
        """From what `value` gave; ValueError, TypeError or KeyError if it is nothing of the kind."""
        if not value:
            return cls()
        bins = Counter({int(low): int(times) for low, times in value["bins"].items()})
        return cls(int(value["count"]), int(value["total"]), int(value["min"]), int(value["max"]), bins)


@dataclass
class Contents:
    """What samples hold. `widths` and `heights` are of pictures as seen; `unreadable` ones have none."""

    widths: Histogram = field(default_factory=Histogram)
    heights: Histogram = field(default_factory=Histogram)
    captions: Histogram = field(default_factory=Histogram)
    unreadable: int = 0

    def add(self, other: Contents) -> None:
        """Count the other's samples as well."""
        self.widths.add(other.widths)
        self.heights.add(other.heights)
        self.captions.add(other.captions)
        self.unreadable += other.unreadable

    def value(self) -> dict[str, Any]:
        """As meta_stats.json has it."""
        images: dict[str, Any] = {
            "count": self.widths.count + self.unreadable,
            "width": self.widths.value(),
            "height": self.heights.value(),
        }
        if self.unreadable:
            images["unreadable"] = self.unreadable
        return {"captions": self.captions.value(), "images": images}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Contents:
        """From what `value` gave; ValueError, TypeError or KeyError if it is nothing of the kind."""
        images = value["images"]
        return cls(
            Histogram.from_value(images["width"]),
            Histogram.from_value(images["height"]),
            Histogram.from_value(value["captions"]),
            int(images.get("unreadable", 0)),
        )


def most_frequent(counts: Mapping[str, int], order: Mapping[str, int] | None = None) -> dict[str, int]:
    """Counts by extension, the most frequent (by `order`, where it is given) first; those of rare ones together."""
    by = order or counts
    ranked = sorted(counts.items(), key=lambda item: (item[0] == OTHERS, -by.get(item[0], 0), item[0]))
    rest = sum(count for _, count in ranked[_MOST_KINDS:])
    return dict(ranked[:_MOST_KINDS]) | ({OTHERS: rest} if rest else {})
