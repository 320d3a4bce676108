"""Pictures decoded, scaled and encoded: by our packer on all cores, and by the codec alone in one thread."""

from __future__ import annotations

import hashlib
import io
import os

from common import Args, Report, Stopwatch, main, peak_bytes

_SHORT = 3  # a JPEG is decoded at no less than so many times what is wanted, as ours is


def reencode_shardflow(args: Args) -> Report:
    """The whole step on all cores: plan, read, encode, shards with indexes and checksums, meta.json."""
    from loader.indexed_tar_samples import IndexedTarSamples
    from tasks.config import PackConfig
    from tasks.pack import pack

    config = PackConfig(
        source=args["rows"],
        output=args["out"],
        image_root=args["loose"],
        max_samples=args["per_shard"],
        on_error="raise",
        image_format="jpeg",
        image_quality=args["quality"],
        image_max_side=args["side"],
        image_metadata="strip",
        image_icc="strip",
    )
    with Stopwatch(workers=True) as watch:
        pack(config)
    report = watch.report(peak=peak_bytes(children=True))
    if args["check"]:
        tars = sorted(name for name in os.listdir(args["out"]) if name.endswith(".tar"))
        found = [
            hashlib.sha256(sample[".jpg"]).hexdigest()
            for tar in tars
            for sample in IndexedTarSamples(os.path.join(args["out"], tar), extensions=[".jpg"], decode=False)
        ]
        report["check"] = {"pictures": hashlib.sha256("".join(found).encode()).hexdigest()}
    return report


def reencode_codec(args: Args) -> Report:
    """Pillow alone, in one thread: read, decode, scale, encode, and throw the bytes away."""
    from PIL import Image

    with open(args["jpegs"]) as file:
        names = file.read().split()
    found = []
    with Stopwatch(workers=True) as watch:
        for name in names:
            with open(os.path.join(args["loose"], name), "rb") as member:
                image = Image.open(io.BytesIO(member.read()))
            scale = min(1.0, args["side"] / max(image.size))
            width, height = (
                _scaled(side, image.size, args["side"]) if scale < 1 else side for side in image.size
            )
            if scale < 1:
                image.draft(None, (_SHORT * width, _SHORT * height))
            image = image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
            image.info = {}  # no comment goes along, as none of ours does
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=args["quality"])
            if args["check"]:
                found.append(hashlib.sha256(buffer.getvalue()).hexdigest())
    report = watch.report(peak=peak_bytes())
    if args["check"]:
        report["check"] = {"pictures": hashlib.sha256("".join(found).encode()).hexdigest()}
    return report


def _scaled(side: int, size: tuple[int, int], most: int) -> int:
    """A side of a picture whose longer one becomes `most`, to the nearest pixel."""
    longest = max(size)
    return max(1, (2 * side * most + longest) // (2 * longest))


if __name__ == "__main__":
    main({"reencode_shardflow": reencode_shardflow, "reencode_codec": reencode_codec})
