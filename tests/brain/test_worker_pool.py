"""StreamLoader's own worker processes: order, resumes, errors, deaths, and what they import."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import islice
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import get_worker_info

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader, start_server
from brain.ml.dataset_shards.worker_ring import RING_BYTES, RingWriter, aligned
from tests.brain.stream_data import folder_manager, ids, shard
from tests.brain.test_stream_ranks import run_ranks
from tests.brain.worker_parts import (
    Everything,
    FailAt,
    HangAt,
    UnpicklableError,
    environment,
    list_ids,
    loaded_modules,
    with_random,
)
from tests.fakes import StubS3
from tests.simulated_store import SimulatedStore
from tests.stream_parts import stub_manager
from tools_utilities.errors import DataError, QuarkError, UsageError, WorkerError
from tools_utilities.object_store import StoreSpec
from tools_utilities.process_identity import ProcessIdentity, identify
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.*use of fork:DeprecationWarning"
)

NUM_SAMPLES = 137
SHM = "/dev/shm"  # noqa: S108 - looked at, never written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7 shards, 137 samples."""
    path = tmp_path_factory.mktemp("pool")
    folder_manager(path, [31, 7, 25, 1, 40, 20, 13])
    return path


def make_stream(folder: Path, **settings: Any) -> StreamDataset:
    spec = StoreSpec(uri=f"file://{folder}")
    return StreamDataset(
        StreamingManager.for_store(spec, cache_dir=None, cache_bytes=0), "data/x/", **settings
    )


def make_loader(folder: Path, num_workers: int, **settings: Any) -> StreamLoader:
    given = {"collate_fn": list_ids, **settings}
    stream = given.pop("stream") if "stream" in given else make_stream(folder)
    return StreamLoader(stream, given.pop("batch_size", 4), num_workers=num_workers, **given)


@pytest.fixture(scope="module")
def epochs(folder: Path) -> list[list[int]]:
    stream = make_stream(folder)
    return [ids(stream) for _ in range(3)]


def flat(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch]


def with_worker_id(samples: Any) -> tuple[int, list[int]]:
    info = get_worker_info()
    assert info is not None
    return info.id, list_ids(samples)


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_the_same_with_any_number_of_workers(folder, epochs, drop_last):
    alone = make_loader(folder, 0, drop_last=drop_last)
    expected = [list(alone), list(alone)]
    assert flat(expected[0]) == epochs[0][: NUM_SAMPLES - drop_last]
    for num_workers, ahead in ((1, 1), (2, None), (4, 3)):
        loader = make_loader(folder, num_workers, drop_last=drop_last, prefetch_factor=ahead)
        assert [list(loader), list(loader)] == expected
        assert len(loader) == len(expected[0])
        loader.close()


@pytest.mark.parametrize("partition", ["round_robin", "contiguous"])
def test_48_resumes_with_real_workers_lose_and_repeat_nothing(folder, partition):
    """4 loaders of 1, 2 and 4 workers hand the state on; their processes live on between resumes."""

    def make(num_workers: int) -> StreamLoader:
        return make_loader(folder, num_workers, stream=make_stream(folder, partition=partition))

    alone = make(0)
    expected = flat(alone) + flat(alone)
    loaders = [make(num_workers) for num_workers in (2, 1, 4, 0)]
    for stop in range(24):
        # At every edge of a batch near the start, in the middle, at the end, and just after it.
        first, second, third = (loaders[(stop + n) % 4] for n in range(3))
        batches = stop if stop < 12 else stop + 12
        first.set_epoch(0)
        seen = flat(islice(first, batches))
        second.load_state_dict(first.state_dict())
        seen += flat(islice(second, 3))
        third.load_state_dict(second.state_dict())
        seen += flat(third)
        assert seen == expected[: len(seen)]
        assert len(seen) in {NUM_SAMPLES, 2 * NUM_SAMPLES}
    for loader in loaders:
        loader.close()


def test_resumes_at_other_world_sizes_with_workers(folder, epochs):
    def take(states: list[Any], world: int, batches: int | None) -> tuple[list[int], list[Any]]:
        found, after = [], []
        for rank in range(world):
            stream = make_stream(folder, rank=rank, world_size=world, equalize="none")
            loader = make_loader(folder, 2, stream=stream, batch_size=4 // world)
            if states:
                loader.load_state_dict(states[0])
            found += flat(islice(loader, batches))
            after.append(loader.state_dict())
            loader.close()
        return found, after

    first, states = take([], 2, 9)
    second, states = take(states, 4, 5)
    third, _ = take(states, 1, None)
    assert sorted(first) == sorted(epochs[0][:36])
    assert sorted(second) == sorted(epochs[0][36:56])
    assert third == epochs[0][56:]


RANKS = """
import json, sys
import torch.distributed as dist
from itertools import islice
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.worker_parts import list_ids
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
folder, rank, meeting, given = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
prefix, step = given.split(":")
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
spec = StoreSpec(uri=folder)
def make(num_workers):
    manager = StreamingManager.for_store(spec, cache_dir=None, cache_bytes=0)
    return StreamLoader(
        StreamDataset(manager, prefix), 2, num_workers=num_workers, collate_fn=list_ids
    )
loaders = [make(number) for number in (2, 1, 0)]
parts = []
for stop in range(0, 32, int(step)):
    first, second, third = (loaders[(stop // int(step) + n) % 3] for n in range(3))
    first.set_epoch(0)
    seen = list(islice(first, stop))
    second.load_state_dict(first.state_dict())
    seen += list(islice(second, 2))
    third.load_state_dict(second.state_dict())
    parts.append(seen + list(islice(third, 31 - stop)))
print(json.dumps(parts))
"""


@pytest.mark.parametrize(
    "num_resumes", [16, pytest.param(64, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
def test_resumes_on_two_gloo_ranks_with_workers(folder, epochs, tmp_path, num_resumes):
    """Loaders of 2, 1 and 0 workers hand the state on, two hand-overs a stop, on both ranks at once."""
    given = f"data/x/:{64 // num_resumes}"
    found: Any = run_ranks([folder] * 2, tmp_path / "meeting", [given] * 2, RANKS)
    for part in found:
        assert len(part) * 2 == num_resumes
        assert all(batches == part[0] for batches in part)
    # A global batch is the same set of samples as one process has it.
    for step, (left, right) in enumerate(zip(found[0][0], found[1][0], strict=True)):
        assert sorted(left + right) == sorted(epochs[0][4 * step : 4 * step + 4])


def test_a_worker_of_text_imports_no_client_and_no_torch(folder):
    """Run apart: a fork server that other tests have started may hold anything."""
    script = f"""
from tests.brain.test_worker_pool import make_loader
from tests.brain.worker_parts import loaded_modules
from pathlib import Path
if __name__ == "__main__":
    print({{name for batch in make_loader(Path({str(folder)!r}), 1, collate_fn=loaded_modules)
           for name in batch}})
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert ran.stdout.strip() == "set()"
    assert loaded_modules(None)[0] == "torch"


def test_workers_are_torchs_workers_to_the_collate(folder, epochs):
    loader = make_loader(folder, 2, collate_fn=with_worker_id)
    found = list(loader)
    assert [number for number, _ in found] == [step % 2 for step in range(len(found))]
    assert flat(batch for _, batch in found) == epochs[0]
    loader.close()


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_workers_see_the_environment_of_when_they_start(folder, monkeypatch, context):
    """As in a notebook: the keys are set after a first loader found none."""
    monkeypatch.setenv("QUARK_TEST_REMOVED", "1")
    make_loader(folder, 1).close()
    start_server()
    monkeypatch.delenv("QUARK_TEST_REMOVED")
    monkeypatch.setenv("QUARK_TEST_ADDED", "2")
    loader = make_loader(folder, 1, collate_fn=environment, multiprocessing_context=context)
    try:
        seen = next(iter(loader))
    finally:
        loader.close()
    assert seen.get("QUARK_TEST_ADDED") == "2"
    assert "QUARK_TEST_REMOVED" not in seen


def test_random_numbers_of_a_collate_differ_by_worker_and_epoch_and_come_again(folder):
    loader = make_loader(folder, 2, collate_fn=with_random)
    first, second = list(loader), list(loader)
    numbers = [number for _, number in first + second]
    assert len(set(numbers)) == len(numbers)
    loader.set_epoch(0)
    assert list(loader) == first
    loader.close()


def test_any_value_crosses_even_one_larger_than_the_ring(folder, epochs):
    collate = Everything(RING_BYTES)
    loader = make_loader(folder, 2, collate_fn=collate, batch_size=8)
    start = 0
    for batch in loader:
        found = batch["ids"]
        assert isinstance(found, tuple)
        assert list(found) == epochs[0][start : start + 8]
        wanted = collate([{"id": number} for number in found])
        assert batch["set"] == wanted["set"]
        for name in ("half", "empty", "scalar", "turned", "grad"):
            assert batch[name].dtype == wanted[name].dtype
            assert torch.equal(batch[name], wanted[name])
        for name in ("array", "large"):
            np.testing.assert_array_equal(batch[name], wanted[name])
        batch["half"].add_(1)
        batch["large"][:] = 0
        assert batch["grad"].requires_grad
        start += 8
    assert start >= NUM_SAMPLES
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [ZeroDivisionError, DataError, UnpicklableError])
def test_an_exception_in_a_collate_arrives_after_the_batches_before_it(
    folder, epochs, kind, num_workers
):
    number = epochs[0][50]
    loader = make_loader(folder, num_workers, collate_fn=FailAt(number, kind))
    seen: list[int] = []
    expected = QuarkError if kind is UnpicklableError and num_workers else kind
    with pytest.raises(expected, match=f" at {number}") as caught:
        for batch in loader:
            seen += batch
    assert seen == epochs[0][:48]
    if num_workers:
        assert "FailAt" in str(caught.value.__notes__) or "worker_parts" in str(
            caught.value.__notes__
        )
    state = loader.state_dict()
    assert state["position"] == 48
    again = make_loader(folder, 0)
    again.load_state_dict(state)
    assert flat(again) == epochs[0][48:]


def test_a_killed_worker_is_a_named_error_and_a_resume_goes_on(folder, epochs):
    number = epochs[0][50]
    loader = make_loader(folder, 2, collate_fn=HangAt(number, die=True))
    seen: list[int] = []
    with pytest.raises(WorkerError, match="killed by signal 9") as caught:
        for batch in loader:
            seen += batch
    assert caught.value.detail["exit_code"] == -signal.SIGKILL
    assert "memory" in caught.value.hint
    again = make_loader(folder, 1)
    again.load_state_dict(loader.state_dict())
    assert seen + flat(again) == epochs[0]
    again.close()


def test_a_worker_that_hangs_is_given_up_after_the_timeout(folder, epochs):
    loader = make_loader(folder, 1, collate_fn=HangAt(epochs[0][20], die=False), timeout=1.0)
    iterator = iter(loader)
    assert loader._pool is not None
    [pid] = loader._pool.pids
    with pytest.raises(WorkerError, match="for 1 s"):
        list(iterator)
    assert not identified(pid).alive


def identified(pid: int) -> ProcessIdentity:
    return identify(pid)


def test_what_cannot_be_sent_to_a_worker_is_refused_with_what_to_do(folder):
    loader = make_loader(folder, 1, collate_fn=lambda samples: samples)
    with pytest.raises(UsageError, match="cannot be started") as caught:
        iter(loader)
    assert "top level" in caught.value.hint


def test_an_iterator_given_up_for_another_says_so(folder, epochs):
    loader = make_loader(folder, 1)
    old = iter(loader)
    next(old)
    assert flat(loader) == epochs[1]
    with pytest.raises(UsageError, match="given up"):
        list(old)
    loader.close()


def test_a_budget_of_bad_records_holds_over_all_workers(tmp_path):
    manager = folder_manager(tmp_path, [10, 10])
    # The first three of the order, by the bytes' places alone: one worker meets two, the other one.
    bad = flat(make_loader(tmp_path, 0, batch_size=1))[:3]
    for key in [info.key for info in manager.store.list("data/x/")]:
        data = b"".join(manager.store.get(key))
        for number in bad:
            line = b'{"id": %d}\n' % number
            data = data.replace(b"\n" + line, b"\n" + line.replace(b'"id"', b"'id'"))
            if data.startswith(line):
                data = line.replace(b'"id"', b"'id'") + data[len(line) :]
        manager.store.put(key, data)
    for budget, enough in ((2, False), (3, True)):
        stream = make_stream(tmp_path, on_bad="skip", bad_budget=budget)
        loader = make_loader(tmp_path, 2, stream=stream, batch_size=1)
        if enough:
            found = flat(loader)
            assert sorted(found) == [n for n in range(20) if n not in bad]
            alone = make_loader(tmp_path, 0, stream=make_stream(tmp_path, on_bad="skip"))
            assert found == flat(alone)
            assert loader.get_stats()["bad_records"] == 3
            loader.close()
        else:
            with pytest.raises(DataError, match="more than 2 records"):
                flat(loader)


@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_each_object_is_downloaded_once_whoever_reads_it(tmp_path, aws_environment, context):
    """Cold with workers, then warm; under fork the parent has used its client before."""
    objects = {f"data/x/train-{n:05d}.jsonl": shard(range(n * 20, n * 20 + 20)) for n in range(12)}
    with StubS3(objects) as stub:
        stream = StreamDataset(stub_manager(stub, tmp_path / "cache"), "data/x/")
        expected = ids(StreamDataset(stub_manager(stub, tmp_path / "other"), "data/x/"))
        if context == "fork":
            stream.prepare()
            list(islice(stream, 1))
            stream.set_epoch(0)
        stub.requests.clear()
        loader = StreamLoader(
            stream, 4, num_workers=2, collate_fn=list_ids, multiprocessing_context=context
        )
        assert flat(loader) == expected
        bodies = [r.key for r in stub.requests if r.method == "GET" and r.key in objects]
        assert len(bodies) == len(set(bodies))
        stats = loader.get_stats()
        if context == "forkserver":
            assert sorted(bodies) == sorted(objects)
            assert stats["objects_from_store"] == len(objects)
            assert stats["bytes_from_store"] == sum(map(len, objects.values()))
        read_before = int(context == "fork")
        assert stats["samples_loaded"] == 240 + read_before
        assert stats["local_samples"] + stats["remote_samples"] == 240 + read_before
        assert stats["wait_seconds"]["workers"] > 0
        stub.requests.clear()
        loader.set_epoch(0)
        assert flat(loader) == expected
        assert not [r for r in stub.requests if r.key in objects]
        loader.close()


OWNER = """
import sys
from pathlib import Path
from tests.brain.test_worker_pool import make_loader
if __name__ == "__main__":
    loader = make_loader(Path(sys.argv[1]), 2)
    iterator = iter(loader)
    next(iterator)
    print(*loader._pool.pids, flush=True)
    sys.stdin.read()
"""


def left_in_memory(before: set[str]) -> list[str]:
    """Return shared memory that has come since and is of no process that lives."""
    found = set(os.listdir(SHM)) - before  # noqa: PTH208 - names are enough
    alive = {path.name for path in Path("/proc").glob("[0-9]*")}
    return sorted(name for name in found if not alive & set(re.findall(r"\d+", name)))


def test_killed_three_times_leaves_no_process_and_no_shared_memory(folder, epochs):
    before = set(os.listdir(SHM))  # noqa: PTH208 - names are enough
    workers = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, str(folder)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as owner:
            assert owner.stdout is not None
            workers += [identify(int(pid)) for pid in owner.stdout.readline().split()]
            owner.kill()
    assert len(workers) == 6
    deadline = time.monotonic() + 20
    while any(worker.alive for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(worker.alive for worker in workers)
    # Tests beside this one have theirs for a while.
    while left_in_memory(before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left_in_memory(before)
    loader = make_loader(folder, 2)
    assert flat(loader) == epochs[0]
    loader.close()


@given(
    st.integers(2, 40),
    st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60),
)
def test_a_ring_never_writes_over_what_has_not_been_read(blocks, steps):
    size = blocks * 64
    writer = RingWriter(memoryview(bytearray(size)))
    held: list[tuple[int, int, int]] = []
    for write, amount in steps:
        if not write:
            if held:
                writer.release(held.pop(0)[2])
            continue
        num_bytes = aligned(amount * 64 // 3)
        place = writer.place(num_bytes)
        if place is None:
            # Refused only where the tail of the ring and what is held leave no room.
            taken = sum(charge for _, _, charge in held)
            assert taken + num_bytes > size // 2 or num_bytes > size // 2
            continue
        offset, charge = place
        assert offset + num_bytes <= size
        assert all(
            offset + num_bytes <= o or o + n <= offset for o, n, _ in held if n and num_bytes
        )
        held.append((offset, num_bytes, charge))


class WatchedProcess(ForkProcess):
    threads: ClassVar[list[list[str]]] = []

    def start(self) -> None:
        self.threads.append([thread.name for thread in threading.enumerate()])
        super().start()


class WatchedFork(ForkContext):
    Process = WatchedProcess


def test_nothing_is_read_ahead_while_workers_are_forked(tmp_path):
    """A forked worker has what a thread was only half through importing, and cannot import it again."""
    store = SimulatedStore(8, 20, latency_seconds=0.2)
    manager = StreamingManager.for_store(
        store.register(), cache_dir=str(tmp_path / "cache"), cache_bytes=1 << 24
    )
    stream = StreamDataset(manager, "data/x/")
    loader = StreamLoader(
        stream, 4, num_workers=2, collate_fn=list_ids, multiprocessing_context=WatchedFork()
    )
    assert sorted(flat(loader)) == list(range(160))
    loader.close()
    assert len(WatchedProcess.threads) == 2
    assert not any(name.startswith("quark-") for names in WatchedProcess.threads for name in names)
    assert store.num_gets == 8
