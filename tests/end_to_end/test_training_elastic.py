"""Ranks and machines that are lost: every sample of every epoch is used once, in the end."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from brain.ml.failure import claim_of, failed_for_good, may_pass
from brain.ml.process_group import START_VARIABLE, attempt_of
from brain.ml.run_files import read_process
from brain.ml.sample_log import final_samples, hash_of
from brain.ml.training_job import Every, TrainingJob
from resource_manager.launch_targets.local import LAUNCH_TARGET
from resource_manager.runs import last_events, read_events, stop_run
from tests.end_to_end.test_training_ranks import free_port
from tests.training import ForkServer, events, make_job, wait_for, wait_for_step, write_shards
from tools_utilities.errors import RecordError, StoreError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.process_identity import descendants, identify

ROWS, SHARDS, BATCH = 48, 4, 8
STEPS_AN_EPOCH = ROWS * SHARDS // BATCH


def _tokens(row: int) -> list[int]:
    return [3 + row // 200, 3 + row % 200, *range(10, 10 + row % 7)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    """Rows of tokens, no two alike, a whole number of batches."""
    shards = {}
    for shard in range(SHARDS):
        rows = range(shard * ROWS, (shard + 1) * ROWS)
        lines = [json.dumps({"input_ids": _tokens(row)}) for row in rows]
        shards[f"d/train/train-{shard:05d}.jsonl"] = ("\n".join(lines) + "\n").encode()
    return write_shards(tmp_path_factory.mktemp("data"), shards)


def _job(run_dir: Path, store: StoreSpec, **changes: object) -> TrainingJob:
    fields = {
        "epochs": 2.0, "max_steps": None, "val": (), "batch_size": BATCH, "sample_log": True,
        "checkpoint_every": Every(steps=5), **changes,
    }  # fmt: skip
    return make_job(run_dir, store, **fields)


def _every_sample_once_an_epoch(run_dir: Path, epochs: int = 2) -> None:
    steps = final_samples(run_dir)
    assert list(steps) == list(range(1, epochs * STEPS_AN_EPOCH + 1))
    expected = Counter(hash_of(_tokens(row)) for row in range(ROWS * SHARDS))
    for epoch in range(epochs):
        first = epoch * STEPS_AN_EPOCH + 1
        made = [steps[step] for step in range(first, first + STEPS_AN_EPOCH)]
        assert Counter(sample for samples in made for sample in samples) == expected, epoch


def test_killed_ranks_and_other_worlds_use_every_sample_once(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer
):
    """4, 2 and 4 ranks: each start but the last loses one rank at random, and all end for it."""
    run_dir = tmp_path / "run"
    source = random.Random(int.from_bytes(os.urandom(4)))
    job = _job(run_dir, store)
    for start, world_size, until in ((1, 4, 8), (2, 2, 30), (3, 4, None)):
        changes = {START_VARIABLE: str(start)}
        pids = training_forks.start_ranks(job, world_size, free_port(), **changes)
        if until is None:
            assert [training_forks.wait(pid) for pid in pids] == [0] * world_size
            continue
        wait_for_step(run_dir, until)
        os.kill(source.choice(pids), signal.SIGKILL)
        assert all(training_forks.wait(pid, 10) for pid in pids)
    _every_sample_once_an_epoch(run_dir)
    starts = events(run_dir, "start")
    assert [event["world_size"] for event in starts] == [4, 2, 4]
    assert [event["start"] for event in starts] == [1, 2, 3]
    assert {event["kind"] for event in events(run_dir, "error")} == {"RankLostError"}


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (RecordError("row 3"), False),
        (UsageError("batch_size=7"), False),
        (StoreError("503"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (AssertionError("in a model"), False),
    ],
)
def test_only_failures_that_may_pass_are_tried_again(error: Exception, passes: bool):  # noqa: FBT001 - a case
    assert may_pass(error) is passes


def test_claim_says_whether_a_start_failed_for_good(tmp_path: Path):
    assert not failed_for_good(tmp_path, 1)
    claim_of(tmp_path, attempt_of(1)).write_bytes(b"")
    claim_of(tmp_path, attempt_of(2)).write_bytes(b"final")
    assert [failed_for_good(tmp_path, start) for start in (1, 2)] == [False, True]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_agent_that_is_killed_comes_back_4_2_4(tmp_path: Path, store: StoreSpec):
    """Two agents of two ranks; nothing is started by hand.

    The run is long enough for any machine, and asked to end once four ranks are at work again. A
    node stays away for three times `rejoin_seconds`, so that two ranks have begun by then.
    """
    run_dir = tmp_path / "run"
    job = _job(run_dir, store, nodes=2, processes=2, epochs=1e6, rejoin_seconds=25.0)
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
    try:
        wait_for_step_of(run_dir, 20, 300)
        os.kill(_agents(handle.pid)[1], signal.SIGKILL)
        _wait_slowly(lambda: _worlds(run_dir) == [4, 2], 200)
        _wait_slowly(lambda: _worlds(run_dir) == [4, 2, 4], 200)
        begun = events(run_dir, "start")[-1]["resumed_from_step"]
        wait_for_step_of(run_dir, begun + 2 * STEPS_AN_EPOCH, 100)
        handle.interrupt()
        assert handle.wait(60) == 130
    finally:
        handle.kill()
    assert _worlds(run_dir) == [4, 2, 4]
    assert _every_sample_once_so_far(run_dir) >= 3


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_rank_killed_twenty_times_at_random(tmp_path: Path, store: StoreSpec):
    run_dir = tmp_path / "run"
    source = random.Random(int.from_bytes(os.urandom(4)))
    job = _job(run_dir, store, processes=2, epochs=80.0, max_restarts=20)
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
    try:
        for kill in range(20):
            wait_for_step_of(run_dir, (kill + 1) * 60, 120)
            time.sleep(source.random())
            os.kill(source.choice(descendants(handle.pid)), signal.SIGKILL)
            wait_for(lambda number=kill: len(events(run_dir, "error")) > number, 15)
        assert handle.wait(300) == 0
    finally:
        handle.kill()
    assert len(events(run_dir, "error")) == 20
    _every_sample_once_an_epoch(run_dir, 80)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_ranks_killed_twenty_times_while_an_agent_goes_and_comes_back(
    tmp_path: Path, store: StoreSpec
):
    """4, 2 and 4 ranks again, and in each of these worlds ranks are killed at random."""
    run_dir = tmp_path / "run"
    source = random.Random(int.from_bytes(os.urandom(4)))
    job = _job(
        run_dir, store, nodes=2, processes=2, epochs=1e6, rejoin_seconds=25.0, max_restarts=60
    )
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
    try:
        for _ in range(10):
            _kill_a_rank(run_dir, source)
        os.kill(_agents(handle.pid)[1], signal.SIGKILL)
        _wait_slowly(lambda: _worlds(run_dir)[-1] == 2, 200)
        _kill_a_rank(run_dir, source)
        _wait_slowly(lambda: _worlds(run_dir)[-1] == 4, 200)
        for _ in range(9):
            _kill_a_rank(run_dir, source)
        begun = events(run_dir, "start")[-1]["resumed_from_step"]
        wait_for_step_of(run_dir, begun + 2 * STEPS_AN_EPOCH, 200)
        handle.interrupt()
        assert handle.wait(60) == 130
    finally:
        handle.kill()
    worlds = _worlds(run_dir)
    assert len(worlds) > 20
    assert [world for world, _ in groupby(worlds)] == [4, 2, 4]
    assert _every_sample_once_so_far(run_dir) >= 3


def _kill_a_rank(run_dir: Path, source: random.Random) -> None:
    """Kill one at some step of the start that is at work, and wait for the next start's first steps."""
    _wait_slowly(lambda: bool(_worlds(run_dir)), 200)
    starts = len(_worlds(run_dir))
    begun = events(run_dir, "start")[-1]["resumed_from_step"] or 0
    wait_for_step_of(run_dir, begun + source.randint(1, 2 * STEPS_AN_EPOCH), 200)
    process = read_process(run_dir)
    assert process is not None
    os.kill(source.choice(process.ranks).pid, signal.SIGKILL)
    _wait_slowly(lambda: len(_worlds(run_dir)) > starts, 200)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("whom", "code"),
    [
        ("rank", 143),
        ("agent", 143),
        ("agent by Ctrl-C", 130),
        ("quark stop", 130),
        ("launcher", 143),
    ],
)
def test_whoever_is_asked_the_run_saves_and_ends_once(
    tmp_path: Path, store: StoreSpec, nodes: int, whom: str, code: int
):
    """Under agents: nothing is started again, whether by SIGTERM, Ctrl-C or `quark stop`."""
    run_dir = tmp_path / "run"
    job = _job(run_dir, store, nodes=nodes, processes=2 // nodes, epochs=1e6)
    program = (
        "import sys; from pathlib import Path; from brain.ml.training_job import load_job;"
        "from resource_manager.launch_targets.local import LAUNCH_TARGET as local;"
        "handle = local.launch(local.plan(load_job(Path(sys.argv[1]))));"
        "print(handle.pid, flush=True); handle.wait()"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, f"{job.run_dir}/job.yaml"], stdout=subprocess.PIPE
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    below = [identify(pid)]
    try:
        wait_for_step_of(run_dir, 20, 120)
        below += [identify(one) for one in descendants(pid)]
        process = read_process(run_dir)
        assert process is not None
        if whom == "quark stop":
            stop_run(run_dir)
        elif whom == "launcher":
            launcher.kill()
        else:
            asked = process.ranks[1].pid if whom == "rank" else pid
            os.kill(asked, signal.SIGINT if "Ctrl-C" in whom else signal.SIGTERM)
        wait_for(lambda: not any(one.alive for one in below), 60)
    finally:
        for one in below:
            if one.alive:
                os.kill(one.pid, signal.SIGKILL)
        launcher.kill()
        launcher.communicate()
    end = read_events(run_dir)[-1]
    assert (end["event"], end["exit_code"]) == ("end", code)
    assert end["reason"] == {130: "interrupt", 143: "terminate"}[code]
    assert events(run_dir, "checkpoint")[-1]["step"] == end["step"]
    assert _worlds(run_dir) == [2]
    assert not events(run_dir, "error")
    assert "Traceback" not in (run_dir / "log").read_text()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_machine_that_gets_sigterm_leaves_and_the_other_goes_on(tmp_path: Path, store: StoreSpec):
    """Two machines with a place to meet, here two agents: one is taken away, in good order."""
    run_dir = tmp_path / "run"
    meet = f"127.0.0.1:{free_port()}"
    job = _job(run_dir, store, nodes=2, rendezvous=meet, epochs=1e6, rejoin_seconds=3.0)
    plan = LAUNCH_TARGET.plan(job)
    plan = msgspec.structs.replace(
        plan, environment={**plan.environment, "GLOO_SOCKET_IFNAME": "lo"}
    )
    stays = LAUNCH_TARGET.launch(plan)
    leaves = None
    try:
        wait_for(lambda: _listens(meet), 60)
        leaves = LAUNCH_TARGET.launch(plan)
        wait_for_step_of(run_dir, 20, 120)
        leaves.terminate()
        assert leaves.wait(60) == 143
        _wait_slowly(lambda: _worlds(run_dir)[-1] == 1, 60)
        begun = events(run_dir, "start")[-1]["resumed_from_step"]
        saved = events(run_dir, "end")[-1]["step"]
        wait_for_step_of(run_dir, begun + 2 * STEPS_AN_EPOCH, 100)
        stays.terminate()
        assert stays.wait(60) == 143
    finally:
        stays.kill()
        if leaves is not None:
            leaves.kill()
    assert begun == saved
    assert events(run_dir, "end")[-1]["reason"] == "terminate"  # nobody is left to go on
    assert not events(run_dir, "error")
    assert _every_sample_once_so_far(run_dir) >= 2


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_machine_that_freezes_is_left_behind_and_taken_back(tmp_path: Path, store: StoreSpec):
    """Its connections stay open, so nobody's exchange fails: the agents miss its pulse."""
    run_dir = tmp_path / "run"
    job = _job(run_dir, store, nodes=2, processes=1, epochs=1e6, rejoin_seconds=5.0)
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
    try:
        wait_for_step_of(run_dir, 20, 120)
        process = read_process(run_dir)
        assert process is not None
        frozen = [
            agent for agent in _agents(handle.pid) if process.ranks[1].pid in descendants(agent)
        ]
        frozen += [one for agent in frozen for one in descendants(agent)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        _wait_slowly(lambda: _worlds(run_dir) == [2, 1], 150)
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        _wait_slowly(lambda: _worlds(run_dir) == [2, 1, 2], 100)
        begun = events(run_dir, "start")[-1]["resumed_from_step"]
        wait_for_step_of(run_dir, begun + STEPS_AN_EPOCH, 100)
        handle.interrupt()
        assert handle.wait(60) == 130
    finally:
        handle.kill()
    assert "machine 1 (rank 1 and on) has been silent" in events(run_dir, "error")[0]["message"]
    assert _every_sample_once_so_far(run_dir) >= 2


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with socket.socket() as caller:
        return caller.connect_ex((host, int(port))) == 0


def _worlds(run_dir: Path) -> list[int]:
    return [event["world_size"] for event in events(run_dir, "start")]


def _wait_slowly(condition: Callable[[], bool], seconds: float) -> None:
    """Wait without taking from a run what it needs: its events grow long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(1)


def _every_sample_once_so_far(run_dir: Path) -> int:
    """Check a run that ended within an epoch; returns the whole epochs it made."""
    steps = final_samples(run_dir)
    assert list(steps) == list(range(1, len(steps) + 1))
    assert list(steps)[-1] == events(run_dir, "end")[-1]["step"]
    whole = len(steps) // STEPS_AN_EPOCH
    expected = Counter(hash_of(_tokens(row)) for row in range(ROWS * SHARDS))
    for epoch in range(whole + 1):
        first = epoch * STEPS_AN_EPOCH + 1
        made = [steps.get(step, []) for step in range(first, first + STEPS_AN_EPOCH)]
        seen = Counter(sample for samples in made for sample in samples)
        assert seen == expected if epoch < whole else not seen - expected, epoch
    return whole


def wait_for_step_of(run_dir: Path, step: int, seconds: float) -> None:
    """Wait until a run has made a step, whatever it repeated."""

    def made() -> int:
        return max((event.get("step") or 0 for event in last_events(run_dir)), default=0)

    wait_for(lambda: made() >= step, seconds)


def _agents(pid: int) -> list[int]:
    below = descendants(pid)
    return [one for one in below if b"elastic_agent" in Path(f"/proc/{one}/cmdline").read_bytes()]
