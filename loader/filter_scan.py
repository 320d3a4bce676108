"""Filters over a whole dataset: every shard's metadata is read once, and the outcome is remembered.

Reads the JSON of every sample (some 15 µs: three minutes for ten million on one core), or the first kilobytes of its
pictures where sizes stand in no JSON (as much again from memory, more from a disk); where there is a sidecar that says
what is asked, it is read instead. The outcome depends on the tars, the rules and the seed alone, so all ranks come to the same; ranks of one
machine that share a cache folder wait for the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from filelock import FileLock

from loader import storage
from loader.data_handler import IMAGE_EXTENSIONS, read_json, read_text
from loader.errors import BadConfig, BadMeta, BadSample
from loader.fields import nearest, paths
from loader.filters import DEFAULT_CACHE, Facts, Rules, Size
from loader.in_flight import AT_ONCE
from loader.indexed_tar import IndexedTar
from loader.pool import Pool, processes
from loader.remote import Remote
from loader.sample_facts import is_picture, picture_size
from loader.selection import Ints, Selection
from loader.shards import ShardTable
from loader.sidecar_reader import SidecarReader, read_sidecar
from loader.storage import StorageOptions

logger = logging.getLogger(__name__)

Select: TypeAlias = Callable[[Mapping[str, Any]], bool]

_VERSION = 2  # of the rules' meaning and of the cache's files
_TOGETHER = 256  # samples whose texts are fetched together
_WORTH_TELLING = 200_000  # samples


@dataclass(frozen=True)
class Shard:
    """What is to be scanned: number, address, how to open it, the number of its first sample, how many."""

    number: int
    url: str
    storage_options: StorageOptions | None
    first: int
    samples: int


@dataclass(frozen=True)
class Scan:
    """What is asked of each sample. Pickled to the processes that ask."""

    rules: Rules
    select: Select | None = None
    pictures: tuple[str, ...] = IMAGE_EXTENSIONS
    index_root: str | None = None
    remote: Remote | None = None  # reads what lies in a store: its texts alone

    @property
    def texts(self) -> set[str]:
        """Extensions of the members to read whole."""
        return self.rules.texts if self.select is None else {".json", ".txt", *self.rules.captions.extensions}


@dataclass
class Outcome:
    """Of one shard: the numbers of those that take part, how many each rule left out, and which fields there are.

    `absent`: field that a sample lacked → the fields that it has.
    """

    kept: Ints
    left_out: Counter[str] = field(default_factory=Counter)
    present: set[str] = field(default_factory=set)
    absent: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class TakePart:
    """Of the whole dataset: who takes part, and how many samples each rule left out."""

    selection: Selection
    left_out: dict[str, int]


def scan(table: ShardTable, task: Scan, n_jobs: int = 1, cache: str | None = DEFAULT_CACHE) -> TakePart:
    """Who takes part. BadConfig if that is nobody, or if a rule is about a field that no sample has.

    `n_jobs`: processes to scan with, 0 for all cores; they are spawned, so a script that asks for more than one
    needs its ``if __name__ == "__main__"``. `cache`: the folder that remembers outcomes, None for none; an outcome is
    found again as long as addresses, sizes and times of the tars, rules and seed are the same. Nothing is remembered
    where there is a `select`, whose code is not known. What can't be read takes part, so that `on_bad` deals with
    it; a shard that can't be opened raises.
    """
    if cache is None or task.select is not None:
        return _scan_all(table, task, n_jobs)
    file = os.path.join(os.path.expanduser(cache), _cache_key(table, task) + ".npz")
    found = _load(file, table)
    if found is not None:
        return found
    with _lock(file):
        found = _load(file, table)  # another rank's, by now
        if found is None:
            found = _scan_all(table, task, n_jobs)
            _save(file, found)
    return found


def _scan_all(table: ShardTable, task: Scan, n_jobs: int) -> TakePart:
    if table.num_samples >= _WORTH_TELLING:
        logger.warning("filters: reading the metadata of %d samples, which takes a while", table.num_samples)
    shards = [
        Shard(number, table.url(number), table.storage_options(number), first, samples)
        for number, (first, samples) in enumerate(
            zip(table.begins.tolist(), table.counts.tolist(), strict=False)
        )
        if samples
    ]
    kept: list[Ints] = [np.empty(0, np.int64)] * len(table)
    left_out: Counter[str] = Counter()
    present: set[str] = set()
    absent: dict[str, list[str]] = {}
    with Pool(processes(n_jobs, len(shards))) as pool:
        for shard, outcome in pool.run(scan_shard, shards, task):
            if isinstance(outcome, Exception):
                raise outcome
            kept[shard.number] = outcome.kept
            left_out.update(outcome.left_out)
            present |= outcome.present
            absent |= outcome.absent
    for path, known in absent.items():
        if path not in present:
            raise BadConfig(f"filters: no sample has a number at {path!r}: {nearest(path, known)}")
    selection = Selection.of(kept, table.counts)
    if not len(selection) and table.num_samples:
        raise BadConfig(f"filters: none of the {table.num_samples} samples is left ({_told(left_out)})")
    if left_out:
        logger.info(
            "filters: %d of %d samples take part (%s)", len(selection), table.num_samples, _told(left_out)
        )
    return TakePart(selection, dict(left_out))


def _told(left_out: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{rule}: {count}" for rule, count in Counter(left_out).most_common()) or "nothing left out"
    )


def scan_shard(shard: Shard, task: Scan) -> Outcome:
    """Who takes part of one shard: by its sidecar, where that says enough, else by its tar."""
    sidecar = None
    if task.select is None:
        sidecar = read_sidecar(
            shard.url, task.rules, task.pictures, shard.samples, shard.storage_options, task.index_root
        )
    if sidecar is not None:
        return _outcome(sidecar, task, shard)
    backend = "mmap" if storage.is_local(shard.url) else "range"
    with IndexedTar(
        shard.url, backend, shard.storage_options, index_root=task.index_root, remote=task.remote
    ) as tar:
        if tar.index.num_samples != shard.samples:
            raise BadMeta(
                f"{shard.url}: {tar.index.num_samples} samples, where {shard.samples} are announced: run gen_meta again"
            )
        return _outcome(_Reader(tar, task), task, shard)


def _outcome(reader: _Reader | SidecarReader, task: Scan, shard: Shard) -> Outcome:
    outcome, kept = Outcome(np.empty(0, np.int64)), []
    for i in range(shard.samples):
        if i % _TOGETHER == 0:
            reader.expect(range(i, min(i + _TOGETHER, shard.samples)))
        reason = _why_not(reader, task, i, shard, outcome)
        if reason is None:
            kept.append(i)
        else:
            outcome.left_out[reason] += 1
    outcome.kept = np.array(kept, np.int64)
    return outcome


def _why_not(
    reader: _Reader | SidecarReader, task: Scan, i: int, shard: Shard, outcome: Outcome
) -> str | None:
    try:
        sample, pictures = reader.read(i)
        facts = Facts(shard.first + i, sample, len(pictures), lambda: reader.sizes(i))
        reason = task.rules.why_not(facts)
    except BadSample:
        return None
    outcome.present |= facts.present
    for path in facts.absent - outcome.absent.keys():
        outcome.absent[path] = reader.known(sample)
    if reason is None and task.select is not None:
        try:
            return None if task.select(sample) else "select"
        except Exception as error:
            raise BadConfig(
                f"select failed for {shard.url}, sample {i}, key {sample['__key__']!r}: {type(error).__name__}: {error}"
            ) from error
    return reason


class _Reader:
    """The text members of the samples of an open tar, and the sizes of their pictures."""

    def __init__(self, tar: IndexedTar, task: Scan) -> None:
        self.tar = tar
        extensions = tar.index.extensions
        self._texts = {code: name for code, name in enumerate(extensions) if name in task.texts}
        self._pictures = {code for code, name in enumerate(extensions) if is_picture(name, task.pictures)}

    def expect(self, samples: Iterable[int]) -> None:
        """The texts of these will be read."""
        index, texts = self.tar.index, self._texts
        if self.tar.backend == "range":
            self.tar.expect(m for i in samples for m in index.members(i) if index.extension[m] in texts)

    def read(self, i: int) -> tuple[dict[str, Any], list[int]]:
        """A sample's text members as a sample holds them, and the numbers of the members that are its pictures."""
        index, pictures = self.tar.index, []
        sample: dict[str, Any] = {"__key__": index.key(i)}
        for member in index.members(i):
            code = index.extension[member]
            if code in self._texts:
                name = self._texts[code]
                data = self.tar.read(member)
                value = read_json(data) if name == ".json" else read_text(data)
                if name not in sample:
                    sample[name] = value
                elif isinstance(sample[name], list) and name != ".json":
                    sample[name].append(value)
                else:
                    sample[name] = [sample[name], value]
            elif code in self._pictures:
                pictures.append(member)
        return sample, pictures

    def sizes(self, i: int) -> list[Size]:
        """Height and width of each picture of a sample, from its first bytes where they tell."""
        members = [member for member in self.tar.index.members(i) if self._is_picture(member)]
        return [picture_size(self.tar.part, *self.tar.index.span(member)) for member in members]

    def known(self, sample: dict[str, Any]) -> list[str]:
        """The paths that there are in a sample's JSON."""
        return paths(sample.get(".json"))

    def _is_picture(self, member: int) -> bool:
        return self.tar.index.extension[member] in self._pictures


def _cache_key(table: ShardTable, task: Scan) -> str:
    digest = hashlib.sha256(
        json.dumps([_VERSION, task.rules.signature(), task.pictures, table.fingerprint]).encode()
    )

    def told(number: int) -> tuple[str, storage.Stat]:
        url = table.url(number)
        return url, storage.stat(url, table.storage_options(number))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for url, stat in (threads.map if table.remote else map)(told, range(len(table))):
            digest.update(f"{url}\0{stat.size}\0{stat.version}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _load(file: str, table: ShardTable) -> TakePart | None:
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            left_out = json.loads(arrays["left_out"].tobytes())
            return TakePart(Selection(arrays["counts"], arrays["numbers"], table.counts), left_out)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("%s: no outcome of filters (%s): they are applied again", file, error)
        return None


def _save(file: str, outcome: TakePart) -> None:
    buffer = io.BytesIO()
    left_out = np.frombuffer(json.dumps(outcome.left_out).encode(), np.uint8)
    selection = outcome.selection
    np.savez(buffer, counts=selection.counts, numbers=selection.numbers, left_out=left_out)
    try:
        storage.write_bytes(file, buffer.getvalue())
    except OSError as error:
        logger.warning(
            "filters: the outcome can't be remembered (%s): name a folder by filter_cache=…", error
        )


@contextlib.contextmanager
def _lock(file: str) -> Iterator[None]:
    """One process of this machine at a time; a folder where nothing can be locked costs each its own scan."""
    lock = FileLock(file + ".lock")
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()
