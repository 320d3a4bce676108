"""What the demo reads: samples with their pictures in one list, by number."""

from __future__ import annotations

from typing import Any

from loader.data_handler import IMAGE_EXTENSIONS, handler_for
from loader.datasets import SampleDataset
from loader.indexed_tar_samples import IndexedTarSamples
from loader.sample import split_number


class DemoDataset(SampleDataset):
    """``{"__key__": …, ".json": …, "pictures": [picture of <image_0>, picture of <image_1>, …]}``.

    A sample as it comes has a list for each extension, which doesn't say where a JPEG stands among PNGs.
    """

    def make(self, shard: IndexedTarSamples, i: int, index: int, epoch: int) -> Any:
        """The members in their order, which for pictures is that of their numbers."""
        sample: dict[str, Any] = {"__key__": shard.key(i), "pictures": []}
        for _, extension, data in shard.members(i):
            value = handler_for(extension, shard.handlers)(data)
            if split_number(extension)[1] in IMAGE_EXTENSIONS:
                sample["pictures"].append(value)
            else:
                sample[extension] = value
        return sample
