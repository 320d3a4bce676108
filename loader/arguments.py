"""Values of command lines, as argparse's ``type=`` takes them: what is wrong with one is said in a sentence."""

from __future__ import annotations

import argparse


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def not_negative(text: str) -> int:
    """A whole number that isn't negative."""
    number = whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative: a positive number was expected, or 0")
    return number
