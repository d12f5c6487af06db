"""Resume equals the run that never stopped, to the last bit, whatever the settings and wherever it stops.

Each configuration draws its settings from all that could matter. One run goes through and saves every
step; another is stopped and resumed, again and again. At each stop weights, moments and random numbers
are those of the first run; in the end so are losses, learning rates, evaluations, samples and the state.
"""

import json
import multiprocessing
import os
import random
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from brain.ml.process_group import World
from brain.ml.sample_log import final_samples
from brain.ml.stop_request import StopRequest
from brain.ml.train import train
from brain.ml.training_job import DataSource, Every, TrainingJob
from tests.training import events, losses, make_job, text_shards, write_shards
from tools_utilities.object_store import StoreSpec

STEPS = 15
"""More than an epoch, which has about 12."""
CONFIGURATIONS = range(16)
STOPS_IN_CI = 2
PARTITIONS: dict[str, dict[str, Any]] = {
    "round_robin": {},
    "contiguous": {},
    "files": {},
    "hash": {"num_partitions": 4, "hash_seed": 7},
    "stratified": {"partition_key": "id"},
}
AXES: dict[str, Sequence[Any]] = {
    "grad_accum": (1, 2, 4),
    "schedule": ("cosine", "linear", "constant"),
    "warmup_steps": (0, 5),
    "optimizer": ("adamw", "adamw", "sgd"),
    "partition": tuple(PARTITIONS),
    "equalize": ("drop", "pad"),
    "prefetch": (None, 0),
    "shuffle": (True, True, False),
    "model": ("quark", "quark", "dropping:build"),
    "eval_every": (None, Every(steps=3), Every(samples=20)),
    "checkpoint_every": (None, Every(steps=2), Every(samples=40)),
    "seq_len": (32, 48),
    "sources": (1, 2),
}
WITH_WORKERS = {3: 1, 9: 2}
"""Configuration → loader workers: these take a second to start."""
OWN = """
    from torch import nn

    def build(config):
        width, layers = 32, []
        for _ in range(2):
            layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.3)]
        first, last = nn.Embedding(config.vocab_size, width), nn.Linear(width, config.vocab_size)
        return nn.Sequential(first, *layers, last), nn.CrossEntropyLoss()
"""


class _StopAfter(StopRequest):
    """Asks to stop once a run has told of a step; the batches of the next one have been fetched by then."""

    def __init__(self, run_dir: Path, step: int) -> None:
        super().__init__()
        self._run_dir, self._step = run_dir, step

    def flags(self) -> list[bool]:
        if self.reason is None and len(losses(self._run_dir)) >= self._step:
            self.reason = "interrupt"
        return super().flags()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    return write_shards(tmp_path_factory.mktemp("data"), text_shards())


def _settings(number: int, project: Path, store: StoreSpec) -> dict[str, Any]:
    source = random.Random(number)
    chosen = {name: source.choice(values) for name, values in AXES.items()}
    if chosen["model"] != "quark":
        (project / "dropping.py").write_text(textwrap.dedent(OWN))
        chosen["project_dir"] = str(project)
    groups = [DataSource(store=store, prefix="d/train/")]
    if chosen.pop("sources") == 2:
        groups.append(DataSource(store=store, prefix="d/train/train-00001"))
    chosen["partition_options"] = PARTITIONS[chosen["partition"]]
    return {
        **chosen, "train": tuple(groups), "workers": WITH_WORKERS.get(number, 0), "max_drop": 1.0,
        "max_steps": STEPS, "sample_log": True,
    }  # fmt: skip


def _train(job: TrainingJob, stop: StopRequest) -> int:
    torch.set_num_threads(1)
    try:
        return train(job, World(attempt=f"{os.getpid()}-{time.monotonic_ns()}"), stop)
    finally:
        for worker in multiprocessing.active_children():
            worker.terminate()
            worker.join()


def _checkpoint(run_dir: Path, step: int) -> Path:
    return run_dir / f"checkpoints/step-{step:08d}"


def _same_numbers(ours: Path, theirs: Path) -> None:
    for part in ("model", "optimizer"):
        mine, other = (load_file(path / f"{part}.safetensors") for path in (ours, theirs))
        assert mine.keys() == other.keys()
        assert [name for name, tensor in mine.items() if not tensor.equal(other[name])] == []
    numbers = [json.loads((path / "rank-00000.json").read_bytes()) for path in (ours, theirs)]
    assert numbers[0] == numbers[1]


def _state(checkpoint: Path) -> dict[str, Any]:
    """Return what is saved beside the tensors; time alone may differ."""
    state: dict[str, Any] = json.loads((checkpoint / "state.json").read_bytes())
    for name in [name for name in state["progress"] if name.endswith("seconds")]:
        del state["progress"][name]
    return state


def _figures(run_dir: Path) -> list[tuple[Any, ...]]:
    names = ("step", "epoch", "loss", "lr", "grad_norm", "samples", "tokens")
    return [tuple(event[name] for name in names) for event in events(run_dir, "step")]


def _evaluations(run_dir: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events(run_dir, "eval")}


def _resumes_exactly(number: int, tmp_path: Path, store: StoreSpec, stops: Sequence[int]) -> None:
    settings = _settings(number, tmp_path, store)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    saving = {**settings, "checkpoint_every": Every(steps=1), "keep": 2 * STEPS}
    assert _train(make_job(whole, store, **saving), StopRequest()) == 0
    for step in stops:
        job = make_job(parts, store, **settings, resume="auto")
        assert _train(job, _StopAfter(parts, step)) == 130
        assert (parts / "checkpoints/latest").read_text().strip() == f"step-{step:08d}"
        _same_numbers(_checkpoint(parts, step), _checkpoint(whole, step))
    assert _train(make_job(parts, store, **settings, resume="auto"), StopRequest()) == 0
    _same_numbers(_checkpoint(parts, STEPS), _checkpoint(whole, STEPS))
    ours, theirs = _state(_checkpoint(parts, STEPS)), _state(_checkpoint(whole, STEPS))
    for name in ours:
        assert ours[name] == theirs[name], name
    assert _figures(parts) == _figures(whole)
    assert _evaluations(parts) == _evaluations(whole)
    assert final_samples(parts) == final_samples(whole)
    assert len(events(parts, "start")) == len(stops) + 1


def test_every_setting_is_in_some_configuration(tmp_path: Path, store: StoreSpec):
    drawn = [_settings(number, tmp_path, store) for number in CONFIGURATIONS]
    for name, values in AXES.items():
        seen = [len(one["train"]) if name == "sources" else one[name] for one in drawn]
        assert [value for value in values if value not in seen] == [], name
    assert len(CONFIGURATIONS) * (STEPS - 1) >= 200


@pytest.mark.parametrize("number", CONFIGURATIONS)
def test_stopped_anywhere_it_goes_on_as_if_it_had_not(
    tmp_path: Path, store: StoreSpec, number: int
):
    seed = int.from_bytes(os.urandom(4))
    count = 1 if number in WITH_WORKERS else STOPS_IN_CI
    stops = sorted(random.Random(seed).sample(range(1, STEPS), count))
    _resumes_exactly(number, tmp_path, store, stops)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", CONFIGURATIONS)
def test_stopped_after_every_single_step_it_goes_on_as_if_it_had_not(
    tmp_path: Path, store: StoreSpec, number: int
):
    """16 configurations of 14 stops."""
    _resumes_exactly(number, tmp_path, store, range(1, STEPS))
