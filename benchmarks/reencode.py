"""The question of what re-encoding costs beside the codec, on all cores."""

from __future__ import annotations

import os
import shutil

from harness import WORK, Args, Contender, Question
from questions import Corpora


def reencode_questions(data: Corpora) -> list[Question]:
    photographs = data.photographs
    out = os.path.join(WORK, "reencoded")
    cores = len(os.sched_getaffinity(0))

    def fresh(args: Args) -> Args:
        shutil.rmtree(out, ignore_errors=True)
        return args

    return [
        Question(
            name="reencode A",
            title=f"Pack {photographs.count:,} loose JPEGs, scaled to 256 pixels and encoded anew, on {cores} cores",
            ours=Contender("ours: tasks.pack, all cores", "reencode.py", "reencode_shardflow"),
            peers=[
                Contender(
                    "Pillow alone, one thread, nothing written", "reencode.py", "reencode_codec", 0.9 * cores
                )
            ],
            unit="pictures/s",
            scale=lambda seconds: photographs.count / seconds,
            args={
                "loose": photographs.loose,
                "rows": photographs.rows,
                "jpegs": photographs.jpegs,
                "out": out,
                "side": 256,
                "quality": 85,
                "per_shard": max(1, photographs.count // (8 * cores)),
            },
            note="The target is 0.9 times the cores: what the codec does in one thread, on each of them.",
            fresh=fresh,
        )
    ]
