"""What is read of many splits at once equals what each split gives by itself."""

import json

import numpy as np
import pytest

from brain.ml.dataset_shards.bulk_reading import LocatedBlock, RowBlock, Run, read_together
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.split_source import OpenedSplit
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from brain.ml.dataset_shards.token_collate import TokenCollate
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import memory_manager
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.shard_bytes import MemoryShardBytes
from tools_utilities.shard_format import ReadOptions, require_format

LENGTH = 4
OPTIONS = ReadOptions(seq_len=LENGTH)


def opened(key: str, data: bytes) -> OpenedSplit:
    info, shard_format = ObjectInfo(key=key, size_bytes=len(data)), require_format(key)
    [split] = shard_format.plan_splits(info, lambda start, end: data[start:end], 1 << 30, OPTIONS)
    return OpenedSplit(split, shard_format.open_split(MemoryShardBytes(key, data), split, OPTIONS))


def lines(first: int, count: int) -> bytes:
    return b"".join(
        json.dumps({"id": n, "t": "é" * n}).encode() + b"\n" for n in range(first, first + count)
    )


def tokens(first: int, count: int) -> bytes:
    return np.arange(first, first + count * LENGTH, dtype="<u2").tobytes()


def runs_of(splits: list[OpenedSplit], wanted: list[list[int]]):
    return [(split, np.array(indices)) for split, indices in zip(splits, wanted, strict=True)]


def together(runs: list[Run], sequence: Indices, *, shared_rows: bool = False):
    def recover(places: Indices) -> list[str]:
        return [f"apart {place}" for place in places.tolist()]

    return read_together(runs, sequence, recover, shared_rows=shared_rows)


SEQUENCE = np.array([4, 0, 2, 1, 3])
"""Where each of [2, 0, 1] of one split and [1, 1] of another goes."""


@pytest.mark.parametrize("make", [lines, tokens])
@pytest.mark.parametrize("shared_rows", [False, True])
def test_samples_of_several_splits_come_in_the_order_of_the_result(make, shared_rows):
    suffix = "jsonl" if make is lines else "bin"
    splits = [opened(f"a.{suffix}", make(0, 3)), opened(f"b.{suffix}", make(100, 2))]
    found = together(runs_of(splits, [[2, 0, 1], [1, 1]]), SEQUENCE, shared_rows=shared_rows)
    apart = [*splits[0].read([2, 0, 1]), *splits[1].read([1, 1])]
    assert found is not None
    expected = [repr(apart[SEQUENCE.tolist().index(place)]) for place in range(5)]
    for block in (found, found[1:4], found[3:], found[2:][1:2]):
        assert isinstance(block, LocatedBlock)
    assert [repr(found[place]) for place in range(-5, 5)] == expected + expected
    assert [repr(sample) for sample in found] == expected
    assert [repr(sample) for sample in found[1:4].samples()] == expected[1:4]
    assert [repr(sample) for sample in found[2:][1:2]] == expected[3:4]
    assert list(found[5:]) == list(found[:0].samples()) == []


def test_rows_are_the_readers_own_or_shared_as_was_asked():
    splits = [opened("a.bin", tokens(0, 3))]
    runs = runs_of(splits, [[0, 1, 2]])
    own = together(runs, np.arange(3))
    shared = together(runs, np.arange(3), shared_rows=True)
    assert own is not None
    assert shared is not None
    samples = own.samples()
    samples[0]["input_ids"][:] = 9  # writable, and nobody else's
    assert samples[1]["input_ids"].base is None
    rows = shared[1:].samples()
    assert isinstance(rows, RowBlock)
    assert isinstance(rows[1:], RowBlock)
    assert [row["input_ids"].tolist() for row in rows] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    rows.rows[:] = 9
    assert splits[0].read([0, 2])[1]["input_ids"].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        (opened("b.jsonl", lines(0, 1)), [0]),
        (opened("b.jsonl", b"[1]\n"), [0]),  # no object: its split says so
        (opened("b.jsonl", b'{"a"\n: 1}\n'), [0]),
        (None, [0]),  # an object that is gone
    ],
)
def test_what_is_not_all_alike_is_left_to_the_splits(other, wanted):
    runs = [(opened("a.bin", tokens(0, 3)), np.array([0])), (other, np.array(wanted))]
    for shared_rows in (False, True):
        assert together(runs, np.arange(2), shared_rows=shared_rows) is None
        assert together(runs[::-1], np.arange(2), shared_rows=shared_rows) is None


@pytest.mark.parametrize("bad", [b"{nope}\n", b'{"a": 1} {"b": 2}\n', b'{"a":: 1}\n'])
def test_a_record_that_cannot_be_decoded_is_left_to_its_split(bad):
    splits = [opened("a.jsonl", lines(0, 3)), opened("b.jsonl", lines(5, 1) + bad)]
    found = together(runs_of(splits, [[0, 1, 2], [1]]), np.array([0, 1, 2, 3]))
    assert found is not None
    # Only those that are decoded with it are read apart, and by their places in the whole block.
    assert [sample["id"] for sample in found[:2].samples()] == [0, 1]
    assert found[1:][1:].samples() == ["apart 2", "apart 3"]
    assert found[3] == "apart 3"


def test_a_last_record_that_is_shorter_is_left_to_its_split():
    short = opened("b.bin", tokens(8, 1) + b"\1\0")
    for shared_rows in (False, True):
        runs = runs_of([opened("a.bin", tokens(0, 2)), short], [[0, 1], [0, 1]])
        found = together(runs, np.array([0, 2, 1, 3]), shared_rows=shared_rows)
        assert found is not None
        assert [row["input_ids"][0] for row in found[:3].samples()] == [0, 8, 4]
        assert found[2:].samples() == ["apart 2", "apart 3"]


def test_a_loader_of_tokens_delivers_every_sequence_once_short_ones_too():
    store = open_store(StoreSpec(uri="memory://bulk-tokens"))
    for number in range(3):
        store.put(f"x/t-{number}.bin", tokens(1000 * number, 37))
    manager = DirectManager(StoreSpec(uri="memory://bulk-tokens"))
    stream = StreamDataset(manager, "x/", options=OPTIONS)
    batches = list(StreamLoader(stream, 8, collate_fn=TokenCollate()))
    assert [len(batch) for batch in batches] == [8] * 13 + [7]
    again = StreamDataset(manager, "x/", options=OPTIONS)
    plain = [sample["input_ids"].tolist() for sample in again]
    assert [row for batch in batches for row in batch.tolist()] == plain
    assert sorted(row[0] for row in plain) == sorted(
        1000 * number + LENGTH * place for number in range(3) for place in range(37)
    )


def test_what_the_first_batch_needs_is_announced_alone_and_before_anything_is_opened(monkeypatch):
    manager = memory_manager([50] * 60)
    opened = []
    announce = manager.prefetch_shards

    def noting(infos):
        opened.append(len(manager.opened))
        announce(infos)

    monkeypatch.setattr(manager, "prefetch_shards", noting)
    samples = iter(StreamDataset(manager, "data/x/", batch_size=8))
    next(samples)
    assert opened[0] == 0
    assert len(manager.ahead[0]) == 24  # one split, here one object, a lane
    assert len(manager.ahead[1]) > 24
    assert len([next(samples) for _ in range(2999)]) == 2999
