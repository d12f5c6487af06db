"""Who is lost: only ranks of this machine can be told so by their process number."""

import os
from pathlib import Path

import pytest

from brain.ml.failure import Failure
from brain.ml.guardians import Guardians
from brain.ml.metrics import MetricsLog
from brain.ml.process_group import World
from brain.ml.watchdog import Watchdog
from resource_manager.runs import read_events
from tools_utilities.process_identity import ProcessIdentity, identify, this_machine

ELSEWHERE = this_machine() ^ 1
DEAD = 2**22 - 3


def _told(run_dir: Path, *peers: ProcessIdentity, leaving: bool = False) -> list[str]:
    world = World(world_size=1 + len(peers), attempt="a")
    metrics, failure = MetricsLog(run_dir), Failure(run_dir, world)
    watchdog = Watchdog(world, metrics, failure, Guardians(run_dir, ()), leaving=lambda: leaving)
    watchdog.watch_peers((identify(os.getpid()), *peers))
    watchdog.wait_for_cause(0.2)
    return [event["message"] for event in read_events(run_dir) if event["event"] == "error"]


@pytest.mark.parametrize(
    "pid", [DEAD, os.getpid()], ids=["a number nobody has here", "somebody else's number here"]
)
def test_rank_of_another_machine_is_never_taken_for_lost(tmp_path: Path, pid: int):
    assert _told(tmp_path, ProcessIdentity(pid=pid, start=1, machine=ELSEWHERE)) == []


def test_rank_of_this_machine_that_is_gone_is_named(tmp_path: Path):
    elsewhere = ProcessIdentity(pid=DEAD, machine=ELSEWHERE)
    gone = ProcessIdentity(pid=DEAD, machine=this_machine())
    assert _told(tmp_path, elsewhere, gone) == [f"rank 2 (process {DEAD}) was killed or crashed"]


def test_ranks_that_were_asked_to_leave_are_not_lost(tmp_path: Path):
    gone = ProcessIdentity(pid=DEAD, machine=this_machine())
    assert _told(tmp_path, gone, leaving=True) == []


def test_own_process_is_here():
    own = identify(os.getpid())
    assert (own.here, own.machine) == (True, this_machine())
    assert 0 < this_machine() < 1 << 63
