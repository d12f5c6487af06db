"""Several processes: the same batches and losses, and one failure that ends them all, told once."""

import os
import resource
import signal
import socket
import time
from pathlib import Path

import pytest

from brain.ml.process_group import START_VARIABLE
from brain.ml.sample_log import final_samples
from brain.ml.stop_request import ASK_AGAIN, REGROUPED
from brain.ml.training_job import Every
from resource_manager.launch_targets.local import LAUNCH_TARGET
from resource_manager.runs import read_events, read_run, stop_run
from tests.training import (
    ForkServer,
    events,
    losses,
    make_job,
    text_shards,
    train_here,
    wait_for,
    wait_for_step,
    write_shards,
)
from tools_utilities.object_store import StoreSpec
from tools_utilities.process_identity import descendants, identify

LIMIT_SECONDS = 10.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    return write_shards(tmp_path_factory.mktemp("data"), text_shards())


def free_port() -> int:
    """Return a port of loopback that nobody has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, store: StoreSpec) -> Path:
    run_dir = tmp_path_factory.mktemp("alone")
    assert train_here(make_job(run_dir, store, max_steps=16, sample_log=True)) == 0
    return run_dir


def batches(run_dir: Path) -> dict[int, list[str]]:
    """Return what each step was made of, whoever had it."""
    return {step: sorted(samples) for step, samples in final_samples(run_dir).items()}


@pytest.mark.parametrize(("ranks", "grad_accum"), [(2, 1), (4, 1), (2, 2)])
def test_any_number_of_processes_gives_the_same_batches_and_losses(
    tmp_path: Path,
    store: StoreSpec,
    alone: Path,
    training_forks: ForkServer,
    port: int,
    ranks: int,
    grad_accum: int,
):
    job = make_job(tmp_path / "run", store, max_steps=16, grad_accum=grad_accum, sample_log=True)
    pids = training_forks.start_ranks(job, ranks, port)
    assert [training_forks.wait(pid) for pid in pids] == [0] * ranks
    assert losses(tmp_path / "run") == pytest.approx(losses(alone), abs=1e-5)
    assert batches(tmp_path / "run") == batches(alone)
    for name in ("samples", "tokens", "epoch", "lr"):
        mine = [event[name] for event in events(tmp_path / "run", "step")]
        assert mine == [event[name] for event in events(alone, "step")]
    ours, theirs = events(tmp_path / "run", "eval")[-1], events(alone, "eval")[-1]
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert (ours["samples"], ours["tokens"]) == (theirs["samples"], theirs["tokens"])


def test_other_number_of_processes_goes_on_from_a_checkpoint(
    tmp_path: Path, store: StoreSpec, alone: Path, training_forks: ForkServer, port: int
):
    run_dir = tmp_path / "run"
    job = make_job(run_dir, store, max_steps=16, checkpoint_every=None)
    assert train_here(make_job(run_dir, store, max_steps=16, max_samples=40)) == 0
    pids = training_forks.start_ranks(
        make_job(run_dir, store, max_steps=16, resume="latest"), 2, port
    )
    assert [training_forks.wait(pid) for pid in pids] == [0, 0]
    assert [event["samples"] for event in events(run_dir, "step")] == [
        event["samples"] for event in events(alone, "step")
    ]
    assert job.max_steps == len(losses(run_dir))


def test_weights_cut_over_ranks_train_alike_and_go_on_uncut(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int
):
    """FSDP2: uneven validation data, accumulation; its checkpoint goes on in a single process."""
    run_dir, plain = tmp_path / "run", tmp_path / "plain"
    steps = {"schedule": "constant"}
    assert train_here(make_job(plain, store, max_steps=18, **steps)) == 0
    job = make_job(run_dir, store, max_steps=16, parallel="fsdp", grad_accum=2, **steps)
    pids = training_forks.start_ranks(job, 4, port)
    assert [training_forks.wait(pid) for pid in pids] == [0] * 4
    first, *others = sorted((run_dir / "checkpoints/step-00000016").glob("model-*"))
    assert (first.name, len(others)) == ("model-00001-of-00004.safetensors", 3)
    _exported_whole(run_dir / "checkpoints/step-00000016", tmp_path / "weights.safetensors")
    assert train_here(make_job(run_dir, store, max_steps=18, resume="latest", **steps)) == 0
    assert losses(run_dir) == pytest.approx(losses(plain), abs=1e-5)
    ours, theirs = events(run_dir, "eval")[-1], events(plain, "eval")[-1]
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert (ours["samples"], ours["tokens"]) == (theirs["samples"], theirs["tokens"])


def _exported_whole(checkpoint: Path, out: Path) -> None:
    """Four ranks' pieces are one file of whole tensors, which any model takes by name."""
    from safetensors.torch import load_file

    from brain.ml.checkpoint import load_weights, read_state
    from brain.ml.export_weights import main
    from brain.ml.model import build_model

    assert main([str(checkpoint), str(out)]) == 0
    shape = read_state(checkpoint).shape
    exported, read = build_model("quark", shape, 1), build_model("quark", shape, 2)
    exported.load_state_dict(load_file(out))
    load_weights(checkpoint, read)
    assert all(
        mine.equal(other)
        for mine, other in zip(exported.parameters(), read.parameters(), strict=True)
    )
    assert main([str(checkpoint.parent.parent), str(out)]) == 0
    assert main([str(out.parent), str(out)]) == 3


def _fails_alike(
    run_dir: Path, forks: ForkServer, pids: list[int], started: float, *, earlier_ends: int = 0
) -> dict[str, object]:
    codes = [forks.wait(pid, LIMIT_SECONDS) for pid in pids]
    assert time.monotonic() - started < LIMIT_SECONDS
    assert all(codes)
    assert len(events(run_dir, "error")) == 1
    assert len(events(run_dir, "end")) == earlier_ends
    last = read_events(run_dir)[-1]
    assert last["event"] == "error"
    return last


def test_undecodable_record_on_one_rank_ends_all(
    tmp_path: Path, training_forks: ForkServer, port: int
):
    shards = text_shards(shards=12, records=12)
    shards["d/train/train-00007.jsonl"] += b'{"id": 3, "text": "never clo\n'
    job = make_job(
        tmp_path / "run", write_shards(tmp_path / "data", shards), batch_size=6, max_steps=500
    )
    pids = training_forks.start_ranks(job, 3, port)
    wait_for(lambda: read_events(tmp_path / "run"))
    error = _fails_alike(tmp_path / "run", training_forks, pids, time.monotonic())
    assert "train-00007.jsonl" in str(error["message"])
    assert error["rank"] in (0, 1, 2)
    assert error["kind"] == "RecordError"
    assert ".py:" in str(error["frame"])


def test_killed_rank_ends_all_and_is_named(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int
):
    job = make_job(tmp_path / "run", store, batch_size=6, max_steps=100_000)
    pids = training_forks.start_ranks(job, 3, port)
    wait_for_step(tmp_path / "run", 3)
    os.kill(pids[1], signal.SIGKILL)
    error = _fails_alike(tmp_path / "run", training_forks, pids, time.monotonic())
    assert error["rank"] == 1
    assert str(pids[1]) in str(error["message"])


def test_failed_checkpoint_part_leaves_the_pointer_alone(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int
):
    """Rank 2 cannot write its part: no checkpoint is published, the one before still loads."""
    run_dir = tmp_path / "run"
    assert train_here(make_job(run_dir, store, batch_size=6, max_steps=2)) == 0
    every = Every(steps=25)
    job = make_job(
        run_dir, store, batch_size=6, max_steps=999, resume="latest", checkpoint_every=every
    )
    pids = training_forks.start_ranks(job, 3, port)
    wait_for(lambda: events(run_dir, "start")[1:])
    # Its part is over 100 kB, all else that is written until then is less than 60.
    resource.prlimit(pids[2], resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    wait_for(lambda: events(run_dir, "error"))
    error = _fails_alike(run_dir, training_forks, pids, time.monotonic(), earlier_ends=1)
    assert error["rank"] == 2
    assert "File too large" in str(error["message"])
    assert error["exit_code"] == 1
    assert (run_dir / "checkpoints/latest").read_text().strip() == "step-00000002"
    assert train_here(make_job(run_dir, store, batch_size=6, max_steps=3, resume="latest")) == 0


def test_batch_that_cannot_be_dealt_is_a_usage_error(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int
):
    job = make_job(tmp_path / "run", store, batch_size=8)
    pids = training_forks.start_ranks(job, 3, port)
    assert [training_forks.wait(pid) for pid in pids] == [2, 2, 2]
    assert "multiple of 3" in events(tmp_path / "run", "error")[0]["hint"]


def test_launched_through_torchs_launcher_and_interrupted(tmp_path: Path, store: StoreSpec):
    """The decision is agreed on, saved by all, and the launcher kills nobody meanwhile."""
    run_dir = tmp_path / "run"
    job = make_job(run_dir, store, processes=2, max_steps=100_000)
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
    try:
        wait_for_step(run_dir, 3)
        handle.interrupt()
        assert handle.wait(LIMIT_SECONDS) == 130
    finally:
        handle.kill()
    end = events(run_dir, "end")[0]
    assert end["reason"] == "interrupt"
    assert (run_dir / f"checkpoints/step-{end['step']:08d}/rank-00001.json").exists()
    assert read_run(run_dir).status == "interrupted"
    steps = [event["step"] for event in events(run_dir, "step")]
    assert steps == list(range(1, end["step"] + 1))


def test_failure_under_torchs_launcher_keeps_its_own_exit_code(tmp_path: Path, store: StoreSpec):
    """The launcher says 1 for everything; the run's own code is passed on."""
    job = make_job(tmp_path / "run", store, processes=2, text_key="body")
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
    assert handle.wait(60) == 2
    assert len(events(tmp_path / "run", "error")) == 1


def test_stop_from_another_terminal_reaches_all_ranks(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int
):
    job = make_job(tmp_path / "run", store, max_steps=100_000)
    pids = training_forks.start_ranks(job, 2, port)
    wait_for_step(tmp_path / "run", 2)
    stop_run(tmp_path / "run")
    assert [training_forks.wait(pid, LIMIT_SECONDS) for pid in pids] == [130, 130]
    assert events(tmp_path / "run", "stopping")[0]["reason"] == "interrupt"


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGTERM, 0, "terminate"), (ASK_AGAIN, REGROUPED, "regroup")],
)
def test_one_rank_that_is_asked_stops_all_and_only_an_agent_means_again(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int, *,
    number: signal.Signals, code: int, reason: str,
):  # fmt: skip
    """What ranks say to an agent: 0 when a person asked one of them, else that they wait for it."""
    run_dir = tmp_path / "run"
    job = make_job(run_dir, store, max_steps=100_000)
    pids = training_forks.start_ranks(job, 2, port, **{START_VARIABLE: "1"})
    wait_for_step(run_dir, 2)
    os.kill(pids[1], number)
    assert [training_forks.wait(pid, LIMIT_SECONDS) for pid in pids] == [code, code]
    end = events(run_dir, "end")[0]
    assert (end["reason"], end["exit_code"]) == (reason, 143)
    assert events(run_dir, "checkpoint")[-1]["step"] == end["step"]
    assert not events(run_dir, "error")
    # The agent, here the server of forks, lives on.
    assert read_run(run_dir).status == ("interrupted" if reason == "terminate" else "running")


def test_interrupted_ranks_with_loader_workers_leave_no_process(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int
):
    """Two ranks of a worker each: the same losses, saved at once, nothing left two seconds later."""
    run_dir = tmp_path / "run"
    job = make_job(run_dir, store, max_steps=100_000, workers=1, val=(), schedule="constant")
    pids = training_forks.start_ranks(job, 2, port)
    wait_for_step(run_dir, 12)
    below = [identify(child) for pid in pids for child in descendants(pid)]
    assert len([process for process in below if process.alive]) >= 2
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    assert [training_forks.wait(pid, LIMIT_SECONDS) for pid in pids] == [130, 130]
    wait_for(lambda: not any(process.alive for process in below), 2)
    assert events(run_dir, "checkpoint")[-1]["step"] == events(run_dir, "end")[0]["step"]
    plain = make_job(tmp_path / "plain", store, max_steps=12, schedule="constant")
    assert train_here(plain) == 0
    assert losses(run_dir)[:12] == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)
