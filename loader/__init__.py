"""Read indexed WebDataset shards, alone or distributed over any number of ranks and workers.

Names are imported when they are first used, so that reading a tar needs neither torch nor Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loader.checker import check_resume
    from loader.data_handler import default_handlers, make_handlers
    from loader.data_loader import EpochDataLoader, ShardedDataLoader, gather_state
    from loader.datasets import ImageTextDataset, InterleavedDataset, SampleDataset, TextDataset
    from loader.errors import ShardflowError
    from loader.filters import Filters
    from loader.indexed_tar import IndexedTar
    from loader.indexed_tar_dataset import DataStatus, IndexedTarDataset, RetSample
    from loader.indexed_tar_samples import IndexedTarSamples
    from loader.map_dataset import IndexedTarMapDataset
    from loader.registry import load_registry
    from loader.resize import image_handlers
    from loader.state import State, merge_states
    from loader.writer import ShardWriter

_HOMES = {
    "DataStatus": "indexed_tar_dataset",
    "EpochDataLoader": "data_loader",
    "Filters": "filters",
    "ImageTextDataset": "datasets",
    "IndexedTar": "indexed_tar",
    "IndexedTarDataset": "indexed_tar_dataset",
    "IndexedTarMapDataset": "map_dataset",
    "IndexedTarSamples": "indexed_tar_samples",
    "InterleavedDataset": "datasets",
    "RetSample": "indexed_tar_dataset",
    "SampleDataset": "datasets",
    "ShardWriter": "writer",
    "ShardedDataLoader": "data_loader",
    "ShardflowError": "errors",
    "State": "state",
    "TextDataset": "datasets",
    "check_resume": "checker",
    "default_handlers": "data_handler",
    "gather_state": "data_loader",
    "image_handlers": "resize",
    "load_registry": "registry",
    "make_handlers": "data_handler",
    "merge_states": "state",
}

__all__ = [
    "DataStatus",
    "EpochDataLoader",
    "Filters",
    "ImageTextDataset",
    "IndexedTar",
    "IndexedTarDataset",
    "IndexedTarMapDataset",
    "IndexedTarSamples",
    "InterleavedDataset",
    "RetSample",
    "SampleDataset",
    "ShardWriter",
    "ShardedDataLoader",
    "ShardflowError",
    "State",
    "TextDataset",
    "check_resume",
    "default_handlers",
    "gather_state",
    "image_handlers",
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
