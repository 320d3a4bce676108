"""Hypothesis strategies and exhibits that several tests share: ``from strategies import member_names``.

Everything here is legal input. What is broken or hostile belongs to the test that says what happens to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from PIL import Image

# Names seen in real archives, each of which has broken some reader or packer.
ODD_NAMES: tuple[str, ...] = (
    "README",  # no dot: no sample
    "x.seg.png",
    "IMG_1.JPG",
    "IMG_1.Json",
    "a.JPG",
    "a.jpg",
    "./a.jpg",
    "/p/22.0/1.1.png",  # dots in the folder and in the base name
    "Track 2.0 (Clean).mp3",
    "img-1.jpg",  # a hyphen that is part of the key, no number of ours
    "img-1.txt",
    "img-2.jpg",
    ".DS_Store",  # hidden, and what macOS leaves beside each file
    "._a.jpg",
    ".hidden/a.jpg",
    "two\nlines.txt",
    "back\\slash.txt",
    " leading and trailing .txt",
    "日本/写真.jpg",
    "caf\udce9.txt",  # Latin-1 bytes, as os.fsdecode shows them
    "n" * 95 + ".jpg",  # 99 bytes, the last that fits the plain field
    "n" * 96 + ".jpg",  # 100: fits without its terminating zero
    "n" * 97 + ".jpg",  # 101: needs a prefix or a long name
    "p" * 120 + "/a.jpg",  # ustar's prefix field
    "q" * 120 + "/a.jpg",  # differs from the one above in the prefix alone
    "k" * 128 + "1.jpg",  # two keys that are equal in their first 128 characters
    "k" * 128 + "2.jpg",
    "l" * 180 + ".jpg",  # too long for ustar: pax or GNU
    "d/" * 60 + "a.jpg",
)

EXTENSIONS: tuple[str, ...] = (".jpg", ".png", ".webp", ".json", ".txt", ".cls", ".npy", ".seg.png", ".JPG")

# Every mode that a picture file or a user can bring; "I;16B" is big-endian.
_PIXEL_BYTES = {
    "1": 1,
    "L": 1,
    "LA": 2,
    "P": 1,
    "PA": 2,
    "RGB": 3,
    "RGBA": 4,
    "CMYK": 4,
    "YCbCr": 3,
    "HSV": 3,
}
_PIXEL_BYTES |= {"I": 4, "I;16": 2, "I;16B": 2, "F": 4}
IMAGE_MODES: tuple[str, ...] = tuple(_PIXEL_BYTES)

# Sizes around the 512-byte block of a tar, where padding begins and ends.
BLOCK_SIZES: tuple[int, ...] = (0, 1, 511, 512, 513, 1023, 1024, 1025, 10_239, 10_240, 10_241)


def keys(max_size: int = 12) -> st.SearchStrategy[str]:
    """Sample keys as our packer allows them: no dot, no hyphen, no slash, nothing that UTF-8 cannot hold."""
    letters = st.characters(codec="utf-8", exclude_characters="./-\\", exclude_categories=("Cc", "Cs"))
    return st.text(letters, min_size=1, max_size=max_size)


def member_names() -> st.SearchStrategy[str]:
    """Names of tar members: real oddities, and a folder, key and extension put together."""
    folders = st.sampled_from(("", "a/", "a/b/", "./", "v1.0/", "日本/", "f" * 60 + "/" + "g" * 60 + "/"))
    built = st.builds("{}{}{}".format, folders, keys(), st.sampled_from(EXTENSIONS))
    return st.one_of(st.sampled_from(ODD_NAMES), built)


def payloads(max_size: int = 12_000) -> st.SearchStrategy[bytes]:
    """Member bytes: short ones anyhow, long ones from a size and a seed, since drawing each byte is slow."""
    sizes = st.one_of(
        st.sampled_from([size for size in BLOCK_SIZES if size <= max_size]), st.integers(0, max_size)
    )
    return st.one_of(st.binary(max_size=min(40, max_size)), st.builds(_payload, sizes, st.integers(1, 250)))


def _payload(size: int, step: int) -> bytes:
    return (bytes(step * n % 251 for n in range(251)) * (size // 251 + 1))[:size]


def tar_members(
    max_members: int = 8, unique: bool = True, max_size: int = 12_000
) -> st.SearchStrategy[list[tuple[str, bytes]]]:
    """What goes into a tar, in order: (name, bytes) pairs. With ``unique=False`` a name may come twice."""
    members = st.tuples(member_names(), payloads(max_size))
    return st.lists(members, max_size=max_members, unique_by=(lambda member: member[0]) if unique else None)


@st.composite
def samples(
    draw: st.DrawFn, max_samples: int = 6, max_size: int = 2_000
) -> list[tuple[str, list[tuple[str, bytes]]]]:
    """What `write_shard` takes: (key, [(suffix, bytes), …]), keys unique, one JSON first, then 0 to 3 images."""
    shard = []
    for key in draw(st.lists(keys(), max_size=max_samples, unique=True)):
        images = draw(
            st.lists(st.tuples(st.sampled_from((".jpg", ".png", ".webp")), payloads(max_size)), max_size=3)
        )
        numbered = [(f"-{number}{extension}", data) for number, (extension, data) in enumerate(images)]
        shard.append((key, [(".json", b'{"caption": ""}'), *numbered]))
    return shard


@st.composite
def images(draw: st.DrawFn, modes: Sequence[str] = IMAGE_MODES, max_side: int = 9) -> Image.Image:
    """A small picture of random pixels; palettes are random, and have transparent entries half of the time."""
    mode = draw(st.sampled_from(modes))
    width, height = draw(st.integers(1, max_side)), draw(st.integers(1, max_side))
    size = width * height * _PIXEL_BYTES[mode]
    data = draw(st.binary(min_size=size, max_size=size))
    if mode == "1":  # frombytes packs eight pixels a byte; this takes one
        return Image.frombytes("L", (width, height), data).point(lambda value: 255 * (value & 1), "1")
    if mode == "F":  # NaN and infinity included: float files hold them
        values = st.floats(width=32)
        pixels = draw(st.lists(values, min_size=width * height, max_size=width * height))
        image = Image.new("F", (width, height))
        image.putdata(pixels)
        return image
    image = Image.frombytes(mode, (width, height), data)
    if mode in ("P", "PA"):
        image.putpalette(draw(st.binary(min_size=768, max_size=768)))
    if mode == "P" and draw(st.booleans()):
        image.info["transparency"] = draw(st.binary(min_size=1, max_size=256))
    return image
