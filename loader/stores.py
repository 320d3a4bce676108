"""The clients of stores: fsspec's, each of the process that made it, and what `storage_options` may say.

All options go to the file system of the address, however it is used: list, head, get and put. Three are
ours, and taken out before:

- ``client``: what reads ranges, "fsspec", "obstore" or "auto" (see `loader.obstore_client`);
- ``max_tries`` and ``max_seconds``: how often, and for how long, a request that a store fails is tried again.

fsspec adds what its configuration files and FSSPEC_… variables say, and S3's client the AWS_… variables and profiles.
Nothing of that is looked up here, so it never gets into a pickle: what travels are addresses and the options as given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import fsspec
from fsspec.core import url_to_fs

from loader import addresses
from loader.errors import BadAddress

StorageOptions = Mapping[str, Any]

CLIENTS = ("auto", "fsspec", "obstore")
_OURS = ("client", "max_tries", "max_seconds")
S3 = ("s3", "s3a")
_POOL = 64  # connections that S3's client keeps open: no fewer than anything here has in flight

# What botocore reads and parses for a client, the same for all: 100 ms of work. A forked child has its parent's.
_descriptions: dict[str | None, Any] = {}

# Dropped in a forked child, a parent's S3 client complains of its loop, which runs no more: all are kept.
_kept: list[fsspec.AbstractFileSystem] = []


@dataclass(frozen=True)
class Policy:
    """How a store is read, and for how long its failures are borne."""

    client: str = "auto"
    max_tries: int = 8
    max_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.client not in CLIENTS:
            raise BadAddress(
                f"storage_options: client is {self.client!r}: one of {', '.join(CLIENTS)} was expected"
            )
        if not (isinstance(self.max_tries, int) and self.max_tries >= 1):
            raise BadAddress(
                f"storage_options: max_tries is {self.max_tries!r}: a whole number of at least 1 was expected"
            )
        if not (isinstance(self.max_seconds, (int, float)) and self.max_seconds >= 0):
            raise BadAddress(
                f"storage_options: max_seconds is {self.max_seconds!r}: a number of seconds was expected"
            )


def policy(storage_options: StorageOptions | None) -> Policy:
    """What the options say of the way to read; BadAddress where it can't be meant."""
    options = storage_options or {}
    return Policy(**{name: options[name] for name in _OURS if name in options})


def filesystem(
    address: str, storage_options: StorageOptions | None = None, *, tries: int | None = None
) -> tuple[fsspec.AbstractFileSystem, str]:
    """The fsspec filesystem of this process for `address`, and the path in it.

    `tries`: how often S3's client itself tries a request (default: as often as the options say).
    """
    limits = policy(storage_options)
    options = {key: value for key, value in (storage_options or {}).items() if key not in _OURS}
    protocol = addresses.protocol(address)
    if protocol not in (*addresses.LOCAL_PROTOCOLS, "memory"):
        options.setdefault("use_listings_cache", False)  # another process may have written in between
    if protocol in S3:
        retries = {"total_max_attempts": tries or limits.max_tries, "mode": "legacy"}
        options["config_kwargs"] = {
            "max_pool_connections": _POOL,
            "retries": retries,
            **options.get("config_kwargs", {}),
        }
    try:
        fs, path = url_to_fs(address, **options)
    except (ValueError, ImportError) as error:
        raise BadAddress(f"{address}: no way to open {protocol}:// ({error})") from error
    if protocol in S3:
        fs.retries = 1  # s3fs would try each of the client's tries five times
        if fs.session is None:
            fs.session = _session(fs.kwargs)
    if getattr(fs, "async_impl", False) and not any(fs is other for other in _kept):
        _kept.append(fs)
    return fs, cast(str, path)


def _session(arguments: Mapping[str, Any]) -> Any:
    """The session that s3fs would make of these, whose clients share what botocore knows of S3 with all others."""
    from aiobotocore.session import AioSession
    from botocore.loaders import create_loader

    session = AioSession(**arguments)

    def descriptions() -> Any:
        path = session.get_config_variable("data_path")
        return _descriptions.setdefault(path, create_loader(path))

    session.lazy_register_component("data_loader", descriptions)
    return session


def renew(address: str, storage_options: StorageOptions | None, tries: int | None = None) -> None:
    """Have the credentials of `address` looked up anew, where its client does so on its own only when it is made."""
    fs, _ = filesystem(address, storage_options, tries=tries)
    if addresses.protocol(address) in S3:
        fs.connect(refresh=True)
    else:
        type(fs).clear_instance_cache()
