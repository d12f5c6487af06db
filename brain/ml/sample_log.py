"""Which samples a rank has trained on: one JSON line a step, a hash of the tokens for each sample."""

import contextlib
import hashlib
import json
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brain.ml.process_group import ProcessGroup
from brain.ml.record_source import RecordBatch
from brain.ml.token_source import Batch
from tools_utilities.private_files import open_to_append

FOLDER = "samples"
TAIL_BYTES = 1 << 20
"""Of a log, which holds its last line: a hash takes 20 bytes."""


class SampleLog:
    """Appends to `samples/rank-00000.jsonl`: start, step, samples.

    Of a step that was made in several starts, the last start's lines count: the earlier ones were
    undone when the run went on from a checkpoint before it. Starts are counted over the whole life
    of the run, whether an agent or a person started it again: one more than any rank has noted.
    """

    def __init__(self, run_dir: Path, group: ProcessGroup) -> None:
        """Begin a start; all ranks do so together."""
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        self._start = max(group.gather_numbers(_last_start(folder))) + 1
        # Ranks that get the same data write one log.
        self._speaks = group.speaks_for_data
        self._path = folder / f"rank-{group.data_rank:05d}.jsonl"
        if self._speaks and _is_torn(self._path):
            with self._path.open("ab") as file:
                file.write(b"\n")

    def write(self, step: int, batches: Sequence[Batch | RecordBatch]) -> None:
        """Note what a step was made of."""
        if not self._speaks:
            return
        samples = [text for batch in batches for text in hashes(batch)]
        line = {"start": self._start, "step": step, "samples": samples}
        descriptor = open_to_append(self._path)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")  # one call: seldom torn
        finally:
            os.close(descriptor)


def final_samples(run_dir: Path) -> dict[int, list[str]]:
    """Return the samples of each step as it stands in the end, of all ranks together."""
    steps: dict[int, tuple[int, list[str]]] = {}
    for path in sorted((run_dir / FOLDER).glob("rank-*.jsonl")):
        for line in _lines(path.read_bytes()):
            start, samples = steps.get(line["step"], (-1, []))
            if line["start"] > start:
                steps[line["step"]] = (line["start"], line["samples"])
            elif line["start"] == start:
                steps[line["step"]] = (start, [*samples, *line["samples"]])
    return {step: samples for step, (_, samples) in sorted(steps.items())}


def _lines(data: bytes) -> list[Any]:
    """Return the lines of a log; one that a killed rank left half written is of a step it never ended."""
    found = []
    for text in data.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(text))
    return found


def _last_start(folder: Path) -> int:
    """Return the last start that any rank has noted here, 0 for none."""
    found = [0]
    for path in folder.glob("rank-*.jsonl"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            found += [line["start"] for line in _lines(file.read()) if isinstance(line, dict)]
    return max(found)


def _is_torn(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def hash_of(tokens: Sequence[int]) -> str:
    """Return the hash of one sample's tokens, 16 hexadecimal digits."""
    data = array("q", tokens).tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def hashes(batch: Batch | RecordBatch) -> list[str]:
    """Return the hash of each sample: of its tokens, or of its record."""
    if isinstance(batch, RecordBatch):
        return list(batch.hashes)
    return [
        hash_of(row[: int(length)].tolist())
        for row, length in zip(batch.tokens_BT, batch.lengths_B, strict=True)
    ]
