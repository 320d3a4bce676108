"""A torch DataLoader that counts what it delivered, so that it can be saved at any batch and go on elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy.random  # noqa: F401 - torch seeds it in every worker: not imported here, each would import it anew
from torch.utils.data import DataLoader, default_collate, default_convert, get_worker_info

from loader.ahead import look_up
from loader.indexed_tar_dataset import IndexedTarDataset, RetSample
from loader.schedule import Schedule, Tail
from loader.state import RankProgress, State
from loader.transport import Slots, make_slots


class ShardedDataLoader(DataLoader[Any]):
    """`torch.utils.data.DataLoader` over an `IndexedTarDataset`, with `state_dict` and `load_state_dict`.

    All arguments of DataLoader keep their meaning, but those that an iterable dataset doesn't take (`shuffle`,
    `sampler`, `batch_sampler`: order belongs to the dataset). `tail` says what happens where the epoch doesn't
    come out even (see `loader.schedule`): by default what the dataset says ("even"), "drop" with `drop_last`.

    It iterates over a copy of `dataset`, so that one dataset may serve several loaders. Epochs are counted here, in
    the main process: after an iteration that delivered all its batches comes the next epoch; one that was left
    before is begun again. `set_epoch` says otherwise. `len` is the exact number of batches of the iteration
    that comes next (or is at hand).

    A state says which batches were handed to the trainer: what workers have prefetched is in none. Take it at any
    time in the process that iterates. See docs/order.md for what it guarantees.
    """

    def __init__(
        self,
        dataset: IndexedTarDataset,
        batch_size: int | None = 1,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        tail: Tail | None = None,
        **arguments: Any,
    ) -> None:
        if not isinstance(dataset, IndexedTarDataset):
            raise TypeError(f"dataset is a {type(dataset).__name__}: an IndexedTarDataset was expected")
        for name in ("shuffle", "sampler", "batch_sampler"):
            if arguments.pop(name, None):
                raise ValueError(
                    f"{name} doesn't go with an IndexedTarDataset, which has an order of its own: say shuffle=… and "
                    "seed=… to the dataset; for a sampler of yours, use IndexedTarMapDataset in torch's DataLoader"
                )
        if arguments.get("in_order") is False:
            raise ValueError("in_order=False would make the order of batches depend on chance")
        if drop_last and tail not in (None, "drop"):
            raise ValueError(f"drop_last says 'drop', tail says {tail!r}: give one of them")
        tail = tail or ("drop" if drop_last else dataset.tail)
        own = dataset.for_loader(batch_size or 1, tail, num_workers)
        # The epoch of the last iteration, and how far it got; None: it came to its end, or there was none.
        self._seen: tuple[int, RankProgress] | None = None
        self._pass = 0  # iterations begun
        self._begun = False  # one of the epoch at hand
        self._slots: list[Slots] = []
        collate_fn = collate_fn or (collate if batch_size is not None else default_convert)
        super().__init__(own, batch_size, num_workers=num_workers, collate_fn=collate_fn, **arguments)
        # Accelerate's prepare would split what is split already, and most samples of some ranks would never come: by
        # this it takes the loader as it is.
        self._is_accelerate_prepared = True

    @property
    def indexed(self) -> IndexedTarDataset:
        """The copy of the dataset that is iterated over."""
        return self.dataset  # type: ignore[return-value]

    @property
    def epoch(self) -> int:
        """The epoch at hand: of the iteration that runs, or the one that comes next."""
        return self.indexed.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch `epoch`, from its beginning; what remains of a loaded one if it is that."""
        if epoch != self.epoch or self._all_delivered():
            self.indexed.forget_state()
            self._seen = None
        self.indexed.set_epoch(epoch)

    def __len__(self) -> int:
        return self._left(*self.indexed.plan())

    def _left(self, schedule: Schedule, progress: RankProgress) -> int:
        if schedule.tail == "keep":
            return schedule.batches_left(progress.rank, progress.consumed)
        return schedule.rank_batches(progress.rank) - progress.batches

    def _all_delivered(self) -> bool:
        """Whether the epoch at hand is done, although nobody has asked for a batch behind the last one."""
        progress = self._progress()
        return progress is not None and not self._left(self.indexed.plan()[0], progress)

    def _progress(self) -> RankProgress | None:
        return self._seen[1] if self._seen is not None and self._seen[0] == self.epoch else None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._pass += 1
        if self._all_delivered():
            self._next_epoch()
        self._seen, self._begun = None, True
        self.indexed.set_epoch(self.epoch)  # in memory that no other rank shares
        if self._iterator is None:  # workers start; old ones, still ending, keep the slots that they have
            self._slots = make_slots(self.num_workers, self.prefetch_factor)
            if self.num_workers:
                look_up(self.indexed)
        # Not in __init__, so that whoever makes another loader from this one's parts gets plain batches.
        collate_fn, self.collate_fn = self.collate_fn, _Counting(self.collate_fn, self.indexed, self._slots)
        try:
            batches = super().__iter__()
        finally:
            self.collate_fn = collate_fn
        schedule, progress = self.indexed.plan()
        self._seen = (
            self.epoch,
            progress,
        )  # begun: a rank that gets no batch at all tells of itself all the same
        return self._deliver(batches, self._pass, self.epoch, self._slots, schedule, progress)

    def _deliver(
        self,
        batches: Iterator[Any],
        number: int,
        epoch: int,
        slots: list[Slots],
        schedule: Schedule,
        progress: RankProgress,
    ) -> Iterator[Any]:
        while True:
            if self._left(schedule, progress) and (number != self._pass or epoch != self.epoch):
                raise RuntimeError(
                    "this iteration was left: a newer one began on the same loader, or it was given a state or "
                    "another epoch. Begin anew: iter(loader)"
                )
            try:
                batch, (stream, consumed, whose, worker) = next(batches)
            except StopIteration:
                break
            if tuple(whose) != (progress.rank, schedule.world_size, epoch):  # a list where memory was pinned
                raise RuntimeError(
                    f"a worker read for (rank, world size, epoch) {tuple(whose)}, this process is at "
                    f"{(progress.rank, schedule.world_size, epoch)}: set up the process group, and the epoch, before "
                    "iterating; or say rank=… and world_size=… to the dataset"
                )
            if worker >= 0:
                batch = slots[worker].take(batch)
            progress = progress.handed(stream, consumed - progress.consumed[stream])
            self._seen = epoch, progress
            yield batch
        if number == self._pass and epoch == self.epoch:
            self._next_epoch()

    def _next_epoch(self) -> None:
        self._seen, self._begun = None, False
        self.indexed.forget_state()
        self.indexed.set_epoch(self.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """What this rank was handed so far: plain numbers, a few hundred bytes, for any kind of checkpoint.

        One rank's state serves all, as long as no samples were left out unevenly; `merge_states` makes one from
        all ranks', `gather_state` does so over a process group.
        """
        progress = self._progress()
        if progress is None and (self._begun or self.indexed.resumed() is None):
            progress = self.indexed.plan()[
                1
            ]  # a rank that was handed nothing says so: to be merged with others
        return self.indexed.state_of(progress).to_dict()

    def load_state_dict(self, state: Mapping[str, Any] | State) -> None:
        """Go on where a state was taken, under any world size, batch size and number of workers.

        The next iteration is the rest of its epoch; StateMismatch, with one sentence for each reason, if it doesn't
        fit the dataset.
        """
        self.indexed.load_state_dict(state)
        self._seen, self._begun = None, False
        self._pass += 1
        self._iterator = None  # workers that live through epochs know nothing of the state: start others

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None, "_slots": []}  # what belongs to running workers


class EpochDataLoader(ShardedDataLoader):
    """A ShardedDataLoader for trainers that count epochs and batches themselves, as Lightning's does.

    Restored in mid-epoch, `len` is that of the whole epoch, with the batches that the trainer has had (the iteration
    gives those that remain); restored at the end of one, the next iteration is the next epoch. An iteration
    begins with its first batch, and `set_epoch` is found where such trainers look for it: at the `sampler`.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.sampler.set_epoch = self.set_epoch  # type: ignore[attr-defined]

    def __len__(self) -> int:
        state = self.indexed.resumed()
        schedule, progress = self.indexed.plan()
        before = progress.batches
        if not before and state is not None and state.run is not None:  # in another world
            before = min((rank.batches for rank in state.run.ranks), default=0)
        return before + self._left(schedule, progress)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.indexed.resumed() is not None and not self._left(*self.indexed.plan()):
            self._next_epoch()
        yield from super().__iter__()


def collate(samples: list[Any]) -> Any:
    """torch's `default_collate`; RetSamples give one of columns, where places and what is missing stay lists."""
    if not samples or not isinstance(samples[0], RetSample):
        return default_collate(samples)
    columns = RetSample(*map(list, zip(*samples, strict=True)))  # type: ignore[arg-type]
    numbers = {
        name: default_collate(getattr(columns, name)) for name in ("index", "worker_id", "num_workers")
    }
    return columns._replace(sample=default_collate(columns.sample), **numbers)


class _Counting:
    """Collate a batch, and say how far its worker has got with it, and in whose slots it travels (-1: in none)."""

    def __init__(
        self, collate_fn: Callable[[list[Any]], Any], dataset: IndexedTarDataset, slots: list[Slots]
    ) -> None:
        self.collate_fn = collate_fn
        self.slots = slots
        self._dataset: IndexedTarDataset | None = dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None}  # a worker has its own

    def __call__(self, samples: Any) -> tuple[Any, tuple[int, int, tuple[int, int, int], int]]:
        info = get_worker_info()
        dataset = self._dataset if info is None else info.dataset
        if not isinstance(dataset, IndexedTarDataset):
            raise TypeError("collated outside of the DataLoader that this belongs to")
        place = dataset.place()
        batch = self.collate_fn(samples)
        if info is None or not self.slots:
            return batch, (*place, -1)
        return self.slots[info.id].put(batch, dataset.iteration), (*place, info.id)


def gather_state(loader: ShardedDataLoader, group: Any = None) -> dict[str, Any]:
    """One state from those of all ranks of a process group; all of them call it, and get the same."""
    import torch.distributed as dist

    from loader.state import merge_states

    own = loader.state_dict()
    if not (dist.is_available() and dist.is_initialized()):
        return own
    states: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(states, own, group=group)
    return merge_states(State.from_dict(state) for state in states).to_dict()


__all__ = ["EpochDataLoader", "ShardedDataLoader", "collate", "gather_state"]
