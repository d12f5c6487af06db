"""Windows laid out in their order give what their splits give, record by record."""

import dataclasses
import json
import time

import numpy as np
import pytest

from brain.ml.dataset_shards.epoch_plan import EpochStart, Tolerance
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.laid_window import MOST_BYTES, lay_out
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.window_reader import Unreadable
from tests.brain.stream_data import memory_manager
from tests.brain.test_bulk_reading import lines, opened, tokens
from tools_utilities.shard_format import RecordSpans

SIZES = [40 + number % 7 for number in range(150)]


def spans_of(*datas: bytes) -> list[RecordSpans | None]:
    return [opened(f"{number}.jsonl", data).spans for number, data in enumerate(datas)]


def test_stretches_of_a_laid_window_are_its_samples_in_its_order():
    spans = spans_of(lines(0, 5), lines(100, 1), b"", b"\n \n" + lines(200, 4) + b"\n")
    order = np.random.default_rng(1).permutation(10)
    laid = lay_out(spans, order)
    assert laid is not None
    plain = [*range(5), 100, *range(200, 204)]
    for first, end in ((0, 10), (3, 7), (9, 10)):
        read = laid.read(np.arange(first, end))
        assert read is not None
        assert [sample["id"] for sample in read] == [plain[place] for place in order[first:end]]
    assert laid.read(np.array([1, 3])) is None  # no stretch


def test_windows_of_other_or_too_many_bytes_are_not_laid_out():
    few = np.arange(1)
    assert lay_out([*spans_of(lines(0, 1)), None], few) is None
    assert lay_out([opened("a.bin", tokens(0, 3)).spans], few) is None
    assert lay_out(spans_of(b""), few[:0]) is None
    large = b'{"a":"' + b"x" * MOST_BYTES + b'"}\n'
    assert lay_out(spans_of(large), few) is None
    assert lay_out(spans_of(large[:100] + b'"}\n'), few) is not None


@pytest.mark.parametrize("bad", [b"{nope}\n", b'{"a": 1} {"b": 2}\n', b'{"a"\n: 1}\n'])
def test_a_stretch_with_a_record_that_cannot_be_decoded_is_none(bad):
    spans = spans_of(lines(0, 2) + bad)
    if spans[0] is not None:
        count = len(spans[0].starts) - 1
        laid = lay_out(spans, np.arange(count))
        assert laid is not None
        assert laid.read(np.arange(count)) is None
        assert len(laid.read(np.arange(2)) or []) == 2


def read_epoch(stream: StreamDataset, share: Share, *, wait: bool, **tolerance):
    """Return all entries, and how many windows were read as they had been laid out."""
    plan = stream.plan_for(share, EpochStart())
    plan = dataclasses.replace(plan, tolerance=Tolerance(**tolerance))
    reader = EpochReader(plan, stream.index.counts.copy())
    entries, laid = [], set()
    for block in reader.blocks():
        entries += block.entries
        ahead, held = reader._windows._ahead, reader._windows._laid
        while wait and not all(map(ahead.has_laid_out, list(ahead._laid))):
            time.sleep(0.001)
        laid |= {window for window, found in held.items() if found is not None}
    reader.close()
    return entries, len(laid)


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
    found, laid = read_epoch(stream, Share(batch_size=8), wait=True, on_bad="skip", bad_budget=99)
    assert laid > 20
    left_out = [entry.error for entry in found if isinstance(entry, Unreadable)]
    assert sorted(error.detail["key"] for error in left_out) == bad
    assert {error.detail["record"] for error in left_out} == {6}
    ids = [entry["id"] for entry in found if not isinstance(entry, Unreadable)]
    assert len(set(ids)) == len(ids) == sum(SIZES) - len(bad)


def test_a_pass_that_is_given_up_while_windows_are_laid_out_leaves_no_thread_and_no_error():
    for taken in (1, 3000):
        samples = iter(StreamDataset(memory_manager(SIZES), "data/x/", batch_size=8))
        first = [json.dumps(next(samples)) for _ in range(taken)]
        samples.close()
        assert len(set(first)) == taken
