"""A subclass as the design page has it, to the letter; a module of its own, so that spawned workers find it."""
# ruff: noqa: BLE001
# fmt: off

from __future__ import annotations

from loader import IndexedTarDataset, RetSample


class Mine(IndexedTarDataset):
    def __repr__(self): return f"Mine({self.name})"
    def data_generator(self):
        for index in self.index_generator():
            url, i = self.index2indices(index)
            try:
                sample = self.read(url, i)
            except Exception:
                self.skip_sample(index)
                continue
            missing_indices, missing_urls, missing = self.success_sample()
            yield RetSample(name=self.name, data_type=self.data_type, missing_indices=missing_indices, missing_urls_indices=missing_urls,
                            missing_samples=missing, index=index, url_index=(url, i), sample=sample,
                            worker_id=self.worker_id, num_workers=self.num_workers)
