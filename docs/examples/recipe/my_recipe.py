"""A recipe for records such as {"file": "cat.png", "title": {"en": "A cat.", "de": "Eine Katze."}, "stars": 4}."""

from loader.errors import BadSample
from tasks.recipes import Record


def titled(raw):
    """One record → one sample. Called in worker processes; reads no file."""
    if raw["stars"] < 2:
        raise BadSample(
            f"{raw['stars']} stars: at least 2 were wanted"
        )  # leaves the row out, with this reason
    return Record(
        caption=f"<image_0>{raw['title']['en']}",  # <image_n> once for each picture
        images=(raw["file"],),  # addresses, or the pictures' own bytes
        caption_all=raw["title"],  # other texts by name, or None
        metadata={"stars": raw["stars"]},  # whatever JSON can hold
    )
