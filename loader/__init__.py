"""Read indexed WebDataset shards, alone or distributed over any number of ranks and workers.

Names are imported when they are first used, so that reading a tar needs neither torch nor Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loader.data_handler import default_handlers, make_handlers
    from loader.data_loader import ShardedDataLoader, gather_state
    from loader.datasets import SampleDataset
    from loader.errors import ShardflowError
    from loader.indexed_tar import IndexedTar, IndexedTarSamples
    from loader.indexed_tar_dataset import DataStatus, IndexedTarDataset, RetSample
    from loader.registry import load_registry
    from loader.state import State, merge_states
    from loader.writer import ShardWriter

_HOMES = {
    "DataStatus": "indexed_tar_dataset",
    "IndexedTar": "indexed_tar",
    "IndexedTarDataset": "indexed_tar_dataset",
    "IndexedTarSamples": "indexed_tar",
    "RetSample": "indexed_tar_dataset",
    "SampleDataset": "datasets",
    "ShardWriter": "writer",
    "ShardedDataLoader": "data_loader",
    "ShardflowError": "errors",
    "State": "state",
    "default_handlers": "data_handler",
    "gather_state": "data_loader",
    "load_registry": "registry",
    "make_handlers": "data_handler",
    "merge_states": "state",
}

__all__ = [
    "DataStatus",
    "IndexedTar",
    "IndexedTarDataset",
    "IndexedTarSamples",
    "RetSample",
    "SampleDataset",
    "ShardWriter",
    "ShardedDataLoader",
    "ShardflowError",
    "State",
    "default_handlers",
    "gather_state",
    "load_registry",
    "make_handlers",
    "merge_states",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loader' has no attribute {name!r}")
    value = getattr(import_module(f"loader.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
