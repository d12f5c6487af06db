"""CSV: quoted fields, exact counts, errors with their line."""

from typing import Any

import pytest

from tests.shard_reading import case_file, in_memory, one_split, read_all, written
from tools_utilities.errors import RecordError


def read_csv(data: bytes, key: str = "d/x.csv") -> list[Any]:
    return read_all("csv", in_memory(key, data))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a,b\n1,2\n", [{"a": "1", "b": "2"}]),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        (b'a,b\n"x\r\ny, ""z""",\n', [{"a": 'x\r\ny, "z"', "b": ""}]),
        (b'a\n""\n\nx\n', [{"a": ""}, {"a": "x"}]),
        (b'size,b\n5" disk,2\n', [{"size": '5" disk', "b": "2"}]),
        ("a\né\u2028x\n".encode(), [{"a": "é\u2028x"}]),
        (b"a,b\n", []),
    ],
)
def test_records(data: bytes, expected: list[Any]) -> None:
    assert read_csv(data) == expected


def test_tabs() -> None:
    assert read_csv(b"a\tb\n1,2\t3\n", "d/x.tsv") == [{"a": "1,2", "b": "3"}]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a;b\n1,5;2\n", [{"a": "1,5", "b": "2"}]),
        (b"a|b\n1|2;3\n", [{"a": "1", "b": "2;3"}]),
        (b"a\tb\n1\t2\n", [{"a": "1", "b": "2"}]),
        (b"\xef\xbb\xbfa;b;c|d\r\n1;2;3\r\n", [{"a": "1", "b": "2", "c|d": "3"}]),
        (b'"a;b",c\n1,2\n', [{"a;b": "1", "c": "2"}]),
        (b'"a,b";c\n1;2\n', [{"a,b": "1", "c": "2"}]),
        (b"a;x,b\n1,2\n", [{"a;x": "1", "b": "2"}]),
        (b"only\n1;2\n", [{"only": "1;2"}]),
    ],
)
def test_other_delimiters_are_those_of_the_header(data: bytes, expected: list[Any]) -> None:
    assert read_csv(data) == expected


def test_a_long_field() -> None:
    text = "long, " * 100_000
    assert read_csv(written("csv", [{"t": text}])) == [{"t": text}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a,b\n1,2\n\n3\n", "line 4: 1 fields, the header has 2"),
        (b'a,b\n"x\ny",2,3\n', "line 2: 3 fields, the header has 2"),
        (b"a,b\n1,\xff\n", "line 2: invalid UTF-8: byte 0xff"),
        (b'a,b\n1,2\n"x,2\n', "line 3: not CSV: unexpected end of data"),
        (b'a,b\n"x"y,2\n', "line 2: not CSV"),
        (b"a,b\r1,2\r", "line 1: not CSV"),
        (b"a,a\n1,2\n", "line 1: columns named twice: a"),
    ],
)
def test_bad_records_name_their_line(data: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=f"d/x.csv: {message}"):
        read_csv(data)


def test_a_bad_record_leaves_the_others_readable() -> None:
    opened = one_split("csv", in_memory("d/x.csv", b"a,b\n1,2\n3\n5,6\n"))
    assert opened.read([2, 0]) == [{"a": "5", "b": "6"}, {"a": "1", "b": "2"}]
    with pytest.raises(RecordError) as failure:
        opened.read([0, 1])
    assert failure.value.detail["index"] == 1
    assert opened.read_raw([1]) == [b"3\n"]


def test_the_real_file() -> None:
    shard = case_file("parquet_hive/missing/part=b/date=2013-01-01/test.csv")
    assert read_all("csv", shard) == []  # its one line is the header


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ({"a": 1}, "a is int"),
        ({"b": "x"}, "its columns are b, not a"),
        ({"a": "\ud800"}, "surrogates"),
    ],
)
def test_what_csv_cannot_hold_is_refused(sample: Any, why: str) -> None:
    with pytest.raises(RecordError, match=f"sample 1 cannot be written as CSV: .*{why}"):
        written("csv", [{"a": "x"}, sample])
