"""What packing notes as it goes is what reading the shards says afterwards."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photo
from sidecars import facts

from loader.contents import Contents
from loader.sample_facts import SampleFacts, contents_of
from loader.writer import Shard
from tasks.images import AS_IS
from tasks.notes import READY, Note, ShardNotes

SMALL = [encoded(photo(8 + n, 30 - n), kind) for n, kind in enumerate(["JPEG", "PNG", "WEBP"])] + [
    b"no picture"
]


def paths_dropped(samples: list[SampleFacts]) -> list[SampleFacts]:
    return [
        sample._replace(
            outcome=None, pictures=tuple(picture._replace(path=None) for picture in sample.pictures)
        )
        for sample in samples
    ]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(["", "two words", "é"])),
        min_size=1, max_size=5,
    ),
    st.booleans(),
)  # fmt: skip
def test_notes_are_what_the_tar_says(samples: list[tuple[list[int], str]], numbered: bool) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        notes = ShardNotes(sidecar=True)
        plain = ShardNotes(sidecar=False)
        tar = f"{folder}/x.tar"
        with Shard(tar) as shard:
            for number, (pictures, caption) in enumerate(samples):
                members = [(".json", json.dumps({"caption": caption, "metadata": {"n": number}}).encode())]
                for place, which in enumerate(pictures):
                    members.append((f"-{place}.jpg" if numbered else f".{place}.jpg", SMALL[which]))
                members = members[::-1]
                shard.add(f"k{number}", members)
                notes.add(f"k{number}", members, READY)
                plain.add(f"k{number}", members, READY)
        read = facts(tar)
        assert paths_dropped(notes._looked_into) == read
        for noted in (notes, plain):
            assert Contents.from_value(noted.contents()) == contents_of(read)
        assert notes.columns() == {"n": ["int", len(samples)]}
        assert plain.columns() is None


def test_what_is_known_already_is_not_looked_up() -> None:
    notes = ShardNotes(sidecar=False)
    note = Note("<image_0>a caption", [(640, 480)], ["/a.jpg"], ["scaled down"])
    notes.add("k", [(".json", b"{}"), ("-0.JPG", b"12345")], note)
    notes.add("k2", [(".json", b"{}")], Note("text alone"))
    value = notes.contents()
    assert value["images"]["width"]["bins"] == {"512": 1}
    assert (value["captions"]["min"], value["captions"]["max"]) == (9, 10)
    assert value["outcomes"] == {"scaled down": 1}
    assert notes.extensions() == ({".json": 2, ".jpg": 1}, {".json": 4, ".jpg": 5})


def test_outcomes_of_a_sample() -> None:
    assert Note().outcome == AS_IS
    assert Note(outcomes=[AS_IS, "converted from GIF", AS_IS]).outcome == f"{AS_IS}, converted from GIF"
    assert READY.outcome == AS_IS
