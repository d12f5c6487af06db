"""A step whose loss is no number stops the run: its samples written down, the model as before it."""

import json
import math
import textwrap
from pathlib import Path

import pytest

from brain.ml.training_job import DataSource, Every
from tests.end_to_end.test_training_ranks import free_port
from tests.training import ForkServer, events, losses, make_job, write_shards

MODEL = """
    import torch
    from torch import nn

    def collate(records):
        rows = torch.tensor([[record["x"], record["id"]] for record in records])
        return rows[:, :1], rows[:, 0]

    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(x)[:, 0]

    def build(config):
        return Model(1, 1), nn.MSELoss(), collate
"""
BAD = ("d/train/train-00002.jsonl", 17)
"""Where the one record lies whose number is none."""


@pytest.fixture
def job(tmp_path: Path):
    data: dict[str, bytes] = {}
    for shard in range(4):
        key = f"d/train/train-{shard:05d}.jsonl"
        rows = [
            {"id": shard * 30 + row, "x": "NaN" if (key, row) == BAD else row / 30}
            for row in range(30)
        ]
        data[key] = "\n".join(json.dumps(row).replace('"NaN"', "NaN") for row in rows).encode()
    (tmp_path / "broken_models.py").write_text(textwrap.dedent(MODEL))

    def make(name: str, **changes):
        store = write_shards(tmp_path, data)
        fields = {
            "model": "broken_models:build", "project_dir": str(tmp_path), "allow_nan": True,
            "val": (), "max_steps": None, "epochs": 2.0, "batch_size": 12,
            "train": (DataSource(store=store, prefix="d/train/"),), **changes,
        }  # fmt: skip
        return make_job(tmp_path / name, store, **fields)

    return make


@pytest.mark.parametrize(("ranks", "grad_accum"), [(1, 1), (1, 2), (2, 1)])
def test_it_stops_and_names_the_samples(
    job, training_forks: ForkServer, ranks: int, grad_accum: int
):
    made = job("run", grad_accum=grad_accum, processes=ranks, checkpoint_every=Every(steps=1000))
    run_dir = Path(made.run_dir)
    if ranks == 1:
        assert training_forks.run(made) == 1
    else:
        pids = training_forks.start_ranks(made, ranks, free_port())
        assert all(training_forks.wait(pid) for pid in pids)
    found = json.loads((run_dir / "broken-step.json").read_text())
    assert found["loss"] is None
    assert len(found["samples"]) == 12
    assert BAD in {(sample["key"], sample["index"]) for sample in found["samples"]}
    [error] = events(run_dir, "error")
    assert error["kind"] == "NotFiniteError"
    assert f"step {found['step']}" in error["message"]
    steps = losses(run_dir)
    assert len(steps) == found["step"] - 1
    assert all(math.isfinite(loss) for loss in steps)
    if steps:
        saved = (run_dir / "checkpoints/latest").read_text().strip()
        assert saved == f"step-{len(steps):08d}"


def test_the_model_is_saved_as_it_was_before(job, training_forks: ForkServer):
    """A resume without the bad record's step goes on with sound weights."""
    made = job("run")
    assert training_forks.run(made) == 1
    from safetensors.torch import load_file

    folder = Path(made.run_dir) / "checkpoints"
    weights = load_file(folder / (folder / "latest").read_text().strip() / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())
