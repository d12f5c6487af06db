"""Windows laid out in their order give what their splits give, record by record."""

import dataclasses
import json
import time
import uuid
import weakref
from itertools import islice
from typing import Any

import numpy as np
import pytest

from brain.ml.dataset_shards.bulk_reading import Located, LocatedBlock
from brain.ml.dataset_shards.epoch_plan import EpochStart, Tolerance
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.laid_window import LaidWindow, lay_out
from brain.ml.dataset_shards.lane_walk import Chunk, LaneWindow
from brain.ml.dataset_shards.open_ahead import OpenAhead
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.split_source import OpenedSplit
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.window_reader import Unreadable
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import memory_manager
from tests.brain.test_bulk_reading import lines, opened, tokens
from tools_utilities.json_records import decode_objects
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.shard_format import ReadOptions

SIZES = [40 + number % 7 for number in range(150)]


def splits_of(*datas: bytes) -> list[OpenedSplit]:
    return [opened(f"{number}.jsonl", data) for number, data in enumerate(datas)]


def read(laid: LaidWindow | None, first: int, end: int) -> list[Any]:
    assert laid is not None
    bounds = np.array([laid.which, laid.begins, laid.ends], np.int64)[:, first:end]
    return list(LocatedBlock(Located(laid.parts, bounds, laid.kind), list, shared_rows=False))


def test_stretches_of_a_laid_window_are_its_samples_in_its_order():
    splits = splits_of(lines(0, 5), lines(100, 1), b"", b"\n \n" + lines(200, 4) + b"\n")
    order = np.random.default_rng(1).permutation(10)
    laid = lay_out(splits, order)
    plain = [*range(5), 100, *range(200, 204)]
    for first, end in ((0, 10), (3, 7), (9, 10)):
        found = [sample["id"] for sample in read(laid, first, end)]
        assert found == [plain[place] for place in order[first:end]]


def test_stretches_of_laid_rows_are_the_rows_in_their_order():
    splits = [opened("a.bin", tokens(0, 3)), opened("b.bin", tokens(100, 2))]
    laid = lay_out(splits, np.array([4, 1, 0, 3, 2]))
    found = read(laid, 1, 4)
    assert [row["input_ids"].tolist() for row in found] == [
        [4, 5, 6, 7], [0, 1, 2, 3], [100, 101, 102, 103],
    ]  # fmt: skip


def test_a_laid_window_holds_ten_bytes_a_sample():
    laid = lay_out(splits_of(lines(0, 500), lines(100, 500)), np.arange(1000)[::-1])
    assert laid is not None
    assert laid.which.nbytes + laid.begins.nbytes + laid.ends.nbytes == 10 * 1000
    # They own what they are: nothing larger is kept by them.
    assert all(array.base is None for array in (laid.which, laid.begins, laid.ends))


def test_windows_of_records_that_are_not_all_alike_are_not_laid_out():
    one, two = np.arange(1), np.arange(2)
    words, rows = opened("a.jsonl", lines(0, 1)), opened("a.bin", tokens(0, 1))
    short = opened("b.bin", tokens(0, 1) + b"\1\0")  # its last record is shorter
    assert short.num_samples == 2
    assert lay_out([words, words], two) is not None
    assert lay_out([rows, rows], two) is not None
    for others in ([words, rows], [rows, words]):
        assert lay_out(others, two) is None
    assert lay_out([rows, short], np.arange(3)) is not None
    assert lay_out([], one[:0]) is None
    nothing = lay_out(splits_of(b""), one[:0])
    assert read(nothing, 0, 0) == []


def read_epoch(stream: StreamDataset, share: Share, *, strict: bool = True, **tolerance):
    """Return all entries, and how many windows were laid out ahead."""
    plan = stream.plan_for(share, EpochStart())
    plan = dataclasses.replace(plan, tolerance=Tolerance(**tolerance))
    reader = EpochReader(plan, stream.index.counts.copy())
    entries: list[Any] = []
    laid: set[Any] = set()
    for block in reader.blocks():
        entries += block.entries
        ahead, held = reader._windows._ahead, reader._windows._laid
        while not all(map(ahead.has_laid_out, list(ahead._laid))):
            time.sleep(0.001)
        laid |= {window for window, found in held.items() if found is not None and window.number}
        assert None not in held.values() or not strict
    reader.close()
    return entries, len(laid)


def read_apart(stream: StreamDataset, share: Share) -> list[Any]:
    """Return the same, record by record from splits opened for it alone."""
    plan = stream.plan_for(share, EpochStart())
    reader = EpochReader(plan, stream.index.counts.copy())
    codes = reader.codes(int(stream.index.counts.sum()))
    reader.close()
    # With `drop`, ranks take as many each.
    where = list(zip(*[part.tolist() for part in codes], strict=True))[
        share.rank :: share.world_size
    ]
    opened_splits = {n: plan.source.open_split(plan.table, n) for n in {n for n, _ in where}}
    length = int(stream.index.counts.sum()) // share.world_size
    return [opened_splits[number].read([index])[0] for number, index in where[:length]]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("prefetch", [0, "auto"])
def test_an_epoch_of_laid_windows_is_the_epoch_of_splits(world_size, prefetch):
    share = Share(rank=world_size - 1, world_size=world_size, batch_size=8)
    stream = StreamDataset(memory_manager(SIZES), "data/x/", prefetch=prefetch)
    list(islice(stream, sum(SIZES)))  # counts the splits
    found, laid = read_epoch(stream, share)
    assert laid > 10
    assert len(found) == sum(SIZES) // world_size
    assert found == read_apart(stream, share)


def test_a_bad_record_of_a_laid_window_is_skipped_by_itself_and_named():
    manager = memory_manager(SIZES)
    bad = [f"data/x/train-{number:05d}.jsonl" for number in range(40, 150, 10)]
    for key in bad:
        # As many records as before, so that the counts are right; it begins and ends as one.
        data = b"".join(manager.store.get(key)).splitlines(keepends=True)
        manager.store.put(key, b"".join([*data[:5], b'{"id": nope}\n', *data[6:]]))
    stream = StreamDataset(manager, "data/x/", seed=1)
    found, laid = read_epoch(
        stream, Share(batch_size=8), strict=False, on_bad="skip", bad_budget=99
    )
    assert laid > 20
    left_out = [entry.error for entry in found if isinstance(entry, Unreadable)]
    assert sorted(error.detail["key"] for error in left_out) == bad
    assert {error.detail["record"] for error in left_out} == {6}
    ids = [entry["id"] for entry in found if not isinstance(entry, Unreadable)]
    assert len(set(ids)) == len(ids) == sum(SIZES) - len(bad)


def test_a_bad_record_is_looked_for_in_splits_that_are_open_still():
    manager = memory_manager(SIZES)
    bad = [f"data/x/train-{number:05d}.jsonl" for number in range(0, 150, 3)]
    for key in bad:
        data = b"".join(manager.store.get(key)).splitlines(keepends=True)
        manager.store.put(key, b"".join([b'{"id": nope}\n', *data[1:]]))
    stream = StreamDataset(manager, "data/x/", seed=1)
    entries, _ = read_epoch(stream, Share(batch_size=8), strict=False, on_bad="skip", bad_budget=99)
    found = [entry["id"] for entry in entries if not isinstance(entry, Unreadable)]
    assert len(set(found)) == len(found) == sum(SIZES) - len(bad)
    assert len(manager.opened) == len(set(manager.opened))


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 1), (1, 8), (5, 1)])
def test_splits_that_no_entry_was_taken_of_are_closed_when_they_are_passed_by(
    world_size, num_workers
):
    # Splits of few samples, some of none: most readers take nothing of many of them.
    stream = StreamDataset(memory_manager([3, 0, 5] * 120), "data/x/")
    list(stream)
    share = Share(world_size=world_size, num_workers=num_workers, batch_size=8)
    reader = EpochReader(stream.plan_for(share, EpochStart()), stream.index.counts.copy())
    ahead, walk = reader._windows._ahead, reader._walk
    for _ in reader.blocks():
        soon = {number for window in walk.current() for number in window.splits}
        for after in (1, 2):
            soon |= {number for window in walk.upcoming(after) for number in window.splits}
        assert ahead._futures.keys() <= soon
        assert {number for window in ahead._laid for number in window} <= soon
    reader.close()


def test_what_a_thread_has_opened_is_not_kept_by_it():
    opened_splits = weakref.WeakSet[Any]()

    def open_split(number: int) -> OpenedSplit:
        split = opened(f"{number}.jsonl", lines(0, 3))
        opened_splits.add(split)
        return split

    ahead = OpenAhead(open_split, num_threads=2)
    for number in range(4):
        ahead.request([number])
        ahead.take(number).close()
    deadline = time.monotonic() + 30
    while opened_splits and time.monotonic() < deadline:
        time.sleep(0.001)
    ahead.close()
    assert not opened_splits


def test_a_pass_that_is_given_up_while_windows_are_laid_out_leaves_no_thread_and_no_error():
    for taken in (1, 3000):
        samples = iter(StreamDataset(memory_manager(SIZES), "data/x/", batch_size=8))
        first = [json.dumps(next(samples)) for _ in range(taken)]
        samples.close()  # type: ignore[attr-defined] # a generator
        assert len(set(first)) == taken


def test_an_epoch_of_laid_rows_is_the_epoch_of_splits():
    spec = StoreSpec(uri=f"memory://{uuid.uuid4().hex}")
    for number in range(150):
        # Some with a shorter record at their end, which is read from its split.
        data = tokens(100 * number, 20) + b"\1\0" * (number % 9 == 0)
        open_store(spec).put(f"x/t-{number:03d}.bin", data)
    manager, options = DirectManager(spec), ReadOptions(seq_len=4)

    stream = StreamDataset(manager, "x/", options=options)
    rows, many = read_epoch(stream, Share(batch_size=8))
    assert many > 10
    apart = read_apart(stream, Share(batch_size=8))
    assert [row["input_ids"].tolist() for row in rows] == [
        row["input_ids"].tolist() for row in apart
    ]
    assert len(rows) == 150 * 20 + 17


def test_more_parts_than_two_bytes_can_number_are_told_apart():
    """Two windows of 40,000 splits each, as of tiny objects: the second's parts begin at 40,000."""
    stream = StreamDataset(memory_manager([3] * 60), "data/x/")
    list(islice(stream, 180))
    reader = EpochReader(
        stream.plan_for(Share(batch_size=8), EpochStart()), stream.index.counts.copy()
    )
    which = np.arange(40_000, dtype=np.uint16)
    zeros = np.zeros(40_000, np.uint32)
    windows = tuple(LaneWindow(lane, 1, 0, (2 * lane, 2 * lane + 1)) for lane in (0, 1))
    parts = (memoryview(b"{}"),) * 40_000
    for window in windows:
        reader._windows._laid[window] = LaidWindow(parts, which, zeros, zeros + 2, decode_objects)
    chunk = Chunk(0, 39_990, 5, 0, windows)
    located = reader._windows._locate_rounds(chunk, np.array([0, 1]))
    assert located is not None
    assert located.bounds[0].tolist() == [[n, 40_000 + n] for n in range(39_990, 39_995)]
    assert len(located.parts) == 80_000
    reader.close()
