"""Every format of files that others made streams: shuffled, each sample once, resumed exactly."""

import io
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.direct_manager import DirectManager
from tests.shard_reading import written
from tools_utilities.litdata_index import index_of
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.shard_formats.litdata import write_chunk

NUM_SAMPLES = 120
NUM_OBJECTS = 3


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"id": i, "text": f"text {i}"} for i in range(first, end)]


def arrays(first: int, end: int) -> list[dict[str, Any]]:
    return [{"array": np.array([i, i / 2])} for i in range(first, end)]


def put_plain(suffix: str, name: str, make: Callable[[int, int], list[dict[str, Any]]]) -> Any:
    def put(store: ObjectStore) -> None:
        for number in range(NUM_OBJECTS):
            first, end = (NUM_SAMPLES * n // NUM_OBJECTS for n in (number, number + 1))
            store.put(f"d/x-{number:05d}{suffix}", written(name, make(first, end)))
        store.put("d/index.json", b'{"shards": []}')

    return put


def put_litdata(store: ObjectStore) -> None:
    chunks, config = [], None
    for number in range(NUM_OBJECTS):
        first, end = (NUM_SAMPLES * n // NUM_OBJECTS for n in (number, number + 1))
        file = io.BytesIO()
        count, config = write_chunk(rows(first, end), file)
        # Without our footer it is a chunk as litdata writes it: the index alone says how to read it.
        length = int(np.frombuffer(file.getvalue(), "<u4", 1, 4 + 4 * count)[0])
        store.put(f"d/chunk-0-{number}.bin", file.getvalue()[:length])
        chunks.append((f"chunk-0-{number}.bin", length, count))
    assert config is not None
    store.put("d/index.json", index_of(chunks, config))


PUT = {
    "arrow": put_plain(".arrow", "arrow", rows),
    "litdata": put_litdata,
    "mds": put_plain(".mds", "mds", rows),
    "npy": put_plain(".npy", "npy", arrays),
    "npz": put_plain(
        ".npz",
        "npz",
        lambda first, end: [
            {"id": np.int64(i), "x": np.array([i, i / 2])} for i in range(first, end)
        ],
    ),
}


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["id"] if "id" in sample else sample["array"][0])


@pytest.fixture
def manager(request: pytest.FixtureRequest) -> DirectManager:
    spec = StoreSpec(uri=f"memory://{uuid.uuid4().hex}")
    PUT[request.param](open_store(spec))
    return DirectManager(spec)


@pytest.mark.parametrize("manager", PUT, indirect=True)
def test_each_sample_comes_once_in_an_order_of_its_own(manager: DirectManager) -> None:
    orders = []
    for epoch in (0, 1):
        stream = StreamDataset(manager, "d/", equalize="none")
        stream.set_epoch(epoch)
        orders.append([number_of(sample) for sample in stream])
        assert sorted(orders[-1]) == list(range(NUM_SAMPLES))
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


@pytest.mark.parametrize("manager", PUT, indirect=True)
def test_a_stopped_stream_goes_on_where_it_was(manager: DirectManager) -> None:
    whole = [number_of(s) for s in StreamDataset(manager, "d/", equalize="none")]
    stream = StreamDataset(manager, "d/", equalize="none")
    samples = iter(stream)
    begun = [number_of(next(samples)) for _ in range(50)]
    state = stream.state_dict()
    resumed = StreamDataset(manager, "d/", equalize="none")
    resumed.load_state_dict(state)
    assert begun + [number_of(sample) for sample in resumed] == whole


def test_another_index_is_another_order_of_litdata_chunks() -> None:
    """What the index says changes the samples, so it is part of what a state must match."""
    spec = StoreSpec(uri=f"memory://{uuid.uuid4().hex}")
    store = open_store(spec)
    put_litdata(store)
    before = StreamDataset(DirectManager(spec), "d/").index.order_fingerprint
    index = b"".join(store.get("d/index.json"))
    store.put("d/index.json", index.replace(b'"str"', b'"bytes"'))
    stream = StreamDataset(DirectManager(spec), "d/", equalize="none")
    assert stream.index.order_fingerprint != before
    assert all(isinstance(sample["text"], bytes) for sample in stream)
