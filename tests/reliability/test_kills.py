"""kill -9 at random moments of whatever writes files; the next try must find everything right."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.reliability.matrix import Cells, matrix
from tests.reliability.operations import OPERATIONS, Operation

WRITERS = ("cache", "evict", "index", "shard", "checkpoint")
"""Of files; uploads that are killed are in tests/scripts/test_create_sharded_faults.py."""
KILLS = 6
NIGHTLY_KILLS = 60


def killed(operation: Operation, seconds: float) -> bool:
    """Do it in a child that is killed after a while; says whether it was still at it."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                operation.act()
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def run(cells: Cells, folder: Path, num_kills: int) -> None:
    rng = random.Random(cells.seed)
    for name in WRITERS:
        whole = OPERATIONS[name](folder / f"{name} right")
        began = time.monotonic()
        right = whole.act()
        once = time.monotonic() - began
        for number in range(num_kills):
            seconds = rng.uniform(0.0, 1.2 * once)
            case = f"{name}, kill {number}"
            if not cells.wanted(case):
                continue
            with cells.case(case):
                operation = OPERATIONS[name](folder / f"{name} {number}")
                # Twice, so that a kill also meets what the one before it left.
                met = [killed(operation, seconds), killed(operation, rng.uniform(0.0, once))]
                assert all(met), "the child ended by itself: it failed"
                assert operation.act() == right, "WRONG AFTER A KILL"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_some_kills(request, tmp_path, aws_environment):
    with matrix("KILLS", request) as cells:
        run(cells, tmp_path, KILLS)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_many_kills(request, tmp_path, aws_environment):
    with matrix("KILLS", request) as cells:
        run(cells, tmp_path, NIGHTLY_KILLS)
