from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sklearn  # type: ignore[import-untyped]
from PIL import Image

Encode = Callable[..., bytes]


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks go into a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def photograph() -> Image.Image:
    """A real one, which scikit-learn ships."""
    image: Image.Image
    with Image.open(Path(sklearn.__file__).parent / "datasets/images/china.jpg") as image:
        return image.convert("RGB")


@pytest.fixture(scope="session")
def encode(photograph: Image.Image) -> Encode:
    """A piece of the photograph as a file: `encode("JPEG", 3, quality=90)`; `place` says which piece."""

    def encoded(kind: str, place: int = 0, size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
        left, top = place * 7 % 500, place * 5 % 300
        buffer = io.BytesIO()
        photograph.crop((left, top, left + size[0], top + size[1])).save(buffer, kind, **options)
        return buffer.getvalue()

    return encoded


@pytest.fixture
def corpus(tmp_path: Path, encode: Encode) -> Path:
    """A folder with twelve pictures and `records.jsonl`: single ones, edits, an interleaved one and a pure text."""
    folder = tmp_path / "corpus"
    (folder / "img").mkdir(parents=True)
    kinds = (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"))
    for n in range(12):
        kind, extension = kinds[n % 3]
        (folder / "img" / f"{n:02d}.{extension}").write_bytes(encode(kind, n))
    names = sorted(f"img/{file.name}" for file in (folder / "img").iterdir())
    records: list[dict[str, Any]] = [
        {"image": name, "caption": f"picture {n}: a café", "n": n} for n, name in enumerate(names)
    ]
    records += [
        {"input_image": names[n], "output_image": names[n + 1], "instruction": f"edit {n}", "id": n}
        for n in range(8)
    ]
    records.append({"images": names[:3], "caption": "<image_1> before <image_0>, and <image_2>"})
    records.append({"text": "only words"})
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder
