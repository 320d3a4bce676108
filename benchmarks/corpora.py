"""The corpora under benchmarks/work, made where they aren't there yet."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass

from harness import HERE, PEERS_PYTHON, WORK

A_TAR_SAMPLES = 1000  # photographs a tar; the loose files lie in folders of as many
MTIME = 1_700_000_000


@dataclass(frozen=True)
class Photographs:
    """Corpus A: loose files, tars of .jpg + .json + .txt, and what the packers are given."""

    count: int
    loose: str
    tars: list[str]
    rows: str  # JSON lines {"image", "caption"}, images relative to `loose`
    members: str  # names under `loose`, .jpg and .json of each sample: what GNU tar packs
    jpegs: str
    jpeg_bytes: int

    @property
    def samples(self) -> list[int]:
        return [min(A_TAR_SAMPLES, self.count - i * A_TAR_SAMPLES) for i in range(len(self.tars))]


@dataclass(frozen=True)
class Tiny:
    """Corpus B: one tar of two small members a sample."""

    count: int
    tar: str

    @property
    def members(self) -> int:
        return 2 * self.count


def photographs(count: int) -> Photographs:
    loose = os.path.join(WORK, f"a-{count}")
    folder = os.path.join(WORK, f"a-{count}-tars")
    # Another corpus that is large enough serves as well: a smaller one is its prefix.
    larger = [int(name[2:]) for name in os.listdir(WORK) if name.startswith("a-") and name[2:].isdigit()]
    larger = [each for each in larger if each >= count and os.path.exists(_done(f"a-{each}"))]
    if larger:
        loose = os.path.join(WORK, f"a-{min(larger)}")
    else:
        _make("images", loose, count, ["--photos", os.path.join(WORK, "photos")])
    keys = [f"{i // A_TAR_SAMPLES:05d}/{i:08d}" for i in range(count)]
    parts = [keys[i : i + A_TAR_SAMPLES] for i in range(0, count, A_TAR_SAMPLES)]
    tars = [os.path.join(folder, f"a-{number:03d}.tar") for number in range(len(parts))]
    if not os.path.exists(os.path.join(folder, "done")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        for path, part in zip(tars, parts, strict=True):
            _make_tar(path, loose, part)
        rows = []
        for key in keys:
            with open(os.path.join(loose, key + ".txt")) as file:
                rows.append(json.dumps({"image": key + ".jpg", "caption": file.read()}) + "\n")
        _write(os.path.join(folder, "rows.jsonl"), "".join(rows))
        _write(os.path.join(folder, "members"), "".join(f"{key}.json\n{key}.jpg\n" for key in keys))
        _write(os.path.join(folder, "jpegs"), "".join(f"{key}.jpg\n" for key in keys))
        _write(os.path.join(folder, "done"), "")
    size = sum(os.path.getsize(os.path.join(loose, key + ".jpg")) for key in keys)
    names = (os.path.join(folder, name) for name in ("rows.jsonl", "members", "jpegs"))
    return Photographs(count, loose, tars, *names, size)


def tiny(count: int) -> Tiny:
    path = os.path.join(WORK, f"b-{count}.tar")
    if not os.path.exists(_done(os.path.basename(path))):
        _make("small", path, count, [])
    return Tiny(count, path)


def warm(*paths: str) -> None:
    """Read files, or all files under folders, so that they lie in the page cache."""
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        for each in files:
            with open(each, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass


def _done(name: str) -> str:
    return os.path.join(WORK, name + ".done")


def _make(kind: str, out: str, count: int, more: list[str]) -> None:
    script = os.path.join(HERE, "make_corpus.py")
    command = [PEERS_PYTHON, script, kind, "--out", out, "--count", str(count), *more]
    print(f"making {os.path.relpath(out, WORK)} ...", file=sys.stderr)
    subprocess.run(command, check=True, stdout=sys.stderr)
    _write(_done(os.path.basename(out)), "")


def _make_tar(path: str, loose: str, keys: list[str]) -> None:
    """A plain ustar file of the samples `keys`, named by their last part."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for key in keys:
            for extension in ("jpg", "json", "txt"):
                with open(os.path.join(loose, f"{key}.{extension}"), "rb") as file:
                    data = file.read()
                info = tarfile.TarInfo(f"{os.path.basename(key)}.{extension}")
                info.size, info.mtime, info.mode = len(data), MTIME, 0o644
                tar.addfile(info, io.BytesIO(data))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
