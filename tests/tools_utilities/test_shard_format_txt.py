"""Text: a line is a sample, whatever it holds."""

from typing import Any

import pytest

from tests.shard_reading import case_file, in_memory, one_split, read_all, written
from tools_utilities.errors import RecordError


def texts(data: bytes, target_bytes: int = 1 << 20) -> list[str]:
    shard = in_memory("d/x.txt", data)
    return [sample["text"] for sample in read_all("txt", shard, target_bytes=target_bytes)]


@pytest.mark.parametrize("target_bytes", [1, 4, 100])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"\n\n \na\n", ["", "", " ", "a"]),
        (b"a\r\nb\r\r\nc\r", ["a", "b\r", "c\r"]),
        ("a\u2028b\x85\x0bc\n".encode(), ["a\u2028b\x85\x0bc"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
    ],
)
def test_only_lf_ends_a_line_and_none_is_dropped(
    data: bytes, expected: list[str], target_bytes: int
) -> None:
    assert texts(data, target_bytes) == expected


def test_the_real_table() -> None:
    shard = case_file("compressed/lineitem1k.tbl.zst")
    lines = read_all("txt", shard)
    assert len(lines) == 1000
    assert all(line["text"].count("|") == 16 for line in lines)


@pytest.mark.parametrize("target_bytes", [3, 100])
def test_bad_utf8_names_the_line(target_bytes: int) -> None:
    with pytest.raises(RecordError, match=r"d/x.txt: line 3: invalid UTF-8: byte 0xff") as failure:
        texts(b"a\n\nb\xff\nc\n", target_bytes)
    detail = failure.value.detail
    assert (detail["line"], detail["offset"]) == (3, 3)


def test_lines_own_bytes() -> None:
    opened = one_split("txt", in_memory("d/x.txt", b"a\r\n\xff\n"))
    assert opened.read_raw([1, 0]) == [b"\xff", b"a"]


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ({"text": "a\nb"}, "line end"),
        ({"text": "a\r"}, "line end"),
        ({"text": 1}, "not just text"),
        ({"text": "a", "id": 1}, "text, id"),
        ({}, "fields none"),
        ({"text": "\ufeffa"}, "byte order mark"),
        ({"text": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_what_a_line_cannot_hold_is_refused(sample: Any, why: str) -> None:
    with pytest.raises(RecordError, match=f"sample 0 cannot be written as a line of text: .*{why}"):
        written("txt", [sample])
