"""Rules that say which samples take part, by what is known of them without decoding a picture. Pure.

One flat mapping, rule to value::

    {
        "height": (256, None),                        # lowest and highest, both allowed; None: no limit
        "width": (256, None),
        "area": (65_536, None),                       # height × width, in pixels
        "aspect_ratio": (0.5, 2.0),                   # width / height
        "images": (1, 1),                             # how many pictures the sample has
        "metadata.aesthetic": (5.0, None),            # any number in the JSON, by its dotted path
        "$.score": (0.2, None, 0.9),                  # at the JSON's top level; misses are dropped 9 times in 10
        "keywords": {"watermark": 1.0, "logo": 0.5},  # in any of the captions; with what chance they drop a sample
    }

Of several pictures (or a list of numbers) each must fit. A keyword stands in the text as whole words, in any case;
in scripts that are written without spaces, anywhere. Whether chance drops a sample depends on the seed, its number
in the dataset and the rule: it is the same in every epoch, and a rule more or less changes nothing for the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from zlib import crc32

from loader.captions import Captions
from loader.draws import FILTER, uniform
from loader.errors import BadConfig
from loader.fields import find, nearest

DEFAULT_CACHE = "~/.cache/shardflow/filters"

Size: TypeAlias = tuple[float, float]  # height, width

_SHAPES: Mapping[str, Callable[[float, float], float]] = {
    "height": lambda height, width: height,
    "width": lambda height, width: width,
    "area": lambda height, width: height * width,
    "aspect_ratio": lambda height, width: width / height,
}
_KEYWORDS = "keywords"
_IMAGES = "images"
_RULES = (*_SHAPES, _IMAGES, _KEYWORDS)
_SPACELESS = "\u0e00"  # from here on (Thai, Chinese, Japanese, …) words are mostly not set apart
_LONGEST_SIDE = 1 << 31  # of what can be meant
_USUAL_SIZES = (("metadata.height", "metadata.width"), ("height", "width"))


@dataclass
class Facts:
    """What is known of one sample: its number in the dataset, its text members, its pictures and their measures.

    `present` and `absent` are filled in: the fields that were looked for, and found or not.
    """

    index: int
    sample: Mapping[str, Any]
    pictures: int
    measure: Callable[[], Sequence[Size]]  # by their headers
    present: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both allowed; what lies outside is dropped with chance `drop`."""

    low: float = -math.inf
    high: float = math.inf
    drop: float = 1.0

    @classmethod
    def of(cls, rule: str, value: object) -> Range:
        """From (low, high) or (low, high, drop); BadConfig otherwise."""
        parts = list(value) if isinstance(value, (tuple, list)) else []
        low, high, drop = (*parts, 1.0)[:3] if len(parts) in (2, 3) else (math.nan,) * 3
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        if not (_is_number(low) and _is_number(high) and low <= high and _is_chance(drop)):
            raise BadConfig(
                f"filters: {rule!r} is {value!r}: (lowest, highest) was expected, None for no limit, and maybe a "
                "third number, the chance from 0 to 1 to drop what lies outside"
            )
        return cls(low, high, drop)

    def holds(self, values: Sequence[float]) -> bool:
        """Whether each of them lies inside."""
        return all(self.low <= value <= self.high for value in values)


@dataclass(frozen=True)
class Filters:
    """Rules, and how they are applied; for rules alone a mapping serves.

    `size_fields`: dotted paths in the JSON of (height, width). "auto": ``metadata.height`` and ``metadata.width``, or
    ``height`` and ``width``. Where a sample lacks them, and always with "picture", the headers of its pictures tell.
    `keep_missing`: whether a sample that lacks what a rule is about stays in. `cache`, `jobs`: see
    `loader.filter_scan.scan`. BadConfig for what can't be meant, with the nearest name.
    """

    rules: Mapping[str, Any]
    size_fields: tuple[str, str] | str = "auto"
    keep_missing: bool = False
    cache: str | None = DEFAULT_CACHE
    jobs: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.rules, Mapping):
            raise BadConfig(
                f"filters: {self.rules!r}: a mapping such as {{'height': (256, None)}} was expected"
            )
        object.__setattr__(self, "size_fields", _checked_size_fields(self.size_fields))
        self.parse(Captions(), 0)

    def parse(self, captions: Captions, seed: int) -> Rules:
        """The rules, ready to judge. `captions`: the texts that keywords are looked for in."""
        return Rules(self.rules, captions, seed, self.size_fields, self.keep_missing)


class Rules:
    """Parsed rules; `why_not` says which of them leaves a sample out. See `Filters`."""

    def __init__(
        self,
        rules: Mapping[str, Any],
        captions: Captions,
        seed: int,
        size_fields: tuple[str, str] | str = "auto",
        keep_missing: bool = False,
    ) -> None:
        self.captions, self.seed, self.keep_missing = captions, seed, keep_missing
        self.size_fields = size_fields
        self._shapes: dict[str, Range] = {}
        self._fields: dict[str, Range] = {}
        self._keywords: dict[str, float] = {}
        self._images: Range | None = None
        for rule, value in rules.items():
            if rule == _KEYWORDS:
                self._keywords = _parse_keywords(value)
            elif rule == _IMAGES:
                self._images = Range.of(rule, value)
            elif rule in _SHAPES:
                self._shapes[rule] = Range.of(rule, value)
            else:
                self._fields[_field(rule)] = Range.of(rule, value)

    def __bool__(self) -> bool:
        return bool(self._shapes or self._fields or self._keywords or self._images)

    @property
    def texts(self) -> set[str]:
        """Extensions of the members that rules look into."""
        document = self._fields or (self._shapes and self.size_fields != "picture")
        captions = {*self.captions.extensions, ".json"} if self._keywords else set()
        return captions | ({".json"} if document else set())

    @property
    def paths(self) -> set[str]:
        """The paths in the JSON that rules look at."""
        sizes: set[str] = set()
        if self._shapes and self.size_fields != "picture":
            pairs = _USUAL_SIZES if isinstance(self.size_fields, str) else (self.size_fields,)
            sizes = {path for pair in pairs for path in pair}
        captions = (
            {path for path in self.captions.weights if not path.startswith(".")} if self._keywords else set()
        )
        return {*self._fields, *sizes, *captions}

    @property
    def measures(self) -> bool:
        """Whether rules look at sizes of pictures."""
        return bool(self._shapes)

    def signature(self) -> str:
        """Says the same exactly if the same is kept of the same samples."""
        fields = {"$." + path: limits for path, limits in self._fields.items()}
        ranges = {**self._shapes, **fields, **({_IMAGES: self._images} if self._images else {})}
        rules = {name: [limits.low, limits.high, limits.drop] for name, limits in sorted(ranges.items())}
        texts = [self.captions.weights, self.captions.first_alone] if self._keywords else None
        return json.dumps(
            [
                rules,
                dict(sorted(self._keywords.items())),
                texts,
                self.seed,
                self.size_fields,
                self.keep_missing,
            ]
        )

    def why_not(self, facts: Facts) -> str | None:
        """The first rule that leaves the sample out; None if it takes part.

        BadSample if its texts, or the headers of its pictures, are not what they should be.
        """
        if self._images and self._drops(_IMAGES, self._images, [facts.pictures], facts.index):
            return _IMAGES
        document = facts.sample.get(".json")
        for path, limits in self._fields.items():
            values = numbers(find(document, path))
            (facts.present if values else facts.absent).add(path)
            if self._drops(path, limits, values, facts.index):
                return path
        if self._keywords:
            texts = [text.casefold() for _, text in self.captions.texts(facts.sample)]
            for word, drop in self._keywords.items():
                if any(contains(text, word) for text in texts) and self._chance(word, drop, facts.index):
                    return f"{_KEYWORDS}: {word}"
        if self._shapes:
            sizes = self._sizes(document, facts)
            for name, limits in self._shapes.items():
                values = [_SHAPES[name](height, width) for height, width in sizes]
                if self._drops(name, limits, values, facts.index):
                    return name
        return None

    def _drops(self, name: str, limits: Range, values: Sequence[float], index: int) -> bool:
        if not values:
            return not self.keep_missing
        return not limits.holds(values) and self._chance(name, limits.drop, index)

    def _chance(self, name: str, drop: float, index: int) -> bool:
        return drop >= 1 or (
            drop > 0 and uniform(self.seed, 0, FILTER, index, crc32(name.encode("utf-8", "replace"))) < drop
        )

    def _sizes(self, document: Any, facts: Facts) -> Sequence[Size]:
        fields = self.size_fields
        if fields != "picture":
            for height, width in _USUAL_SIZES if isinstance(fields, str) else (fields,):
                heights, widths = numbers(find(document, height)), numbers(find(document, width))
                if heights and len(heights) == len(widths) and all(map(_is_side, (*heights, *widths))):
                    return list(zip(heights, widths, strict=True))
        return facts.measure()


def numbers(value: Any) -> list[float]:
    """A number, or a list of them, as a list; empty for anything else."""
    values = value if isinstance(value, list) else [value]
    return values if all(isinstance(each, (int, float)) and each == each for each in values) else []


def contains(text: str, word: str) -> bool:
    """Whether a text holds a word, both case-folded, and not as a part of a longer one."""
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        if not (_glued(text[at - 1 : at], word[0]) or _glued(word[-1], text[end : end + 1])):
            return True
        at = text.find(word, at + 1)
    return False


def _glued(left: str, right: str) -> bool:
    return all((each.isalnum() or each == "_") and each < _SPACELESS for each in (left, right))


def _field(rule: object) -> str:
    """A rule's name → the path that it is about; BadConfig if it is none."""
    if isinstance(rule, str):
        path = rule.removeprefix("$.")
        if path != rule and path:
            return path
        if "." in rule.strip("."):
            return rule
    raise BadConfig(
        f"filters: there is no rule {rule!r}: {nearest(str(rule), _RULES)} A field of the JSON is written by its dotted "
        f"path, such as 'metadata.aesthetic'; at the top level, '$.{rule}'"
    )


def _parse_keywords(value: object) -> dict[str, float]:
    words = [value] if isinstance(value, str) else value
    chances = dict.fromkeys(words, 1.0) if isinstance(words, (list, tuple, set, frozenset)) else words
    if not isinstance(chances, Mapping) or not all(
        isinstance(word, str) and word.strip() and _is_chance(chance) for word, chance in chances.items()
    ):
        raise BadConfig(
            f"filters: 'keywords' is {value!r}: a list of words was expected, or a mapping of words to the chance, "
            "from 0 to 1, with which they drop a sample"
        )
    return {word.strip().casefold(): float(chance) for word, chance in chances.items()}


def _checked_size_fields(value: object) -> tuple[str, str] | str:
    if value in ("auto", "picture"):
        return str(value)
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, str) and v for v in value):
        return value[0].removeprefix("$."), value[1].removeprefix("$.")
    raise BadConfig(
        f"size_fields is {value!r}: 'auto', 'picture', or the paths of height and width, such as "
        "('metadata.height', 'metadata.width'), were expected"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _is_side(value: float) -> bool:
    return 1 <= value <= _LONGEST_SIDE


def _is_chance(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1
