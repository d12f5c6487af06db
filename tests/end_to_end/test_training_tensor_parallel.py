"""Ranks that share each weight: the same data in a group, the losses of one process, any mesh after another."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.job_check import check_job
from brain.ml.sample_log import final_samples
from brain.ml.training_job import Every, TrainingJob
from tests.end_to_end.test_training_ranks import batches, free_port
from tests.training import (
    ForkServer,
    events,
    losses,
    make_job,
    text_shards,
    train_here,
    write_shards,
)
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec

STEPS = 16
"""A bit more than an epoch."""
ENOUGH: dict[str, Any] = {
    "layers": 2, "max_steps": STEPS, "schedule": "constant", "sample_log": True
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    return write_shards(tmp_path_factory.mktemp("data"), text_shards())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, store: StoreSpec) -> Path:
    run_dir = tmp_path_factory.mktemp("alone")
    assert train_here(make_job(run_dir, store, **ENOUGH)) == 0
    return run_dir


def _run(forks: ForkServer, job: TrainingJob, ranks: int) -> Path:
    run_dir = Path(job.run_dir)
    pids = forks.start_ranks(job, ranks, free_port())
    assert [forks.wait(pid) for pid in pids] == [0] * ranks, (run_dir / "log").read_text()
    return run_dir


def _same_run(run_dir: Path, alone: Path) -> None:
    assert losses(run_dir) == pytest.approx(losses(alone), abs=1e-5)
    for name in ("samples", "tokens", "lr"):
        mine = [event[name] for event in events(run_dir, "step")]
        assert mine == [event[name] for event in events(alone, "step")]
    norms = [event["grad_norm"] for event in events(run_dir, "step")]
    assert norms == pytest.approx([event["grad_norm"] for event in events(alone, "step")], rel=1e-3)
    ours, theirs = events(run_dir, "eval")[-1], events(alone, "eval")[-1]
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert (ours["samples"], ours["tokens"]) == (theirs["samples"], theirs["tokens"])
    assert batches(run_dir) == batches(alone)


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (2, {"workers": 1, "grad_accum": 2}),
        pytest.param(4, {}, marks=pytest.mark.nightly),
        (4, {"parallel": "fsdp", "grad_accum": 2}),
    ],
)
def test_losses_and_batches_are_those_of_one_process(
    tmp_path: Path,
    store: StoreSpec,
    alone: Path,
    training_forks: ForkServer,
    ranks: int,
    changes: dict[str, Any],
):
    job = make_job(tmp_path / "run", store, tensor_parallel=2, **ENOUGH, **changes)
    run_dir = _run(training_forks, job, ranks)
    _same_run(run_dir, alone)
    logs = sorted(path.name for path in (run_dir / "samples").iterdir())
    assert logs == [f"rank-{number:05d}.jsonl" for number in range(ranks // 2)]
    assert events(run_dir, "start")[0]["parameters"] == events(alone, "start")[0]["parameters"]


def test_a_checkpoint_goes_on_on_every_other_mesh(
    tmp_path: Path, store: StoreSpec, alone: Path, training_forks: ForkServer
):
    """2 groups of 2 (cut over the groups, too), one of 2, a single process, and the groups uncut."""
    run_dir = tmp_path / "run"

    def job(until: int, **changes: Any) -> TrainingJob:
        every = Every(steps=until)
        resume = None if until == 4 else "latest"
        changes = {**ENOUGH, "resume": resume, "checkpoint_every": every, **changes}
        return make_job(run_dir, store, max_samples=8 * until, val=(), **changes)

    _run(training_forks, job(4, tensor_parallel=2, parallel="fsdp"), 4)
    parts = [path.name for path in (run_dir / "checkpoints/step-00000004").glob("rank-*")]
    assert sorted(parts) == ["rank-00000.json", "rank-00001.json"]
    _run(training_forks, job(6, tensor_parallel=2), 2)
    assert train_here(job(8)) == 0
    _run(training_forks, job(10, tensor_parallel=2), 4)
    assert [event["step"] for event in events(run_dir, "step")] == list(range(1, 11))
    assert losses(run_dir) == pytest.approx(losses(alone)[:10], abs=1e-5)
    assert batches(run_dir) == {step: batches(alone)[step] for step in range(1, 11)}


@pytest.mark.nightly
def test_resume_on_the_same_mesh_is_exact(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer
):
    whole = make_job(tmp_path / "whole", store, tensor_parallel=2, **ENOUGH)
    _run(training_forks, whole, 2)
    run_dir = tmp_path / "parts"
    make = {**ENOUGH, "tensor_parallel": 2}
    _run(training_forks, make_job(run_dir, store, max_samples=7 * 8, **make), 2)
    _run(training_forks, make_job(run_dir, store, resume="latest", **make), 2)
    assert losses(run_dir) == losses(tmp_path / "whole")


def test_sgd_takes_cut_weights(tmp_path: Path, store: StoreSpec, training_forks: ForkServer):
    """Momentum is saved as the weights are: the last steps are made by one process."""
    sgd = {**ENOUGH, "optimizer": "sgd", "lr": 0.1, "max_steps": 6, "val": ()}
    assert train_here(make_job(tmp_path / "alone", store, **sgd)) == 0
    cut = {**sgd, "parallel": "fsdp", "max_steps": 4}
    run_dir = _run(training_forks, make_job(tmp_path / "run", store, **cut), 2)
    assert train_here(make_job(run_dir, store, resume="latest", **sgd)) == 0
    assert losses(run_dir) == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)


OWN = """
    import torch
    from torch import nn

    class Next(nn.Module):
        def __init__(self, vocab_size):
            super().__init__()
            self.table = nn.Embedding(vocab_size, 8)
            self.drop = nn.Dropout(0.5)
            self.head = nn.Linear(8, vocab_size)

        def forward(self, tokens_BT):
            return self.head(self.drop(self.table(tokens_BT)))

    class Planned(Next):
        def tensor_plan(self):
            return {}

    def build(config):
        return Planned(config.vocab_size), nn.CrossEntropyLoss()

    def unplanned(config):
        return Next(config.vocab_size), nn.CrossEntropyLoss()
"""


def test_a_plain_model_gets_the_same_data_and_chance_in_a_group(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer
):
    """With dropout: a group that drew different numbers would give other losses than its one rank."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(OWN))
    own = {"model": "mine:build", "project_dir": str(tmp_path), "sample_log": True}
    plain = _run(training_forks, make_job(tmp_path / "plain", store, **own), 2)
    job = make_job(tmp_path / "run", store, tensor_parallel=2, **own)
    run_dir = _run(training_forks, job, 4)
    assert losses(run_dir) == pytest.approx(losses(plain), abs=1e-5)
    assert batches(run_dir) == batches(plain)

    refused = make_job(
        tmp_path / "refused", store, tensor_parallel=2, **{**own, "model": "mine:unplanned"}
    )
    pids = training_forks.start_ranks(refused, 2, free_port())
    assert [training_forks.wait(pid) for pid in pids] == [UsageError.exit_code] * 2
    assert "has no tensor_plan" in events(tmp_path / "refused", "error")[0]["message"]


def test_a_stream_of_ones_own_deals_by_groups(monkeypatch: pytest.MonkeyPatch):
    """By the launcher's variables: ranks 0 and 1 are one for the data, 2 and 3 another."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    seen = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        stream = StreamDataset.from_samples(range(40), tensor_parallel=2)
        seen.append(list(stream))
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert sorted([*seen[0], *seen[2]]) == list(range(40))
    with pytest.raises(UsageError, match="4 ranks do not make whole groups"):
        list(StreamDataset.from_samples(range(40), tensor_parallel=3))


@pytest.mark.nightly
def test_groups_count_samples_together(tmp_path: Path, training_forks: ForkServer):
    """A strategy that must know all counts first: the ranks of all groups exchange them."""
    shards = {
        f"d/train/train-{number:05d}.jsonl": b"".join(
            json.dumps({"text": f"record {number} {row}"}).encode() + b"\n" for row in range(8)
        )
        for number in range(8)
    }
    store = write_shards(tmp_path / "data", shards)
    changes = {"partition": "contiguous", "tensor_parallel": 2, "val": (), "epochs": 1.0}
    job = make_job(tmp_path / "run", store, **{**ENOUGH, **changes, "max_steps": None})
    run_dir = _run(training_forks, job, 4)
    used = [sample for samples in final_samples(run_dir).values() for sample in samples]
    assert len(used) == len(set(used)) == events(run_dir, "end")[0]["samples"]


@pytest.mark.parametrize(
    ("ranks", "changes", "message"),
    [
        (3, {}, "3 processes do not make whole groups"),
        (2, {"layers": 3}, "3 heads cannot be dealt to 2 ranks"),
        (2, {"model": "hf:tiny"}, "not for hf: models"),
        (2, {"precision": "fp16"}, "not in fp16"),
        (2, {"compile": True}, "not with compile"),
        (4, {"batch_size": 3}, "cannot be dealt to 2 groups of 2 processes"),
    ],
)
def test_what_does_not_fit_is_refused(ranks: int, changes: dict[str, Any], message: str):
    fields: dict[str, Any] = {"name": "n", "run_dir": "/r", "train": (), "tensor_parallel": 2}
    with pytest.raises(UsageError, match=message):
        check_job(TrainingJob(**{**fields, **changes}), ranks)
