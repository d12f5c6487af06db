"""Lines by byte ranges: each line once, whatever the bounds."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shard_reading import in_memory
from tools_utilities.line_index import (
    count_lines,
    count_lines_before,
    line_starts,
    own_lines,
    plan_byte_ranges,
    whole_object,
)
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import Split


def info(size_bytes: int) -> ObjectInfo:
    return ObjectInfo(key="d/x.jsonl", size_bytes=size_bytes)


@given(size=st.integers(0, 5000), target=st.integers(1, 6000), unit=st.integers(1, 70))
def test_ranges_cover_the_object(size: int, target: int, unit: int) -> None:
    splits = plan_byte_ranges(info(size), target, unit_bytes=unit)
    assert splits[0].start == 0
    assert splits[-1].end == size
    for before, after in pairwise(splits):
        assert before.end == after.start
        assert after.start % unit == 0
    if size:
        assert all(split.end > split.start for split in splits)
    assert all(split.num_bytes <= 2 * target + unit for split in splits)


def test_bounds_follow_the_size_alone() -> None:
    assert [split.end for split in plan_byte_ranges(info(10), 3)] == [3, 6, 10]
    assert whole_object(info(10)) == Split(key="d/x.jsonl", start=0, end=10, num_bytes=10)


lines = st.lists(st.integers(0, 300).map(lambda n: b"l" * n), max_size=12)


@settings(deadline=None)
@given(lines=lines, final=st.sampled_from([b"", b"\n"]), target=st.integers(1, 900))
def test_every_line_belongs_to_one_range(lines: list[bytes], final: bytes, target: int) -> None:
    data = b"\n".join(lines) + (final if lines else b"")
    shard = in_memory("d/x.jsonl", data)
    pieces, at = [], 0
    for split in plan_byte_ranges(shard.info, target):
        view, start = own_lines(shard, split)
        if len(view):
            assert start == at
            assert split.start <= start < split.end
            at = start + len(view)
        starts = line_starts(view).tolist()
        pieces += [bytes(view[a:b]) for a, b in pairwise(starts)]
    assert b"".join(pieces) == data
    assert pieces == data.splitlines(keepends=True)


def test_a_long_line_is_followed_past_its_range() -> None:
    data = b"a\n" + b"b" * 300_000 + b"\nc"
    shard = in_memory("d/x.jsonl", data)
    splits = plan_byte_ranges(shard.info, 1000)
    found = [(bytes(own_lines(shard, split)[0]), split.start) for split in splits]
    assert [text for text, _ in found if text] == [b"a\n" + b"b" * 300_000 + b"\n", b"c"]


@pytest.mark.parametrize("size_bytes", [0, 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9_000_050])
def test_lines_across_the_reading_pieces(size_bytes: int) -> None:
    data = (b"x" * 99 + b"\n") * (size_bytes // 100) + b"y" * (size_bytes % 100)
    starts = line_starts(memoryview(data))
    assert starts.itemsize == 4
    assert starts.tolist() == [*range(0, size_bytes, 100), size_bytes]
    assert count_lines(memoryview(data)) == size_bytes // 100
    assert count_lines_before(in_memory("k", data), size_bytes) == size_bytes // 100
