"""Datasets to use as they are: every sample whole, as a dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from loader.errors import BadSample
from loader.indexed_tar import IndexedTarSamples
from loader.indexed_tar_dataset import IndexedTarDataset, RetSample

Sample = dict[str, Any]


class SampleDataset(IndexedTarDataset):
    """Samples as dicts: ``{"__key__": …, ".jpg": …, ".json": …}``, decoded as `IndexedTarSamples` does.

    `transform` is called with each sample, in the worker; what it returns is yielded in its place, and None leaves
    the sample out (not counted as bad). An exception of `transform` is a bad sample, which `on_bad` deals with.
    `ret_samples`: yield RetSamples, which say where each came from. Other arguments as for `IndexedTarDataset`.
    """

    def __init__(
        self,
        *arguments: Any,
        transform: Callable[[Any], Any] | None = None,
        ret_samples: bool = False,
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        self.transform = transform
        self.ret_samples = ret_samples

    def make(self, shard: IndexedTarSamples, i: int, index: int) -> Any:
        """Sample `i` of an open shard, number `index` of the dataset; None to leave it out."""
        return shard[i]

    def data_generator(self) -> Iterator[RetSample]:
        """Every sample that can be read, made and transformed."""
        make, transform, raises = self.make, self.transform, self.on_bad == "raise"
        for index in self.index_generator():
            url, i = place = self.index2indices(index)
            try:
                sample = make(self.shard_of(url), i, index)
                if transform is not None and sample is not None:
                    sample = transform(sample)
            except BadSample as error:
                if raises:
                    raise
                self.skip_sample(index, error)
                continue
            except Exception as error:
                problem = BadSample(f"{url}: sample {i}: {type(error).__name__}: {error}")
                if raises or isinstance(error, (OSError, MemoryError)):  # no fault of this one sample
                    raise problem from error
                self.skip_sample(index, problem)
                continue
            if sample is None:
                self.skip_sample(index, "left out", bad=False)
                continue
            missing, missing_places, missing_samples = self.success_sample()
            yield RetSample(
                self.name,
                self.data_type,
                missing,
                missing_places,
                missing_samples,
                index,
                place,
                sample,
                self.worker_id,
                self.num_workers,
            )

    def present(self, sample: RetSample) -> Any:
        """The sample itself, unless `ret_samples`."""
        return sample if self.ret_samples else sample.sample
