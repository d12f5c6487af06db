"""What is asked of a rank: what a person asks comes before what an agent does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from brain.ml.stop_request import ASK_AGAIN, StopRequest
from tools_utilities.errors import RunStoppedError

ASKED = (signal.SIGINT, signal.SIGTERM, ASK_AGAIN)


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    """A request whose signals go to this process; as before afterwards."""
    before = {number: signal.getsignal(number) for number in ASKED}
    wakeup = signal.set_wakeup_fd(-1)
    request = StopRequest()
    request.install()
    yield request
    os.close(signal.set_wakeup_fd(wakeup))
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([ASK_AGAIN], "regroup"),
        ([ASK_AGAIN, signal.SIGTERM], "terminate"),
        ([ASK_AGAIN, signal.SIGINT], "interrupt"),
        ([signal.SIGTERM, ASK_AGAIN], "terminate"),
        ([signal.SIGINT, signal.SIGTERM], "interrupt"),
    ],
)
def test_a_person_counts_more_than_an_agent(
    stop: StopRequest, sent: list[signal.Signals], reason: str
):
    for number in sent:
        os.kill(os.getpid(), number)
        while stop.reason is None:
            time.sleep(0.001)
    assert stop.reason == reason


def test_what_one_rank_was_asked_all_take_as_asked():
    asked, other = StopRequest(), StopRequest()
    asked.reason = "regroup"
    third = StopRequest()
    third.reason = "terminate"
    flags = [request.flags() for request in (asked, other, third)]
    sums = [float(sum(column)) for column in zip(*flags, strict=True)]
    assert [request.settle(sums) for request in (asked, other, third)] == ["terminate"] * 3
    assert (asked.reason, other.reason) == ("terminate", "terminate")
    assert StopRequest().settle([0.0] * 3) is None


def test_signal_that_strikes_within_a_library_is_a_stop_whatever_error_it_becomes(
    stop: StopRequest,
):
    """As in `Thread.start`, which answers an exception from a signal with a KeyError."""
    with pytest.raises(RunStoppedError), stop.interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except RunStoppedError:
            raise KeyError("limbo") from None


def test_error_without_a_signal_is_told_as_it_is(stop: StopRequest):
    with pytest.raises(KeyError), stop.interruptible():
        raise KeyError("mine")


def test_first_ctrl_c_after_an_agent_asked_still_saves():
    """Only a second signal of a person's leaves at once."""
    program = (
        "import sys, time; from brain.ml.stop_request import StopRequest; stop = StopRequest();"
        "stop.install(); print('ready', flush=True); time.sleep(0.6); print(stop.reason)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(ASK_AGAIN)
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=20)[0] == "interrupt\n"
    assert child.returncode == 0
