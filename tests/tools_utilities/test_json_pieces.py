"""JSON lines in order: the same records whatever the pieces, an index only where it is needed."""

import json
from itertools import pairwise
from typing import Any

import pytest

from tools_utilities.errors import RecordError
from tools_utilities.json_pieces import BATCH_BYTES, BATCH_RECORDS, LineBatch, regular_lines
from tools_utilities.shard_bytes import MemoryShardBytes
from tools_utilities.shard_format import ReadOptions, Split, require_format

LINES = [b'{"n":%d,"text":"%s"}' % (n, b"x" * (n % 700)) for n in range(3_000)]


def in_order(data: bytes, first: int = 0, **options: Any) -> list[LineBatch]:
    shard = MemoryShardBytes("a.jsonl", memoryview(data))
    split = Split(key="a.jsonl", start=0, end=len(data), num_bytes=len(data))
    found: Any = require_format("a.jsonl")
    return list(found.lines_in_order(shard, split, ReadOptions(**options), first))


def lines_of(batches: list[LineBatch]) -> list[bytes]:
    return [line for batch in batches for line in batch.lines]


@pytest.mark.parametrize("end", [b"\n", b""])
def test_every_plain_line_is_given_once_and_in_order(end):
    batches = list(regular_lines(memoryview(b"\n".join(LINES) + end)))

    assert lines_of(batches) == LINES
    assert len(batches) > 1
    for before, after in pairwise(batches):
        assert after.first == before.first + len(before.lines)
        assert after.start_byte == before.end_byte


def test_batches_are_bounded_for_short_and_for_long_lines():
    short = list(regular_lines(memoryview(b'{"a":1}\n' * 200_000)))
    long = list(regular_lines(memoryview(b'{"a":"%s"}\n' % (b"x" * 700_000) * 9)))

    assert max(len(batch.lines) for batch in short) <= BATCH_RECORDS + (64 << 10) // 8
    assert max(batch.end_byte - batch.start_byte for batch in long) <= BATCH_BYTES + 700_012


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b'{"a":1}\r',
        b' {"a":1}',
        b'{"a":1} ',
        b'{"a":1}{"b":2}',
        b'{"a":',
        b"[1]",
        b'{"a":1e999}',
    ],
)
def test_what_is_not_plain_ends_the_pieces_before_it(odd):
    ahead, behind = [b'{"a":"%s"}' % (b"x" * 100)] * 900, [b'{"z":1}'] * 10

    given = lines_of(list(regular_lines(memoryview(b"\n".join([*ahead, odd, *behind])))))

    assert given == ahead[: len(given)]
    assert len(given) >= 500


def test_a_record_over_two_lines_is_not_taken_for_two():
    data = b'{"a":\n1}{"b":2}\n'

    assert list(regular_lines(memoryview(data))) == []
    with pytest.raises(RecordError, match="line 1"):
        in_order(data)


@pytest.mark.parametrize("first", [0, 1, 1_777, 2_999])
def test_reading_from_any_record_with_blank_lines_and_carriage_returns(first):
    odd = [
        *LINES[:1_000],
        b"",
        b"  ",
        *(line + b"\r" for line in LINES[1_000:2_000]),
        *LINES[2_000:],
    ]

    batches = in_order(b"\n".join(odd) + b"\n\n", first)

    assert lines_of(batches) == LINES[first:]
    assert batches[0].first == first


def test_a_bad_record_is_told_with_its_line_after_the_pieces_before_it():
    bad = [*LINES[:2_000], b'{"n": 1,}', *LINES[2_000:]]

    with pytest.raises(RecordError, match="line 2001"):
        in_order(b"\n".join(bad))


def test_strict_reading_looks_for_keys_that_occur_twice():
    data = b'{"a":1}\n{"a":1,"a":2}\n'

    assert len(lines_of(in_order(data))) == 2
    with pytest.raises(RecordError, match="twice"):
        in_order(data, strict=True)


def test_the_lines_are_what_decoding_gives():
    data = b"\n".join(LINES)
    shard = MemoryShardBytes("a.jsonl", memoryview(data))
    split = Split(key="a.jsonl", start=0, end=len(data), num_bytes=len(data))
    opened = require_format("a.jsonl").open_split(shard, split, ReadOptions())

    decoded = opened.read(range(opened.num_samples))

    assert [json.loads(line) for line in lines_of(in_order(data))] == decoded
