"""Events, the one failure that is told, and being asked to stop."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from brain.ml.failure import Failure
from brain.ml.guardians import Guardians
from brain.ml.metrics import MetricsLog
from brain.ml.process_group import World, read_world
from brain.ml.stop_request import StopRequest
from brain.ml.watchdog import Watchdog
from resource_manager.runs import read_events
from tests.training import wait_for
from tools_utilities.errors import AccessError, RunStoppedError
from tools_utilities.process_identity import identify


def test_events_are_lines_and_none_follows_the_last(tmp_path: Path):
    log = MetricsLog(tmp_path, clock=lambda: 5.0)
    log.write("step", step=1, loss=float("nan"))
    log.write("end", reason="max_steps")
    log.write("step", step=2)
    assert read_events(tmp_path) == [
        {"event": "step", "time": 5.0, "step": 1, "loss": None},
        {"event": "end", "time": 5.0, "reason": "max_steps"},
    ]


def test_line_that_a_killed_run_left_half_written_hides_nothing(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"event":"step","st')
    MetricsLog(tmp_path).write("start", run="x")
    assert [event["event"] for event in read_events(tmp_path)] == ["start"]


def test_heartbeat_touches_the_file(tmp_path: Path):
    log = MetricsLog(tmp_path)
    log.beat()
    assert not (tmp_path / "metrics.jsonl").exists()
    log.write("start")
    os.utime(tmp_path / "metrics.jsonl", (0, 0))
    log.beat()
    assert time.time() - (tmp_path / "metrics.jsonl").stat().st_mtime < 5


def _told(failure: Failure) -> bool:
    return failure.told


def test_only_the_first_rank_that_fails_tells_and_nothing_follows(tmp_path: Path):
    ranks = [World(rank=rank, world_size=2, attempt="a") for rank in (0, 1)]
    failures = [Failure(tmp_path, world) for world in ranks]
    logs = [MetricsLog(tmp_path, muted=partial(_told, failure)) for failure in failures]
    logs[0].write("step", step=1)
    error = AccessError("s3://b/k: denied", hint="Allow it.", key="k", data={"x": (1, b"y")})
    assert failures[1].tell(logs[1], error, exit_code=4)
    logs[0].write("step", step=2)
    assert not failures[0].tell(logs[0], RuntimeError("peer closed"), exit_code=1)
    first, last = read_events(tmp_path)
    assert first["step"] == 1
    assert (last["event"], last["rank"], last["kind"]) == ("error", 1, "AccessError")
    assert (last["message"], last["hint"], last["exit_code"]) == (
        "s3://b/k: denied",
        "Allow it.",
        4,
    )
    assert last["detail"] == {"key": "k", "data": {"x": [1, "b'y'"]}, "cause": 4}


def test_a_process_that_is_to_end_waits_for_what_it_is_telling(tmp_path: Path):
    failure = Failure(tmp_path, World(rank=1, world_size=2, attempt="a"))
    log = MetricsLog(tmp_path)
    error = RuntimeError("peer closed")
    teller = Thread(target=failure.tell, args=(log, error), kwargs={"exit_code": 1})
    teller.start()
    wait_for(lambda: failure.told)
    failure.finish()
    assert [event["event"] for event in read_events(tmp_path)] == ["error"]
    teller.join()


def test_next_start_may_fail_and_tell_again(tmp_path: Path):
    for attempt in ("a", "b"):
        failure = Failure(tmp_path, World(attempt=attempt))
        failure.clear_earlier()
        assert failure.tell(MetricsLog(tmp_path), ValueError("x"), exit_code=1)
    assert [event["message"] for event in read_events(tmp_path)] == ["ValueError: x"] * 2


def test_world_is_read_from_the_launchers_variables():
    world = read_world(
        {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "r",
         "MASTER_PORT": "5", "QUARK_LAUNCHER_PID": "12"}
    )  # fmt: skip
    assert (world.rank, world.world_size, world.local_rank) == (3, 8, 1)
    assert (world.attempt, world.launcher_pid) == ("r-5", 12)
    assert read_world({}).world_size == 1


@pytest.fixture
def stop() -> StopRequest:
    return StopRequest()


def test_signal_outside_of_a_wait_is_only_noted(stop: StopRequest):
    stop._asked(signal.SIGTERM, None)
    assert stop.reason == "terminate"
    with pytest.raises(RunStoppedError), stop.interruptible():
        pytest.fail("what may be left must not begin")


def test_signal_inside_of_a_wait_leaves_it_once(stop: StopRequest):
    with pytest.raises(RunStoppedError), stop.interruptible():
        stop._asked(signal.SIGINT, None)
    assert stop.reason == "interrupt"
    stop._asked(signal.SIGTERM, None)
    assert stop.reason == "interrupt"


def test_watchdog_asks_to_stop_when_the_launcher_dies(tmp_path: Path):
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    guardian = identify(gone)
    os.waitpid(gone, 0)
    world = World()
    watchdog = Watchdog(
        world, MetricsLog(tmp_path), Failure(tmp_path, world), Guardians(tmp_path, [guardian])
    )
    watchdog.start()
    try:
        wait_for(lambda: heard, 5)
    finally:
        watchdog.stop()
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


SERVED = """
import sys
from multiprocessing import forkserver
from brain.ml.train import end_process
forkserver.set_forkserver_preload(["tests.brain.slow_exit"])
forkserver.ensure_running()
print(forkserver._forkserver._forkserver_pid, flush=True)
sys.stdin.readline()
end_process(3)
"""


def test_the_server_that_loader_workers_are_forked_from_ends_with_the_run():
    with subprocess.Popen(
        [sys.executable, "-c", SERVED],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        server = identify(int(run.stdout.readline()))
        run.communicate("\n")
    assert run.returncode == 3
    wait_for(lambda: not server.alive, 15)
