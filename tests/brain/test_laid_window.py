"""Windows laid out in their order give what their splits give, record by record."""

import dataclasses
import json
import time
import uuid
import weakref
from typing import Any

import numpy as np
import pytest

from brain.ml.dataset_shards.bulk_reading import RowBlock
from brain.ml.dataset_shards.epoch_plan import EpochStart, Tolerance
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.laid_window import MOST_BYTES, LaidWindow, lay_out, merge
from brain.ml.dataset_shards.open_ahead import OpenAhead
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.split_source import OpenedSplit
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.window_reader import Unreadable
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import memory_manager
from tests.brain.test_bulk_reading import lines, opened, tokens
from tools_utilities.errors import ObjectNotFoundError, RecordError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.shard_format import ReadOptions

SIZES = [40 + number % 7 for number in range(150)]


def splits_of(*datas: bytes) -> list[OpenedSplit]:
    return [opened(f"{number}.jsonl", data) for number, data in enumerate(datas)]


def read(laid: LaidWindow | None, first: int, end: int, *, shared_rows: bool = False):
    assert laid is not None
    return laid.read(np.arange(first, end), shared_rows=shared_rows)


def test_stretches_of_a_laid_window_are_its_samples_in_its_order():
    splits = splits_of(lines(0, 5), lines(100, 1), b"", b"\n \n" + lines(200, 4) + b"\n")
    order = np.random.default_rng(1).permutation(10)
    laid = lay_out(splits, order)
    assert laid is not None
    plain = [*range(5), 100, *range(200, 204)]
    for first, end in ((0, 10), (3, 7), (9, 10)):
        found = [sample["id"] for sample in read(laid, first, end)]
        assert found == [plain[place] for place in order[first:end]]
    apart = laid.read(np.array([1, 3]), shared_rows=False)  # no stretch
    assert [sample["id"] for sample in apart or ()] == [plain[order[1]], plain[order[3]]]


@pytest.mark.parametrize("shared_rows", [False, True])
def test_stretches_of_laid_rows_are_the_rows_in_their_order(shared_rows):
    splits = [opened("a.bin", tokens(0, 3)), opened("b.bin", tokens(100, 2))]
    order = np.array([4, 1, 0, 3, 2])
    laid = lay_out(splits, order)
    assert laid is not None
    found = read(laid, 1, 4, shared_rows=shared_rows)
    assert isinstance(found, RowBlock) == shared_rows
    assert [row["input_ids"].tolist() for row in found] == [
        [4, 5, 6, 7], [0, 1, 2, 3], [100, 101, 102, 103],
    ]  # fmt: skip
    if not shared_rows:
        found[0]["input_ids"][:] = 9  # writable, and nobody else's
        assert read(laid, 1, 2)[0]["input_ids"].tolist() == [4, 5, 6, 7]
    apart = laid.read(np.array([1, 3]), shared_rows=shared_rows)
    assert [row["input_ids"][0] for row in apart or ()] == [4, 100]


def test_windows_of_other_or_too_many_bytes_are_not_laid_out():
    one, two = np.arange(1), np.arange(2)
    words, rows = opened("a.jsonl", lines(0, 1)), opened("a.bin", tokens(0, 1))
    short = opened("b.bin", tokens(0, 1) + b"\1\0")  # its last record is shorter
    assert short.num_samples == 2
    assert lay_out([words, words], two) is not None
    assert lay_out([rows, rows], two) is not None
    for others in ([words, rows], [rows, words], [rows, short], [short]):
        assert lay_out(others, two) is None
    assert lay_out(splits_of(b""), one[:0]) is None
    large = b'{"a":"' + b"x" * MOST_BYTES + b'"}\n'
    assert lay_out(splits_of(large), one) is None
    assert lay_out(splits_of(large[:100] + b'"}\n'), one) is not None
    assert lay_out([opened("a.bin", bytes(MOST_BYTES + 8))], np.arange(MOST_BYTES // 8 + 1)) is None


@pytest.mark.parametrize("bad", [b"{nope}\n", b'{"a": 1} {"b": 2}\n'])
def test_a_stretch_with_a_record_that_cannot_be_decoded_is_none(bad):
    laid = lay_out(splits_of(lines(0, 2) + bad), np.arange(3))
    assert read(laid, 0, 3) is None
    assert len(read(laid, 0, 2)) == 2


def test_parts_of_rows_stay_rows_and_others_become_a_list():
    rows = read(lay_out([opened("a.bin", tokens(0, 3))], np.arange(3)), 0, 3, shared_rows=True)
    parts = [(np.array([2, 0]), rows[:2]), (np.array([1]), rows[2:])]
    merged = merge(parts, 3)
    assert isinstance(merged, RowBlock)
    assert [row["input_ids"][0] for row in merged] == [4, 8, 0]
    merged = merge([parts[0], (np.array([1]), ["x"])], 3)
    assert isinstance(merged, list)
    assert [merged[0]["input_ids"][0], merged[1], merged[2]["input_ids"][0]] == [4, "x", 0]


def read_epoch(
    stream: StreamDataset, share: Share, *, wait: bool, strict: bool = True, **tolerance
):
    """Return all entries, and how many windows were read as they had been laid out."""
    plan = stream.plan_for(share, EpochStart())
    plan = dataclasses.replace(plan, tolerance=Tolerance(**tolerance))
    reader = EpochReader(plan, stream.index.counts.copy())
    entries: list[Any] = []
    laid: set[Any] = set()
    dropped: set[Any] = set()
    for block in reader.blocks():
        entries += block.entries
        ahead, held = reader._windows._ahead, reader._windows._laid
        while wait and not all(map(ahead.has_laid_out, list(ahead._laid))):
            time.sleep(0.001)
        laid |= {window for window, found in held.items() if found is not None}
        dropped |= {window for window, found in held.items() if found is None}
    reader.close()
    # Only a bad record, or rows of two lengths, lead back to the splits.
    return entries, 0 if dropped and strict else len(laid)


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_epoch_of_laid_windows_is_the_epoch_of_splits(world_size):
    share = Share(rank=world_size - 1, world_size=world_size, batch_size=8)
    manager = memory_manager(SIZES)
    plain, none = read_epoch(StreamDataset(manager, "data/x/", prefetch=0), share, wait=False)
    laid, many = read_epoch(StreamDataset(manager, "data/x/"), share, wait=True)
    assert none == 0
    assert many > 10
    assert laid == plain
    assert len(plain) == sum(SIZES) // world_size


def test_a_bad_record_of_a_laid_window_is_skipped_by_itself_and_named():
    manager = memory_manager(SIZES)
    bad = [f"data/x/train-{number:05d}.jsonl" for number in range(40, 150, 10)]
    for key in bad:
        # As many records as before, so that the counts are right; it begins and ends as one.
        data = b"".join(manager.store.get(key)).splitlines(keepends=True)
        manager.store.put(key, b"".join([*data[:5], b'{"id": nope}\n', *data[6:]]))
    stream = StreamDataset(manager, "data/x/", seed=1)
    found, laid = read_epoch(
        stream, Share(batch_size=8), wait=True, strict=False, on_bad="skip", bad_budget=99
    )
    assert laid > 20
    left_out = [entry.error for entry in found if isinstance(entry, Unreadable)]
    assert sorted(error.detail["key"] for error in left_out) == bad
    assert {error.detail["record"] for error in left_out} == {6}
    ids = [entry["id"] for entry in found if not isinstance(entry, Unreadable)]
    assert len(set(ids)) == len(ids) == sum(SIZES) - len(bad)


def test_a_laid_window_whose_objects_are_gone_when_they_are_wanted_again_is_left_out():
    manager = memory_manager(SIZES)
    bad = [f"data/x/train-{number:05d}.jsonl" for number in range(0, 150, 3)]
    for key in bad:
        data = b"".join(manager.store.get(key)).splitlines(keepends=True)
        manager.store.put(key, b"".join([b'{"id": nope}\n', *data[1:]]))
    stream = StreamDataset(manager, "data/x/", seed=1)
    plan = stream.plan_for(Share(batch_size=8), EpochStart())
    plan = dataclasses.replace(
        plan, tolerance=Tolerance(on_bad="skip", bad_budget=99, on_missing="skip")
    )
    reader = EpochReader(plan, stream.index.counts.copy())
    entries: list[Any] = []
    for block in reader.blocks():
        entries += block.entries
        ahead = reader._windows._ahead
        while not all(map(ahead.has_laid_out, list(ahead._laid))):
            time.sleep(0.001)
        if len(entries) > 2000:
            for key in bad:
                manager.store.delete(key)
            bad = []
    reader.close()
    found = [entry["id"] for entry in entries if not isinstance(entry, Unreadable)]
    whole = sum(size for number, size in enumerate(SIZES) if number % 3)
    assert len(set(found)) == len(found) >= whole
    kinds = {type(entry.error) for entry in entries if isinstance(entry, Unreadable)}
    assert kinds == {RecordError, ObjectNotFoundError}


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
        # Some with a shorter record at their end: those windows are read from their splits.
        data = tokens(100 * number, 20) + b"\1\0" * (number % 9 == 0)
        open_store(spec).put(f"x/t-{number:03d}.bin", data)
    manager, options = DirectManager(spec), ReadOptions(seq_len=4)

    def epoch(prefetch: int | str, *, wait: bool) -> tuple[list[list[int]], int]:
        stream = StreamDataset(manager, "x/", options=options, prefetch=prefetch)
        entries, laid = read_epoch(stream, Share(batch_size=8), wait=wait, strict=False)
        return [entry["input_ids"].tolist() for entry in entries], laid

    plain, none = epoch(0, wait=False)
    rows, many = epoch("auto", wait=True)
    assert (none, many > 10) == (0, True)
    assert rows == plain
    assert len(plain) == 150 * 20 + 17
