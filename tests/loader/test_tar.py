"""The header chain: every tar that other tools write, and every way in which one can be broken."""

from __future__ import annotations

import mmap
import os
import tarfile
from pathlib import Path

import pytest
import tarmaker
from checks import ByOne, check_tar, walked
from growth import cost, growth
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import ODD_NAMES, tar_members
from tarmaker import BLOCK, END, gnu_long, header, member, padded, pax

from loader import tar
from loader.errors import BadTar, ShardflowError, TruncatedTar

FORMS = ("ustar", "gnu", "pax")
MTIMES = (0, 1_600_000_000, 1_600_000_000.25)


def members(data: bytes | mmap.mmap, require_end: bool = True) -> list[tuple[str, int, int]]:
    return walked(data, require_end)[0]


def names(data: bytes) -> list[str]:
    return [name for name, _, _ in members(data)]


def fails(data: bytes, error: type[ShardflowError] = BadTar, require_end: bool = True) -> str:
    with pytest.raises(ShardflowError) as caught:
        walked(data, require_end)
    assert type(caught.value) is error
    assert str(caught.value).startswith("x.tar")
    return str(caught.value)


# -- what others write


@given(
    tar_members(max_members=12, unique=False),
    st.sampled_from(FORMS),
    st.sampled_from(MTIMES),
    st.sampled_from((BLOCK, 10_240)),
)
@settings(deadline=None, max_examples=150)
def test_tarfile_agrees(content: list[tuple[str, bytes]], form: str, mtime: float, ending: int) -> None:
    if form == "ustar":
        content = [(name, data) for name, data in content if fits_ustar(name)]
    data = tarmaker.by_tarfile(content, form, mtime)
    if ending == BLOCK:  # no filling up to a record of 10 KiB
        data = data.rstrip(b"\0")
        data = padded(data) + END
        if len(data) < sum(2 * BLOCK for _ in content):
            return
    found = members(data)
    assert found == tarmaker.members_of(data)
    assert [data[at : at + size] for _, at, size in found] == [payload for _, payload in content]


def fits_ustar(name: str) -> bool:
    try:
        tarmaker.by_tarfile([(name, b"")], "ustar")
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax", "v7"])
def test_gnu_tar_agrees(tmp_path: Path, form: str) -> None:
    content = {}
    for number, name in enumerate(ODD_NAMES):
        name = name.lstrip("/")
        path = os.path.join(tmp_path, name)
        if (form == "v7" and len(name.encode("utf-8", "surrogateescape")) > 97) or (
            form == "ustar" and not fits_ustar("./" + name)
        ):
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        content["./" + name.removeprefix("./")] = bytes([number % 7]) * number * 97
        Path(path).write_bytes(content["./" + name.removeprefix("./")])
    data = tarmaker.by_gnu_tar(tmp_path, form, names=list(content))
    found, skipped, _ = walked(data)
    assert {name: data[at : at + size] for name, at, size in found} == content
    assert found == tarmaker.members_of(data)
    assert not skipped


def test_gnu_tar_incremental_keeps_times_where_others_keep_the_prefix(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"abc")
    data = tarmaker.by_gnu_tar(tmp_path / "in", "gnu", f"--listed-incremental={tmp_path / 'state'}")
    found, skipped, _ = walked(data)
    ((name, at, size),) = found
    assert (name, data[at : at + size]) == ("./a.txt", b"abc")
    assert ("directory", "./") in skipped  # a 'D' entry, whose body lists the folder


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax"])
def test_links_devices_folders_are_told_not_returned(tmp_path: Path, form: str) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a" * 600)
    os.link(tmp_path / "a.jpg", tmp_path / "b.jpg")
    os.symlink("a.jpg", tmp_path / "c.jpg")
    os.mkfifo(tmp_path / "d.jpg")
    (tmp_path / "e").mkdir()
    (tmp_path / "f.jpg").write_bytes(b"f")
    data = tarmaker.by_gnu_tar(tmp_path, form)
    found, skipped, _ = walked(data)
    assert [name for name, _, _ in found] == ["./a.jpg", "./f.jpg"]
    assert skipped == [
        ("directory", "./"),
        ("hard link", "./b.jpg"),
        ("symbolic link", "./c.jpg"),
        ("pipe", "./d.jpg"),
        ("directory", "./e/"),
    ]


@pytest.mark.parametrize(
    "kind",
    [b"0", b"\0", b"7", b"1", b"2", b"3", b"4", b"5", b"6", b"A", b"I", b"N", b"V", b"D", b"z", b"\xff"],
)
@pytest.mark.parametrize("pax_size", [False, True])
def test_every_type_with_a_size_field_as_tarfile_takes_it(kind: bytes, pax_size: bool) -> None:
    # A link or a folder has no body, whatever its size says; a type that nobody knows has one.
    odd = header(b"odd.jpg", 600, kind)
    if pax_size:
        odd = pax((b"size", b"600")) + header(b"odd.jpg", 0, kind)
    body = b"" if kind in b"123456" else padded(b"o" * 600)
    data = odd + body + member(b"a.jpg", b"a") + END
    if pax_size and kind in b"123456":
        assert names(data) == ["a.jpg"]  # tarfile looks for a body here and finds none
        return
    assert members(data) == tarmaker.members_of(data)
    assert names(data)[-1] == "a.jpg"
    found, skipped, _ = walked(data)
    assert len(found) + len(skipped) == 2
    if kind in b"AINz\xff":
        assert skipped == [(f"of the unknown type {kind.decode('latin-1')!r}", "odd.jpg")]


def test_a_v7_folder_is_a_file_whose_name_ends_in_a_slash() -> None:
    for magic in (b"", b"ustar\x0000"):
        data = header(b"d/", 0, b"\0", magic=magic) + member(b"d/a.jpg", b"a", b"\0", magic=magic) + END
        found, skipped, _ = walked(data)
        assert found == tarmaker.members_of(data) == [("d/a.jpg", 2 * BLOCK, 1)]
        assert skipped == [("directory", "d/")]


def test_pax_one_long_name_then_a_short_one() -> None:
    content = [("l" * 176 + ".jpg", b"long"), ("s.jpg", b"short")]
    data = tarmaker.by_tarfile(content, "pax")
    assert members(data) == [(content[0][0], 3 * BLOCK, 4), ("s.jpg", 5 * BLOCK, 5)]


def test_pax_float_mtimes_put_the_payload_at_1536() -> None:
    data = tarmaker.by_tarfile([("a.jpg", b"a"), ("b.jpg", b"b")], "pax", mtime=1.5)
    assert members(data) == [("a.jpg", 1536, 1), ("b.jpg", 1536 + 4 * BLOCK, 1)]


def test_ustar_prefix_and_two_files_that_differ_only_in_it() -> None:
    content = [("p" * 120 + "/a.jpg", b"p"), ("q" * 120 + "/a.jpg", b"q")]
    data = tarmaker.by_tarfile(content, "ustar")
    assert [name for name, _, _ in members(data)] == [name for name, _ in content]
    # The prefix field stands for itself alone where the magic is POSIX's.
    assert names(member(b"a.jpg", b"a", prefix=b"pre") + END) == ["pre/a.jpg"]
    assert names(member(b"a.jpg", b"a", prefix=b"pre", magic=b"ustar  \0") + END) == ["a.jpg"]
    assert names(member(b"a.jpg", b"a", prefix=b"pre", magic=b"") + END) == ["a.jpg"]


def test_global_pax_records_change_nothing_here() -> None:
    data = pax((b"comment", b"by git archive"), (b"mtime", b"1.5"), kind=b"g") + member(b"a.jpg", b"a") + END
    assert members(data) == tarmaker.members_of(data) == [("a.jpg", 3 * BLOCK, 1)]


@pytest.mark.parametrize("key", [b"path", b"size", b"GNU.sparse.major", b"GNU.sparse.\xff"])
def test_a_global_name_or_size_is_refused(key: bytes) -> None:
    message = fails(pax((key, b"1"), kind=b"g") + member(b"a.jpg", b"a") + END)
    assert "global pax record" in message and "byte 0" in message


def test_an_empty_pax_path_takes_itself_back() -> None:
    data = pax((b"path", b"b.jpg"), (b"path", b"")) + member(b"a.jpg", b"a") + END
    for kind in (tar.Walk, ByOne):
        assert walked(data, kind=kind)[0] == [("a.jpg", 1536, 1)]


def test_signed_checksums_and_other_spellings() -> None:
    name = "photo-é.jpg".encode("latin-1")
    for fields in ({"signed": True}, {"checksum": "%6o\0 "}, {"checksum": "%07o\0"}, {"checksum": "%06o \0"}):
        data = member(name, b"abc", **fields) + member(b"b.jpg", b"b") + END
        found = members(data)
        assert found == tarmaker.members_of(data)
        assert [size for _, _, size in found] == [3, 1]


@pytest.mark.parametrize("field", [b"          3\0", b"         3 \0", b"000000003\0\0\0", b"00000000003 "])
def test_sizes_in_other_spellings(field: bytes) -> None:
    data = header(b"a.jpg", field) + padded(b"abc") + member(b"b.jpg", b"b") + END
    assert members(data) == tarmaker.members_of(data) == [("a.jpg", 512, 3), ("b.jpg", 1536, 1)]


@pytest.mark.parametrize("name", [n for n in ODD_NAMES if len(n) < 90])
def test_odd_names_survive(name: str) -> None:
    data = member(os.fsencode(name), b"x") + END
    assert names(data) == [name]


def test_shorter_name_over_an_older_longer_one() -> None:
    assert names(member(b"a.jpg\0remains.png", b"x") + member(b"b.jpg", b"x") + END) == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_a_member_of_9_gib(tmp_path: Path, form: str) -> None:
    size = 9 << 30
    path = tmp_path / "big.tar"
    with open(path, "wb") as file:
        info = tarfile.TarInfo("big.jpg")
        info.size = size
        file.write(info.tobuf(tarmaker.FORMATS[form]))
        body = file.tell()
        file.truncate(body + size)
        file.seek(body + size)
        file.write(member(b"after.jpg", b"after") + END)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        assert members(buffer) == [("big.jpg", body, size), ("after.jpg", body + size + BLOCK, 5)]
        del file


# -- how a tar ends


def test_an_archive_of_zero_blocks_alone_is_an_empty_one() -> None:
    for blocks in (1, 2, 20):
        assert walked(bytes(blocks * BLOCK)) == ([], [], 0)


def test_a_file_of_zero_bytes_and_one_below_a_block_are_none() -> None:
    assert "zero bytes" in fails(b"", TruncatedTar)
    assert "100 bytes" in fails(bytes(100), TruncatedTar)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh9", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"PK\x03\x04", "zip"),
    ],
)
def test_a_compressed_file_named_tar(data: bytes, kind: str) -> None:
    for length in (100, 5000):
        message = fails(data.ljust(length, b"\x55"))
        assert kind in message and "decompress" in message


def test_a_member_whose_name_begins_like_a_compressed_file() -> None:
    assert names(member(b"BZhang.jpg", b"x") + END) == ["BZhang.jpg"]


def test_no_end_blocks() -> None:
    data = member(b"a.jpg", b"a") + member(b"b.jpg", b"b")
    message = fails(data, TruncatedTar)
    assert f"byte {len(data)}" in message and "'b.jpg'" in message and "require_end=False" in message
    assert [name for name, _, _ in members(data, require_end=False)] == ["a.jpg", "b.jpg"]
    # Shorter than a block, but nothing in it: no header that was cut.
    assert len(members(data + bytes(300), require_end=False)) == 2
    assert "300 bytes of a member's header" in fails(data + header(b"c.jpg")[:300], TruncatedTar, False)


def test_one_zero_block_ends_an_archive_too() -> None:
    assert names(member(b"a.jpg", b"a") + bytes(BLOCK)) == ["a.jpg"]


MIXED = (
    pax((b"mtime", b"1.5"))
    + member(b"a.jpg", b"a" * 700)
    + member(b"folder", b"", b"5")
    + gnu_long(b"g" * 300 + b".jpg")
    + member(b"g" * 100, b"g" * 5)
    + b"".join(member(b"%d.txt" % n, b"t" * n) for n in range(12))
    + pax((b"path", b"l" * 700 + b".jpg"), (b"size", b"513"))
    + header(b"l" * 100, 0)
    + padded(b"l" * 513)
    + member(b"v7.jpg", b"v", b"\0", magic=b"")
    + header(b"big.jpg", b"\x80" + (515).to_bytes(11, "big"))
    + padded(b"b" * 515)
)
WHOLE = MIXED + END


def test_the_exhibit_is_read_as_tarfile_reads_it() -> None:
    assert members(WHOLE) == tarmaker.members_of(WHOLE)
    assert len(members(WHOLE)) == 17


def test_cut_anywhere() -> None:
    whole = members(WHOLE)
    for cut in {*range(0, len(WHOLE), 37), *range(0, len(WHOLE), BLOCK), *range(1, len(WHOLE), BLOCK)}:
        data = WHOLE[:cut]
        if cut >= len(MIXED) + BLOCK:
            assert members(data) == whole
            continue
        message = fails(data, TruncatedTar)
        # Without the demand for end blocks, what was whole before the cut is found, or an error.
        if not message.count("extension") and not message.count("should have") and cut >= BLOCK:
            try:
                found = members(data, require_end=False)
            except TruncatedTar:
                continue
            assert found == whole[: len(found)]


def test_cut_in_a_payload_names_member_and_bytes() -> None:
    data = member(b"a.jpg", b"a") + member(b"dir/b.jpg", b"b" * 2000)
    message = fails(data[: 3 * BLOCK + 700], TruncatedTar)
    assert "byte 1024" in message and "'dir/b.jpg'" in message and "2000" in message and "700" in message
    assert "after member 'a.jpg'" in message


@pytest.mark.parametrize(
    ("rest", "count"),
    [
        (b"", 0),
        (bytes(3 << 20), 0),
        (b"junk", 4),
        (b"j" * 2000, 2000),
        (member(b"c.jpg", b"c") + END, 513),  # two archives, one behind the other
        (bytes(5000) + b"x", 393),  # from the block on
        (bytes(5000) + b"x" + bytes(3 << 20) + b"x" + bytes(3 << 20), 392 + (3 << 20) + 2),
        (bytes((1 << 20) - 1024) + b"x", 1),
        (b"x" + bytes((1 << 20) - 1), 1),
        (b"x" + bytes(1 << 20), 1),
    ],
)
def test_bytes_after_the_end_are_counted(rest: bytes, count: int) -> None:
    data = member(b"a.jpg", b"a") + END
    found, _, end = walked(data + rest)
    assert [name for name, _, _ in found] == ["a.jpg"]
    assert end == 2 * BLOCK
    data += rest
    for piece in (len(data), 1 << 20, 1000):
        pieces = ((at, data[at : at + piece]) for at in range(end, len(data), piece))
        assert tar.trailing_bytes(pieces, end) == count


# -- what is broken


def test_a_wrong_checksum_names_the_byte() -> None:
    data = bytearray(member(b"a.jpg", b"a") + member(b"b.jpg", b"b") + END)
    data[2 * BLOCK + 3] ^= 1
    message = fails(bytes(data))
    assert "checksum" in message and "byte 1024" in message and "after member 'a.jpg'" in message


def test_no_tar_at_all() -> None:
    assert "no tar" in fails(b"<!DOCTYPE html>".ljust(4096))


@pytest.mark.parametrize(
    "options", [("gnu",), *(("pax", f"--sparse-version={v}") for v in ("0.0", "0.1", "1.0"))]
)
def test_sparse_members_are_refused_by_name(tmp_path: Path, options: tuple[str, ...]) -> None:
    with open(tmp_path / "holes.jpg", "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"data")
    data = tarmaker.by_gnu_tar(tmp_path, options[0], "--sparse", *options[1:])
    assert len(data) < 1 << 19  # it is sparse indeed
    message = fails(data)
    assert "sparse" in message and "holes.jpg" in message


def test_the_rest_of_another_volume_is_refused() -> None:
    assert "multi-volume" in fails(member(b"a.jpg", b"a", b"M") + END)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (b"00000000009\0", "no octal number"),
        (b"-0000000001\0", "no octal number"),
        (b"0x000000001\0", "no octal number"),
        (b"0_000000001\0", "no octal number"),
        (b"\xff" * 12, "negative"),
        (b"\x81" + bytes(11), "no octal number"),
    ],
)
def test_size_fields_that_are_none(field: bytes, reason: str) -> None:
    assert reason in fails(header(b"a.jpg", field) + END)


@pytest.mark.parametrize(
    "field", [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7]
)
@pytest.mark.parametrize("kind", [b"0", b"D", b"z", b"\0"])
def test_sizes_beyond_the_file(field: bytes, kind: bytes) -> None:
    for require_end in (True, False):
        assert "'a.jpg'" in fails(header(b"a.jpg", field, kind) + END, TruncatedTar, require_end)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_extension_records_beyond_the_limit_or_the_file(kind: bytes) -> None:
    assert "at most" in fails(header(b"r", 9 << 20, kind) + END)
    assert "at most" in fails(header(b"r", b"\x80" + b"\xff" * 11, kind) + END)
    assert "cut short" in fails(header(b"r", 1 << 20, kind) + END, TruncatedTar)


@pytest.mark.parametrize("kind", [b"x", b"L", b"K"])
def test_extension_records_of_nothing(kind: bytes) -> None:
    assert "no member" in fails(member(b"r", b"8 a=bcd\n" if kind == b"x" else b"abc", kind) + END)


@pytest.mark.parametrize(
    "records",
    [b"x", b"5", b"5 ", b"0 a=b\n", b"99 a=b\n", b"6 a=bc\n", b"-6 a=b\n", b"6 ab\n\n", b" 6 a=b\n", b"1" * 30, b"3 \n",
     b"00000000000000000006 a=b\n", b"2 path=x\n"],
)  # fmt: skip
def test_malformed_pax_records(records: bytes) -> None:
    # The second of two, so that reading in bulk meets it as well.
    data = (
        pax((b"mtime", b"1"))
        + member(b"a.jpg", b"a")
        + member(b"r", records, b"x")
        + member(b"b.jpg", b"b")
        + END
    )
    message = fails(data)
    assert "malformed pax record" in message and "byte 2048" in message


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"0x10", b"9" * 21])
def test_pax_sizes_that_are_none(value: bytes) -> None:
    assert "'size'" in fails(pax((b"size", value)) + member(b"a.jpg", b"a") + END)


def test_messages_stay_short() -> None:
    name = b"n" * 100_000 + b".jpg"
    message = fails(
        pax((b"path", name))
        + member(b"a.jpg", b"a")
        + pax((b"path", name), (b"size", b"9999999"))
        + header(b"b"),
        TruncatedTar,
    )
    assert len(message) < 2000


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from((WHOLE, MIXED, WHOLE + MIXED))))
    headers = [at for at in range(0, len(data), BLOCK) if data[at + 257 : at + 262] == b"ustar"]
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            at = draw(st.sampled_from(headers))
            place = at + draw(
                st.sampled_from((0, 50, 99, 124, 130, 134, 135, 148, 153, 154, 156, 257, 262, 345))
            )
            data[place] = draw(st.sampled_from(b"\0 07189xXgLKSM5D\x80\xff/.") | st.integers(0, 255))
            if draw(st.booleans()):  # a lie with the right checksum
                data[at + 148 : at + 156] = b" " * 8
                data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + BLOCK])
        else:
            place = draw(st.integers(0, len(data) - 1))
            data[place] ^= draw(st.integers(1, 255))
    return bytes(data[: draw(st.just(len(data)) | st.integers(0, len(data)))])


@given(damaged(), st.booleans())
@settings(deadline=None, max_examples=400)
def test_damage_gives_one_clear_error_or_members_inside(data: bytes, require_end: bool) -> None:
    check_tar(data, require_end)


@given(st.binary(max_size=3000))
@settings(deadline=None, max_examples=100)
@example(b"\0" * 511)
@example(b"ustar" * 400)
def test_noise(data: bytes) -> None:
    check_tar(data)


# -- time


@pytest.mark.parametrize(
    "odd",
    [
        lambda n: member(b"%d.txt" % n, b"x", checksum="%6o\0 "),  # each wants the closer look
        lambda n: member(b"%d.txt" % n, b"x", magic=b"", kind=b"\0"),
        lambda n: member(b"%d.txt" % n, b"x") + member(b"l", b"", b"2"),
        lambda n: pax((b"path", b"%d.txt" % n), (b"size", b"1")) + member(b"x", b"x"),
        lambda n: member(b"%d.txt" % n, b"x", **({"checksum": "%6o\0 "} if n % 40 == 0 else {})),
        lambda n: member(b"%d.txt" % n, b"ustar" * 80),
    ],
)
def test_no_kind_of_header_costs_more_than_its_own_look(odd: object) -> None:
    few, many = (b"".join(odd(n) for n in range(count)) + END for count in (500, 8000))  # type: ignore[operator]

    assert (len(members(few)), len(members(many))) == (500, 8000)
    # 16 times the members; where each looked ahead anew it was 200 and more
    assert growth(lambda: members(few), lambda: members(many)) < 60


@pytest.mark.parametrize("form", ["ustar", "pax"])
def test_far_ahead_of_tarfile(form: str) -> None:
    content = [(f"{n:06d}.{end}", b"x") for n in range(4000) for end in ("txt", "cls")]
    data = tarmaker.by_tarfile(content, form, mtime=1.5 if form == "pax" else 1)

    assert len(members(data)) == len(tarmaker.members_of(data)) == 8000
    assert cost(lambda: members(data)) * 4 < cost(lambda: tarmaker.members_of(data), 2)
