"""Names: which member belongs to which sample, and under which extension.

The rules (the whole of them; docs/format.md shows them with examples):

* A leading ``/`` or ``./`` is dropped; a component ``..`` is refused.
* A base name splits at its first dot: key (folder included) before it, extension (dot included) from it on.
  Extensions are compared in lower case, so ``a.JPG`` and ``a.jpg`` are two members of one extension.
* Members with one key make one sample, adjacent or not; samples come in the order of their first members.
* Of two members with one name the later wins, as it does when a tar is unpacked; the earlier is as if not there.
* Hidden names (a component with a leading dot, or a first one ``__MACOSX``) and names without extension are no
  samples.
* ``numbered`` grouping: ``K-0.jpg``, ``K-1.png``, … are the images of sample ``K``, in the order of their
  numbers. It holds for a whole tar or not at all, and only if every stem that ends in ``-<number>`` fits: it
  has one member, ``K`` holds no hyphen in its base name and has exactly one member of its own, ``K.json``, and
  the numbers of K run 0, 1, 2, … without a gap. Otherwise hyphens mean nothing (``plain``).
* A number at the front of an extension tells members of one kind apart: ``K.0.jpg``, ``K.1.png``, … are images of
  ``K``, in the order of their numbers. Each keeps the extension that it has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from loader.errors import BadTar

GROUPINGS = ("auto", "numbered", "plain")

_NUMBERED = re.compile(r"(?s)(.*)-(0|[1-9][0-9]{0,8})\Z")
_NUMBERED_EXTENSION = re.compile(r"(?s)\.([0-9]{1,9})(\..+)\Z")

HIDDEN = "hidden"
NO_EXTENSION = "no extension"
SUPERSEDED = "superseded by a later member of the same name"


def clean_name(name: str) -> str:
    """A member name without a leading ``/`` or ``./``; ValueError if a component is ``..``."""
    while name[:1] == "/" or name[:2] == "./":
        name = name.lstrip("/") if name[0] == "/" else name[2:]
    if ".." in name and ".." in name.split("/"):
        raise ValueError(f"the name {name!r} holds '..', which could point outside of the archive")
    return name


def split_name(name: str) -> tuple[str, str]:
    """A cleaned member name → (key, extension as stored, with its dot; ``""`` if there is none)."""
    dot = name.find(".", name.rfind("/") + 1)
    if dot < 0:
        return name, ""
    return name[:dot], name[dot:]


def split_number(extension: str) -> tuple[int, str]:
    """``.0.jpg`` → (0, ``.jpg``); an extension that begins with no number → (-1, itself)."""
    numbered = _NUMBERED_EXTENSION.match(extension)
    return (int(numbered[1]), numbered[2]) if numbered else (-1, extension)


def why_no_sample(name: str) -> str | None:
    """The reason why a cleaned name is no member of any sample; None if it is one."""
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot == base or name[:1] == "." or "/." in name or name[:9] == "__MACOSX/" or base == len(name):
        return HIDDEN
    if dot < 0 or dot == len(name) - 1:
        return NO_EXTENSION
    return None


@dataclass
class Groups:
    """How a tar's members make samples.

    `order` lists member numbers sample by sample; sample i is ``order[begins[i]:begins[i + 1]]``. `names` are
    the cleaned names of all members, in tar order; `keys` one a sample; `skipped` maps a reason to the names
    that it left out.
    """

    rule: str
    names: list[str]
    order: list[int]
    begins: list[int]
    keys: list[str]
    skipped: dict[str, list[str]] = field(default_factory=dict)


def group(names: Sequence[str], grouping: str = "auto") -> Groups:
    """Group the members of one tar, given their names in tar order, into samples.

    `grouping` overrides the rule that the names themselves suggest: ``"plain"`` or ``"numbered"``.
    ValueError for a name with ``..``, or if ``"numbered"`` is asked for and the names don't fit.
    """
    if grouping not in GROUPINGS:
        raise ValueError(f"grouping is {grouping!r}: one of {', '.join(GROUPINGS)} was expected")
    cleaned: list[str] = []
    samples: dict[str, list[int]] = {}
    skipped: dict[str, list[str]] = {}
    hyphen = False
    for number, name in enumerate(names):
        if name[:1] in ("/", ".") or ".." in name:
            name = clean_name(name)
        cleaned.append(name)
        base = name.rfind("/") + 1
        dot = name.find(".", base)
        # The common case first: a dot inside the base name, nothing hidden about it.
        if dot <= base or dot == len(name) - 1 or name[0] == "." or name[0] == "_" or "/." in name:
            reason = why_no_sample(name)
            if reason is not None:
                skipped.setdefault(reason, []).append(name)
                continue
        key = name[:dot]
        members = samples.get(key)
        if members is None:
            samples[key] = [number]
            hyphen = hyphen or "-" in key
        else:
            members.append(number)
    superseded: list[str] = []
    for key, members in samples.items():
        if len(members) > 1 and len({cleaned[number] for number in members}) < len(members):
            last = {cleaned[number]: number for number in members}
            superseded += [cleaned[number] for number in members if last[cleaned[number]] != number]
            samples[key] = sorted(last.values())
    if superseded:
        skipped[SUPERSEDED] = superseded
        samples = _by_first_member(samples)
    rule = "numbered" if grouping == "numbered" else "plain"
    numbered = _numbered(samples) if hyphen and grouping != "plain" else {}
    if numbered:
        problem = _misfit(numbered, samples, cleaned)
        if problem is None:
            rule, samples = "numbered", _glued(numbered, samples)
        elif grouping == "numbered":
            raise ValueError(f"numbered grouping was asked for, but {problem}")
    order: list[int] = []
    begins = [0]
    for members in samples.values():
        order += members
        begins.append(len(order))
    return Groups(rule, cleaned, order, begins, list(samples), skipped)


def _numbered(samples: dict[str, list[int]]) -> dict[str, dict[int, str]]:
    """K → number → the stem ``K-<number>``, of all stems that look like it."""
    numbered: dict[str, dict[int, str]] = {}
    for stem in samples:
        match = _NUMBERED.match(stem)
        if match:
            numbered.setdefault(match[1], {})[int(match[2])] = stem
    return numbered


def _misfit(
    numbered: dict[str, dict[int, str]], samples: dict[str, list[int]], names: list[str]
) -> str | None:
    """Why these stems are not the numbered images of samples; None if they are."""
    for key, stems in numbered.items():
        own = samples.get(key, [])
        if "-" in key[key.rfind("/") + 1 :] or [split_name(names[n])[1].lower() for n in own] != [".json"]:
            return f"{stems[min(stems)]!r} has no sample {key!r} made of one .json beside it"
        if sorted(stems) != list(range(len(stems))):
            return f"the numbers of {key!r} have a gap: {', '.join(map(str, sorted(stems)[:20]))}"
        for stem in stems.values():
            if len(samples[stem]) != 1:
                return f"{stem!r} has several members"
    return None


def _glued(numbered: dict[str, dict[int, str]], samples: dict[str, list[int]]) -> dict[str, list[int]]:
    """The samples with their numbered images, in the order of the numbers."""
    images = {stem for stems in numbered.values() for stem in stems.values()}
    glued = {stem: members for stem, members in samples.items() if stem not in images}
    for key, stems in numbered.items():
        glued[key] = [*samples[key], *(samples[stems[number]][0] for number in sorted(stems))]
    return _by_first_member(glued)


def _by_first_member(samples: dict[str, list[int]]) -> dict[str, list[int]]:
    """A sample stands where its first member stands, whichever that is."""
    return dict(sorted(samples.items(), key=lambda item: min(item[1])))


def check_name(name: bytes, shard: str, offset: int) -> str:
    """A member's name as text (bytes that are no UTF-8 survive as surrogates); BadTar for ``..``."""
    text = name.decode("utf-8", "surrogateescape")
    if ".." in text:
        try:
            clean_name(text)
        except ValueError as error:
            raise BadTar(f"{shard}: at byte {offset} {error}: repack it without") from None
    return text
