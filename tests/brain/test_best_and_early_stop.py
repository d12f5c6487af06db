"""The best evaluation: its checkpoint is kept, and too many worse ones end the run."""

from pathlib import Path

import pytest

from brain.ml.checkpoint import read_state
from brain.ml.device_peak import peak_of, utilization
from brain.ml.export_weights import main
from brain.ml.schedule import Progress, RunLength, learning_rate, note_evaluation, stop_rule
from brain.ml.training_job import Every
from tests.training import events, losses, make_job, text_shards, train_here, write_shards
from tools_utilities.errors import UsageError


def test_evaluations_are_compared_with_the_best():
    progress = Progress()
    found = []
    for step, loss in enumerate([3.0, 2.0, 2.5, 2.0, 1.9, float("inf")], start=1):
        progress.step = step
        note_evaluation(progress, loss)
        found.append((progress.best_step, progress.worse_evals))
    assert found == [(1, 0), (2, 0), (2, 1), (2, 2), (5, 0), (5, 1)]


def test_an_evaluation_at_the_end_is_in_a_checkpoint_that_the_last_step_had_made(tmp_path: Path):
    run_dir = tmp_path / "run"
    job = make_job(
        run_dir, write_shards(tmp_path, text_shards()), max_steps=4, checkpoint_every=Every(steps=2)
    )
    assert train_here(job) == 0
    assert read_state(run_dir / "checkpoints/step-00000004").progress.best_step == 4
    assert main([str(run_dir), str(tmp_path / "best.safetensors"), "--best"]) == 0


def test_early_stop_ends_a_run_and_leaves_the_rate_alone(tmp_path: Path):
    job = make_job(tmp_path / "run", write_shards(tmp_path, text_shards()), early_stop=2)
    length = RunLength(source_samples=(90,))
    waiting, done = Progress(step=3, worse_evals=1), Progress(step=3, worse_evals=2)
    assert (stop_rule(job, waiting, length), stop_rule(job, done, length)) == (None, "early_stop")
    assert learning_rate(job, waiting, length) == learning_rate(job, done, length)


def test_best_checkpoint_outlives_newer_ones_and_is_exported(tmp_path: Path):
    """At no rate to speak of nothing gets better: the first evaluation stays the best."""
    store = write_shards(tmp_path, text_shards())
    run_dir = tmp_path / "run"
    job = make_job(
        run_dir, store, lr=1e-30, schedule="constant", weight_decay=0.0, eval_every=Every(steps=2),
        checkpoint_every=Every(steps=1), keep=1, early_stop=2, max_steps=12,
    )  # fmt: skip
    assert train_here(job) == 0
    [end] = events(run_dir, "end")
    assert (end["reason"], end["step"]) == ("early_stop", 6)
    assert all(event["grad_norm"] > 0 for event in events(run_dir, "step"))
    folder = run_dir / "checkpoints"
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000002", "step-00000006"]
    assert (folder / "best").read_text().strip() == "step-00000002"
    assert read_state(folder / "step-00000006").progress.best_step == 2
    assert main([str(run_dir), str(tmp_path / "best.safetensors"), "--best"]) == 0
    from safetensors import safe_open

    with safe_open(tmp_path / "best.safetensors", "pt") as file:
        assert file.metadata()["step"] == "2"

    # Another rule in its place: it goes on.
    again = make_job(run_dir, store, lr=1e-30, max_steps=8, resume="latest", val=())
    assert train_here(again) == 0
    assert len(losses(run_dir)) == 8


def test_early_stop_without_validation_is_refused(tmp_path: Path):
    store = write_shards(tmp_path, text_shards())
    assert train_here(make_job(tmp_path / "run", store, val=(), early_stop=2)) == 2
    [error] = events(tmp_path / "run", "error")
    assert error["kind"] == UsageError.__name__
    assert "early_stop=2" in error["message"]


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA A100-SXM4-80GB", "fp16", 312e12),
        ("NVIDIA A10", "bf16", 125e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A10G", "bf16", None),  # another chip than the A10
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("NVIDIA H100 80GB HBM3", "fp32", None),
        ("", "bf16", None),
    ],
)
def test_peaks_are_known_of_devices_and_half_formats(device, precision, peak):
    assert peak_of(device, precision) == peak


def test_utilization_is_the_share_of_all_devices():
    assert utilization(1000, 2.0, 10**6, 2, 1.5e9) == pytest.approx(1.0)
    assert utilization(1000, 2.0, 10**6, 2, None) is None
