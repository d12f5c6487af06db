"""The tar walk agrees with Python's tarfile on whatever that writes."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools_utilities.tar_members import TarError, members, read_member

names = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300
).filter(lambda name: not name.endswith("/"))
entries = st.lists(st.tuples(names, st.binary(max_size=1100)), max_size=5)


@settings(deadline=None, max_examples=60)
@given(entries=entries, kind=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_names_and_data_as_tarfile_wrote_them(entries: list[tuple[str, bytes]], kind: int) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind, encoding="utf-8") as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    view = memoryview(file.getvalue())
    found = list(members(view))
    assert [
        (member.name, bytes(view[member.data : member.data + member.num_bytes])) for member in found
    ] == entries
    assert [read_member(view, member.start) for member in found] == found


def with_checksum(header: bytes) -> bytes:
    blank = header[:148] + b" " * 8 + header[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def test_what_gnu_keeps_where_others_keep_a_prefix_is_no_name() -> None:
    header = tarfile.TarInfo("a.txt").tobuf(tarfile.GNU_FORMAT)
    times = header[:345] + b"15000000000\0" + header[357:]
    found = list(members(memoryview(with_checksum(times) + bytes(1024))))
    assert [member.name for member in found] == ["a.txt"]


def test_a_pax_size_replaces_the_headers() -> None:
    content = b"10 size=5\n"
    extended = tarfile.TarInfo("pax")
    extended.type, extended.size = tarfile.XHDTYPE, len(content)
    header = tarfile.TarInfo("a.txt").tobuf(tarfile.USTAR_FORMAT)  # says 0 bytes
    data = extended.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0") + header
    view = memoryview(data + b"hello".ljust(512, b"\0") + bytes(1024))
    (member,) = members(view)
    assert bytes(view[member.data : member.data + member.num_bytes]) == b"hello"


def test_the_oldest_archives_mark_folders_by_a_slash() -> None:
    header = bytearray(tarfile.TarInfo("a.d").tobuf(tarfile.USTAR_FORMAT))
    header[:4], header[156:157] = b"a.d/", b"\0"
    (member,) = members(memoryview(with_checksum(bytes(header)) + bytes(1024)))
    assert (member.name, member.is_file) == ("a.d/", False)


def test_an_empty_object_and_an_empty_archive() -> None:
    assert list(members(memoryview(b""))) == []
    assert list(members(memoryview(bytes(10240)))) == []


def test_a_global_header_that_renames_is_refused() -> None:
    file = io.BytesIO()
    settings_ = {"path": "everything"}
    with tarfile.open(
        fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers=settings_
    ) as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(TarError, match="global pax header"):
        list(members(memoryview(file.getvalue())))


def test_a_global_comment_is_passed_over() -> None:
    file = io.BytesIO()
    with tarfile.open(
        fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "made by git"}
    ) as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    assert [member.name for member in members(memoryview(file.getvalue()))] == ["a.txt"]


@pytest.mark.parametrize("content", [b"9 path=x\n", b"x path=a\n", b"99 path=x\n", b"8 pathx\n"])
def test_a_damaged_pax_header_is_an_error(content: bytes) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, len(content)
    header = info.tobuf(tarfile.USTAR_FORMAT)
    data = header + content.ljust(512, b"\0") + tarfile.TarInfo("a.txt").tobuf() + bytes(1024)
    if content == b"9 path=x\n":
        assert [member.name for member in members(memoryview(data))] == ["x"]
    else:
        with pytest.raises(TarError, match="damaged pax header"):
            list(members(memoryview(data)))
