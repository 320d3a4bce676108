"""A dataset of one item: the world that its worker sees. A module of its own, so that spawned workers find it."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import IterableDataset

from loader.world import World, current_world


class Worlds(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, inherited: tuple[int, int] | None) -> None:
        self.inherited = inherited

    def __iter__(self) -> Iterator[World]:
        yield current_world(inherited=self.inherited)
