"""The activation-extraction example: equal to a direct hook for every sample, whoever dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brain.ml.extract_activations import ActivationExtractor, load_model, main
from brain.ml.models.quark import Quark
from brain.ml.training_job import CheckpointTarget
from tests.training import make_job, text_shards, train_here, write_shards
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.create_sharded_dataset import create_sharded_dataset
from tools_utilities.sharding_plan import ShardingPlan

CHECKOUT = Path(__file__).resolve().parents[2]
SAMPLES = [{"id": n, "text": f"sample {n} " + "ab" * (n % 7)} for n in range(48)]


@pytest.fixture
def dataset(tmp_path: Path, aws_environment) -> Path:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(sample) + "\n" for sample in SAMPLES))
    plan = ShardingPlan(num_shards=4, chunk_bytes=120)
    create_sharded_dataset(str(source), str(tmp_path / "sharded"), plan)
    return tmp_path / "sharded"


def committed(dataset: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of completed records by id; fails when one is there twice."""
    rows: dict[int, dict[str, Any]] = {}
    for path in sorted(dataset.glob("shard_*/claim.json")):
        record = json.loads(path.read_text())
        assert record["state"] == "done"
        for file in sorted(Path(record["output"].removeprefix("file://")).glob("*.jsonl")):
            for line in file.read_text().splitlines():
                row = json.loads(line)
                assert row["id"] not in rows
                rows[row["id"]] = row
    return rows


def check_against_hook(
    rows: dict[int, dict[str, Any]],
    layers: int = 2,
    seed: int = 42,
    model_path: Path | None = None,
) -> None:
    """Compare every row with the model's own forward pass of that sample alone."""
    model = load_model(model_path, layers=layers, seed=seed).model
    assert isinstance(model, Quark)
    caught: dict[int, torch.Tensor] = {}
    for number, block in enumerate(model.blocks):
        block.register_forward_hook(
            lambda _m, _i, out, number=number: caught.__setitem__(number, out[0])
        )
    assert sorted(rows) == [sample["id"] for sample in SAMPLES]
    for sample in SAMPLES:
        tokens = [byte + 3 for byte in str(sample["text"]).encode()]
        with torch.inference_mode():
            model(torch.tensor([tokens]))
        row = rows[int(str(sample["id"]))]
        assert row["num_tokens"] == len(tokens)
        for number in range(layers):
            np.testing.assert_allclose(
                np.array(row[f"layer_{number}"]), caught[number].numpy(), rtol=1e-4, atol=1e-5
            )


def flags(dataset: Path, *more: str) -> list[str]:
    return ["--use_sharded_dataset", "--sharded_dataset_dir", str(dataset), *more]


def test_a_fresh_models_activations_are_those_of_a_direct_hook(dataset, capsys):
    code = main(
        flags(dataset, "--batch_size", "5", "--preferred_shard_id", "2", "--verbose",
              "--host_id", "1", "--num_hosts", "4")
    )  # fmt: skip

    printed = capsys.readouterr()
    assert (code, printed.out) == (0, "48 samples in 4 shards\n")
    assert printed.err.startswith("shard 2: ")
    metadata = json.loads((dataset / "shard_002/metadata.json").read_text())
    assert metadata["assigned_to"] == "machine0_host1"
    check_against_hook(committed(dataset))


def test_other_layers_are_another_job(dataset, capsys):
    assert main(flags(dataset, "--layers_to_extract", "1", "--pooling", "mean")) == 0
    row = committed(dataset)[0]
    assert "layer_0" not in row
    assert len(row["layer_1"]) == 128

    assert main(flags(dataset)) == 2
    assert "another job" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", ["--tpu_name=v4", "--coordinator_address=1.2.3.4:80", "--topology=v4-64"]
)
def test_flags_of_other_launchers_are_refused_by_name(flag, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--use_sharded_dataset", flag])

    assert caught.value.code == 2
    assert flag.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--upload_to_gcs"], "--gcs_bucket"),
        (["--host_id", "4", "--num_hosts", "4"], "hosts are 0 to 3"),
        (["--layers_to_extract", "9"], "0 to 1"),
        (["--model_path", "nowhere"], "no whole checkpoint"),
    ],
)
def test_what_cannot_work_is_said(dataset, capsys, more, said):
    assert main(flags(dataset, *more)) in (2, 3)
    assert said in capsys.readouterr().err
    assert not list(dataset.glob("*/claim.json"))


def test_the_bucket_may_be_any_store(dataset, tmp_path, capsys):
    code = main(flags(dataset, "--upload_to_gcs", "--gcs_bucket", f"file://{tmp_path}/store"))

    assert code == 0
    assert len(committed(dataset)) == 48
    assert list((tmp_path / "store/activations/sharded").glob("shard_*/*/*.jsonl"))


def test_ready_tokens_are_used_as_they_are():
    extractor = ActivationExtractor(load_model(None))

    assert extractor.tokens_of({"input_ids": [5, 6], "text": "x"}) == [5, 6]
    assert extractor.tokens_of({"text": "ab"}) == [100, 101]


@pytest.mark.slow
def test_a_killed_worker_is_followed_and_no_sample_is_there_twice(dataset):
    command = [sys.executable, "-m", "brain.ml.extract_activations", *flags(dataset)]
    command += ["--batch_size", "1", "--lease", "1.5", "--seed", "42"]
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    first = subprocess.Popen(command, env=environ)
    deadline = time.monotonic() + 60
    while not list(dataset.glob("out/*/*/*.done.json")):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    first.wait()

    second = subprocess.run(command, env=environ, check=False, timeout=100)

    assert second.returncode == 0
    check_against_hook(committed(dataset))


def test_a_trained_models_activations_are_those_of_a_direct_hook(tmp_path, dataset, capsys):
    job = make_job(
        tmp_path / "runs/tiny",
        write_shards(tmp_path / "text", text_shards()),
        layers=2,
        max_steps=3,
        seq_len=64,
    )
    assert train_here(job) == 0
    run = tmp_path / "runs/tiny"

    code = main(flags(dataset, "--model_path", str(run), "--batch_size", "6"))

    assert code == 0, capsys.readouterr()
    rows = committed(dataset)
    check_against_hook(rows, model_path=run)
    fresh = load_model(None, layers=2).model.state_dict()
    trained = load_model(run).model.state_dict()
    assert any(not torch.equal(fresh[name], trained[name]) for name in fresh)


@pytest.mark.parametrize("place", ["file://{}/elsewhere", "memory://{}"])
def test_a_run_whose_checkpoints_are_elsewhere_is_found_with_its_job(tmp_path, place):
    target = CheckpointTarget(store=StoreSpec(uri=place.format(tmp_path)), prefix="runs/tiny/")
    store = write_shards(tmp_path / "text", text_shards())
    job = make_job(tmp_path / "runs/tiny", store, max_steps=1, val=(), checkpoints=target)
    assert train_here(job) == 0
    assert not (tmp_path / "runs/tiny/checkpoints").exists()
    assert load_model(tmp_path / "runs/tiny").job == job


def test_a_second_interrupt_ends_at_once_with_one_line(dataset, capsys, monkeypatch):
    def interrupted_twice(_extractor: ActivationExtractor, _samples: list[Any]) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ActivationExtractor, "__call__", interrupted_twice)

    code = main(["--use_sharded_dataset", "--sharded_dataset_dir", str(dataset)])

    written = capsys.readouterr()
    assert code == 130
    assert written.err.splitlines()[-1] == (
        "interrupted; the same command goes on where this one ended"
    )
    assert "Traceback" not in written.err
    assert not written.out
