"""Values inside a JSON document by dotted path: ``metadata.aesthetic``, ``images.0.width``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

_DEEPEST = 8
_MOST_KNOWN = 200
_ALIKE = 0.65


def find(document: Any, path: str) -> Any:
    """The value at `path`, or None. Numbers count in lists; a name that holds dots itself is found as well."""
    if isinstance(document, dict):
        if path in document:
            return document[path]
        dot = path.find(".")
        while dot >= 0:
            inner = document.get(path[:dot])
            if isinstance(inner, (dict, list)):
                value = find(inner, path[dot + 1 :])
                if value is not None:
                    return value
            dot = path.find(".", dot + 1)
    elif isinstance(document, list):
        number, _, rest = path.partition(".")
        if number.isascii() and number.isdigit() and len(number) < 10 and int(number) < len(document):
            item = document[int(number)]
            return find(item, rest) if rest else item
    return None


def paths(document: Any) -> list[str]:
    """The dotted paths of the values in a document, the first few hundred; of lists the first item stands for all."""
    found: list[str] = []
    for path in _walk(document, "", 0):
        found.append(path)
        if len(found) == _MOST_KNOWN:
            break
    return found


def _walk(value: Any, path: str, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and depth < _DEEPEST:
        for name, inner in value.items():
            yield from _walk(inner, f"{path}.{name}" if path else str(name), depth + 1)
    elif isinstance(value, list) and value and isinstance(value[0], (dict, list)) and depth < _DEEPEST:
        yield from _walk(value[0], f"{path}.0" if path else "0", depth + 1)
    elif path:
        yield path


def nearest(wrong: str, known: Iterable[str]) -> str:
    """A sentence for an error: the name that was probably meant, else those that there are."""
    names = list(dict.fromkeys(known))

    def likeness(name: str) -> tuple[float, float]:
        whole = difflib.SequenceMatcher(None, wrong, name).ratio()
        # A path whose last part is right, or nearly so, at another place.
        last = difflib.SequenceMatcher(None, wrong.rpartition(".")[2], name.rpartition(".")[2]).ratio()
        return max(whole, last), whole

    best = max(names, key=likeness, default="")
    if best and likeness(best)[0] >= _ALIKE:
        return f"did you mean {best!r}?"
    return (
        f"there are {', '.join(names[:12])}{', …' if len(names) > 12 else ''}" if names else "there are none"
    )
