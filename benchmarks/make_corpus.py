"""Benchmark corpora: photographs with captions (A), and tiny samples (B). Needs Pillow, apt-get and dpkg.

    make_corpus.py images --out A --count 10000 [--seed 1] [--jobs 2] [--photos DIR]
        COUNT distinct JPEGs: random crops of real photographs at ImageNet-like sizes (mostly 500x375),
        quality 90, 4:2:0, about 60-110 KB each, laid out as OUT/<i//1000:05d>/<i:08d>.jpg with a .json
        (about 300 bytes) and a .txt caption beside each. Sample i depends on (seed, i) alone, so a corpus of
        1,000 is a prefix of one of 10,000, whatever --jobs is. (Bytes also depend on Pillow's version.)
    make_corpus.py small --out B.tar --count 200000 [--seed 1]
        COUNT tiny samples, each a 200-byte .txt and a 4-byte .cls, as one plain ustar file.

The photographs come from Debian packages (`apt-get download`, unpacked with `dpkg -x`, nothing is installed).
"""

# ruff: noqa: SIM905 (lists of words read best as words)

from __future__ import annotations

import argparse
import glob
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

# Debian package → photographs in it.
PHOTOS = {
    "lomiri-wallpapers-16.04": [
        f"usr/share/backgrounds/{name}.jpg"
        for name in (
            "Dragonfly_by_Bolly Picture_0B_by_freespace Picture_1A_by_freespace Wine_by_Jakkub_Mede "
            "aitzgorri_by_Aitzol_Berasategi friends_by_Aitzol_Berasategi life_by_Aitzol_Berasategi "
            "picosdeeuropa_by_Aitzol_Berasategi seeding_by_Clements_Engelhardt sunset_by_Aitzol_Berasategi"
        ).split()
    ],
    "lomiri-wallpapers-20.04": ["usr/share/backgrounds/Kleiber_by_Lukas_Baubkus.jpg"],
    "mate-backgrounds": [
        f"usr/share/backgrounds/mate/nature/{name}.jpg"
        for name in "Blinds Dune GreenMeadow RainDrops TwoWings Wood YellowFlower".split()
    ],
    "plasma-workspace-wallpapers": [
        f"usr/share/wallpapers/{name}/contents/images/2560x1600.jpg"
        for name in "Autumn BytheWater ColorfulCups FallenLeaf Grey Kite OneStandsOut Path".split()
    ],
    "opencv-doc": [
        f"usr/share/doc/opencv-doc/examples/{name}"
        for name in (
            "data/aloeL.jpg data/aloeR.jpg data/graf1.png data/graf3.png data/leuvenA.jpg data/leuvenB.jpg "
            "data/rubberwhale1.png data/baboon.jpg data/fruits.jpg data/board.jpg "
            "alphamat/input_images/plant.jpg ximgproc/stanford.png data/box_in_scene.png "
            "text/scenetext01.jpg text/scenetext04.jpg"
        ).split()
    ],
    "python3-skimage": [
        f"usr/lib/python3/dist-packages/skimage/data/{name}"
        for name in (
            "coffee.png astronaut.png motorcycle_left.png hubble_deep_field.jpg gravel.png grass.png"
        ).split()
    ],
    "python3-sklearn": [
        f"usr/lib/python3/dist-packages/sklearn/datasets/images/{name}"
        for name in ("china.jpg", "flower.jpg")
    ],
    "python-matplotlib-data": ["usr/share/matplotlib/mpl-data/sample_data/grace_hopper.jpg"],
}
# (width, height, weight): roughly ImageNet's own mix.
SIZES = [
    (500, 375, 50),
    (375, 500, 18),
    (500, 333, 14),
    (333, 500, 5),
    (500, 500, 5),
    (400, 300, 3),
    (640, 480, 5),
]
MIN_BYTES = 68_000  # a crop of blank sky is not a photograph: try again
TRIES = 8
LONGEST_SIDE = 3200
WORDS = (
    "a the of in on with and over under near small large red green blue old wooden stone bright dark calm "
    "stormy photo view close-up landscape street river lake forest leaf flower bird insect boat bridge "
    "mountain cloud sky meadow garden beach rain morning evening light shadow path rock tree branch grass "
    "water glass table cup"
).split()


class Job(NamedTuple):
    """All samples that are cut from one photograph, so that it is decoded once."""

    package: str
    photo: str
    samples: list[int]
    seed: int
    photos: int
    out: str


class Made(NamedTuple):
    """What one job wrote: bytes of JPEG, and a digest of each picture."""

    size: int
    digests: list[bytes]


def fetch_photos(folder: str) -> list[tuple[str, str]]:
    """(package, path) of every photograph, fetched and unpacked under `folder` where it isn't there yet."""
    found = []
    for package, names in PHOTOS.items():
        root = os.path.join(folder, "x", package)
        if not all(os.path.exists(os.path.join(root, name)) for name in names):
            archives = os.path.join(folder, "deb")
            os.makedirs(archives, exist_ok=True)
            if not glob.glob(os.path.join(archives, package + "_*.deb")):
                command = ["apt-get", "download", package]
                subprocess.run(command, cwd=archives, check=True, stdout=subprocess.DEVNULL)
            os.makedirs(root, exist_ok=True)
            newest = sorted(glob.glob(os.path.join(archives, package + "_*.deb")))[-1]
            subprocess.run(["dpkg", "-x", newest, root], check=True)
        for name in names:
            path = os.path.join(root, name)
            if os.path.exists(path):
                found.append((package, path))
            else:
                print("missing:", package, name, file=sys.stderr)
    return found


def sample_rng(seed: int, i: int) -> random.Random:
    """The generator of sample `i`; its first draw chooses the photograph."""
    return random.Random(f"{seed}:{i}")


def make_caption(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def cut_samples(job: Job) -> Made:
    """Writes a .jpg, .json and .txt for each sample of one photograph."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    photo = Image.open(job.photo).convert("RGB")
    if max(photo.size) > LONGEST_SIDE:
        scale = LONGEST_SIDE / max(photo.size)
        photo = photo.resize(
            (round(photo.width * scale), round(photo.height * scale)), Image.Resampling.LANCZOS
        )
    total, digests = 0, []
    for i in job.samples:
        rng = sample_rng(job.seed, i)
        rng.randrange(job.photos)
        best: tuple[bytes, int, int, tuple[int, int, int, int], bool] | None = None
        for _ in range(TRIES):
            width, height, _weight = rng.choices(SIZES, [size[2] for size in SIZES])[0]
            largest = min(photo.width / width, photo.height / height)
            if largest < 1:
                width, height = max(1, int(width * largest)), max(1, int(height * largest))
                largest = 1.0
            scale = rng.uniform(1.0, min(largest, 6.0))
            crop_width, crop_height = (
                min(photo.width, int(width * scale)),
                min(photo.height, int(height * scale)),
            )
            x, y = rng.randint(0, photo.width - crop_width), rng.randint(0, photo.height - crop_height)
            flip = rng.random() < 0.5
            box = (x, y, x + crop_width, y + crop_height)
            crop = photo.resize((width, height), Image.Resampling.BICUBIC, box=box, reducing_gap=2.0)
            if flip:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            # Light and colour cast make every sample distinct.
            factors = [rng.uniform(0.88, 1.08) for _ in range(3)]
            crop = crop.point([min(255, round(value * factor)) for factor in factors for value in range(256)])
            buffer = io.BytesIO()
            crop.save(buffer, "JPEG", quality=90, subsampling=2)
            data = buffer.getvalue()
            if best is None or len(data) > len(best[0]):
                best = (data, width, height, (x, y, crop_width, crop_height), flip)
            if len(data) >= MIN_BYTES:
                break
        if best is None:
            raise RuntimeError(f"sample {i}: no crop was made")
        data, width, height, where, flip = best
        key = f"{i:08d}"
        caption = make_caption(rng, rng.randint(8, 18))
        meta = {
            "key": key,
            "width": width,
            "height": height,
            "caption": caption,
            "source": f"{job.package}:{os.path.basename(job.photo)}",
            "box": where,
            "flip": flip,
            "sha256": hashlib.sha256(data).hexdigest()[:16],
            "url": f"https://example.invalid/{key}.jpg",
        }
        stem = os.path.join(job.out, f"{i // 1000:05d}", key)
        for extension, content in (
            ("jpg", data),
            ("json", json.dumps(meta).encode()),
            ("txt", caption.encode()),
        ):
            with open(f"{stem}.{extension}", "wb") as file:
                file.write(content)
        total += len(data)
        digests.append(hashlib.sha256(data).digest())
    return Made(total, digests)


def make_images(out: str, count: int, seed: int, jobs: int, photos: str) -> None:
    """Corpus A as loose files under `out`."""
    found = fetch_photos(photos)
    print(f"{len(found)} photographs from {len({package for package, _ in found})} packages")
    for folder in range((count + 999) // 1000):
        os.makedirs(os.path.join(out, f"{folder:05d}"), exist_ok=True)
    groups: list[list[int]] = [[] for _ in found]
    for i in range(count):
        groups[sample_rng(seed, i).randrange(len(found))].append(i)
    todo = [
        Job(package, path, group, seed, len(found), out)
        for (package, path), group in zip(found, groups, strict=True)
        if group
    ]
    with ProcessPoolExecutor(jobs) as pool:
        made = list(pool.map(cut_samples, todo))
    distinct = {digest for each in made for digest in each.digests}
    if len(distinct) != count:
        raise SystemExit(f"only {len(distinct)} of {count} samples are distinct")
    with open(os.path.join(out, "SOURCES.tsv"), "w") as file:
        for (package, path), group in zip(found, groups, strict=True):
            file.write(f"{package}\t{os.path.relpath(path, photos)}\t{len(group)}\n")
    size = sum(each.size for each in made)
    print(f"{count} distinct samples, {size / 1e6:.1f} MB of JPEG, mean {size / count / 1e3:.1f} KB")


def make_small(out: str, count: int, seed: int) -> None:
    """Corpus B as one tar."""
    rng = random.Random(seed)
    text = (make_caption(rng, 20_000) + " ").encode()
    with tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(count):
            start = rng.randrange(len(text) - 200)
            for extension, data in (
                ("txt", text[start : start + 200]),
                ("cls", b"%04d" % rng.randrange(1000)),
            ):
                info = tarfile.TarInfo(f"{i:08d}.{extension}")
                info.size, info.mtime, info.mode = len(data), 1_700_000_000, 0o644
                tar.addfile(info, io.BytesIO(data))
    print(f"{count} samples, {os.path.getsize(out)} bytes")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["images", "small"])
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--photos", default="photos", help="where fetched photographs are kept")
    args = parser.parse_args(argv)
    if args.kind == "images":
        make_images(args.out, args.count or 10_000, args.seed, args.jobs, args.photos)
    else:
        make_small(args.out, args.count or 200_000, args.seed)


if __name__ == "__main__":
    main()
