"""One rank's failure ends all, in time and named; and data that cannot be dealt evenly hangs nobody."""

import json
import os
import signal
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from brain.ml.sample_log import final_samples
from tests.end_to_end.test_training_ranks import LIMIT_SECONDS, free_port
from tests.training import (
    ForkServer,
    events,
    losses,
    make_job,
    text_shards,
    wait_for,
    wait_for_step,
    write_shards,
)
from tools_utilities.object_store import StoreSpec

BREAKING = """
    import os

    from torch import nn

    class Next(nn.Module):
        def __init__(self, vocab_size):
            super().__init__()
            self.table = nn.Embedding(vocab_size, 8)
            self.head = nn.Linear(8, vocab_size)
            self.calls = 0

        def forward(self, tokens_BT):
            self.calls += 1
            if self.calls == 4 and os.environ["RANK"] == "1":
                raise ValueError("of the second rank")
            return self.head(self.table(tokens_BT))

    def build(config):
        return Next(config.vocab_size), nn.CrossEntropyLoss()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    return write_shards(tmp_path_factory.mktemp("data"), text_shards())


def _error_of_all(run_dir: Path, forks: ForkServer, pids: list[int]) -> dict[str, Any]:
    """Return the one failure that ended all ranks within the limit."""
    started = time.monotonic()
    codes = [forks.wait(pid, LIMIT_SECONDS) for pid in pids]
    assert time.monotonic() - started < LIMIT_SECONDS
    assert all(codes)
    [error] = events(run_dir, "error")
    assert not events(run_dir, "end")
    return error


@pytest.mark.parametrize(
    "changes", [{}, pytest.param({"parallel": "fsdp"}, marks=pytest.mark.nightly)]
)
def test_an_exception_while_the_others_wait_for_gradients_is_told_with_its_frame(
    tmp_path: Path,
    store: StoreSpec,
    training_forks: ForkServer,
    changes: dict[str, Any],
):
    (tmp_path / "breaking.py").write_text(textwrap.dedent(BREAKING))
    own = {"model": "breaking:build", "project_dir": str(tmp_path), "max_steps": 100_000}
    job = make_job(tmp_path / "run", store, batch_size=6, val=(), **own, **changes)
    pids = training_forks.start_ranks(job, 3, free_port())
    wait_for_step(tmp_path / "run", 3)
    error = _error_of_all(tmp_path / "run", training_forks, pids)
    assert (error["rank"], error["exit_code"]) == (1, 1)
    assert error["message"] == "ValueError: of the second rank"
    assert error["frame"].endswith("in forward")
    assert "breaking.py:" in error["frame"]
    assert len(losses(tmp_path / "run")) == 3


def test_a_rank_that_dies_while_the_others_are_in_an_exchange_is_named(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer
):
    """Stopped first, so that the others are certain to wait for it when it is killed."""
    job = make_job(tmp_path / "run", store, batch_size=6, max_steps=100_000, val=())
    pids = training_forks.start_ranks(job, 3, free_port())
    wait_for_step(tmp_path / "run", 2)
    os.kill(pids[2], signal.SIGSTOP)
    made = [-1]

    def stands_still() -> bool:
        time.sleep(0.5)
        made.append(len(losses(tmp_path / "run")))
        return made[-1] == made[-2]

    wait_for(stands_still)
    os.kill(pids[2], signal.SIGKILL)
    error = _error_of_all(tmp_path / "run", training_forks, pids)
    assert (error["rank"], error["kind"]) == (2, "RankLostError")


def test_a_record_that_breaks_in_a_loader_worker_of_one_rank_ends_all(
    tmp_path: Path, training_forks: ForkServer
):
    """The rank, the shard and the place in the code, though it was another process that read."""
    shards = text_shards(shards=12, records=12)
    shards["d/train/train-00007.jsonl"] += b'{"id": 3, "text": "never clo\n'
    store = write_shards(tmp_path / "data", shards)
    job = make_job(tmp_path / "run", store, batch_size=6, max_steps=500, workers=1, val=())
    pids = training_forks.start_ranks(job, 2, free_port())
    wait_for(lambda: events(tmp_path / "run", "error"))
    error = _error_of_all(tmp_path / "run", training_forks, pids)
    assert error["kind"] == "RecordError"
    assert "train-00007.jsonl" in error["message"]
    assert error["rank"] in (0, 1)
    assert ".py:" in error["frame"]


def _rows(*counts: int) -> dict[str, bytes]:
    """Return shards of so many samples each, no two alike."""
    made, row = {}, 0
    for number, count in enumerate(counts):
        lines = [
            json.dumps({"input_ids": [3 + (row + one) // 200, 3 + (row + one) % 200, 9]})
            for one in range(count)
        ]
        row += count
        made[f"d/train/train-{number:05d}.jsonl"] = "".join(f"{line}\n" for line in lines).encode()
    return made


def _dealt(tmp_path: Path, forks: ForkServer, counts: tuple[int, ...], **changes: Any) -> list[int]:
    """Return the exit codes of three ranks that train on such shards for two epochs."""
    settings = {"epochs": 2.0, "max_steps": None, "batch_size": 6, "val": (), "sample_log": True}
    store = write_shards(tmp_path / "data", _rows(*counts))
    job = make_job(tmp_path / "run", store, **{**settings, **changes})
    pids = forks.start_ranks(job, 3, free_port())
    return [forks.wait(pid, 50) for pid in pids]


@pytest.mark.parametrize(
    ("counts", "changes"),
    [
        ((1, 30, 0, 9), {}),
        ((1, 30, 0, 9), {"equalize": "pad", "parallel": "fsdp", "grad_accum": 2}),
        pytest.param((20,), {"workers": 1}, marks=pytest.mark.nightly),
        ((0, 4), {"equalize": "pad"}),
    ],
)
def test_uneven_empty_and_too_few_shards_are_dealt(
    tmp_path: Path, training_forks: ForkServer, counts: tuple[int, ...], changes: dict[str, Any]
):
    """Each sample of an epoch once, but for what does not go round: left out, or repeated."""
    assert _dealt(tmp_path, training_forks, counts, **changes) == [0, 0, 0]
    times = Counter(
        sample for samples in final_samples(tmp_path / "run").values() for sample in samples
    )
    left = sum(counts) % 3
    repeated = left and 3 - left
    if changes.get("equalize") == "pad":
        assert len(times) == sum(counts)
        assert times.total() == 2 * (sum(counts) + repeated)
    else:
        assert times.total() == 2 * (sum(counts) - left)
        assert max(times.values()) == 2
    assert events(tmp_path / "run", "end")[0]["epoch"] == 2.0


@pytest.mark.parametrize(
    ("counts", "changes", "said"),
    [
        ((2,), {}, "no samples to train on"),
        ((0, 0), {}, "no records"),
        ((5, 5), {"partition": "files"}, "insufficient files: 2 files for 3 workers"),
    ],
)
def test_what_cannot_be_dealt_at_all_ends_every_rank_before_a_step(
    tmp_path: Path,
    training_forks: ForkServer,
    counts: tuple[int, ...],
    changes: dict[str, Any],
    said: str,
):
    assert 0 not in _dealt(tmp_path, training_forks, counts, **changes)
    [error] = events(tmp_path / "run", "error")
    assert said in error["message"]
    assert not events(tmp_path / "run", "step")
