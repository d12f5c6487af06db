"""The sample log over several starts, whoever started them, and after a rank was killed."""

from pathlib import Path

import torch

from brain.ml.process_group import ProcessGroup, World
from brain.ml.sample_log import SampleLog, final_samples, hash_of
from brain.ml.token_source import Batch


def _batch(*rows: int) -> Batch:
    return Batch(
        tokens_BT=torch.tensor([[row, 0] for row in rows]),
        lengths_B=torch.ones(len(rows), dtype=torch.int64),
    )


def _start(run_dir: Path, rank: int = 0) -> SampleLog:
    return SampleLog(run_dir, ProcessGroup(World(rank=rank)))


def test_steps_made_again_after_a_resume_count_once(tmp_path: Path):
    """Each start by hand: nobody numbers them, and the last one had another rank."""
    first = _start(tmp_path)
    for step in (1, 2, 3):
        first.write(step, [_batch(step)])
    _start(tmp_path).write(2, [_batch(20)])
    _start(tmp_path, rank=1).write(3, [_batch(30)])
    assert final_samples(tmp_path) == {1: [hash_of([1])], 2: [hash_of([20])], 3: [hash_of([30])]}


def test_line_that_a_killed_rank_left_half_written_spoils_no_other(tmp_path: Path):
    _start(tmp_path).write(1, [_batch(1, 2)])
    path = tmp_path / "samples/rank-00000.jsonl"
    path.write_bytes(path.read_bytes() + b'{"start": 1, "step": 2, "sam')
    _start(tmp_path).write(2, [_batch(3)])
    assert final_samples(tmp_path) == {1: [hash_of([1]), hash_of([2])], 2: [hash_of([3])]}
