"""The agent of one machine with ranks that are small programs: who is waited for, started again, or not."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from brain.ml.elastic_agent import QuarkAgent, _hold
from brain.ml.process_group import START_VARIABLE

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(START_VARIABLE, "0")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _run(tmp_path: Path, program: str, *, restarts: int = 0) -> Any:
    """Run two ranks of a program that gets `rank`, `start` and `folder`."""
    store = _hold("127.0.0.1", 0)
    parameters = RendezvousParameters(
        backend="c10d", endpoint=f"127.0.0.1:{store.port}", run_id="r", min_nodes=1, max_nodes=1,
        local_addr="127.0.0.1",
    )  # fmt: skip
    head = (
        "import os, sys, time, signal\nfrom pathlib import Path\n"
        f"rank, start = os.environ['RANK'], os.environ[{START_VARIABLE!r}]\n"
        f"folder = Path({str(tmp_path)!r})\n"
    )
    spec = WorkerSpec(
        role="rank", local_world_size=2, entrypoint=sys.executable, args=("-c", head + program),
        rdzv_handler=create_handler(store, C10dRendezvousBackend(store, "r"), parameters),
        max_restarts=restarts, monitor_interval=0.05, local_addr="127.0.0.1",
    )  # fmt: skip
    logs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"))
    return QuarkAgent(spec, logs, tmp_path, store, ()).run()


def test_rank_that_still_saves_is_waited_for_and_no_restart_is_used(tmp_path: Path):
    """The first rank to end does not cut the others short."""
    program = """
if start == "1":
    if rank == "1":
        time.sleep(1)
        (folder / "saved").touch()
    sys.exit(75)
"""
    assert not _run(tmp_path, program).is_failed()
    assert (tmp_path / "saved").exists()


def test_rank_that_others_lose_may_tell_why(tmp_path: Path):
    program = """
if rank == "0":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.5)
(folder / "told").touch()
sys.exit(1)
"""
    assert _run(tmp_path, program).is_failed()
    assert (tmp_path / "told").exists()


def test_rank_that_a_person_stopped_is_not_started_again(tmp_path: Path):
    program = "(folder / f'{start}-{rank}').touch()"
    assert not _run(tmp_path, program, restarts=3).is_failed()
    assert sorted(path.name for path in tmp_path.glob("?-?")) == ["1-0", "1-1"]
