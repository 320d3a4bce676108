"""URL → open shard: the few that are being read, the least recently used one closed first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from loader.indexed_tar import IndexedTarSamples


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

    def get(self, shard: int) -> IndexedTarSamples:
        """The open shard; opening one more than `size` closes the one that was used longest ago."""
        samples = self._open.get(shard)
        if samples is not None:
            self._open.move_to_end(shard)
            return samples
        while len(self._open) >= self.size:
            self._open.popitem(last=False)[
                1
            ].close()  # no name keeps its index mapped while the next one is opened
        samples = self._open[shard] = self._open_shard(shard)
        return samples

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popitem()[1].close()
