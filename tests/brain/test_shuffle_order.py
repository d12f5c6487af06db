from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brain.ml.dataset_shards.lane_walk import LaneWalk
from brain.ml.dataset_shards.shuffle_order import (
    LARGE_OPEN_BYTES,
    SEQUENTIAL,
    SPREAD_BYTES,
    Indices,
    LaneShape,
    choose_shape,
    deal_order,
    keyed_permutation,
    window_bounds,
    window_of,
)


def test_permutation_is_the_same_on_every_machine_and_release():
    assert keyed_permutation(10, "splits", 42, 0).tolist() == PERMUTATION_OF_TEN


PERMUTATION_OF_TEN = [9, 8, 6, 7, 0, 2, 1, 5, 3, 4]


@given(st.integers(0, 200), st.integers(0, 5), st.integers(0, 5))
def test_permutation_holds_every_number_once(length, seed, epoch):
    found = keyed_permutation(length, "splits", seed, epoch)
    assert sorted(found.tolist()) == list(range(length))


def test_permutations_of_other_seeds_and_epochs_differ():
    found = {
        tuple(keyed_permutation(50, "splits", seed, epoch).tolist())
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(found) == 25


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.integers(0, 3))
def test_dealing_holds_every_split_once(splits_of_objects, epoch):
    object_of = np.repeat(np.arange(len(splits_of_objects)), splits_of_objects)
    sizes = np.full(len(splits_of_objects), SPREAD_BYTES // 3)
    dealt = deal_order(object_of, sizes, 42, epoch)
    assert sorted(dealt.tolist()) == list(range(len(object_of)))


def dealt_objects(num_objects: int, splits: int, megabytes: int, epoch: int) -> Indices:
    object_of = np.repeat(np.arange(num_objects), splits)
    return object_of[deal_order(object_of, np.full(num_objects, megabytes << 20), 42, epoch)]


def spans_of(dealt: Indices) -> npt.NDArray[np.float64]:
    """Return how far the first and last split of each object lie apart, as a share of the order."""
    places = np.arange(len(dealt))
    first, last = np.full(dealt.max() + 1, len(dealt)), np.zeros(dealt.max() + 1, np.int64)
    np.minimum.at(first, dealt, places)
    np.maximum.at(last, dealt, places)
    return (last - first) / len(dealt)


def test_an_object_is_dealt_within_a_stretch_of_the_order():
    # Of 400 objects of 64 MiB the stretch is 64 objects: that much is enough to mix well.
    dealt = dealt_objects(400, 8, 64, 1)
    spans = spans_of(dealt)
    assert spans.max() <= 66 / 400
    assert spans.mean() > 0.5 * 64 / 400
    assert dealt.tolist() != sorted(dealt.tolist())


@pytest.mark.parametrize("num_objects", [33, 64, 128])
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_an_object_is_not_in_use_for_more_than_about_a_quarter_of_small_data(num_objects, epoch):
    assert spans_of(dealt_objects(num_objects, 11, 16, epoch)).max() < 0.3


def test_few_objects_are_mixed_nevertheless():
    spans = spans_of(dealt_objects(8, 50, 1, 1))
    assert spans.mean() > 0.65


@pytest.mark.parametrize("epoch", [0, 1, 2, 3])
def test_an_epoch_begins_with_what_the_one_before_has_ended_with(epoch):
    before, after = dealt_objects(80, 10, 16, epoch), dealt_objects(80, 10, 16, epoch + 1)
    # Stretches overlap at the inner edge of the border; away from it the objects are the same.
    last, first = set(before[-200:].tolist()), set(after[:200].tolist())
    assert len(last - set(after[:500].tolist())) == 0
    assert len(first - set(before[-500:].tolist())) == 0
    assert before[-200:].tolist() != after[:200].tolist()


def test_epochs_end_with_different_objects():
    ends = [frozenset(dealt_objects(80, 10, 16, epoch)[-200:].tolist()) for epoch in range(6)]
    assert len(set(ends)) == 6
    assert len(ends[0] & ends[2]) < len(ends[0])


def test_the_first_epoch_begins_with_few_objects_and_soon_has_many():
    dealt = dealt_objects(100, 10, 16, 0)
    assert len(set(dealt[:24].tolist())) <= 6  # the first batch takes a split of each lane
    assert len(set(dealt[200:300].tolist())) >= 25
    assert len(set(dealt_objects(100, 10, 16, 1)[:24].tolist())) > 8


def test_default_keeps_at_least_64_splits_open():
    shape = choose_shape(np.full(1000, 1 << 20), shuffle=True)
    assert shape.num_lanes * shape.num_window_splits >= 64


@pytest.mark.parametrize(("num_splits", "expected"), [(50, 72), (300, 72), (384, 96), (5000, 96)])
def test_of_few_splits_fewer_are_open_but_never_less_than_64(num_splits, expected):
    shape = choose_shape(np.full(num_splits, 1 << 20), shuffle=True)
    assert 24 * shape.num_window_splits == expected


def test_huge_splits_are_opened_fewer_at_a_time():
    shape = choose_shape(np.full(1000, 64 << 20), shuffle=True)
    assert shape.num_lanes * shape.num_window_splits * (64 << 20) <= LARGE_OPEN_BYTES


def test_file_order_has_one_lane():
    assert choose_shape(np.full(10, 5), shuffle=False) == SEQUENTIAL


@given(st.integers(1, 6), st.integers(0, 7))
def test_windows_of_a_lane_join(window_splits, lane):
    shape = LaneShape(num_lanes=8, num_window_splits=window_splits)
    bounds = [window_bounds(lane, number, shape) for number in range(5)]
    assert bounds[:2] == [(0, 1), (1, 2 + lane % window_splits)]
    assert all(left[1] == right[0] for left, right in pairwise(bounds))
    for number, (start, end) in enumerate(bounds):
        assert {window_of(lane, split, shape) for split in range(start, end)} == {number}


def make_walk(counts: list[int], shape: LaneShape, *, known: bool) -> LaneWalk:
    real = np.array(counts, np.int64)
    held = real.copy() if known else np.full(len(real), -1, np.int64)

    def learn(splits: tuple[int, ...]) -> None:
        held[list(splits)] = real[list(splits)]

    return LaneWalk(np.arange(len(real)), shape, held, learn)


def entries(walk: LaneWalk, size: int = 1 << 30) -> list[tuple[int, ...]]:
    """Return (position, lane, round, window number, base) of everything that is left."""
    found: list[tuple[int, ...]] = []
    for chunk in walk.chunks(lambda: size):
        for place in range(chunk.skip, chunk.num_rounds * len(chunk.windows)):
            number, column = divmod(place, len(chunk.windows))
            window = chunk.windows[column]
            position = chunk.position + place - chunk.skip
            found.append(
                (position, window.lane, chunk.first_round + number, window.number, window.base)
            )
    return found


shapes = st.builds(LaneShape, num_lanes=st.integers(1, 6), num_window_splits=st.integers(1, 4))
counts = st.lists(st.integers(0, 5), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(counts, shapes, st.integers(1, 9))
def test_every_sample_of_every_lane_comes_once_in_rounds(counts, shape, size):
    walk = make_walk(counts, shape, known=True)
    found = entries(walk, size)
    assert [entry[0] for entry in found] == list(range(sum(counts)))
    assert [(r, lane) for _, lane, r, _, _ in found] == sorted(
        (r, lane) for _, lane, r, *_ in found
    )
    totals = [sum(counts[lane :: shape.num_lanes]) for lane in range(shape.num_lanes)]
    assert sorted((lane, r) for _, lane, r, *_ in found) == [
        (lane, r) for lane, total in enumerate(totals) for r in range(total)
    ]


@settings(max_examples=60, deadline=None)
@given(counts, shapes, st.data())
def test_unknown_counts_give_the_same_walk_from_anywhere(counts, shape, data):
    whole = entries(make_walk(counts, shape, known=True))
    position = data.draw(st.integers(0, len(whole)))
    for known in (True, False):
        walk = make_walk(counts, shape, known=known)
        walk.seek(position)
        assert entries(walk, 3) == whole[position:]


@settings(max_examples=60, deadline=None)
@given(counts, shapes, st.data())
def test_a_hint_replaces_counting_what_came_before(counts, shape, data):
    whole = entries(make_walk(counts, shape, known=True))
    first = make_walk(counts, shape, known=False)
    chunks = [(chunk, first.hint()) for chunk in first.chunks(lambda: 4)]
    if not chunks:
        return
    chunk, hint = data.draw(st.sampled_from(chunks))
    # Of several ranks one knows its lanes up to its own last sample, and the others go on from there.
    end = min(chunk.position + chunk.num_positions + 8, len(whole))
    position = data.draw(st.integers(chunk.position, end))
    real = np.array(counts, np.int64)
    held = np.full(len(real), -1, np.int64)
    opened: list[int] = []

    def learn(splits: tuple[int, ...]) -> None:
        opened.extend(splits)
        held[list(splits)] = real[list(splits)]

    walk = LaneWalk(np.arange(len(real)), shape, held, learn)
    walk.seek(position, hint)
    assert entries(walk) == whole[position:]
    starts = {
        window.lane: window_bounds(window.lane, window.number, shape)[0] for window in chunk.windows
    }
    before = {
        number
        for number in range(len(real))
        if number // shape.num_lanes < starts.get(number % shape.num_lanes, 0)
    }
    assert not before & set(opened)


def test_a_hint_from_before_a_lane_ended_finds_the_position():
    counts, shape = [2, 1, 2, 1, 1, 5, 3], LaneShape(num_lanes=3, num_window_splits=1)
    whole = entries(make_walk(counts, shape, known=True))
    first = make_walk(counts, shape, known=False)
    hints = [first.hint() for _ in first.chunks(lambda: 1)]
    for position in range(len(whole)):
        walk = make_walk(counts, shape, known=False)
        walk.seek(position, hints[0])
        assert entries(walk) == whole[position:]


@pytest.mark.parametrize("position", [0, 1, 7, 5_000_000_000, 9_999_999_999])
def test_ten_billion_samples_are_found_by_arithmetic(position):
    counts = np.full(100_000, 100_000, np.int64)
    walk = LaneWalk(
        np.arange(100_000), LaneShape(num_lanes=24, num_window_splits=4), counts, lambda _: None
    )
    walk.seek(position)
    chunk = next(walk.chunks(lambda: 1))
    assert chunk.position == position
