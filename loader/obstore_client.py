"""Ranges of S3 by obstore (the extra ``obstore``): a fifth of the processor time that s3fs takes for each request.

Where it is, who asks and what else there is to say it gets from the s3fs file system of the same `storage_options`, so
that both see the same arguments, environment, profiles and fsspec configuration. It reads; all else is done by s3fs.

obstore's threads don't survive a fork: every call in the child would wait for ever. So a process that may fork
doesn't use it unless it is told to: left to choose ("auto"), it is used in daemonic processes alone, such as the
workers of a DataLoader, which can have no children. In a child of a process that has used it, asking for it is an error.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from fsspec.asyn import get_loop, sync

from loader import addresses, stores
from loader.errors import BadAddress
from loader.stores import StorageOptions

# What of s3fs's options can be said to obstore as well.
_KNOWN = {
    "key", "secret", "token", "anon", "endpoint_url", "profile", "use_ssl", "requester_pays", "client_kwargs",
    "config_kwargs", "use_listings_cache", "default_block_size", "max_concurrency", "client", "max_tries", "max_seconds",
}  # fmt: skip
_KNOWN_CLIENT = {
    "endpoint_url", "region_name", "use_ssl", "aws_access_key_id", "aws_secret_access_key", "aws_session_token",
}  # fmt: skip
_KNOWN_CONFIG = {"read_timeout", "connect_timeout", "max_pool_connections", "retries", "region_name"}
_ASK_AGAIN = timedelta(
    minutes=5
)  # after which credentials are looked up again, as s3fs's session has them by then


class _Used:
    """Which process was the first to use obstore: a forked child sees that it was another one."""

    process: int | None = None


_stores: dict[tuple[int, str], Any] = {}  # (the file system's id, bucket) → store, both of this process
_making = threading.Lock()


def chosen(address: str, storage_options: StorageOptions | None) -> bool:
    """Whether ranges of `address` are to be read by obstore; BadAddress where that is asked for and can't be."""
    client = stores.policy(storage_options).client
    if client == "fsspec":
        return False
    reason = _obstacle(address, storage_options)
    if client == "obstore":
        if reason:
            raise BadAddress(f"{address}: {reason}")
        return True
    return not reason and multiprocessing.current_process().daemon


def _obstacle(address: str, storage_options: StorageOptions | None) -> str:
    if addresses.protocol(address) not in stores.S3:
        return 'the client "obstore" reads s3:// alone: say client="fsspec", or leave it out'
    if not _installed():
        return "obstore is not installed: pip install 'shardflow[obstore]', or say client=\"fsspec\""
    unknown = _unknown(storage_options or {})
    if unknown:
        return f'the client "obstore" can\'t be told {", ".join(unknown)} of storage_options: say client="fsspec"'
    if _Used.process not in (None, os.getpid()):
        return (
            f"obstore was used in process {_Used.process} before it forked this one, where it would wait for ever. Start "
            'workers with "spawn" or "forkserver", or say client="fsspec" (or "auto") for what is read before'
        )
    return ""


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("obstore") is not None


def _unknown(options: StorageOptions) -> list[str]:
    inner = (("", options, _KNOWN), ("client_kwargs.", options.get("client_kwargs") or {}, _KNOWN_CLIENT),
             ("config_kwargs.", options.get("config_kwargs") or {}, _KNOWN_CONFIG))  # fmt: skip
    return sorted(prefix + key for prefix, given, known in inner for key in given if key not in known)


class ObstoreClient:
    """See `loader.range_reads.RangeClient`. `version`: that of the file alone is read, no other."""

    def __init__(self, address: str, storage_options: StorageOptions | None, version: str | None) -> None:
        self._address, self._options, self._version = address, storage_options, version

    def read(self, ranges: Sequence[tuple[int, int]], in_flight: int) -> list[Any]:
        fs, path = self._filesystem()
        bucket, key, _ = fs.split_path(path)
        store = _store(fs, bucket)
        if len(ranges) == 1:  # from a thread of its caller's: no loop stands between
            return [_get(store, key, *ranges[0], self._version)]
        return list(sync(get_loop(), _gather, store, key, ranges, self._version, in_flight))

    def whole(self) -> bytes:
        import obstore

        fs, path = self._filesystem()
        bucket, key, _ = fs.split_path(path)
        return bytes(obstore.get(_store(fs, bucket), key).bytes())

    def size(self) -> int:
        fs, path = self._filesystem()
        return int(fs.info(path)["size"])

    def renew(self) -> None:
        stores.renew(self._address, self._options, tries=1)
        with _making:
            _stores.clear()

    def _filesystem(self) -> tuple[Any, str]:
        return stores.filesystem(self._address, self._options, tries=1)


def _get(store: Any, key: str, start: int, end: int, version: str | None) -> Any:
    import obstore

    try:
        if version is None:
            return obstore.get_range(store, key, start=start, end=end)
        return obstore.get(store, key, options=_options(start, end, version)).bytes()
    except Exception as error:  # noqa: BLE001 told for this range, as for many
        return error


def _options(start: int, end: int, version: str) -> Any:
    # Entity tags are told without quotes, and asked for with.
    return {"range": (start, end), "if_match": f'"{version}"'}


async def _gather(
    store: Any, key: str, ranges: Sequence[tuple[int, int]], version: str | None, in_flight: int
) -> list[Any]:
    import obstore

    free = asyncio.Semaphore(in_flight)

    async def one(start: int, end: int) -> Any:
        async with free:
            if version is None:
                return await obstore.get_range_async(store, key, start=start, end=end)
            found = await obstore.get_async(store, key, options=_options(start, end, version))
            return await found.bytes_async()

    return await asyncio.gather(*(one(start, end) for start, end in ranges), return_exceptions=True)


def _store(fs: Any, bucket: str) -> Any:
    """obstore's store for the bucket, as this process and this file system see it."""
    _Used.process = os.getpid()
    with _making:
        place = (id(fs), bucket)
        if place not in _stores:
            _stores[place] = _make(fs, bucket)
        return _stores[place]


def _make(fs: Any, bucket: str) -> Any:
    from obstore.store import S3Store

    client = fs.connect()
    endpoint, region = client.meta.endpoint_url, client.meta.region_name
    settings: dict[str, Any] = {"region": region or "us-east-1"}
    if ".amazonaws.com" in endpoint:
        answer = fs.call_s3("head_bucket", Bucket=bucket)  # a bucket is found in its own region alone
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        settings["region"] = headers.get("x-amz-bucket-region", settings["region"])
    else:
        settings["endpoint"] = endpoint
    if fs.anon:
        settings["skip_signature"] = True
    else:
        settings["credential_provider"] = _provider(fs)
    if fs.req_kw:
        settings["request_payer"] = True
    given = fs.config_kwargs
    limits: Any = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=given.get("connect_timeout", 5)),
        "read_timeout": timedelta(seconds=given.get("read_timeout", 15)),  # between two pieces of a body
        "timeout": timedelta(hours=1),  # for a body as a whole
    }
    # `loader.retrying` counts the tries.
    return S3Store(bucket, client_options=limits, retry_config={"max_retries": 0}, **settings)


def _provider(fs: Any) -> Callable[[], dict[str, Any]]:
    """What obstore calls for credentials: those that s3fs was given, or that its session finds."""

    async def look_up() -> Any:
        found = await fs.session.get_credentials()
        if found is None:
            raise PermissionError("Unable to locate credentials")
        return await found.get_frozen_credentials()

    def provide() -> dict[str, Any]:
        until = datetime.now(timezone.utc) + _ASK_AGAIN
        if fs.key and fs.secret:
            return {
                "access_key_id": fs.key, "secret_access_key": fs.secret, "token": fs.token, "expires_at": until,
            }  # fmt: skip
        found = sync(fs.loop, look_up)
        return {
            "access_key_id": found.access_key, "secret_access_key": found.secret_key, "token": found.token,
            "expires_at": until,
        }  # fmt: skip

    return provide
