"""The same run on S3 (moto, SeaweedFS) and on a local folder: same samples, same losses; and it learns."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from brain.ml.training_job import DataSource
from tests.conftest import MakeBucket, PutObjects
from tests.training import events, losses, make_job, text_shards, train_here, write_shards
from tools_utilities.object_store import StoreSpec

FIGURES = ("step", "epoch", "loss", "samples", "tokens")


def _figures(run_dir: Path) -> list[tuple[object, ...]]:
    return [tuple(event[name] for name in FIGURES) for event in events(run_dir, "step")]


@pytest.fixture
def local_figures(tmp_path: Path) -> Callable[[], list[tuple[object, ...]]]:
    def run() -> list[tuple[object, ...]]:
        store = write_shards(tmp_path / "data", text_shards())
        assert train_here(make_job(tmp_path / "local", store, max_steps=15)) == 0
        return _figures(tmp_path / "local")

    return run


@pytest.mark.parametrize("server", ["moto_endpoint", "weed_endpoint"])
def test_run_on_s3_equals_the_run_on_a_local_folder(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    aws_environment: pytest.MonkeyPatch,
    make_bucket: MakeBucket,
    put_objects: PutObjects,
    local_figures: Callable[[], list[tuple[object, ...]]],
    server: str,
):
    endpoint = request.getfixturevalue(server)
    bucket = make_bucket(endpoint)
    put_objects(endpoint, bucket, text_shards())
    store = StoreSpec(uri=f"s3://{bucket}", endpoint_url=endpoint, region="us-east-1")
    job = make_job(tmp_path / "s3", store, max_steps=15, cache_dir=str(tmp_path / "cache"))
    assert train_here(job) == 0
    assert _figures(tmp_path / "s3") == local_figures()
    assert b"secret" not in (tmp_path / "s3/job.yaml").read_bytes().lower()


def test_model_learns_far_below_what_byte_counts_alone_give(tmp_path: Path):
    shards = text_shards()
    text = "".join(
        msgspec.json.decode(line)["text"] + "\n"
        for key, data in shards.items()
        if "/val/" in key
        for line in data.splitlines()
    )
    counts = Counter(text.encode())
    entropy = -sum(n / len(text) * math.log(n / len(text)) for n in counts.values())
    store = write_shards(tmp_path / "data", shards)
    job = make_job(tmp_path / "run", store, max_steps=120, batch_size=16, lr=5e-3, warmup_steps=10)
    assert train_here(job) == 0
    assert events(tmp_path / "run", "end")[0]["val_loss"] < entropy - 0.5


def test_every_record_of_an_epoch_is_trained_on_once(tmp_path: Path):
    """Targets are the bytes and ends of all documents, however they are packed."""
    shards = text_shards()
    store = write_shards(tmp_path / "data", shards)
    expected = sum(
        len(msgspec.json.decode(line)["text"].encode()) + 1
        for key, data in shards.items()
        if "/train/" in key
        for line in data.splitlines()
    )
    for seq_len in (16, 61):
        run_dir = tmp_path / f"run-{seq_len}"
        job = make_job(run_dir, store, max_steps=None, epochs=2.0, seq_len=seq_len)
        assert train_here(job) == 0
        end = events(run_dir, "end")[0]
        assert end["tokens"] == 2 * expected
        assert (end["reason"], end["epoch"]) == ("epochs", 2.0)


@pytest.mark.parametrize(
    ("rule", "figure", "limit"),
    [("max_steps", "step", 5), ("max_samples", "samples", 33), ("max_tokens", "tokens", 700)],
)
def test_first_stop_rule_reached_ends_the_run_and_is_named(
    tmp_path: Path, rule: str, figure: str, limit: int
):
    store = write_shards(tmp_path / "data", text_shards())
    limits = {"max_steps": 50, "epochs": 30.0, "max_seconds": 1000.0, rule: limit}
    assert train_here(make_job(tmp_path / "run", store, **limits)) == 0
    end = events(tmp_path / "run", "end")[0]
    assert end["reason"] == rule
    steps = events(tmp_path / "run", "step")
    assert steps[-1][figure] >= limit > steps[-2][figure]


def test_time_alone_can_end_a_run(tmp_path: Path):
    store = write_shards(tmp_path / "data", text_shards())
    assert train_here(make_job(tmp_path / "run", store, max_steps=None, max_seconds=0.5)) == 0
    end = events(tmp_path / "run", "end")[0]
    assert end["reason"] == "max_seconds"
    assert 0.5 <= end["seconds"] < 10


def test_part_of_an_epoch_is_a_length_too(tmp_path: Path):
    store = write_shards(tmp_path / "data", text_shards())
    assert train_here(make_job(tmp_path / "run", store, max_steps=None, epochs=0.5)) == 0
    start, end = events(tmp_path / "run", "start")[0], events(tmp_path / "run", "end")[0]
    assert end["samples"] == pytest.approx(start["samples"] / 2, abs=8)


def test_several_groups_are_mixed_by_size_and_resumed_exactly(tmp_path: Path):
    store = write_shards(tmp_path / "data", text_shards())
    sources = (
        DataSource(store=store, prefix="d/train/train-00000"),
        DataSource(store=store, prefix="d/train/train-0000", stem=None),
    )
    whole = make_job(tmp_path / "whole", store, train=sources, epochs=2.0, max_steps=None)
    assert train_here(whole) == 0
    assert events(tmp_path / "whole", "end")[0]["epoch"] == 2.0
    halves = tmp_path / "halves"
    job = make_job(halves, store, train=sources, epochs=2.0, max_steps=None, max_samples=64)
    assert train_here(job) == 0
    job = make_job(halves, store, train=sources, epochs=2.0, max_steps=None, resume="latest")
    assert train_here(job) == 0
    samples = [event["samples"] for event in events(tmp_path / "whole", "step")]
    assert [event["samples"] for event in events(halves, "step")] == samples


def test_several_groups_are_evaluated_together(tmp_path: Path):
    store = write_shards(tmp_path / "data", text_shards())
    twice = (DataSource(store=store, prefix="d/val/"),) * 2
    assert train_here(make_job(tmp_path / "two", store, val=twice, max_steps=2)) == 0
    assert train_here(make_job(tmp_path / "one", store, max_steps=2)) == 0
    two, one = events(tmp_path / "two", "eval")[0], events(tmp_path / "one", "eval")[0]
    assert two["samples"] == 2 * one["samples"]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-12)


def test_bf16_and_sgd_train_too(tmp_path: Path):
    store = write_shards(tmp_path / "data", text_shards())
    job = make_job(tmp_path / "run", store, precision="bf16", optimizer="sgd", lr=0.1, max_steps=20)
    assert train_here(job) == 0
    found = losses(tmp_path / "run")
    assert found[-1] < found[0] - 0.3


def test_missing_data_and_denied_data_are_told_before_the_first_step(tmp_path: Path):
    store = write_shards(tmp_path / "data", text_shards())
    nothing = (DataSource(store=store, prefix="d/nothing/"),)
    assert train_here(make_job(tmp_path / "run", store, train=nothing)) == 3
    error = events(tmp_path / "run", "error")[0]
    assert "d/nothing/" in error["message"]
    assert error["exit_code"] == 3
    assert not events(tmp_path / "run", "start")


def test_record_that_breaks_after_the_first_step_is_the_runs_failure(tmp_path: Path):
    """Exit 1 then, with the cause's own code in the event; skipped and counted when allowed."""
    shards = text_shards(shards=40, records=8)
    shards["d/train/train-00031.jsonl"] += b'{"text": 5}\n'
    store = write_shards(tmp_path / "data", shards)
    limits = {"max_steps": None, "epochs": 1.0, "batch_size": 2, "prefetch": 0, "seed": 1}
    code = train_here(make_job(tmp_path / "run", store, **limits))
    error = events(tmp_path / "run", "error")[0]
    assert code == error["exit_code"] == (1 if losses(tmp_path / "run") else 3)
    assert error["detail"]["cause"] == 3
    assert "train-00031.jsonl" in error["message"]
    assert train_here(make_job(tmp_path / "skip", store, on_bad="skip", **limits)) == 0
