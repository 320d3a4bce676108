"""Which of a sample's texts is used, and what becomes of the ``<image_n>`` in it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from loader.draws import CAPTION, uniform
from loader.errors import BadConfig, BadSample
from loader.fields import find, nearest, paths

Sources: TypeAlias = str | Sequence[str] | Mapping[str, float]

DEFAULT = ("caption", ".txt")

_PLACEHOLDER = re.compile(r"<image_([0-9]+)>")
_SHOWN = 40


class Captions:
    """Where captions are found, with what weight.

    A source is a dotted path into the sample's JSON (``caption``, ``caption_all.instruction``), or an extension
    (``.txt``). What stands there is a text, or a list or object of texts, of which each is as likely. `sources`: one
    source, a list of equally likely ones, or a mapping to weights, which needn't add up to 1; of those that a sample
    lacks the weight falls to the others. None: ``caption``, or ``.txt`` where there is none. BadConfig for what
    can't be meant.
    """

    def __init__(self, sources: Sources | None = None) -> None:
        self.first_alone = sources is None
        if sources is None:
            sources = DEFAULT
        weights = sources if isinstance(sources, Mapping) else dict.fromkeys(_listed(sources), 1.0)
        if not weights:
            raise BadConfig("captions is empty: name at least one, such as 'caption' or '.txt'")
        for source, weight in weights.items():
            if not isinstance(source, str) or not source.strip(".") or source != source.strip():
                raise BadConfig(
                    f"captions: {source!r} was given, a path such as 'caption_all.short' or an extension such as "
                    "'.txt' was expected"
                )
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
                raise BadConfig(
                    f"captions: the weight of {source!r} is {weight!r}: a number from 0 on was expected"
                )
        self.weights = {source: float(weight) for source, weight in weights.items() if weight > 0}
        if not self.weights:
            raise BadConfig("captions: all weights are 0, so that none would ever be chosen")

    def __repr__(self) -> str:
        return f"Captions({None if self.first_alone else self.weights})"

    @property
    def extensions(self) -> list[str]:
        """The extensions that the sources name."""
        return [source.lower() for source in self.weights if source.startswith(".")]

    def texts(self, sample: Mapping[str, Any]) -> list[tuple[float, str]]:
        """(weight, text) of all that a sample has; BadSample where something else than text stands there."""
        found: list[tuple[float, str]] = []
        for source, weight in self.weights.items():
            value = (
                sample.get(source.lower()) if source.startswith(".") else find(sample.get(".json"), source)
            )
            texts = _texts(value, source)
            if texts:
                found += [(weight / len(texts), text) for text in texts]
                if self.first_alone:
                    break
        return found

    def choose(self, sample: Mapping[str, Any], seed: int, epoch: int, index: int) -> str:
        """One text, chosen by these numbers alone; BadSample where there is none."""
        found = self.texts(sample)
        if len(found) == 1:
            return found[0][1]
        if not found:
            wanted = " or ".join(self.weights)
            raise BadSample(f"no text at {wanted}: {nearest(next(iter(self.weights)), _known(sample))}")
        left = uniform(seed, epoch, CAPTION, index) * sum(weight for weight, _ in found)
        for weight, text in found:
            left -= weight
            if left < 0:
                return text
        return found[-1][1]


def _listed(sources: object) -> Sequence[Any]:
    if isinstance(sources, str):
        return [sources]
    if isinstance(sources, (list, tuple)):
        return sources
    raise BadConfig(
        f"captions is {sources!r}: a path, a list of paths, or a mapping of paths to weights was expected"
    )


def _texts(value: Any, source: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(items, list) and all(isinstance(item, str) for item in items):
        return items
    shown = ascii(value)
    raise BadSample(
        f"what stands at {source!r} is {type(value).__name__} {shown[:_SHOWN]}{'…' if len(shown) > _SHOWN else ''}: "
        "a text was expected, or several in a list or an object"
    )


def _known(sample: Mapping[str, Any]) -> list[str]:
    return [
        *paths(sample.get(".json")),
        *(name for name in sample if name.startswith(".") and name != ".json"),
    ]


def strip_placeholders(text: str) -> str:
    """The text without ``<image_n>``, and without the white space that would be left over in its place."""
    if "<image_" not in text:
        return text
    first, *rest = _PLACEHOLDER.split(text)[::2]  # the numbers stand between
    kept = [first]
    for piece in rest:
        glued = kept[-1] and not kept[-1][-1].isspace()
        piece = piece if glued else piece.lstrip()
        if piece:
            kept.append(piece)
    return "".join(kept).strip()


def segments(text: str, pictures: int) -> list[str | int]:
    """A text with ``<image_n>`` → its parts in order: texts as they stand, and the numbers of pictures.

    BadSample unless each of the pictures 0 … n-1 has one placeholder, and there are no others.
    """
    pieces = _PLACEHOLDER.split(text)
    numbers = pieces[1::2]
    wanted = [str(number) for number in range(pictures)]
    if numbers != wanted and sorted(numbers) != sorted(wanted):
        shown = " ".join(f"<image_{number[:_SHOWN]}>" for number in numbers[:6]) or "none"
        raise BadSample(
            f"{pictures} picture{'' if pictures == 1 else 's'}, and these placeholders in the text: {shown}"
            f"{' …' if len(numbers) > 6 else ''}. Each picture must have one, from <image_0> on"
        )
    parts: list[str | int] = []
    for place, piece in enumerate(pieces):
        if place % 2:
            parts.append(int(piece))
        elif piece:
            parts.append(piece)
    return parts
