"""Where an epoch is, what of it is done, and how it goes on elsewhere: the part of a dataset that a checkpoint knows."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from loader.order import Order, choose_lanes
from loader.ret_sample import DataStatus
from loader.schedule import Schedule, Tail
from loader.shards import ShardTable
from loader.shared import Shared
from loader.state import RankProgress, Run, State
from loader.stream import OnBad, Stream
from loader.world import World, current_world

Ints = npt.NDArray[np.int64]
Sharding = Literal["auto", "sample", "url"]


@dataclass(frozen=True)
class _Loaded:
    """A state to go on from."""

    number: int  # see Shared.loaded; -1 in a worker that was given one of its own, for its next iteration
    state: State
    emitted: tuple[int, ...] | None = None  # samples that each stream yielded, where batches don't tell


class Resumable(IterableDataset[Any]):
    """Epochs, their order and their state, of a dataset over shards. See docs/order.md for what is promised.

    A subclass sets the attributes that are named here before it calls `__init__`, and iterates: it makes a `Stream` of
    `plan`, and counts in it what it hands out.
    """

    table: ShardTable
    counts: Ints  # samples of each shard that take part
    fingerprint: str
    seed: int
    shuffle: bool
    shuffle_size: int
    batch_size: int
    tail: Tail
    sharding: Sharding
    on_bad: OnBad

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        super().__init__()
        self._given = (rank, world_size)
        # Rank and world size of the process that pickled this, and its pid.
        self._inherited: tuple[int, int, int] | None = None
        self._stream: Stream | None = None
        self._shared = Shared()
        self._loaded: _Loaded | None = None
        self._lanes: int | None = None
        self._workers: int | None = None  # of the loader that this copy belongs to
        self._copies: weakref.WeakSet[Resumable] = weakref.WeakSet()  # of loaders

    @property
    def rank(self) -> int:
        """The data-parallel rank of this process."""
        return self._world().rank

    @property
    def world_size(self) -> int:
        """The number of data-parallel ranks."""
        return self._world().world_size

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the iterations that come: set it before each, on every rank, to the same number."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}: 0 or more was expected")
        self._shared.epoch = epoch
        for other in self._copies:
            other.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that comes next."""
        return self._shared.epoch

    def order(self, epoch: int | None = None) -> Order:
        """The order of an epoch (by default of the one that comes next)."""
        lanes = self._lanes_for(self._world().world_size)
        number = self.epoch if epoch is None else epoch
        return Order(self.counts, self.seed, number, self.shuffle_size, lanes, self.shuffle)

    # -- state

    def load_state_dict(self, state: Mapping[str, Any] | State) -> None:
        """Go on where a state was taken: the next iteration is the rest of its epoch.

        StateMismatch, with one sentence for each reason, if it doesn't fit this dataset.
        """
        self._load(state if isinstance(state, State) else State.from_dict(state))

    def forget_state(self) -> None:
        """Start epochs from their beginning again, whatever was loaded (its lanes stay: they are the run's)."""
        self._shared.forget()
        self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        """How far the iteration in this very process got: exact with ``num_workers=0``.

        In a DataLoader's worker, it is about this worker alone: what torchdata's StatefulDataLoader collects, and
        gives back to the same worker of as many. A process with workers knows nothing of them: take
        `ShardedDataLoader`, or a DataStatus.
        """
        stream = self._stream
        if stream is None or stream.order.epoch != self.epoch:
            return self.state_of(None).to_dict()
        schedule, world = stream.schedule, stream.world
        made = -(-stream.emitted // self.batch_size) * world.num_workers  # the others are taken to be as far
        batches = min(made, schedule.rank_batches(world.rank))
        consumed = [0] * world.num_workers
        consumed[world.worker] = stream.consumed
        progress = RankProgress(world.rank, batches, tuple(consumed), stream.turn)
        return self._state(schedule, progress).to_dict()

    def set_data_status(self, status: DataStatus) -> None:
        """Resume from what a DataStatus counted on this rank, with the same number of ranks and workers."""
        world, workers = self._world(), range(status.num_workers)
        emitted = tuple(status.emitted.get(worker, 0) for worker in workers)
        consumed = tuple(status.consumed.get(worker, 0) for worker in workers)
        progress = RankProgress(
            world.rank,
            sum(-(-count // self.batch_size) for count in emitted),
            # Substitutes stand in the place of what is told as missing.
            emitted if self.on_bad == "substitute" else consumed,
            int(np.argmin(emitted)),  # DataLoader asks them in turn
        )
        run = Run(world.world_size, self.batch_size, status.num_workers, (progress,))
        self._load(replace(self._fresh(), epoch=status.epoch, run=run), emitted)

    def state_of(self, progress: RankProgress | None) -> State:
        """The state of the epoch at hand, given how far this rank's workers got in it (None: not begun)."""
        if progress is None:
            return self.resumed() or self._fresh()
        schedule, _ = self.plan(len(progress.consumed))
        return self._state(schedule, progress)

    def plan(self, num_workers: int | None = None) -> tuple[Schedule, RankProgress]:
        """How the epoch at hand is dealt out, and where this rank goes on in it.

        A loaded state from the same world is continued in place, stream by stream; after one from another world,
        what remains is dealt out anew.
        """
        world = self._world()
        workers = world.num_workers if num_workers is None else num_workers
        state = self.resumed() or self._fresh()
        schedule = state.schedule(world.world_size, self.batch_size, workers, self.tail)
        return schedule, state.start(schedule, world.rank)

    def resumed(self) -> State | None:
        """The loaded state, as long as its epoch is the one at hand."""
        loaded, number = self._loaded, self._shared.loaded
        if number and (loaded is None or loaded.number not in (number, -1)):
            raise RuntimeError(
                f"{self!r}: a state was loaded while this worker was running, and is not known to it: load states "
                "before the DataLoader starts its persistent workers, or use ShardedDataLoader"
            )
        if loaded is None or loaded.number not in (number, -1) or loaded.state.epoch != self.epoch:
            return None
        return loaded.state

    # -- inside

    def _world(self) -> World:
        world = current_world(*self._given, inherited=self._of_parent())
        if self._workers is not None and world.num_workers != self._workers:
            # The main process, asking on behalf of its loader's workers.
            return World(world.rank, world.world_size, 0, self._workers)
        return world

    def _of_parent(self) -> tuple[int, int] | None:
        """Rank and world size of the process that pickled this for its worker.

        Not of one further up: it may have spawned ranks, which then forked their workers.
        """
        if self._inherited is None:
            return None
        rank, world_size, pid = self._inherited
        parent = multiprocessing.parent_process()
        return (rank, world_size) if pid in (os.getpid(), parent and parent.pid) else None

    def _lanes_for(self, world_size: int) -> int:
        if self._lanes is not None:  # a loaded state's: part of the order
            return self._lanes
        if self.sharding == "auto":
            return choose_lanes(len(self.table), world_size, self.shuffle)
        return world_size if self.sharding == "url" else 1

    def _emitted(self, schedule: Schedule, progress: RankProgress) -> tuple[int, ...]:
        """How many samples each stream of this rank has yielded where it goes on."""
        loaded = self._loaded
        if loaded is not None and loaded.emitted is not None and self.resumed() is loaded.state:
            run = loaded.state.run
            if run is not None and any(progress is each for each in run.ranks):
                return loaded.emitted
        return schedule.streams_after(progress.rank, progress.batches)

    def _fresh(self) -> State:
        """The state of the epoch at hand before it has begun."""
        lanes = self._lanes_for(self._world().world_size)
        samples = int(self.counts.sum())
        return State(self.seed, self.epoch, self.shuffle, self.shuffle_size, lanes, samples, self.fingerprint)

    def _state(self, schedule: Schedule, progress: RankProgress) -> State:
        run = Run(schedule.world_size, schedule.batch_size, schedule.num_workers, (progress,))
        return replace(self._fresh(), done=schedule.done, run=run)

    def _load(self, state: State, emitted: tuple[int, ...] | None = None) -> None:
        samples = int(self.counts.sum())
        state.check(self.fingerprint, samples, self.seed, self.shuffle, self.shuffle_size)
        self._stream = None
        self._lanes = state.lanes
        self._shared.epoch = state.epoch
        number = self._shared.load() if get_worker_info() is None else -1
        self._loaded = _Loaded(number, state, emitted)
