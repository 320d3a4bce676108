"""Rows that were left out, by the kind of their reason: what is wrong most often, with an example of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tasks.manifest import BadRow

_MOST = 20  # kinds that are told apart; the others are one
_ADDRESS = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*:/)?/.*?: "
)  # what a reason begins with, where it is a file's
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"\d[\d,.]*")


class Reason(NamedTuple):
    """So many rows for such a reason; `example` is one of them, as a person would name it."""

    kind: str
    rows: int
    example: str


def kind(row: BadRow) -> str:
    """The reason without what belongs to this row alone: addresses, names, numbers."""
    reason = _ADDRESS.sub("", row.reason, count=1)
    reason = _NUMBER.sub("N", _QUOTED.sub("'…'", reason))
    return f"{row.stage}: {reason if len(reason) <= 120 else reason[:119] + '…'}"


def by_reason(rows: Iterable[BadRow]) -> tuple[Reason, ...]:
    """The reasons, most frequent first; what is rare among very many is put together at the end."""
    counts: dict[str, int] = {}
    examples: dict[str, str] = {}
    for row in rows:
        name = kind(row)
        if name not in counts and len(counts) == 50 * _MOST:
            name = "other reasons"
        counts[name] = counts.get(name, 0) + 1
        examples.setdefault(name, str(row))
    found = sorted(
        (Reason(name, count, examples[name]) for name, count in counts.items()),
        key=lambda reason: (-reason.rows, reason.kind),
    )
    rest = found[_MOST:]
    if len(rest) > 1:
        found[_MOST:] = [Reason("other reasons", sum(reason.rows for reason in rest), rest[0].example)]
    return tuple(found)
