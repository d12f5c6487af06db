"""A process that ends waits for what its daemon threads do in libraries, and none of it aborts."""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tools_utilities.background import Background

ROOT = Path(__file__).resolve().parents[2]
SLOW_END = """
import sys, time, types
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.7)  # after the interpreter has begun to end: daemon threads get its lock, and are ended
# A module of its own: the main one is not cleared where a thread still has a function of it.
held = sys.modules["held"] = types.ModuleType("held")
held.slow = Slow()
"""
DECODING = """
import io, threading
import pyarrow as pa, pyarrow.parquet as pq
from brain.ml.dataset_shards.open_ahead import OpenAhead
from tools_utilities.arrow_files import RangeFile
sink = pa.BufferOutputStream()
pq.write_table(pa.table({"n": range(200_000)}), sink, row_group_size=20_000)
data = sink.getvalue().to_pybytes()
begun = threading.Event()
def open_split(number):
    begun.set()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        pq.ParquetFile(RangeFile(lambda start, end: data[start:end], len(data))).read(use_threads=False)
ahead = OpenAhead(open_split, num_threads=2)
ahead.request([0, 1])
begun.wait()
"""
LAYING_OUT = """
import threading
from types import SimpleNamespace
from brain.ml.dataset_shards.open_ahead import OpenAhead
begun = threading.Event()
def lay(opened):
    begun.set()
    time.sleep(0.5)
class Reader:
    ahead = OpenAhead(lambda number: SimpleNamespace(close=print), num_threads=2)
    def __del__(self):
        self.ahead.close()
held.reader = Reader()
Reader.ahead.request([0, 1])
Reader.ahead.request_layout((0, 1), lay)
begun.wait()
"""
FETCHING = """
import threading
from tools_utilities.object_store import ObjectInfo
from tools_utilities.read_ahead import ReadAhead, Wanted
begun = threading.Event()
def obtain(info):
    begun.set()
    time.sleep(0.3)
    print(info.key, flush=True)
    return True
ahead = ReadAhead(None, obtain, threads=1, budget_bytes=1 << 20)
ahead.add([Wanted(key=key, info=ObjectInfo(key=key, size_bytes=1)) for key in "ab"])
begun.wait()
"""
PIECES = """
import threading, time
from tools_utilities.background import BACKGROUND
begun = threading.Event()
def work():
    with BACKGROUND.piece():
        begun.set()
        time.sleep(0.3)
        print("first ended", flush=True)
    with BACKGROUND.piece():
        print("second begun", flush=True)
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def ended(text: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SLOW_END + text],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout, done.stderr


def test_what_is_under_way_is_waited_for_and_no_more_begins() -> None:
    assert ended(PIECES) == (0, "first ended\n", "")


def test_a_process_that_ends_while_splits_are_decoded_is_not_aborted() -> None:
    assert ended(DECODING) == (0, "", "")


def test_a_thread_that_is_ended_holds_no_lock_that_closing_waits_for() -> None:
    assert ended(LAYING_OUT)[0] == 0


def test_what_is_read_ahead_at_the_end_is_the_last() -> None:
    assert ended(FETCHING) == (0, "a\n", "")


def test_leaving_waits_so_long_and_no_longer() -> None:
    now = [0.0]
    background = Background(lambda: now[0])

    class Passing(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0.0
            return False

    background._changed = Passing()
    with background.piece():
        background.leave(seconds=2.0)
        assert now[0] == 2.0
        with pytest.raises(SystemExit):
            background.check()
    with pytest.raises(SystemExit), background.piece():
        pass
    background.leave(seconds=2.0)
    assert now[0] == 2.0


def test_a_piece_that_waits_for_others_is_not_waited_for_and_does_not_go_on() -> None:
    background = Background()
    go_on, waiting = threading.Event(), threading.Event()
    seen = []

    def work() -> None:
        with suppress(SystemExit), background.piece():
            with background.away():
                waiting.set()
                go_on.wait()
            seen.append("went on")

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait()
    began = time.monotonic()
    background.leave(seconds=60.0)
    assert time.monotonic() - began < 30
    go_on.set()
    thread.join()
    assert not seen
    background.leave(seconds=60.0)


def test_what_is_open_is_closed_before_and_a_failure_does_not_hold_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    background, closed = Background(), []

    class Resource:
        def __init__(self, error: Exception | None = None) -> None:
            self._error = error

        def close(self) -> None:
            background.check()
            closed.append(self)
            if self._error is not None:
                raise self._error

    kept = [background.closed_at_exit(Resource(error)) for error in (OSError("no room"), None)]
    background.closed_at_exit(Resource())  # gone by then
    with caplog.at_level("INFO"):
        background.leave()
    assert sorted(map(id, closed)) == sorted(map(id, kept))
    assert "no room" in caplog.text


def test_who_asks_to_leave_at_once_does() -> None:
    background = Background()

    class Resource:
        def close(self) -> None:
            raise KeyboardInterrupt

    kept = background.closed_at_exit(Resource())
    with background.piece():
        background.leave(seconds=60.0)
        with pytest.raises(SystemExit):
            background.check()
    del kept


def test_a_forked_process_has_none_of_the_pieces() -> None:
    background = Background()
    with background.piece():
        background.forget()
        began = time.monotonic()
        background.leave(seconds=60.0)
        assert time.monotonic() - began < 30
