"""What killed writers left: temporary files that nobody took for data, parts of uploads that nobody sees."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from datetime import datetime, timezone
from typing import Any

from loader import addresses, retrying, stores
from loader.stores import StorageOptions

logger = logging.getLogger(__name__)

_ABANDONED = 24 * 3600.0  # seconds after which nobody is taken to be still uploading
# As `loader.publishing` names them: .<final name>.<8 hex digits>.part: hidden, so no listing of shards or images takes it for data.
_TEMPORARY = re.compile(r"(?s)\..+\.[0-9a-f]{8}\.part\Z")


def sweep(root: str, older_than: float = 0.0) -> list[str]:
    """Remove what killed writers left under a local `root`; returns the removed paths.

    Only call it while no other writer can be at work there (see `tasks.pack`, which holds a lock), or leave what
    was written to in the last `older_than` seconds alone.
    """
    if not addresses.is_local(root):
        return []
    removed = []
    for folder, _, files in os.walk(addresses.local_path(root)):
        for file in files:
            path = os.path.join(folder, file)
            if _TEMPORARY.match(file) and (not older_than or time.time() - _modified(path) > older_than):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                removed.append(path)
    return removed


def sweep_uploads(
    root: str, storage_options: StorageOptions | None = None, older_than: float = _ABANDONED
) -> list[str]:
    """Abort the uploads under `root` that were begun more than `older_than` seconds ago; returns their addresses.

    Killed writers leave them: parts that are stored, and paid for, though nobody sees them. Who else is writing there
    can't be known: hence a day. Only S3 lists them; others drop them by themselves.
    """
    if addresses.protocol(root) not in stores.S3:
        return []
    fs, path = stores.filesystem(root, storage_options)
    bucket, key, _ = fs.split_path(path.rstrip("/") + "/")
    try:
        found = retrying.call(
            "listing uploads",
            root,
            storage_options,
            lambda: _uploads(fs, bucket, key),
            lambda: stores.renew(root, storage_options),
        )
    except OSError as error:
        logger.info("%s: unfinished uploads can't be looked for (%s)", root, error)
        return []
    now, removed = datetime.now(timezone.utc), []
    for upload in found:
        if (now - upload["Initiated"]).total_seconds() < older_than:
            continue
        with contextlib.suppress(FileNotFoundError):  # finished, or aborted by another, just now
            fs.call_s3(
                "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            )
            removed.append(f"{addresses.protocol(root)}://{bucket}/{upload['Key']}")
    return removed


def _uploads(fs: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    place: dict[str, str] = {}
    while True:
        page = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **place)
        found += page.get("Uploads", [])
        if not page.get("IsTruncated"):
            return found
        place = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:  # its writer has just finished
        return time.time()
