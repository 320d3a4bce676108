"""Pictures of rows to come, read and encoded in threads while those before them are written.

For a plan with fewer shards than there are processes to be had: a shard is made by one process, whose threads take
the cores that would be idle. Pillow's codecs leave other threads alone. What comes out is the same, in the same order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from loader.errors import BadSample
from loader.pool import processes
from loader.sample_facts import is_picture
from tasks import fetch
from tasks.config import PackConfig
from tasks.drafts import Draft
from tasks.image_options import ImageOptions
from tasks.images import Stored, store

_ANY = 1 << 30  # items, where their number doesn't matter

Ready = dict[str, "bytes | BadSample"]


class Made(NamedTuple):
    """What became of a picture: its stamp, if it could be read, and what is stored of it, or what is wrong with it."""

    stamp: bytes | None
    stored: Stored | BadSample

    def read(self) -> bytes:
        """The stamp; BadSample if it could not be read."""
        if self.stamp is None and isinstance(self.stored, BadSample):
            raise self.stored
        return self.stamp or fetch.NO_STAMP

    def store(self) -> Stored:
        """What is stored; BadSample if it can't be."""
        if isinstance(self.stored, BadSample):
            raise self.stored
        return self.stored


Begun = dict[int, Sequence["Future[Made]"]]  # by the number of the row


def threads(config: PackConfig, shards: int) -> int:
    """How many threads each process may have, where so many shards are packed at a time (0: nobody knows)."""
    most = processes(config.n_jobs, _ANY)
    return max(1, most // min(most, shards)) if shards else 1


def idle(config: PackConfig, shards: int) -> bool:
    """Whether there are more cores than processes, where so many shards are packed at a time (0: nobody knows)."""
    return processes(config.n_jobs, shards or _ANY) < processes(0, _ANY)


@contextlib.contextmanager
def crew(config: PackConfig, shards: int) -> Iterator[ThreadPoolExecutor | None]:
    """The threads of a slot; None where there is nothing to be encoded, or no core that would be idle."""
    count = threads(config, shards)
    if count == 1 or config.images().keep_all:
        yield None
        return
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def begin(pool: ThreadPoolExecutor, rows: Iterable[Draft], ready: Ready, config: PackConfig) -> Begun:
    """Begin with the pictures of some rows."""
    images = config.images()
    begun: Begun = {}
    for draft in rows:
        if draft.record is not None:
            begun[draft.row.number] = [
                pool.submit(_read_and_store, image, place, ready, config, images)
                for image, place in zip(draft.record.images, draft.places, strict=True)
            ]
        elif draft.members:
            begun[draft.row.number] = [
                pool.submit(_store, data, fetch.NO_STAMP, images)
                for suffix, data in draft.members
                if is_picture(suffix[suffix.find(".") :].lower())
            ]
    return begun


def _read_and_store(
    image: str | bytes, place: str, ready: Ready, config: PackConfig, images: ImageOptions
) -> Made:
    try:
        data, stamp = read(image, place, ready, config.options_for)
    except BadSample as error:
        return Made(None, error)
    return _store(data, stamp, images)


def _store(data: bytes, stamp: bytes, images: ImageOptions) -> Made:
    try:
        return Made(stamp, store(data, images))
    except BadSample as error:
        return Made(stamp, error)


def read(image: str | bytes, place: str, ready: Ready, options_for: fetch.Options) -> tuple[bytes, bytes]:
    """A picture's bytes, and its stamp as `fetch.stamp_of` would give it."""
    if isinstance(image, bytes):
        return image, fetch.NO_STAMP
    if not fetch.is_remote(place):
        return fetch.read_local(place)
    if place not in ready:  # what an earlier run made of it has changed since
        ready |= fetch.read_remote([place], options_for)
    outcome = ready[place]
    if isinstance(outcome, BadSample):
        raise outcome
    return outcome, fetch.NO_STAMP
