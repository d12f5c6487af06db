"""A .json file: a list of objects, or JSON lines under another name."""

import math
from typing import Any

import pytest

from tests.shard_reading import case_file, in_memory, one_split, read_all, written
from tools_utilities.errors import RecordError
from tools_utilities.shard_format import ReadOptions, format_of


def read_json(data: bytes, options: ReadOptions | None = None) -> list[Any]:
    return read_all("json", in_memory("d/x.json", data), options=options or ReadOptions())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[]", []),
        (b" [ \n ] \n", []),
        (b'[{"a":1},{"b":[{}, {"c":"}{],["}]}]', [{"a": 1}, {"b": [{}, {"c": "}{],["}]}]),
        (b'\xef\xbb\xbf\n[\n  {\n    "a": "\xc3\xa9\\n"\n  } ,\r\n\t{}\n]\n', [{"a": "é\n"}, {}]),
        (b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b"\n \n", []),
    ],
)
def test_lists_and_lines(data: bytes, expected: list[Any]) -> None:
    assert read_json(data) == expected


def test_the_name() -> None:
    found = format_of("c4-train.00000-of-01024.json.gz")
    assert found is not None
    assert found.name == "json"


def test_any_order_and_own_bytes() -> None:
    opened = one_split("json", in_memory("d/x.json", b'[{"a": 1} , {"b":\n2},{}]'))
    assert opened.read([2, 0, 2]) == [{}, {"a": 1}, {}]
    assert opened.read_raw([1, 0]) == [b'{"b":\n2}', b'{"a": 1}']


def test_nan_inside_a_list() -> None:
    data = '[{"é":1},{"x":NaN}, {"x":2}]'.encode()
    opened = one_split("json", in_memory("d/x.json", data))
    assert opened.read([0, 2]) == [{"é": 1}, {"x": 2}]
    with pytest.raises(RecordError, match=r"d/x.json: element 2: NaN is not JSON") as failure:
        opened.read([0, 1])
    assert (failure.value.detail["offset"], failure.value.detail["index"]) == (10, 1)
    assert math.isnan(read_json(data, ReadOptions(allow_nan=True))[1]["x"])


def test_elements_that_are_no_objects() -> None:
    opened = one_split("json", in_memory("d/x.json", b'[{"a":1},[2],3]'))
    assert opened.read([0]) == [{"a": 1}]
    with pytest.raises(RecordError, match="element 2: not an object but an array"):
        opened.read([0, 1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[{"a":1}', "element 2: not JSON: unterminated list"),
        (b'[{"a":1},', "element 2: not JSON: unterminated"),
        (b"[", "element 1: not JSON: unterminated"),
        (b'[{"a":1},]', "element 2: not JSON: no , or ]"),
        (b'[{"a":1} {"b":2}]', "element 2: not JSON: no , or ]"),
        (b'[{"a":1},{"b":}]', r"element 2: not JSON: .* \(at byte 14\)"),
        (b'[{"a":1}]x', "more behind the list's end"),
        (b"[1]\n[2]\n", "more behind the list's end"),
    ],
)
def test_what_is_no_list(data: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=f"d/x.json: {message}|{message}"):
        read_json(data)


def test_repeated_keys_and_strict() -> None:
    data = b'[{"a":1,"a":2}]'
    assert read_json(data) == [{"a": 2}]
    with pytest.raises(RecordError, match="element 1: the key 'a' occurs twice"):
        read_json(data, ReadOptions(strict=True))


def test_the_real_files() -> None:
    assert read_all("json", case_file("jsonl/whitespace_only.json")) == []
    with pytest.raises(RecordError, match="line 1: not JSON"):
        read_all("json", case_file("jsonl/sample_utf8_bom.json"))


def test_nan_is_not_written() -> None:
    with pytest.raises(RecordError, match="sample 0"):
        written("json", [{"a": math.nan}])
