"""JSON lines: cases B25 and B26, the real files R09, R10 and R15, and the fast path's proof."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shard_reading import (
    CASES,
    DEFAULTS,
    case_file,
    in_memory,
    one_split,
    open_splits,
    plan,
    read_all,
    written,
)
from tools_utilities.errors import RecordError
from tools_utilities.json_records import BadJsonError, ExactJson
from tools_utilities.shard_format import OpenSplit, ReadOptions

NAN = ReadOptions(allow_nan=True)
STRICT = ReadOptions(strict=True)
MOVIES = [
    {"id": 1, "name": "O Brother, Where Art Thou?"},
    {"id": 2, "name": "Home for the Holidays"},
    {"id": 3, "name": "The Firm"},
    {"id": 4, "name": "Broadcast News"},
    {"id": 5, "name": "Raising Arizona"},
]


def split_of(data: bytes, options: ReadOptions = DEFAULTS) -> OpenSplit:
    return one_split("jsonl", in_memory("d/x.jsonl", data), options)


def good_and_bad(
    name: str, *, options: ReadOptions = DEFAULTS, target_bytes: int = 1 << 20
) -> tuple[list[Any], list[RecordError]]:
    """Read a case file record by record, as on_bad=skip does."""
    good, bad = [], []
    shard = case_file(name)
    for opened in open_splits("jsonl", shard, target_bytes=target_bytes, options=options):
        for index in range(opened.num_samples):
            try:
                good += opened.read([index])
            except RecordError as error:
                assert error.detail["index"] == index  # noqa: PT017 - both ways out are checked
                bad.append(error)
    return good, bad


# B25: lenient and strict parsers


def test_a_byte_order_mark_is_no_part_of_the_first_record() -> None:
    for target_bytes in (1, 2, 5, 100):
        records = read_all("jsonl", case_file("made/b25_bom.jsonl"), target_bytes=target_bytes)
        assert records == [{"id": 1}, {"id": 2}]


def test_nan_is_an_error_that_says_so() -> None:
    with pytest.raises(RecordError, match=r"b25_nan.jsonl: line 2: NaN is not JSON") as failure:
        read_all("jsonl", case_file("made/b25_nan.jsonl"))
    assert "allow_nan=true" in failure.value.hint
    good, bad = good_and_bad("made/b25_nan.jsonl")
    assert [record["id"] for record in good] == [1, 4]
    assert [error.detail["line"] for error in bad] == [2, 3]


def test_nan_is_a_float_where_allowed() -> None:
    records = read_all("jsonl", case_file("made/b25_nan.jsonl"), options=NAN)
    assert [record["id"] for record in records] == [1, 2, 3, 4]
    assert math.isnan(records[1]["x"])
    assert records[2]["x"] == -math.inf


@pytest.mark.parametrize("target_bytes", [4, 12, 1 << 20])
def test_bad_utf8_names_the_physical_line(target_bytes: int) -> None:
    good, bad = good_and_bad("made/b25_badutf8.jsonl", target_bytes=target_bytes)
    assert [record["id"] for record in good] == [1, 3]
    assert len(bad) == 1
    detail = bad[0].detail
    assert "b25_badutf8.jsonl: line 3: invalid UTF-8: byte 0xff" in str(bad[0])
    assert (detail["line"], detail["record"], detail["offset"]) == (3, 3, 10)
    assert detail["key"].endswith("b25_badutf8.jsonl")


def test_what_is_not_an_object_is_an_error() -> None:
    with pytest.raises(RecordError, match="line 2: not an object but an array"):
        read_all("jsonl", case_file("made/b25_notobject.jsonl"))
    good, bad = good_and_bad("made/b25_notobject.jsonl")
    assert [record["id"] for record in good] == [1, 2]
    assert [error.detail["line"] for error in bad] == [2, 3, 4]


@pytest.mark.parametrize("target_bytes", [9, 1 << 20])
def test_a_cut_last_record_is_unterminated(target_bytes: int) -> None:
    with pytest.raises(RecordError, match="line 3: unterminated"):
        read_all("jsonl", case_file("made/b25_cut.jsonl"), target_bytes=target_bytes)


def test_every_cut_of_the_last_record_is_unterminated() -> None:
    record = json.dumps({"id": 1, "t": 'é\\n"x', "n": [1.5e3, None, True, {}]}, ensure_ascii=False)
    data = record.encode()
    for end in range(1, len(data)):
        with pytest.raises(RecordError, match="line 2: unterminated"):
            read_all("jsonl", in_memory("d/x.jsonl", b'{"id":0}\n' + data[:end]))


# B26: only LF ends a record


@pytest.mark.parametrize("target_bytes", [1, 3, 20, 1 << 20])
def test_only_lf_ends_a_record(target_bytes: int) -> None:
    shard = case_file("made/b26_separators.jsonl")
    records = read_all("jsonl", shard, target_bytes=target_bytes)
    assert [record["id"] for record in records] == [1, 2, 3, 4]
    assert [record["t"] for record in records] == ["a\u2028b", "c\u0085d", "e\u2029f", "g"]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("made/b26_crlf.jsonl", 3),
        ("made/b26_empty.jsonl", 0),
        ("made/b26_only_newlines.jsonl", 0),
        ("jsonl/empty.ndjson", 0),
        ("jsonl/whitespace_only.json", 0),
    ],
)
def test_blank_lines_are_no_records(name: str, count: int) -> None:
    assert len(read_all("jsonl", case_file(name))) == count


@pytest.mark.parametrize("name", ["example_n.ndjson", "example_rn.ndjson", "example_rn.ndjson.gz"])
def test_the_real_movies(name: str) -> None:
    assert read_all("jsonl", case_file(f"jsonl/{name}"), target_bytes=30) == MOVIES


def test_bare_cr_is_one_line_with_too_much_on_it() -> None:
    with pytest.raises(RecordError, match="line 1: more than one JSON value") as failure:
        read_all("jsonl", case_file("jsonl/example_r.ndjson"))
    assert "bare CR" in failure.value.hint
    assert [
        opened.num_samples for opened in open_splits("jsonl", case_file("jsonl/example_r.ndjson"))
    ] == [1]


# R10: real good and bad lines


@pytest.mark.parametrize(
    ("name", "num_good", "bad_lines"),
    [
        ("unterminated_quotes.ndjson", 4, [3]),
        ("trailing_content.ndjson", 2, [2]),
        ("multiple_objects_per_line.ndjson", 0, [1]),
        ("inconsistent_schemas.ndjson", 5, []),
        ("different_schemas.ndjson", 5, []),
        ("duplicate_key.ndjson", 5, []),
    ],
)
@pytest.mark.parametrize("target_bytes", [25, 1 << 20])
def test_the_real_good_and_bad_lines(
    name: str, num_good: int, bad_lines: list[int], target_bytes: int
) -> None:
    good, bad = good_and_bad(f"jsonl/{name}", target_bytes=target_bytes)
    assert len(good) == num_good
    assert [error.detail["line"] for error in bad] == bad_lines


def test_types_may_differ_from_line_to_line() -> None:
    records = read_all("jsonl", case_file("jsonl/inconsistent_schemas.ndjson"))
    assert [type(record["id"]) for record in records] == [str, int, list, int, int]


def test_of_repeated_keys_the_last_wins_unless_strict() -> None:
    shard = case_file("jsonl/duplicate_key.ndjson")
    assert read_all("jsonl", shard)[2]["id"] == 42
    with pytest.raises(RecordError, match="line 3: the key 'id' occurs twice"):
        read_all("jsonl", shard, options=STRICT)


@pytest.mark.parametrize("name", ["map_of_struct_with_nulls.jsonl", "sample_utf8_bom.json"])
def test_one_indented_object_is_not_json_lines(name: str) -> None:
    with pytest.raises(RecordError, match="line 1: not JSON"):
        read_all("jsonl", case_file(f"jsonl/{name}"))


# R15: a strict parser


REFUSED = {
    "n_array_invalid_utf8": "invalid UTF-8: byte 0xff",
    "i_string_UTF8_surrogate_U+D800": "invalid UTF-8: byte 0xed",
    "n_number_NaN": "NaN is not JSON",
    "n_number_infinity": "Infinity is not JSON",
    "n_number_minus_infinity": "-Infinity is not JSON",
    "n_object_trailing_comma": "not JSON",
    "n_structure_no_data": "not JSON",
    "n_structure_UTF8_BOM_no_data": "not JSON",
    "i_number_huge_exp": "out of range",
    "i_string_invalid_lonely_surrogate": "lone surrogate",
    "i_structure_UTF-8_BOM_empty_object": "not JSON",  # as a value; at a file's start it is a mark
}


@pytest.mark.parametrize(
    "path", sorted((CASES / "jsonsuite").iterdir()), ids=lambda path: path.stem
)
def test_the_parsing_suite(path: Any) -> None:
    exact = ExactJson(ReadOptions())
    if path.stem in REFUSED:
        with pytest.raises(BadJsonError, match=REFUSED[path.stem]):
            exact.decode_value(path.read_bytes())
    else:
        assert path.stem == "i_number_too_big_pos_int"
        assert exact.decode_value(path.read_bytes()) == [100000000000000000000]


@pytest.mark.parametrize(
    "path", sorted((CASES / "jsonsuite").iterdir()), ids=lambda path: path.stem
)
def test_the_parsing_suite_as_one_line(path: Any) -> None:
    shard = in_memory("d/x.jsonl", path.read_bytes())
    if path.stem in {"n_structure_no_data", "n_structure_UTF8_BOM_no_data"}:
        assert read_all("jsonl", shard) == []
    elif path.stem == "i_structure_UTF-8_BOM_empty_object":
        assert read_all("jsonl", shard) == [{}]
    else:
        with pytest.raises(RecordError, match="line 1: "):
            read_all("jsonl", shard)


# The fast path and the exact path agree


def wrapped(value: bytes) -> bytes:
    return b'{"a":' + value + b"}"


VALUES = [
    b"1", b"-0", b"-0.0", b"1E5", b"0.1", b"1e-400", b"1e400", b"-1e400", b"01", b"1.", b".5", b"+1",
    b"18446744073709551616", b"-9223372036854775809", b"1" + b"0" * 5000, b"NaN", b"TRUE", b"nul",
    b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\\udc00x"', b'"\\ud800\\u0041"', b'"\\x"', b'"\x01"', b'"\t"',
    b'"\x7f\xc2\x85"', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf5\x80\x80\x80"',
    b"[1,]", b"[,]", b"{,}", b'{"b":1,"b":2}', b"{1:2}", b"/**/1", b"1\x0c", b"1\x00", b"[" * 90 + b"]" * 90,
    b"[" * 100_000 + b"]" * 100_000, b'"' + "é😀".encode() + b'"', b'"\\/"', b"'x'", b'{"":{"":[]}}',
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:16].hex())
def test_a_record_reads_the_same_alone_and_in_company(value: bytes) -> None:
    """Alone it may take the fast path; beside a record only Python reads, it cannot."""
    line = wrapped(value)
    slow_neighbour = b' {"z":1} \t\r\n[0]\n'
    outcomes = []
    for data, indices in ((line + b"\n", [0]), (slow_neighbour + line + b"\n", [0, 2])):
        opened = split_of(data)
        try:
            outcomes.append(repr(opened.read(indices)[-1]))
        except RecordError as error:
            outcomes.append(str(error).partition(": ")[2].partition(": ")[2])
    exact = ExactJson(ReadOptions())
    try:
        expected = repr(exact.decode(line))
    except BadJsonError as error:
        expected = error.reason
    assert outcomes == [expected, expected]


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1}{"b":\n{"c":1}}\n',  # two and a half on two lines
        b'{"a":1}{"b":{}\n,"c":1}\n',
        b'{"a":1} {"b":2}\n\n',
        b'{"a":1}{"b":2}\n{"c":\n',
        b'{"a":\n1}\n',
        b'{"a":"x\n"}\n',
        b'{"a":1},{"b":[2\n{"c":3}]}\n',
        b'{"a":1}\n}{"b":1}{\n',
    ],
)
def test_records_never_span_or_share_lines(data: bytes) -> None:
    with pytest.raises(RecordError, match=r"line [12]: "):
        read_all("jsonl", in_memory("d/x.jsonl", data))


@settings(deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            [b"{", b"}", b'{"a":', b"[", b"]", b'"', b",", b"1", b"\n", b" ", b"\r", b"{}"]
        ),
        max_size=14,
    )
)
def test_lines_are_read_as_python_reads_them(parts: list[bytes]) -> None:
    """Any soup of JSON pieces: the same records, or an error where Python's json has one."""
    data = b"".join(parts)
    expected: list[Any] = []
    for line in data.split(b"\n"):
        if line.strip(b" \t\r"):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            expected.append(record if isinstance(record, dict) else None)
    opened = split_of(data)
    assert opened.num_samples == len(expected)
    if None in expected:
        with pytest.raises(RecordError):
            opened.read(range(len(expected)))
    else:
        assert opened.read(range(len(expected))) == expected


def test_strict_takes_ordinary_records() -> None:
    assert read_all("jsonl", case_file("jsonl/example_n.ndjson"), options=STRICT) == MOVIES


def test_overflow_is_infinity_where_allowed() -> None:
    assert split_of(b'{"a":1e400}\n', NAN).read([0]) == [{"a": math.inf}]


def test_records_own_bytes() -> None:
    opened = split_of(b'\xef\xbb\xbf{"a":1} \r\n\n \n{"b":2}\r\n[3]')
    assert opened.read_raw([2, 0, 1]) == [b"[3]", b'{"a":1} ', b'{"b":2}']


def test_errors_count_lines_over_splits_and_blank_lines() -> None:
    data = b"".join(b'{"i":%d}\n\n' % i for i in range(50)) + b"oops\n" + b'{"i":50}\n' * 50
    shard = in_memory("d/x.jsonl", data)
    assert len(plan("jsonl", shard, target_bytes=40)) > 10
    with pytest.raises(RecordError, match=r"d/x.jsonl: line 101: not JSON") as failure:
        read_all("jsonl", shard, target_bytes=40)
    assert failure.value.detail["offset"] == data.index(b"oops")


def test_the_index_takes_four_bytes_a_sample() -> None:
    count = 10_000
    data = b'{"a":1}\n' * count
    opened = split_of(data)
    assert opened.num_bytes - len(data) <= 4 * (count + 1)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, [1, {"x": math.nan}], b"bytes", {1, 2}, "\ud800"]
)
def test_what_json_has_no_word_for_is_not_written(value: Any) -> None:
    with pytest.raises(RecordError, match="sample 1 cannot be written as JSON"):
        written("jsonl", [{"a": 1}, {"a": value}])


def test_what_is_written_is_what_reads_back_equal() -> None:
    """The fast encoder has words for these that no reader gives back; the exact one decides."""
    sample = {"tuple": (1, (2,)), "big": 10**30, "small": 5e-324, "minus": -0.0, "n": None}
    data = written("jsonl", [sample])
    expected = {**sample, "tuple": [1, [2]]}
    assert read_all("jsonl", in_memory("d/x.jsonl", data)) == [expected] == [json.loads(data)]


def test_text_is_written_as_it_is() -> None:
    assert written("jsonl", [{"t": "é\u2028\n"}]) == '{"t":"é\u2028\\n"}\n'.encode()
