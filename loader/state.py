"""The checkpoint value: which positions of an epoch have been handed to the trainer. Plain numbers, a few hundred bytes.

It says what was done before the run began (`done`: everything below some p, and perhaps ranges beyond it) and
how far each worker's stream has got since (`run`, as `loader.schedule` deals them). Streams advance in order,
so a count for each says it exactly, however unevenly skipping made them run; undelivered prefetched batches
are in no count, so they are handed out again.

Restoring (`State.schedule`, `State.start`):

- onto the same world size, batch size and worker count, every stream goes on where it was: the rest of the
  epoch is the same as uninterrupted, batch by batch, whatever was skipped;
- onto any other, `State.delivered` gives the positions that are done, and what remains is dealt out anew, each
  position once. Under the same global batch that is the same sequence, as long as nothing was skipped.

The state of one rank is enough for itself, and for all as long as nothing was skipped unevenly: ranks step
together, so a rank that was handed k batches knows that each of the others was. Where samples were skipped, a
worker got further than its batches say, on that rank alone: `merge_states` makes one state from those of all
ranks, saved at one step.

On disk (JSON, version 1)
-------------------------

::

    {"format": "shardflow-state", "version": 1, "order": 1,
     "seed": 42, "epoch": 3, "shuffle": true, "shuffle_size": 50000, "lanes": 8,
     "samples": 1000000, "fingerprint": "sha256:…",
     "done": [[0, 4096], [5000, 5001]],          half-open, sorted, neither overlapping nor touching
     "run": null or {"world_size": 8, "batch_size": 64, "num_workers": 2,
                     "ranks": [{"rank": 0, "batches": 10, "turn": 0, "consumed": [320, 321]}]}}

`order` is the version of the order algorithm, `lanes` its V: part of the state, because the world may change.
`consumed` counts the entries of each worker's stream that were handed out or skipped (and, behind its end, what
was repeated to make up for skipped ones), `turn` is the worker whose
batch comes next. Keys that a reader doesn't know are ignored; a change that would make that wrong gets another
version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loader.errors import StateMismatch
from loader.order import ORDER_VERSION, Order
from loader.ranges import Ranges
from loader.schedule import Schedule, Tail

STATE_FORMAT = "shardflow-state"
STATE_VERSION = 1

_WORD = (1 << 64) - 1  # what the order hashes
_WORLD = 1 << 20  # ranks; keeps a damaged file from asking for terabytes


def fingerprint(names: Sequence[str], counts: npt.ArrayLike) -> str:
    """What identifies a dataset: its shards' names, in order, and how many samples each has.

    Names should be relative to the dataset's root, so that a moved dataset is still the same. Hashed are the
    number of shards, the lengths of the names in UTF-8 bytes, the counts (each as little-endian int64), then
    the names: nothing that depends on process, platform or hash seed.
    """
    encoded = [name.encode("utf-8", "surrogateescape") for name in names]
    sizes = np.asarray(counts, dtype="<i8")
    if sizes.shape != (len(encoded),):
        raise ValueError(f"{len(encoded)} names and counts of shape {sizes.shape}: one count for each name")
    digest = hashlib.sha256()
    digest.update(np.asarray([len(encoded)], dtype="<i8").tobytes())
    digest.update(np.asarray([len(name) for name in encoded], dtype="<i8").tobytes())
    digest.update(sizes.tobytes())
    digest.update(b"".join(encoded))
    return f"sha256:{digest.hexdigest()[:32]}"


@dataclass(frozen=True)
class RankProgress:
    """How far one rank got: batches handed to its trainer, entries done of each stream, and which comes next.

    `consumed` goes on counting behind a stream's end, where samples are repeated in place of skipped ones.
    """

    rank: int
    batches: int
    consumed: tuple[int, ...]
    turn: int = 0

    def stream(self, worker: int) -> int:
        """Which stream a DataLoader's worker makes from here: torch asks worker 0 first, whoever's turn it is."""
        return (self.turn + worker) % len(self.consumed)

    def handed(self, stream: int, entries: int) -> RankProgress:
        """After one more batch of this stream, which used up that many entries, skipped ones included."""
        consumed = list(self.consumed)
        consumed[stream] += entries
        return RankProgress(self.rank, self.batches + 1, tuple(consumed), (stream + 1) % len(consumed))


@dataclass(frozen=True)
class Run:
    """How what remained was dealt out in this run, and how far the known ranks got."""

    world_size: int
    batch_size: int
    num_workers: int
    ranks: tuple[RankProgress, ...] = ()


@dataclass(frozen=True)
class State:
    """See the module's head. A value: compare, pickle, send; `to_dict` is what belongs in a checkpoint."""

    seed: int
    epoch: int
    shuffle: bool
    shuffle_size: int
    lanes: int
    samples: int
    fingerprint: str
    done: Ranges = field(default_factory=Ranges)
    run: Run | None = None

    @classmethod
    def of(cls, order: Order, fingerprint: str, done: Ranges | None = None, run: Run | None = None) -> State:
        """The state of an epoch with this order."""
        return cls(
            order.seed,
            order.epoch,
            order.shuffle,
            order.shuffle_size,
            order.lanes,
            len(order),
            fingerprint,
            done or Ranges(),
            run,
        )

    def schedule(
        self, world_size: int = 1, batch_size: int = 1, num_workers: int = 1, tail: Tail = "drop"
    ) -> Schedule:
        """How the rest of this epoch is dealt out on that world; each rank goes on from `start`."""
        dealt = (world_size, batch_size, max(1, num_workers))
        done = self.done if self._deals(*dealt) else self.delivered()
        return Schedule(self.samples, *dealt, tail, done)

    def start(self, schedule: Schedule, rank: int) -> RankProgress:
        """Where a rank goes on in the schedule that `schedule` made."""
        run = self.run
        if run is None or not self._deals(schedule.world_size, schedule.batch_size, schedule.num_workers):
            return RankProgress(rank, 0, schedule.streams_after(rank, 0))
        for progress in run.ranks:
            if progress.rank == rank:
                return progress
        batches = min((progress.batches for progress in run.ranks), default=0)
        consumed = schedule.streams_after(rank, batches)
        return RankProgress(rank, batches, consumed, batches % schedule.num_workers)

    def delivered(self) -> Ranges:
        """All positions that are done.

        Ranks that this state doesn't know are taken to have been handed as many batches as the known ones.
        """
        run = self.run
        if run is None or not run.ranks:
            return self.done
        # With the tail under which streams get longest: behind a stream's end, samples were repeated.
        schedule = Schedule(self.samples, run.world_size, run.batch_size, run.num_workers, "pad", self.done)
        streams = {
            rank: [min(n, schedule.worker_samples(rank, w)) for w, n in enumerate(progress.consumed)]
            for rank, progress in ((progress.rank, progress) for progress in run.ranks)
        }
        return schedule.consumed(streams, min(progress.batches for progress in run.ranks))

    def _deals(self, *dealt: int) -> bool:
        run = self.run
        return run is not None and (run.world_size, run.batch_size, run.num_workers) == dealt

    def check(
        self,
        fingerprint: str,
        samples: int,
        seed: int,
        shuffle: bool,
        shuffle_size: int,
        lanes: int | None = None,
    ) -> None:
        """Refuse what this state doesn't fit: StateMismatch, one sentence a line for each reason.

        `lanes` is for a caller who set them by hand: otherwise a restored run takes those of the state.
        """
        reasons = []
        if samples != self.samples:
            reasons.append(
                f"The checkpoint is of a dataset with {self.samples} samples, this one has {samples}: "
                "load it with the data that it was made on."
            )
        elif fingerprint != self.fingerprint:
            reasons.append(
                "The checkpoint is of a dataset with other shards, or with these in another order "
                f"({self.fingerprint}, here {fingerprint}): load it with the data that it was made on."
            )
        if shuffle != self.shuffle:
            reasons.append(
                f"The checkpoint was made with shuffle={self.shuffle}, here it is {shuffle}: "
                f"set shuffle={self.shuffle}."
            )
        elif shuffle:
            for name, here, saved in (
                ("seed", seed, self.seed),
                ("shuffle_size", shuffle_size, self.shuffle_size),
            ):
                if here != saved:
                    reasons.append(
                        f"The checkpoint was made with {name}={saved}, here it is {here}: set {name}={saved}."
                    )
        if lanes is not None and lanes != self.lanes:
            reasons.append(
                f"The checkpoint was made with {self.lanes} lanes, here {lanes} are set: "
                "leave the sharding mode to the checkpoint."
            )
        if reasons:
            raise StateMismatch("\n".join(reasons))

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts only: for json, torch.save with weights_only, or anything else."""
        run = self.run
        return {
            "format": STATE_FORMAT,
            "version": STATE_VERSION,
            "order": ORDER_VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "shuffle": self.shuffle,
            "shuffle_size": self.shuffle_size,
            "lanes": self.lanes,
            "samples": self.samples,
            "fingerprint": self.fingerprint,
            "done": self.done.to_list(),
            "run": None
            if run is None
            else {
                "world_size": run.world_size,
                "batch_size": run.batch_size,
                "num_workers": run.num_workers,
                "ranks": [
                    {
                        "rank": each.rank,
                        "batches": each.batches,
                        "turn": each.turn,
                        "consumed": list(each.consumed),
                    }
                    for each in run.ranks
                ],
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        """The state that `to_dict` gave; StateMismatch says what is wrong with anything else."""
        if not isinstance(data, Mapping) or data.get("format") != STATE_FORMAT:
            raise StateMismatch(f"This is no state of a Shardflow dataset: no format {STATE_FORMAT!r} in it.")
        for name, ours, what in (
            ("version", STATE_VERSION, "The checkpoint's format"),
            ("order", ORDER_VERSION, "The order that the checkpoint follows"),
        ):
            if data.get(name) != ours:
                raise StateMismatch(
                    f"{what} has version {data.get(name)!r}, this Shardflow reads {ours}: "
                    "load it with the release that wrote it."
                )
        fingerprint = _field(data, "fingerprint", str)
        samples = _number(data, "samples")
        pairs = [_pair(pair) for pair in _field(data, "done", list)]
        done = Ranges(pairs)
        if done.to_list() != [list(pair) for pair in pairs] or done.stop > samples:
            raise StateMismatch(
                f"The checkpoint's 'done' is damaged: sorted, separate ranges within 0 … {samples} were expected."
            )
        return cls(
            _number(data, "seed", high=_WORD),
            _number(data, "epoch", high=_WORD),
            _field(data, "shuffle", bool),
            _number(data, "shuffle_size", 1),
            _number(data, "lanes", 1),
            samples,
            fingerprint,
            done,
            None if data.get("run") is None else _run(_field(data, "run", dict), samples, done),
        )


def merge_states(states: Iterable[State]) -> State:
    """One state from those of all ranks, saved at one step; their order doesn't matter.

    Each rank's state is exact about that rank alone. All must be given, and nothing but the ranks' progress
    may differ: StateMismatch otherwise. Processes that share a data-parallel rank may each give theirs.
    """
    given = list(states)
    if not given:
        raise StateMismatch("No states to merge: give those of all ranks.")
    known: dict[int, RankProgress] = {}
    first = given[0]
    for state in given:
        for name in ("epoch", "seed", "shuffle", "shuffle_size", "lanes", "samples", "fingerprint", "done"):
            here, there = getattr(first, name), getattr(state, name)
            if here != there:
                raise StateMismatch(
                    f"The states differ in {name} ({here!r} and {there!r}): merge those of one step of one run."
                )
        if (state.run and replace(state.run, ranks=())) != (first.run and replace(first.run, ranks=())):
            raise StateMismatch(
                f"The states are of runs dealt out differently ({_dealt(first)}; {_dealt(state)}): "
                "merge those of one step of one run."
            )
        for progress in state.run.ranks if state.run else ():
            if known.setdefault(progress.rank, progress) != progress:
                raise StateMismatch(
                    f"Two states tell different progress of rank {progress.rank}: merge those of one step of one run."
                )
    if first.run is None:
        return first
    missing = [rank for rank in range(first.run.world_size) if rank not in known]
    if missing:
        raise StateMismatch(
            f"Of {first.run.world_size} ranks the states of {_some(missing)} are missing: give those of all ranks."
        )
    ranks = tuple(known[rank] for rank in sorted(known))
    return replace(first, run=replace(first.run, ranks=ranks))


def _dealt(state: State) -> str:
    run = state.run
    if run is None:
        return "not begun"
    return f"world size {run.world_size}, batch size {run.batch_size}, {run.num_workers} workers"


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _field(data: Mapping[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if not isinstance(value, kind):
        raise StateMismatch(f"The checkpoint's {name!r} is {value!r}: {kind.__name__} was expected.")
    return value


def _number(data: Mapping[str, Any], name: str, low: int = 0, high: int = 1 << 62) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise StateMismatch(
            f"The checkpoint's {name!r} is {value!r}: a number from {low} to {high} was expected."
        )
    return value


def _pair(value: Any) -> tuple[int, int]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise StateMismatch(f"The checkpoint's 'done' holds {value!r}: pairs [start, stop] were expected.")
    low, high = _number({"done": value[0]}, "done"), _number({"done": value[1]}, "done")
    if low >= high:
        raise StateMismatch(f"The checkpoint's 'done' holds {value!r}: start < stop was expected.")
    return low, high


def _run(data: Mapping[str, Any], samples: int, done: Ranges) -> Run:
    run = Run(
        _number(data, "world_size", 1, _WORLD),
        _number(data, "batch_size", 1),
        _number(data, "num_workers", 1, _WORLD),
    )
    # The longest that streams get, whatever the tail rule was.
    longest = Schedule(samples, run.world_size, run.batch_size, run.num_workers, "pad", done)
    ranks: dict[int, RankProgress] = {}
    for each in _field(data, "ranks", list):
        if not isinstance(each, dict):
            raise StateMismatch(f"The checkpoint's 'ranks' holds {each!r}: an object was expected.")
        rank, counts = _number(each, "rank"), _field(each, "consumed", list)
        if rank >= run.world_size or rank in ranks or len(counts) != run.num_workers:
            raise StateMismatch(
                f"The checkpoint's progress of rank {rank}, with {len(counts)} workers, can't be of a run with "
                f"{run.world_size} ranks and {run.num_workers} workers each, told once."
            )
        consumed = tuple(_number({"consumed": count}, "consumed") for count in counts)
        batches = _number(each, "batches", high=longest.rank_batches(rank))
        ranks[rank] = RankProgress(rank, batches, consumed, _number(each, "turn", high=run.num_workers - 1))
    return replace(run, ranks=tuple(ranks[rank] for rank in sorted(ranks)))
