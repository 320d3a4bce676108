"""Addresses: one spelling, taken apart and put together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader import addresses, storage
from loader.errors import BadAddress


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ("/a/b/", "/a/b"),
        ("/a//b/../c", "/a/c"),
        ("/", "/"),
        ("file:///a/b/", "/a/b"),
        ("local:///a/b", "/a/b"),
        ("~/x", os.path.expanduser("~/x")),
        ("x.tar", os.path.abspath("x.tar")),
        (Path("/a/b"), "/a/b"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket"),
        ("s3://", "s3://"),
        ("memory://", "memory://"),
        ("memory:///a/b", "memory://a/b"),
        ("/odd/a://b", "/odd/a:/b"),  # no protocol holds a slash
    ],
)
def test_one_spelling(given_: str, wanted: str) -> None:
    assert addresses.normalise(given_) == wanted
    assert addresses.normalise(wanted) == wanted


@pytest.mark.parametrize("address", ["", "zip::s3://bucket/x.zip", "simplecache::s3://b/x.tar"])
def test_no_addresses(address: str) -> None:
    with pytest.raises(BadAddress):
        addresses.normalise(address)


def test_an_unknown_protocol() -> None:
    with pytest.raises(BadAddress, match="nosuch://"):
        storage.stat("nosuch://x/y.tar")
    with pytest.raises(BadAddress, match="not on this machine"):
        addresses.local_path("s3://bucket/x.tar")


@given(st.text("/.:ab~*", max_size=8), st.sampled_from(("", "/", "s3://b/", "memory://", "memory:///")))
@settings(deadline=None)
def test_spelling_once_is_enough(text: str, start: str) -> None:
    try:
        once = addresses.normalise(start + text)
    except BadAddress:
        return
    assert addresses.normalise(once) == once


@pytest.mark.parametrize(
    ("address", "parent", "name"),
    [
        ("/a/b.tar", "/a", "b.tar"),
        ("/b.tar", "/", "b.tar"),
        ("s3://bucket/a/b.tar", "s3://bucket/a", "b.tar"),
        ("s3://bucket/b.tar", "s3://bucket", "b.tar"),
        ("memory://b.tar", "memory://", "b.tar"),
    ],
)
def test_parent_and_name_make_the_address_again(address: str, parent: str, name: str) -> None:
    assert (addresses.parent(address), addresses.name(address)) == (parent, name)
    assert addresses.join(parent, name) == address
    assert addresses.relative(address, parent) == name


def test_join_and_relative() -> None:
    assert addresses.join("/a", "b", "c.tar") == "/a/b/c.tar"
    assert addresses.join("/a", "/b", "c.tar") == "/b/c.tar"
    assert addresses.join("s3://b/a", "memory://x", "y") == "memory://x/y"
    assert addresses.relative("/a/b/c.tar", "/a/") == "b/c.tar"
    assert addresses.relative("/a.tar", "/") == "a.tar"
    for elsewhere in ("/ab/c.tar", "/a", "s3://a/b"):
        with pytest.raises(BadAddress, match="does not lie under"):
            addresses.relative(elsewhere, "/a")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/a/b?c: gone", "/a/b?c: gone"),
        ("https://user:pass@host/a.jpg: 404", "https://***@host/a.jpg: 404"),
        (
            "https://h/a.jpg?X-Amz-Signature=abc&x=1: 403 for 's3://b/c?sig=1'",
            "https://h/a.jpg?…: 403 for 's3://b/c?…'",
        ),
        ("s3://bucket/a b.jpg: no such file?", "s3://bucket/a b.jpg: no such file?"),
    ],
)
def test_secrets_in_addresses_are_not_shared(text: str, wanted: str) -> None:
    assert addresses.shareable(text) == wanted
