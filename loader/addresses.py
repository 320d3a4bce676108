"""Addresses as text: a local path (absolute, relative, ``~``, ``file://``) or any fsspec URL. Nothing is opened here."""

from __future__ import annotations

import os
import posixpath
import re

from loader.errors import BadAddress

LOCAL_PROTOCOLS = ("file", "local")
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@]+@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?]*)\?[^\s:'\"]*")
_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*\Z")


def protocol(address: str) -> str:
    """``s3`` of ``s3://bucket/x``; ``file`` of a path."""
    found, separator, _ = address.partition("://")
    return found if separator and _PROTOCOL.match(found) else "file"


def normalise(address: str | os.PathLike[str]) -> str:
    """The one spelling of an address: absolute local path, or URL, without a trailing slash."""
    text = os.fspath(address)
    if not text:
        raise BadAddress("an empty address: give a local path or a URL such as s3://bucket/folder")
    if "::" in text:
        raise BadAddress(
            f"{text!r} is an fsspec chain, which can serve corrupt files after a failed download: give the last "
            'address alone. To keep shards on this machine, use Shardflow\'s own cache: backend="cache"'
        )
    if is_local(text):
        return os.path.abspath(os.path.expanduser(_strip_local(text)))
    scheme, _, rest = text.partition("://")
    # fsspec's memory files have two spellings, memory://a and memory:///a.
    return f"{scheme}://{rest.strip('/') if scheme == 'memory' else rest.rstrip('/')}"


def _strip_local(address: str) -> str:
    scheme, separator, rest = address.partition("://")
    return rest if separator and scheme in LOCAL_PROTOCOLS else address


def shareable(text: str) -> str:
    """A text that holds addresses, without what they may hold of secrets: user and password, and signatures behind a ``?``."""
    if "://" not in text:
        return text
    return _QUERY.sub(r"\1?…", _USER.sub(r"\1***@", text))


def is_local(address: str) -> bool:
    """Whether the address names a file of this machine (network drives that are mounted included)."""
    return protocol(address) in LOCAL_PROTOCOLS


def local_path(address: str) -> str:
    """The path of a local address, for `open` and `mmap`."""
    if not is_local(address):
        raise BadAddress(f"{address} is not on this machine: a local path was expected here")
    return normalise(address)


def join(root: str, *parts: str) -> str:
    """`root` and `parts` with ``/`` between; what stands before an absolute path or a URL is dropped."""
    for number, part in reversed(list(enumerate(parts))):
        if part.startswith("/") or not is_local(part):
            return posixpath.join(part, *parts[number + 1 :])
    return posixpath.join(root, *parts)


def name(address: str) -> str:
    """The last component of an address."""
    return posixpath.basename(address.rstrip("/"))


def parent(address: str) -> str:
    """The address of the folder that holds `address`."""
    scheme, separator, rest = address.rpartition("://")
    return scheme + separator + posixpath.dirname(rest.rstrip("/"))


def relative(address: str, root: str) -> str:
    """`address` as seen from `root`, with ``/``; BadAddress if it lies elsewhere."""
    prefix = root if root.endswith("/") else root + "/"
    if not address.startswith(prefix):
        raise BadAddress(f"{address} does not lie under {root}")
    return address[len(prefix) :]
