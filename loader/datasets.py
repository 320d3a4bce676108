"""Datasets to use as they are: whole samples, image-text pairs, images and text interleaved, text alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from torch.utils.data import get_worker_info

from loader.captions import Captions, Sources, segments, strip_placeholders
from loader.data_handler import IMAGE_EXTENSIONS, Handler, handler_for
from loader.errors import BadConfig, BadSample, ShardflowError, StoreError
from loader.filter_scan import Scan, Select, scan
from loader.filters import Filters
from loader.indexed_tar_dataset import IndexedTarDataset, RetSample
from loader.indexed_tar_samples import IndexedTarSamples
from loader.resize import Fit, Images, image_handlers
from loader.stream import Stream

Member = tuple[str, str, bytes]  # name, extension, bytes


# What `SampleDataset._samples` does without: a subclass that has its own gets it called.
_SHORT_CUT = (
    "data_generator", "present", "index_generator", "index2indices", "shard_of", "success_sample",
)  # fmt: skip


class SampleDataset(IndexedTarDataset):
    """Samples as dicts: ``{"__key__": …, ".jpg": …, ".json": …}``, decoded as `IndexedTarSamples` does.

    Arguments beside those of `IndexedTarDataset` (of which `extensions` says which members are read, and `on_bad`
    what becomes of samples that can't be):

    `transform`: called with each sample, in the worker; what it returns is yielded in its place, and None leaves the
    sample out (not counted as bad). An exception of it is a bad sample. `ret_samples`: yield RetSamples, which
    say where each came from.

    `images`: "pil" for RGB `PIL.Image.Image`; "array" for uint8 arrays of height × width × 3, which torch can
    collate, and which come twice as fast. `resize`, `fit`: scaled in the worker to (height, width), or to a square;
    see `loader.resize`.

    `filters`: rules that say which samples take part (`loader.filters`), a mapping or `Filters`. `select`: a function
    that says so, given a sample's key and its text (``{"__key__": …, ".json": …}``). `len` counts those that take
    part, and the order runs over them alone: they are found when the dataset is made, by reading the JSON of every
    sample once, which `loader.filter_scan` says the price of. `left_out` tells how many each rule left out.
    `captions`: where the texts are in which keywords are looked for (`loader.captions`).

    `views`: with ``decode=False``, memoryviews of the map in place of bytes, nothing copied; in a
    DataLoader's workers it gives bytes all the same, since they travel.
    """

    default_extensions: tuple[str, ...] | None = None  # read where the caller doesn't say which; None: all

    def __init__(
        self,
        data_info: Any,
        *arguments: Any,
        transform: Callable[[Any], Any] | None = None,
        ret_samples: bool = False,
        images: Images = "pil",
        resize: int | tuple[int, int] | None = None,
        fit: Fit = "crop",
        filters: Mapping[str, Any] | Filters | None = None,
        select: Select | None = None,
        captions: Sources | None = None,
        extensions: Sequence[str] | None = None,
        handlers: Mapping[str, Handler] | None = None,
        views: bool = False,
        **keywords: Any,
    ) -> None:
        if views and (keywords.get("decode", True) or keywords.get("backend") in ("read", "range")):
            raise BadConfig(
                'views=True goes with decode=False, and neither backend="read" nor "range": there is no map to view'
            )
        self.captions = Captions(captions)
        if extensions is None and self.default_extensions is not None:
            extensions = [*self.default_extensions, *self.captions.extensions]
        rules = filters if isinstance(filters, Filters) else Filters({} if filters is None else filters)
        super().__init__(
            data_info,
            *arguments,
            extensions=extensions,
            handlers={**image_handlers(images, resize, fit), **(handlers or {})},
            **keywords,
        )
        self.transform, self.ret_samples, self.views = transform, ret_samples, views
        self.left_out: dict[str, int] = {}
        if rules.rules or select is not None:
            pictures = IMAGE_EXTENSIONS if extensions is None else _pictures(extensions)
            task = Scan(rules.parse(self.captions, self.seed), select, pictures, self.index_root, self.remote)
            found = scan(self.table, task, rules.jobs, rules.cache)
            self.left_out = found.left_out
            if len(found.selection) < self.table.num_samples:
                self.select(found.selection)

    def __repr__(self) -> str:
        kept, total = int(self.counts.sum()), self.table.num_samples
        samples = f"{kept} of {total}" if kept < total else f"{total}"
        return f"{type(self).__name__}({self.name!r}: {samples} samples in {len(self.table)} shards)"

    def open_shard(self, shard: int) -> IndexedTarSamples:
        """Open one shard, for the `lru_size` that stay open."""
        opened = super().open_shard(shard)
        opened.views = self.views
        return opened

    def make(self, shard: IndexedTarSamples, i: int, index: int, epoch: int) -> Any:
        """Sample `i` of an open shard, number `index` of the dataset; None to leave it out.

        What is random about it follows from seed, epoch and index. BadSample for one that can't be used.
        """
        return shard[i]

    def finish(self, shard: IndexedTarSamples, i: int, index: int, epoch: int) -> Any:
        """`make`, and `transform` after it: BadSample, which names the sample, for what either can't do with it."""
        if self.views and get_worker_info() is not None:
            shard.views = False  # torch hangs where it can't send; a fork may have brought this shard
        try:
            sample = self.make(shard, i, index, epoch)
        except Exception as error:  # noqa: BLE001 - raised again
            _blame(shard, i, error)
        if self.transform is None or sample is None:
            return sample
        try:
            return self.transform(sample)
        except Exception as error:  # noqa: BLE001 - raised again
            _blame(shard, i, error, "transform: ")

    def data_generator(self) -> Iterator[RetSample]:
        """Every sample that can be read, made and transformed."""
        epoch = self._started().order.epoch
        for index in self.index_generator():
            url, i = place = self.index2indices(index)
            try:
                sample = self.finish(self.shard_of(url), i, index, epoch)
            except StoreError:  # of no sample: all that come would be left out
                raise
            except ShardflowError as error:  # of the sample, or of its whole shard
                if self.on_bad == "raise":
                    raise
                self.skip_sample(index, error)
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

    def _iterate(self, stream: Stream | Exception) -> Iterator[Any]:
        overridden = any(getattr(type(self), name) is not getattr(SampleDataset, name) for name in _SHORT_CUT)
        if self.ret_samples or overridden or isinstance(stream, Exception):
            return super()._iterate(stream)
        return self._samples(stream)

    def _samples(self, stream: Stream) -> Iterator[Any]:
        """What `data_generator` and `present` come to, without a RetSample to be thrown away for each."""
        epoch, open_shard, finish = stream.order.epoch, self._shards.get, self.finish
        # A sample as its shard gives it: then two calls can be spared for each.
        own = type(self).make is not SampleDataset.make or type(self).finish is not SampleDataset.finish
        plain = not own and self.transform is None and not self.views
        for index in stream.indices():
            _, number, i = stream.current
            try:
                shard = open_shard(number)
                if not plain:
                    sample = finish(shard, i, index, epoch)
                else:
                    try:
                        sample = shard[i]
                    except Exception as error:  # noqa: BLE001 - raised again
                        _blame(shard, i, error)
            except StoreError:
                raise
            except ShardflowError as error:
                if self.on_bad == "raise":
                    raise
                self.skip_sample(index, error)
                continue
            if sample is None:
                self.skip_sample(index, "left out", bad=False)
                continue
            stream.read_one()
            stream.emitted += 1
            yield sample
            if self._stream is not stream:
                raise RuntimeError(
                    f"{self!r}: this iteration was left for a newer one. To iterate twice at a time, take copy.copy of "
                    "the dataset"
                )

    def present(self, sample: RetSample) -> Any:
        """The sample itself, unless `ret_samples`."""
        return sample if self.ret_samples else sample.sample


class ImageTextDataset(SampleDataset):
    """Image-text pairs: ``{"__key__": …, "image": …, "text": …}``, with ``"metadata"`` (the JSON) if asked for.

    `captions`: where the text is found, and with what chance each is taken, such as ``{"caption": 0.7,
    "caption_all.instruction": 0.3}``; see `loader.captions`. Which one follows from seed, epoch and the sample's
    number alone, on any world. ``<image_n>`` is taken out of it. A sample without text, or with another number of
    pictures than one, is a bad sample (``extensions=[".0.jpg", ".json"]`` reads the first alone). Other arguments as for `SampleDataset`; the extensions that are read by
    default are those of pictures, ``.json``, and what `captions` names.
    """

    default_extensions = (*IMAGE_EXTENSIONS, ".json")

    def __init__(self, *arguments: Any, metadata: bool = False, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.metadata = metadata

    def make(self, shard: IndexedTarSamples, i: int, index: int, epoch: int) -> Any:
        """Picture and text, the text first: it costs less, and may say that the picture isn't needed."""
        texts, pictures = _split(shard, i)
        if len(pictures) != 1:
            raise BadSample(
                f"{len(pictures)} pictures, one was expected: see InterleavedDataset, or name the extension of the one "
                "that is meant by extensions=…"
            )
        text = strip_placeholders(self.captions.choose(texts, self.seed, epoch, index))
        sample = {"__key__": texts["__key__"], "image": _decoded(shard, pictures[0]), "text": text}
        return {**sample, "metadata": texts.get(".json")} if self.metadata else sample


class InterleavedDataset(SampleDataset):
    """Images and text as they follow each other: ``{"__key__": …, "segments": ["See ", image, " and ", image]}``.

    A text segment is a str, as it stands in the text (no empty ones); an image is what `images` says. The text is
    chosen as by `ImageTextDataset`, and its ``<image_n>`` says where image n stands: a sample where not each of
    them has one, and one only, is a bad sample. Batches want a `collate_fn` of yours. Other arguments as for
    `SampleDataset`.
    """

    default_extensions = (*IMAGE_EXTENSIONS, ".json")

    def make(self, shard: IndexedTarSamples, i: int, index: int, epoch: int) -> Any:
        """Text and pictures in the order of the text."""
        texts, pictures = _split(shard, i)
        parts = segments(self.captions.choose(texts, self.seed, epoch, index), len(pictures))
        decoded = [part if isinstance(part, str) else _decoded(shard, pictures[part]) for part in parts]
        return {"__key__": texts["__key__"], "segments": decoded}


class TextDataset(SampleDataset):
    """Text alone: ``{"__key__": …, "text": …}``; pictures are not touched.

    `captions` and ``<image_n>``: as for `ImageTextDataset`. Other arguments as for `SampleDataset`.
    """

    default_extensions = (".json",)

    def make(self, shard: IndexedTarSamples, i: int, index: int, epoch: int) -> Any:
        """The text."""
        texts, _ = _split(shard, i)
        text = strip_placeholders(self.captions.choose(texts, self.seed, epoch, index))
        return {"__key__": texts["__key__"], "text": text}


def _split(shard: IndexedTarSamples, i: int) -> tuple[dict[str, Any], list[Member]]:
    """A sample's key and decoded text members, and its pictures in their order, not decoded."""
    sample: dict[str, Any] = {"__key__": shard.key(i)}
    pictures: list[Member] = []
    for name, extension, data in shard.members(i):
        if _suffix(extension) in IMAGE_EXTENSIONS:
            pictures.append((name, extension, data))
        elif extension in sample:
            several = sample[extension] if isinstance(sample[extension], list) else [sample[extension]]
            sample[extension] = [*several, _decoded(shard, (name, extension, data), text=True)]
        else:
            sample[extension] = _decoded(shard, (name, extension, data), text=True)
    return sample, pictures


def _decoded(shard: IndexedTarSamples, member: Member, text: bool = False) -> Any:
    """What the handlers make of a member; pictures stay bytes where the shard was opened with ``decode=False``."""
    name, extension, data = member
    if not (text or shard.decode):
        return data
    try:
        return handler_for(extension, shard.handlers)(data)
    except MemoryError:
        raise
    except Exception as error:  # a handler of the caller's may raise anything
        reason = str(error) if isinstance(error, ShardflowError) else f"{type(error).__name__}: {error}"
        raise BadSample(f"{shard.path}: member {name!r}: {reason}") from error


def _blame(shard: IndexedTarSamples, i: int, error: Exception, transform: str = "") -> NoReturn:
    """Raise the error as a BadSample that says which sample it was; as it is, where it says so, or is no sample's fault."""
    store = isinstance(error, OSError) and not transform  # StoreError included
    if store or isinstance(error, MemoryError) or (isinstance(error, BadSample) and shard.path in str(error)):
        raise error
    kind, told = (
        (type(error), "") if isinstance(error, BadSample) else (BadSample, f"{type(error).__name__}: ")
    )
    raise kind(f"{shard.path}: sample {shard.key(i)!r}: {transform}{told}{error}") from error


def _suffix(extension: str) -> str:
    return extension[extension.rfind(".") :]


def _pictures(extensions: Sequence[str]) -> tuple[str, ...]:
    """Those that are pictures, spelled as an index spells them."""
    dotted = [("" if extension.startswith(".") else ".") + extension.lower() for extension in extensions]
    return tuple(extension for extension in dotted if _suffix(extension) in IMAGE_EXTENSIONS)
