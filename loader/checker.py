"""Is a loader really resumable? Restore it at every step, and compare with one that was never interrupted.

For a test of your own dataset, before a long run relies on it::

    def make_loader(rank=0, world_size=1, batch_size=8, num_workers=0):
        dataset = MyDataset("data", rank=rank, world_size=world_size)
        return ShardedDataLoader(dataset, batch_size, num_workers=num_workers)

    def test_resume():
        check_resume(make_loader, worlds=[(2, 4, 0), (3, 2, 0)])
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import torch

from loader.errors import NotResumable
from loader.indexed_tar_dataset import RetSample
from loader.state import State, merge_states

World = tuple[int, int, int]  # world size, batch size, number of workers

_HINT = (
    "What breaks it most often: a data_generator that asks index_generator for the next number before it has yielded "
    "or skipped the one before; something random that doesn't follow from seed, epoch and index; state kept from one "
    "sample to the next."
)


class Resumable(Protocol):
    """What is checked: `ShardedDataLoader`, or whatever behaves like it."""

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass(frozen=True)
class _Batch:
    digest: str
    keys: list[Hashable] | None

    def __str__(self) -> str:
        return "an equal number of other bytes" if self.keys is None else _some(self.keys)


@dataclass
class Checked:
    """What `check_resume` did."""

    batches: int = 0  # of the uninterrupted run
    restores: int = 0


def check_resume(
    make_loader: Callable[..., Resumable],
    epochs: int = 2,
    every: int = 1,
    *,
    keys: Callable[[Any], Iterable[Hashable]] | None = None,
    whole: bool = True,
    worlds: Sequence[World] = (),
) -> Checked:
    """Restore after every `every`-th batch of `epochs` epochs, and compare all that follows with the uninterrupted run.

    `make_loader()` gives a new loader each time. Checked is that two runs are the same; that from each state (which
    goes through JSON) the rest of its epoch and the next one follow, `len` included; that a run survives being
    saved and restored after each `every`-th batch; and both at the exact end of an epoch.

    `keys(batch)`: what identifies its samples; by default their ``"__key__"``, or the `index` of RetSamples. With
    ``whole=False`` only these are compared (for transforms that are random on purpose), else the contents of batches.
    `worlds`: (world size, batch size, workers) of other worlds; then ``make_loader(rank=…, world_size=…,
    batch_size=…, num_workers=…)`` gives one of their ranks. From each of them the state of all ranks is carried
    to each, and what remains must come once each (but for what the tail rule repeats or drops).

    NotResumable, with the place and what differs, if anything is wrong. Costs about n²/2 batches for n in an epoch:
    take a small dataset, or a larger `every`.
    """
    if epochs < 1 or every < 1:
        raise ValueError(f"epochs is {epochs}, every is {every}: 1 or more were expected")
    checker = _Checker(make_loader, every, keys, whole)
    checker.uninterrupted(epochs)
    checker.from_each_state(epochs)
    checker.again_and_again(epochs)
    for one in worlds:
        for other in worlds:
            checker.onto(one, other)
    return checker.checked


class _Checker:
    def __init__(
        self,
        make_loader: Callable[..., Resumable],
        every: int,
        keys: Callable[[Any], Iterable[Hashable]] | None,
        whole: bool,
    ) -> None:
        self.make_loader, self.every, self.keys, self.whole = make_loader, every, keys, whole
        self.checked = Checked()
        self.wanted: list[list[_Batch]] = []  # by epoch
        self.states: list[list[dict[str, Any]]] = []  # by epoch, after so many batches
        self.after: list[dict[str, Any]] = []  # by epoch, once its loop has ended

    def uninterrupted(self, epochs: int) -> None:
        """Run twice, saving at each step and not at all: neither chance nor saving may make a difference."""
        loader = self.make_loader()
        for _ in range(epochs + 1):
            states, batches = [_saved(loader)], []
            promised = _length(loader)
            for batch in loader:
                batches.append(self._batch(batch))
                states.append(_saved(loader))
            if promised is not None and promised != len(batches):
                raise NotResumable(
                    f"len() said {promised} batches, {len(batches)} came in epoch {len(self.wanted)}. {_HINT}"
                )
            self.wanted.append(batches)
            self.states.append(states)
            self.after.append(_saved(loader))
        self.checked.batches = sum(map(len, self.wanted))
        if not self.checked.batches:
            raise NotResumable("The loader gives no batches: nothing can be said about resuming it.")
        other = self.make_loader()
        for epoch, batches in enumerate(self.wanted):
            self._compare(batches, self._rest(other), f"Two runs from the start differ in epoch {epoch}")

    def from_each_state(self, epochs: int) -> None:
        """Each state, and the one after each epoch, into a new loader: the rest, and the epoch after it."""
        for epoch in range(epochs):
            for step in sorted({*range(0, len(self.wanted[epoch]) + 1, self.every), len(self.wanted[epoch])}):
                where = f"Restored after {step} of {len(self.wanted[epoch])} batches of epoch {epoch}"
                loader = self._restored(self.states[epoch][step], where)
                left, promised = self.wanted[epoch][step:], _length(loader)
                if promised is not None and promised != len(left):
                    raise NotResumable(f"{where}, len() says {promised} batches: {len(left)} remain. {_HINT}")
                self._compare(left, self._rest(loader), f"{where}, the rest of the epoch differs", step)
                self._compare(self.wanted[epoch + 1], self._rest(loader), f"{where}, the next epoch differs")
            where = f"Restored from the state after epoch {epoch}"
            loader = self._restored(self.after[epoch], where)
            self._compare(self.wanted[epoch + 1], self._rest(loader), f"{where}, the next epoch differs")

    def again_and_again(self, epochs: int) -> None:
        """Saved and restored after each few batches, all the way."""
        loader = self.make_loader()
        for epoch in range(epochs):
            where, step, ended = f"Restored every {self.every} batches, epoch {epoch} differs", 0, False
            while not ended:
                batches = iter(loader)
                part = []
                for batch in batches:
                    part.append(self._batch(batch))
                    if len(part) == self.every:
                        break
                else:
                    ended = True
                state = _saved(loader)
                del batches
                self._compare(self.wanted[epoch][step : step + len(part)], part, where, step)
                step += len(part)
                loader = self._restored(state, where)
            if step != len(self.wanted[epoch]):
                raise NotResumable(
                    f"{where}: it ended after {step} of {len(self.wanted[epoch])} batches. {_HINT}"
                )

    def onto(self, one: World, other: World) -> None:
        """The state of all ranks of one world, after each few batches, into all ranks of another."""
        full = [[self._keys(batch) for batch in loader] for loader in self._ranks(one)]
        known = set(chain(*chain(*full)))
        for step in range(0, max(map(len, full)) + 1, self.every):
            heads, states = [], []
            for loader, batches in zip(self._ranks(one), full, strict=True):
                handed = islice(loader, min(step, len(batches)))
                heads += [self._keys(batch) for batch in handed]
                states.append(State.from_dict(_saved(loader)))
                del handed
            state = merge_states(states).to_dict()
            where = f"Saved after {step} batches of {_world(one)}, restored into {_world(other)}"
            rest: list[list[Hashable]] = []
            for loader in self._ranks(other):
                loader.load_state_dict(json.loads(json.dumps(state)))
                self.checked.restores += 1
                promised, before = _length(loader), len(rest)
                rest += [self._keys(batch) for batch in loader]
                if promised is not None and promised != len(rest) - before and _tail(loader) != "keep":
                    raise NotResumable(f"{where}: len() said {promised}, {len(rest) - before} batches came.")
            self._once_each([*heads, *rest], known, states[0].samples, (one, other), _tail(loader), where)

    def _once_each(
        self,
        batches: list[list[Hashable]],
        known: set[Hashable],
        samples: int,
        worlds: tuple[World, World],
        tail: str,
        where: str,
    ) -> None:
        times = Counter(chain(*batches))
        sizes = [world[0] * (world[1] if tail in ("drop", "pad") else 1) for world in worlds]
        missing = [key for key in known if key not in times]
        if len(missing) > (sizes[1] - 1 if tail == "drop" else 0):
            raise NotResumable(
                f"{where}: {len(missing)} samples never come, such as {_some(missing)}. {_HINT}"
            )
        twice = [key for key, count in times.items() if count > 1]
        # What fills a batch up, and what is repeated in place of samples that were left out.
        allowed = {"keep": 0, "drop": 0}.get(tail, sum(sizes) - 2) + 2 * max(0, samples - len(known))
        if times.total() - len(times) > allowed:
            raise NotResumable(f"{where}: {len(twice)} samples come twice, such as {_some(twice)}. {_HINT}")

    # -- parts

    def _ranks(self, world: World) -> list[Resumable]:
        size, batch_size, workers = world
        return [
            self.make_loader(rank=rank, world_size=size, batch_size=batch_size, num_workers=workers)
            for rank in range(size)
        ]

    def _restored(self, state: dict[str, Any], where: str) -> Resumable:
        loader = self.make_loader()
        loader.load_state_dict(state)
        self.checked.restores += 1
        saved = _saved(loader)
        if saved != state:
            names = sorted(name for name in {*saved, *state} if saved.get(name) != state.get(name))
            what = "; ".join(f"{name} is {saved.get(name)}, loaded was {state.get(name)}" for name in names)
            raise NotResumable(f"{where}, state_dict() is not what was loaded: {what}. {_HINT}")
        return loader

    def _rest(self, loader: Resumable) -> list[_Batch]:
        return [self._batch(batch) for batch in loader]

    def _keys(self, batch: Any) -> list[Hashable]:
        return list((self.keys or find_keys)(batch))

    def _batch(self, batch: Any) -> _Batch:
        try:
            keys: list[Hashable] | None = self._keys(batch)
        except TypeError:
            if self.keys is not None or not self.whole:
                raise
            keys = None  # only for the message
        return _Batch(digest(batch) if self.whole else repr(keys), keys)

    def _compare(self, wanted: list[_Batch], got: list[_Batch], where: str, first: int = 0) -> None:
        for number, (one, other) in enumerate(zip(wanted, got, strict=False), first):
            if one.digest == other.digest:
                continue
            if one.keys is not None and one.keys == other.keys:
                what = f"its samples are the same ({one}), but not what they hold"
            else:
                what = f"{one} was expected, {other} came"
            raise NotResumable(f"{where}: batch {number}: {what}. {_HINT}")
        if len(wanted) != len(got):
            raise NotResumable(f"{where}: {len(wanted)} batches were expected, {len(got)} came. {_HINT}")


def find_keys(batch: Any) -> list[Hashable]:
    """What identifies the samples of a batch: their ``"__key__"``, or the `index` of RetSamples.

    TypeError if there is neither.
    """
    if isinstance(batch, RetSample):
        return _flat(batch.index)
    if isinstance(batch, Mapping) and "__key__" in batch:
        return _flat(batch["__key__"])
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], (RetSample, Mapping)):
        return list(chain(*map(find_keys, batch)))
    raise TypeError(
        f"a batch is a {type(batch).__name__} without '__key__', and of no RetSamples: say with keys=… what identifies "
        "its samples"
    )


def _flat(value: Any) -> list[Hashable]:
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, (list, tuple)) else [value]


def digest(value: Any) -> str:
    """Equal for equal contents: tensors, arrays, pictures, containers of them; else by `repr`."""
    found = hashlib.sha256()
    _feed(value, found.update)
    return found.hexdigest()


def _feed(value: Any, update: Callable[[bytes], None]) -> None:
    kind = type(value).__name__.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        update(b"bytes %d " % len(value) + bytes(value))
    elif isinstance(value, Mapping):
        update(b"mapping %d " % len(value))
        for key in value:
            _feed(key, update)
            _feed(value[key], update)
    elif isinstance(value, (list, tuple)):
        update(kind + b" %d " % len(value))
        for item in value:
            _feed(item, update)
    elif isinstance(value, torch.Tensor):
        update(f"{value.dtype} ".encode())
        # bfloat16 and others are unknown to NumPy: as bytes, then.
        plain = value.detach().cpu().contiguous()
        _feed(plain.reshape(-1).view(torch.uint8).numpy(), update)
        update(repr(tuple(value.shape)).encode())
    elif isinstance(value, np.ndarray):
        update(f"{value.dtype} {value.shape} ".encode())
        update(value.tobytes() if not value.dtype.hasobject else repr(value.tolist()).encode())
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # a picture
        update(f"{value.mode} {value.size} ".encode() + value.tobytes())
    else:
        update(kind + b" " + repr(value).encode("utf-8", "surrogatepass"))


def _saved(loader: Resumable) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def _length(loader: Resumable) -> int | None:
    """What `len` promises, of what has one that is exact."""
    return len(loader) if isinstance(loader, Sized) and _tail(loader) != "keep" else None


def _tail(loader: Resumable) -> str:
    return str(getattr(getattr(loader, "dataset", None), "tail", "even"))


def _world(world: World) -> str:
    return f"{world[0]} ranks × batches of {world[1]} × {world[2]} workers"


def _some(keys: Sequence[Hashable]) -> str:
    return f"[{', '.join(map(str, keys[:8]))}{', …' if len(keys) > 8 else ''}]"
