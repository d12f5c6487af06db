"""Damaged shards and indexes through every reader: an error of ours or samples, in bounded time and memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.matrix import Cells, matrix
from tests.reliability.mutate import READERS

CASES = 20_400
NIGHTLY_CASES = 200_000
ROOT = Path(__file__).resolve().parents[2]


def mutate(name: str, seed: int, count: int, place: Path) -> tuple[int, list[str]]:
    """Run a reader over damaged data in a process of its own; returns cases and failures."""
    command = [sys.executable, "-m", "tests.reliability.mutate", name, str(seed), str(count)]
    process = subprocess.Popen(
        [*command, str(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    try:
        out, err = process.communicate(timeout=60 + count / 20)
        ended = f"ended with {process.returncode}: {err.decode(errors='replace')[-300:]}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        ended = "hangs"
    if process.returncode == 0:
        found = json.loads(out)
        assert found["refused"], f"{name}: no damage was noticed"
        return found["cases"], found["failures"]
    number = int.from_bytes(place.read_bytes(), "little")
    return count, [f"case {number}: {ended}"]


def run(cells: Cells, num_cases: int, place: Path) -> None:
    for name in READERS:
        if cells.wanted(name):
            count, failures = mutate(name, cells.seed, -(-num_cases // len(READERS)), place)
            for _ in range(count - len(failures)):
                cells.add(name)
            for failure in failures:
                cells.add(name, failure)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_thousand_damages(request, tmp_path):
    with matrix("MUTATED", request) as cells:
        run(cells, CASES, tmp_path / "place")


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_two_hundred_thousand_damages(request, tmp_path):
    with matrix("MUTATED", request) as cells:
        run(cells, NIGHTLY_CASES, tmp_path / "place")
