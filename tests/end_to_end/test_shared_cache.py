"""One cache folder, several processes: budget, one download an object, and sudden deaths."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import pytest

from tests.cache_reader import content
from tests.fakes import Reply, Request, StubS3
from tools_utilities.file_locks import HeldFile

SIZE = 300_000
KEYS = [f"d/{number:02}" for number in range(12)]
OBJECTS = {key: content(key, SIZE) for key in KEYS}
TOTAL = SIZE * len(KEYS)
OVERHEAD = 8
"""The ledger's own bytes."""


def start(stub: StubS3, cache: Path, orders: Sequence[list[str]], **options: Any) -> Any:
    job = {
        "endpoint": stub.url,
        "cache_dir": str(cache),
        "cache_bytes": 10 * TOTAL,
        "cache_policy": "next_use",
        "orders": orders,
        "window": 2,
        "prefetch": True,
        **options,
    }
    command = [sys.executable, "-m", "tests.cache_reader", json.dumps(job)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: Any) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def folder_bytes(folder: Path) -> int:
    """Return the size of all files; none may come or grow while the folder is walked.

    The ledger's lock keeps all of them but the empty lock files of turns, which end when they end.
    """
    ledger = folder / "quark-cache-1" / "ledger"
    if not ledger.exists():
        return 0
    with HeldFile(ledger, os.O_RDONLY) as lock:
        lock.lock(60)
        files = [path for path in folder.rglob("*") if path.suffix != ".lock"]
        return sum(path.lstat().st_size for path in files if path.is_file())


@contextmanager
def sampled(folder: Path) -> Iterator[list[int]]:
    """Note the folder's size every 20 ms."""
    sizes: list[int] = []
    stop = Event()

    def sample() -> None:
        while not stop.wait(0.02):
            sizes.append(folder_bytes(folder))

    thread = Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield sizes
    finally:
        stop.set()
        thread.join()


def slow(request: Request) -> Reply | None:
    """Take a while over each object, so that processes meet."""
    if request.method == "GET" and request.key:
        time.sleep(0.03)
    return None


def test_with_room_each_object_is_fetched_once_by_four_processes(aws_environment, tmp_path):
    with StubS3(OBJECTS, slow) as stub:
        orders = [KEYS, KEYS[::-1], KEYS[6:] + KEYS[:6], KEYS[::-1]]
        processes = [start(stub, tmp_path / "c", [order] * 2) for order in orders]
        stats = [finish(process) for process in processes]
        assert [found["num_read"] for found in stats] == [2 * len(KEYS)] * 4
        assert Counter(get.key for get in stub.sent("GET") if get.key) == Counter(KEYS)
    assert sum(found["requests"] for found in stats) == len(KEYS)
    assert sum(found["bytes_from_store"] for found in stats) == TOTAL
    assert not [path for path in files(tmp_path) if path.suffix in {".tmp", ".lock"}]


@pytest.mark.parametrize(("policy", "share"), [("next_use", 0.5), ("lru", 0.5), ("lru", 0.1)])
def test_with_room_for_a_part_every_byte_is_right_and_the_budget_holds(
    aws_environment, tmp_path, policy, share
):
    budget = int(TOTAL * share) + OVERHEAD
    options = {"cache_bytes": budget, "cache_policy": policy, "window": 4}
    with StubS3(OBJECTS) as stub, sampled(tmp_path / "c") as sizes:
        orders = [KEYS, KEYS[::-1], KEYS, KEYS[::-1]]
        processes = [start(stub, tmp_path / "c", [order] * 2, **options) for order in orders]
        stats = [finish(process) for process in processes]
    assert [found["num_read"] for found in stats] == [2 * len(KEYS)] * 4
    assert len(sizes) > 10
    assert max(sizes) <= budget
    assert max(sizes) > budget - 2 * SIZE


def test_killed_three_times_it_starts_again_as_if_nothing_had_been(aws_environment, tmp_path):
    cache = tmp_path / "c"

    def stall_half_way(request: Request) -> Reply | None:
        if request.method != "GET" or not request.key:
            return None
        reply = stub._object(request)
        return Reply(reply.status, reply.headers, reply.body, send_bytes=SIZE // 2, then="stall")

    with StubS3(OBJECTS) as stub:
        for _ in range(3):
            stub.script = stall_half_way
            process = start(stub, cache, [KEYS])
            deadline = time.monotonic() + 20
            while not list(cache.rglob("*.tmp")) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert list(cache.rglob("*.tmp"))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        stub.script = None
        found = finish(start(stub, cache, [KEYS]))
        assert found["num_read"] == len(KEYS)
    assert len([path for path in files(cache) if path.stat().st_size == SIZE]) == len(KEYS)
    assert not [path for path in files(cache) if path.suffix in {".tmp", ".lock"}]


def test_a_reader_waits_for_the_download_of_another_and_takes_over_from_a_dead_one(
    aws_environment, tmp_path
):
    def stall_the_first(request: Request) -> Reply | None:
        if request.method == "GET" and request.key and len(stub.sent("GET", request.key)) == 1:
            reply = stub._object(request)
            return Reply(reply.status, reply.headers, reply.body, send_bytes=1000, then="stall")
        return None

    with StubS3(OBJECTS, stall_the_first) as stub:
        one = start(stub, tmp_path, [KEYS[:1]])
        while not stub.sent("GET", KEYS[0]):
            time.sleep(0.01)
        two = start(stub, tmp_path, [KEYS[:1]])
        assert two.stdout.readline() == "ready\n"
        time.sleep(0.5)
        assert len(stub.sent("GET", KEYS[0])) == 1  # it waits
        one.send_signal(signal.SIGKILL)
        one.communicate()
        assert finish(two)["num_read"] == 1
        assert len(stub.sent("GET", KEYS[0])) == 2


def test_entries_are_checked_when_another_process_opens_them(aws_environment, tmp_path):
    with StubS3(OBJECTS) as stub:
        finish(start(stub, tmp_path, [KEYS]))
        entries = [path for path in files(tmp_path) if path.stat().st_size == SIZE]
        assert len(entries) == len(KEYS)
        for number, path in enumerate(entries[:4]):
            data = bytearray(path.read_bytes())
            if number == 0:
                data[SIZE // 3] ^= 4
            path.write_bytes((bytes(data), data[:-1], bytes(SIZE), data + b"x")[number])
        stub.requests.clear()
        found = finish(start(stub, tmp_path, [KEYS]))
        assert found["quarantined"] == 4
        assert len([get for get in stub.sent("GET") if get.key]) == 4


def test_b11_two_jobs_in_opposite_orders_share_a_small_cache(aws_environment, tmp_path):
    """One downloads an object, the other waits; both get everything, and the budget holds."""
    open_gets, overlaps, lock = Counter[str](), list[str](), Lock()

    def one_at_a_time(request: Request) -> Reply | None:
        if request.method == "GET" and request.key:
            with lock:
                open_gets[request.key] += 1
                if open_gets[request.key] > 1:
                    overlaps.append(request.key)
            time.sleep(0.01)
            with lock:
                open_gets[request.key] -= 1
        return None

    budget = 6 * SIZE
    options = {"cache_bytes": budget, "window": 1}
    with StubS3(OBJECTS, one_at_a_time) as stub, sampled(tmp_path / "c") as sizes:
        jobs = [start(stub, tmp_path / "c", [order] * 2, **options) for order in (KEYS, KEYS[::-1])]
        stats = [finish(job) for job in jobs]
    assert [found["num_read"] for found in stats] == [2 * len(KEYS)] * 2
    # Eight downloads at once in room for six: what finds none is read past the cache, by whoever needs it.
    assert len(overlaps) <= sum(found["objects_uncached"] for found in stats)
    assert max(sizes) <= budget
