"""Which samples a rank has trained on: one JSON line a step, a hash of the tokens for each sample."""

import hashlib
import json
from array import array
from collections.abc import Sequence
from pathlib import Path

from brain.ml.process_group import World
from brain.ml.token_source import Batch

FOLDER = "samples"


class SampleLog:
    """Appends to `samples/rank-00000.jsonl`: start, step, samples.

    Of a step that was made in several starts, the last start's lines count: the earlier ones were
    undone when the run went on from a checkpoint before it.
    """

    def __init__(self, run_dir: Path, world: World) -> None:
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        self._start = world.start
        self._path = folder / f"rank-{world.rank:05d}.jsonl"

    def write(self, step: int, batches: Sequence[Batch]) -> None:
        """Note what a step was made of."""
        samples = [text for batch in batches for text in hashes(batch)]
        line = {"start": self._start, "step": step, "samples": samples}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def final_samples(run_dir: Path) -> dict[int, list[str]]:
    """Return the samples of each step as it stands in the end, of all ranks together."""
    steps: dict[int, tuple[int, list[str]]] = {}
    for path in sorted((run_dir / FOLDER).glob("rank-*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            start, samples = steps.get(line["step"], (-1, []))
            if line["start"] > start:
                steps[line["step"]] = (line["start"], line["samples"])
            elif line["start"] == start:
                steps[line["step"]] = (start, [*samples, *line["samples"]])
    return {step: samples for step, (_, samples) in sorted(steps.items())}


def hash_of(tokens: Sequence[int]) -> str:
    """Return the hash of one sample's tokens, 16 hexadecimal digits."""
    data = array("q", tokens).tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def hashes(batch: Batch) -> list[str]:
    """Return the hash of each sample."""
    return [
        hash_of(row[: int(length)].tolist())
        for row, length in zip(batch.tokens_BT, batch.lengths_B, strict=True)
    ]
