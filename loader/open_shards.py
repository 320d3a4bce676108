"""URL → open shard: the few that are being read, the least recently used one closed first."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from loader.errors import ShardflowError
from loader.indexed_tar_samples import IndexedTarSamples


class OpenShards:
    """At most `size` open shards, opened by `open_shard(shard)` when first asked for.

    Not shared between threads. After a fork the child starts with the shards that were open (maps stay valid);
    a pickle carries none.
    """

    def __init__(self, size: int, open_shard: Callable[[int], IndexedTarSamples]) -> None:
        if size < 1:
            raise ValueError(f"lru_size is {size}: at least 1 was expected")
        self.size = size
        self._open_shard = open_shard
        self._open: OrderedDict[int, IndexedTarSamples] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "_open_shard": self._open_shard}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["size"], state["_open_shard"])  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, shard: object) -> bool:
        return shard in self._open

    def get(self, shard: int) -> IndexedTarSamples:
        """The open shard; opening one more than `size` closes the one that was used longest ago."""
        samples = self._open.get(shard)
        if samples is not None:
            self._open.move_to_end(shard)
            return samples
        self._make_room()
        samples = self._open[shard] = self._open_shard(shard)
        return samples

    def get_all(self, shards: Sequence[int], background: Callable[..., Future[IndexedTarSamples]]) -> None:
        """Have these shards open, at most `size`, opened side by side by ``background(function, shard)``.

        One that can't be opened is left to `get`, which says why.
        """
        opening = {shard: background(self._open_shard, shard) for shard in shards if shard not in self._open}
        for shard in shards:
            if shard in self._open:
                self._open.move_to_end(shard)
        for shard, future in opening.items():
            with contextlib.suppress(ShardflowError):
                samples = future.result()
                self._make_room()
                self._open[shard] = samples

    def _make_room(self) -> None:
        while len(self._open) >= self.size:
            # No name keeps its index mapped while the next one is opened.
            self._open.popitem(last=False)[1].close()

    def drop(self, shard: int) -> None:
        """Close one, if it is open."""
        samples = self._open.pop(shard, None)
        if samples is not None:
            samples.close()

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popitem()[1].close()
