"""Extension → value: what a member's bytes become.

A table maps lower-case extensions, with their dot, to handlers. A handler takes the bytes of one member and
returns the value, or raises `BadSample` with the decoder's own reason; it doesn't know where the bytes came
from, so its caller adds shard and key. Tables are passed in and never change: `default_handlers` holds what
works without asking, `make_handlers` makes a table of one's own from it.

=================================  ==========================================================
``.txt``                           str (UTF-8, exactly as stored)
``.json``                          what the JSON says: dict, list, str, …
``.jpg .jpeg .png .webp`` and      RGB `PIL.Image.Image` (see `loader.images`), or a uint8 array of
``.gif .bmp``                      height × width × 3 with ``images="array"``
``.npy``                           `numpy.ndarray`
``.npz``                           dict of arrays
``.pickle .pkl``                   the object, with ``allow_pickle=True`` alone
``.cls``                           int (a class number, as WebDataset writes it)
``.mp4`` and all others            bytes
=================================  ==========================================================

Pillow and NumPy are imported when a picture or an array is first met. Handlers are functions at module level:
a table can be pickled to spawned workers, and used from any thread.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from loader.errors import BadConfig, BadSample, UnsafePickle

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

Handler = Callable[[bytes], Any]
Data = bytes | memoryview

MAX_UNPACKED = 4 << 30  # bytes that the arrays of one .npz may take in memory


class HandlerTable(Mapping[str, Handler]):
    """A mapping that cannot be changed, and, unlike `types.MappingProxyType`, can be pickled."""

    __slots__ = ("_handlers",)

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = dict(handlers)

    def __getitem__(self, extension: str) -> Handler:
        return self._handlers[extension]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def __repr__(self) -> str:
        return f"HandlerTable({' '.join(sorted(self._handlers))})"


def read_bytes(data: Data) -> bytes:
    """The bytes themselves: what an extension without a handler of its own gives."""
    return bytes(data)


def read_text(data: Data) -> str:
    """UTF-8, exactly as stored (a byte order mark stays a character)."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadSample(
            f"text that is not UTF-8: {error.reason} at byte {error.start:,} "
            f"({bytes(data[error.start : error.start + 8])!r}); re-encode it, or pass a handler of your own"
        ) from error


def read_json(data: Data) -> Any:
    """What the JSON says. NaN and Infinity are read, as Python writes them."""
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise BadSample(f"no JSON: {error}") from error


def read_int(data: Data) -> int:
    """A whole number in ASCII digits, white space around it allowed."""
    try:
        return int(bytes(data))
    except ValueError as error:
        raise BadSample(f"no whole number: {bytes(data[:20])!r}") from error


def decode_image(data: Data) -> Image.Image:
    """An RGB picture as a person sees it: see `loader.images.decode_image`."""
    from loader import images

    return images.decode_image(data)


def decode_array(data: Data) -> npt.NDArray[np.uint8]:
    """The same as uint8, height × width × RGB, faster with the extra `fast`: see `loader.images.decode_array`."""
    from loader import images

    return images.decode_array(data)


def to_rgb(image: Image.Image) -> Image.Image:
    """A new RGB image of what a person sees in `image`: see `loader.images.to_rgb`."""
    from loader import images

    return images.to_rgb(image)


def read_npy(data: Data) -> npt.NDArray[Any]:
    """A writable array of its own memory; UnsafePickle for one that holds Python objects."""
    return _array(data, allow_pickle=False)


def read_npy_trusted(data: Data) -> npt.NDArray[Any]:
    """As `read_npy`, arrays of Python objects included: loading them can run code."""
    return _array(data, allow_pickle=True)


def read_npz(data: Data) -> dict[str, Any]:
    """Every array of the archive by name, in stored order (a member that is no ``.npy`` as bytes)."""
    return _arrays(data, allow_pickle=False)


def read_npz_trusted(data: Data) -> dict[str, Any]:
    """As `read_npz`, arrays of Python objects included: loading them can run code."""
    return _arrays(data, allow_pickle=True)


def refuse_pickle(data: Data) -> Any:
    """UnsafePickle, always: what stands in a table whose maker did not ask for pickles."""
    raise UnsafePickle(_unsafe("a pickle"))


def read_pickle_trusted(data: Data) -> Any:
    """The pickled object: loading it can run code."""
    try:
        return pickle.loads(data)  # noqa: S301  reached by explicit opt-in alone
    except MemoryError:
        raise
    except Exception as error:  # whatever the code inside raises
        raise BadSample(f"no readable pickle: {_reason(error)}") from error


def _unsafe(what: str) -> str:
    return (
        f"{what} can run any code when it is loaded. If you trust whoever wrote it, say so with "
        "allow_pickle=True (where the samples are opened, or in make_handlers); to see it unopened, "
        "ask for the bytes"
    )


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _array(data: Data, allow_pickle: bool) -> npt.NDArray[Any]:
    import numpy as np

    stream = io.BytesIO(data)
    try:
        shape, dtype = _npy_header(stream)
        if dtype.hasobject and not allow_pickle:
            raise UnsafePickle(_unsafe("an array of Python objects is a pickle, which"))
        announced, present = math.prod(shape) * dtype.itemsize, len(data) - stream.tell()
        # NumPy would take memory for whatever the header announces before it looks for the bytes.
        if not dtype.hasobject and (announced > present or min(shape, default=0) < 0):
            raise BadSample(
                f"an array of shape {shape} and type {dtype} takes {announced:,} bytes, {present:,} are there"
            )
        stream.seek(0)
        array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=allow_pickle)
        return array
    except (BadSample, MemoryError):
        raise
    except Exception as error:  # a header is a Python literal, an object array a pickle: nearly anything
        raise BadSample(f"no readable .npy: {_reason(error)}") from error


def _npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    from numpy.lib import format as npy

    version = npy.read_magic(stream)
    # Version 3 differs from 2 in the encoding of field names alone, which nothing here depends on.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _arrays(data: Data, allow_pickle: bool) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
            if unpacked > MAX_UNPACKED:
                raise BadSample(f"an .npz that unpacks to {unpacked:,} bytes, the limit is {MAX_UNPACKED:,}")
            for info in archive.infolist():
                content = archive.read(info)
                if info.filename.endswith(".npy"):
                    arrays[info.filename.removesuffix(".npy")] = _array(content, allow_pickle)
                else:
                    arrays[info.filename] = content
    except UnsafePickle:
        raise
    except BadSample as error:
        raise BadSample(f"no readable .npz: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # zipfile and the decompressors below it
        raise BadSample(f"no readable .npz: {_reason(error)}") from error
    return arrays


IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")

default_handlers: Mapping[str, Handler] = HandlerTable(
    {
        ".txt": read_text,
        ".json": read_json,
        **dict.fromkeys(IMAGE_EXTENSIONS, decode_image),
        ".npy": read_npy,
        ".npz": read_npz,
        ".pickle": refuse_pickle,
        ".pkl": refuse_pickle,
        ".cls": read_int,
        ".mp4": read_bytes,
    }
)

_TRUSTED: Mapping[str, Handler] = HandlerTable(
    {
        ".npy": read_npy_trusted,
        ".npz": read_npz_trusted,
        ".pickle": read_pickle_trusted,
        ".pkl": read_pickle_trusted,
    }
)


def make_handlers(
    handlers: Mapping[str, Handler] | None = None,
    allow_pickle: bool = False,
    images: Literal["pil", "array"] = "pil",
) -> Mapping[str, Handler]:
    """A new table: the defaults, overlaid with `handlers` (``{".csv": f}``; ``bytes`` gives a member undecoded).

    `allow_pickle` lets pickles and arrays of Python objects load, which can run code: only for data whose
    writer you trust. ``images="array"`` gives pictures as uint8 arrays (`decode_array`).
    """
    if images not in ("pil", "array"):
        raise BadConfig(f"images={images!r}: expected 'pil' (RGB images) or 'array' (uint8 arrays)")
    table = dict(default_handlers)
    if images == "array":
        table.update(dict.fromkeys(IMAGE_EXTENSIONS, decode_array))
    if allow_pickle:
        table.update(_TRUSTED)
    for extension, handler in (handlers or {}).items():
        if not isinstance(extension, str) or not extension.startswith(".") or len(extension) < 2:
            raise BadConfig(f"handlers: {extension!r} is no extension, expected one such as '.csv'")
        if not callable(handler):
            raise BadConfig(f"handlers: {extension!r} maps to {handler!r}, expected a function of the bytes")
        table[extension.lower()] = handler
    return HandlerTable(table)


def handler_for(extension: str, handlers: Mapping[str, Handler]) -> Handler:
    """What decodes a member with this extension, by its longest suffix that `handlers` knows, in any case.

    ``.seg.PNG`` is looked for as ``.seg.png``, then as ``.png``; an unknown one gives its bytes.
    """
    suffix = extension.lower()
    while suffix:
        handler = handlers.get(suffix)
        if handler is not None:
            return handler
        dot = suffix.find(".", 1)
        suffix = suffix[dot:] if dot > 0 else ""
    return read_bytes
