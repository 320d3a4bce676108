from __future__ import annotations

import argparse

import pytest

from loader.arguments import not_negative, whole


def test_numbers() -> None:
    assert (whole("-3"), whole(" 7 "), not_negative("0"), not_negative("12")) == (-3, 7, 0, 12)
    with pytest.raises(argparse.ArgumentTypeError, match="'many' is no whole number"):
        not_negative("many")
    with pytest.raises(
        argparse.ArgumentTypeError, match="-1 is negative: a positive number was expected, or 0"
    ):
        not_negative("-1")
