"""Real loader workers: the same order, epochs and states as one process."""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker
from torchdata.stateful_dataloader import StatefulDataLoader

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.check_resume import check_resume
from tests.brain.stream_data import folder_manager, ids
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 shards of 25 samples."""
    path = tmp_path_factory.mktemp("stream")
    folder_manager(path, [25] * 4)
    return path


def make_stream(folder: Path, **settings: Any) -> StreamDataset:
    spec = StoreSpec(uri=f"file://{folder}")
    manager = StreamingManager.for_store(spec, cache_dir=None, cache_bytes=0)
    return StreamDataset(manager, "data/x/", **settings)


def flat(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def fork(num_workers: int, **settings: Any) -> dict[str, Any]:
    context = {"multiprocessing_context": "fork"} if num_workers else {}
    return {"num_workers": num_workers, **context, **settings}


@pytest.fixture(scope="module")
def epochs(folder: Path) -> list[list[int]]:
    """The orders of epochs 0, 1, 2 as one process reads them."""
    stream = make_stream(folder)
    return [ids(stream) for _ in range(3)]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 5, 8])
def test_b31_every_sample_once_and_in_one_order(folder, epochs, num_workers):
    stream = make_stream(folder, batch_size=4)
    assert flat(DataLoader(stream, batch_size=4, **fork(num_workers))) == epochs[0]
    parts = [
        flat(
            DataLoader(
                make_stream(folder, rank=rank, world_size=2, equalize="none"),
                4,
                **fork(num_workers),
            )
        )
        for rank in range(2)
    ]
    assert sorted(parts[0] + parts[1]) == list(range(100))
    assert sorted(map(len, parts)) == [50, 50]


@pytest.mark.parametrize("persistent", [True, False])
def test_b35_epochs_reach_plain_workers(folder, epochs, persistent):
    loader = DataLoader(
        make_stream(folder, batch_size=5), 5, **fork(2, persistent_workers=persistent)
    )
    assert [flat(loader) for _ in range(3)] == epochs
    fresh = make_stream(folder, batch_size=5)
    fresh.set_epoch(1)
    loader = DataLoader(fresh, 5, **fork(2, persistent_workers=persistent))
    assert [flat(loader) for _ in range(2)] == epochs[1:]
    assert flat(islice(loader, 2)) != epochs[0][:10]
    fresh.set_epoch(0)
    assert [flat(loader) for _ in range(2)] == epochs[:2]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_b37_a_loader_with_workers_resumes_exactly(folder, epochs, num_workers, persistent):
    def make() -> StreamLoader:
        return StreamLoader(
            make_stream(folder),
            2,
            num_workers=num_workers,
            prefetch_factor=32 if num_workers else None,
            persistent_workers=persistent and num_workers > 0,
            multiprocessing_context="fork" if num_workers else None,
        )

    stops = (0, 18, 50) if persistent and num_workers < 4 else (18,)
    expected = [number for epoch in epochs for number in epoch]
    for stop_after in stops:
        check_resume(
            make, stop_after, length=150, flatten=lambda b: b["id"].tolist(), expected=expected
        )


def test_b38_a_loader_with_workers_goes_on_advancing_after_each_load(folder, epochs):
    pieces, state = [], None
    for batches, position in ((4, 20), (5, 45), (5, 70), (100, 0)):
        loader = StreamLoader(make_stream(folder), 5, num_workers=2, multiprocessing_context="fork")
        if state is not None:
            loader.load_state_dict(state)
            assert loader.state_dict() == state  # saved again at once
        pieces += flat(islice(loader, batches))
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["position"] == position
    assert pieces == epochs[0]


def test_forkserver_workers_live_on_and_take_a_new_state(folder, epochs):
    loader = StreamLoader(make_stream(folder), 2, num_workers=2)
    assert flat(loader) == epochs[0]
    assert flat(islice(loader, 7)) == epochs[1][:14]
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 14)
    assert flat(loader) == epochs[2]
    loader.load_state_dict(state)
    assert flat(loader) == epochs[1][14:]
    assert flat(loader) == epochs[2]
    assert loader.get_stats()["samples_loaded"] >= 386
    assert loader.state_dict()["epoch"] == 3


def test_worker_counts_may_change_at_a_resume(folder, epochs):
    seen, state = [], None
    for num_workers, batches in ((3, 4), (0, 3), (1, 5), (2, 100)):
        loader = StreamLoader(
            make_stream(folder), 5, num_workers=num_workers, multiprocessing_context="fork"
        )
        if state is not None:
            loader.load_state_dict(state)
        seen += flat(islice(loader, batches))
        state = json.loads(json.dumps(loader.state_dict()))
    assert seen == epochs[0]


def test_a_plain_loader_with_workers_must_say_what_it_has_delivered(folder, epochs):
    stream = make_stream(folder, batch_size=5)
    loader = DataLoader(stream, batch_size=5, **fork(2))
    seen = flat(islice(loader, 7))
    with pytest.raises(UsageError, match="how many batches"):
        stream.state_dict()
    state = stream.state_dict(batches_delivered=7)
    again = make_stream(folder, batch_size=5)
    again.load_state_dict(state)
    resumed = DataLoader(again, batch_size=5, **fork(2))
    assert seen + flat(resumed) == epochs[0]
    assert flat(resumed) == epochs[1]
    assert again.state_dict(batches_delivered=20)["position"] in {0, 100}
    after = make_stream(folder, batch_size=5)
    after.load_state_dict(again.state_dict(batches_delivered=20))
    assert ids(after) == epochs[2]
    with pytest.raises(UsageError, match="batch_size"):
        stream = make_stream(folder)
        flat(DataLoader(stream, batch_size=5, **fork(1)))
        stream.state_dict(batches_delivered=1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdatas_stateful_loader_resumes_exactly(folder, epochs, num_workers):
    def make() -> Any:
        stream = make_stream(folder, batch_size=3)
        return StatefulDataLoader(stream, batch_size=3, **fork(num_workers))

    for stop_after in (0, 1, 7, 33):
        first = make()
        iterator = iter(first)
        seen = flat(next(iterator) for _ in range(stop_after))
        second = make()
        second.load_state_dict(first.state_dict())
        assert seen + flat(second) == epochs[0]
        assert flat(second) == epochs[1]


@contextmanager
def as_worker(number: int) -> Iterator[None]:
    """Be a loader worker to torch, in this process."""
    before = worker._worker_info
    info: Any = worker.WorkerInfo
    worker._worker_info = info(id=number, num_workers=2, seed=7 + number, dataset=None)
    try:
        yield
    finally:
        worker._worker_info = before


@pytest.mark.parametrize("turns", ["LlIi", "LIli", "LliI", "lLIi"])
def test_workers_that_load_their_states_at_once_do_not_disturb_each_other(folder, epochs, turns):
    """L and I: the first worker loads and begins; l and i: the second. Under load all of them occur."""
    streams = [make_stream(folder, batch_size=3) for _ in range(2)]
    streams[1].bookmark.clock = streams[0].bookmark.clock  # as copies in real workers share it
    states, seen = [], dict[int, list[int]]()
    for number, stream in enumerate(make_stream(folder, batch_size=3) for _ in range(2)):
        with as_worker(number):
            iterator = iter(stream)
            seen[number] = ids(islice(iterator, 9))
            states.append(stream.state_dict())
    for step in turns:
        number = "Ll".find(step) if step in "Ll" else "Ii".find(step)
        with as_worker(number):
            if step in "Ll":
                streams[number].load_state_dict(states[number])
            else:
                seen[number] += ids(streams[number])
    for number in range(2):
        dealt = [epochs[0][start : start + 3] for start in range(3 * number, 100, 6)]
        assert seen[number] == [value for batch in dealt for value in batch]


@pytest.fixture
def bad_folder(tmp_path):
    manager = folder_manager(tmp_path, [10, 10, 10])
    key = "data/x/train-00001.jsonl"
    lines = b"".join(manager.store.get(key)).splitlines(keepends=True)
    lines[4] = b'{"id": oops}\n'
    manager.store.put(key, b"".join(lines))
    return tmp_path


def check_bad_record(error: RecordError) -> None:
    assert error.detail["key"] == "data/x/train-00001.jsonl"
    assert error.detail["record"] == 5
    assert error.detail["offset"] == 44
    assert error.detail["store"].startswith("file://")
    assert "train-00001.jsonl: line 5" in str(error)
    assert "Traceback" not in str(error)
    assert "DataLoader" not in str(error)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_a_worker_arrives_as_it_was_raised(bad_folder, num_workers):
    loader = StreamLoader(
        make_stream(bad_folder), 2, num_workers=num_workers, multiprocessing_context="fork"
    )
    with pytest.raises(RecordError) as caught:
        flat(loader)
    check_bad_record(caught.value)
    with pytest.raises(RecordError) as caught:
        flat(DataLoader(make_stream(bad_folder, batch_size=2), 2, **fork(num_workers)))
    check_bad_record(caught.value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_skipped_records_leave_shorter_batches_and_are_counted(bad_folder, num_workers):
    stream = make_stream(bad_folder, on_bad="skip")
    loader = StreamLoader(stream, 3, num_workers=num_workers, multiprocessing_context="fork")
    batches = [batch["id"].tolist() for batch in loader]
    assert sorted(n for batch in batches for n in batch) == [n for n in range(30) if n != 14]
    assert sorted(map(len, batches)) == [2] + [3] * 9
    assert loader.get_stats()["bad_records"] == 1


@pytest.mark.parametrize("context", [None, "fork", "forkserver", "spawn"])
def test_b53_a_used_client_does_not_cross_to_workers(
    moto_endpoint, make_bucket, put_objects, aws_environment, tmp_path, context
):
    bucket = make_bucket(moto_endpoint)
    shards = {
        f"data/x/{name}": (path / name).read_bytes()
        for path in [folder_of(tmp_path / "local")]
        for name in sorted(p.name for p in path.iterdir())
    }
    put_objects(moto_endpoint, bucket, shards)
    spec = StoreSpec(uri=f"s3://{bucket}", endpoint_url=moto_endpoint)
    manager = StreamingManager.for_store(spec, cache_dir=str(tmp_path / "cache"), cache_bytes=10**9)
    stream = StreamDataset(manager, "data/x/", batch_size=2)
    first = next(iter(stream))
    pickled = pickle.dumps(stream)
    assert b"AWS" not in pickled
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert aws_value(aws_environment, name).encode() not in pickled
    expected = ids(make_stream(tmp_path / "local"))
    assert ids(islice(pickle.loads(pickled), 10)) == expected[:10]  # noqa: S301 - our own
    assert first["id"] == expected[0]
    stream.set_epoch(0)
    # One worker where each has to import torch anew.
    workers = {"num_workers": 1 if context == "spawn" else 2, "multiprocessing_context": context}
    loader = DataLoader(stream, batch_size=2, **(workers if context else {}))
    assert flat(loader) == expected


def folder_of(path: Path) -> Path:
    path.mkdir()
    folder_manager(path, [6, 6])
    return path / "data/x"


def aws_value(_: pytest.MonkeyPatch, name: str) -> str:
    import os

    return os.environ[name]
