"""torchdata's StatefulDataLoader over a stream: any workers, persistent or not, however they start."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.stream_data import folder_manager, ids
from tools_utilities.errors import ChangedError
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
BATCH = 3
WAYS: list[dict[str, Any]] = [
    {"multiprocessing_context": context, "num_workers": count, "persistent_workers": persistent}
    for context in ("forkserver", "spawn")
    for count in (1, 2, 4)
    for persistent in (True, False)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 shards, 62 samples: 21 batches, the last of 2."""
    path = tmp_path_factory.mktemp("stateful")
    folder_manager(path, [17, 5, 30, 10])
    return path


def make_stream(folder: Path, **settings: Any) -> StreamDataset:
    spec = StoreSpec(uri=f"file://{folder}")
    manager = StreamingManager.for_store(spec, cache_dir=None, cache_bytes=0)
    return StreamDataset(manager, "data/x/", **{"batch_size": BATCH, **settings})


@pytest.fixture(scope="module")
def epochs(folder: Path) -> list[list[int]]:
    stream = make_stream(folder)
    return [ids(stream) for _ in range(4)]


def flat(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def check_chain(folder: Path, epochs: list[list[int]], **settings: Any) -> None:
    """Three loaders hand the state on: within epoch 0, over its end, within epoch 1."""

    def make() -> Any:
        return StatefulDataLoader(make_stream(folder), batch_size=BATCH, **settings)

    first = make()
    iterator = iter(first)
    seen = flat(next(iterator) for _ in range(7))
    second = make()
    second.load_state_dict(first.state_dict())
    seen += flat(second)
    assert seen == epochs[0]
    iterator = iter(second)
    seen = flat(next(iterator) for _ in range(20))
    third = make()
    third.load_state_dict(second.state_dict())
    seen += flat(third)
    assert seen == epochs[1]
    assert flat(third) == epochs[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_three_loaders_hand_the_state_on(folder, epochs, num_workers):
    how = {"multiprocessing_context": "fork", "persistent_workers": True} if num_workers else {}
    check_chain(folder, epochs, num_workers=num_workers, **how)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_three_loaders_hand_the_state_on_however_workers_start(folder, epochs, how):
    check_chain(folder, epochs, **how)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_own_loaders_hand_the_state_on_however_workers_start(folder, epochs, how):
    loaders, seen, state = [], list[int](), None
    for batches in (7, 20, 15):
        loader = StreamLoader(make_stream(folder), BATCH, **how)
        loaders.append(loader)
        if state is not None:
            loader.load_state_dict(state)
        found: list[int] = []
        left = batches
        while left:
            taken = list(islice(loader, left))
            left -= len(taken)
            found += flat(taken)
        seen += found
        state = json.loads(json.dumps(loader.state_dict()))
    # 42 batches: two epochs of 21.
    assert seen == epochs[0] + epochs[1]
    for loader in loaders:
        loader.close()


def test_a_plain_loaders_state_goes_on_in_any_other_loader(folder, epochs):
    """Section 5.3: with no workers by itself, with workers by what was delivered; then anywhere."""
    alone = make_stream(folder)
    seen = flat(islice(DataLoader(alone, BATCH), 6))
    state = json.loads(json.dumps(alone.state_dict()))
    assert (state["epoch"], state["position"]) == (0, 6 * BATCH)

    for num_workers, batches in ((2, 5), (1, 4), (0, 2)):
        stream = make_stream(folder)
        stream.load_state_dict(state)
        how: Any = {"multiprocessing_context": "fork"} if num_workers else {}
        loader = DataLoader(stream, BATCH, num_workers=num_workers, **how)
        seen += flat(islice(loader, batches))
        state = stream.state_dict(batches_delivered=batches)
    own = StreamLoader(make_stream(folder), BATCH)
    own.load_state_dict(state)
    assert seen + flat(own) == epochs[0]

    parts = []
    for rank in range(3):
        stream = make_stream(folder, batch_size=1, rank=rank, world_size=3, equalize="none")
        stream.load_state_dict(state)
        parts += flat(DataLoader(stream, 1))
    assert sorted(parts) == sorted(epochs[0][len(seen) :])


@pytest.mark.parametrize("batches", [0, 20, 21])
def test_a_plain_loaders_state_at_the_edges_of_an_epoch(folder, epochs, batches):
    stream = make_stream(folder)
    loader = DataLoader(stream, BATCH, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    again = make_stream(folder)
    again.load_state_dict(stream.state_dict(batches_delivered=batches))
    # An epoch delivered whole before its count was known is found used up: the next one follows.
    rest = epochs[0][BATCH * batches :] or epochs[1]
    assert ids(again) == rest


def test_a_plain_loader_refuses_a_state_of_data_that_changed(folder, tmp_path):
    folder_manager(tmp_path, [17, 5, 30, 10])
    stream = make_stream(tmp_path)
    flat(islice(DataLoader(stream, BATCH), 2))
    state = stream.state_dict()
    (tmp_path / "data/x/train-00001.jsonl").write_bytes(b'{"id": 1}\n')
    changed = make_stream(tmp_path)
    with pytest.raises(ChangedError, match="672 bytes then, 4 of 627 now"):
        changed.load_state_dict(state)
    allowed = make_stream(tmp_path, allow_changed=True)
    allowed.load_state_dict(state)
    assert next(iter(DataLoader(allowed, BATCH))) is not None
