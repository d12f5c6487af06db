"""The benchmark of P11 runs, and compares two loops that train alike; its figures need an idle machine."""

import subprocess
import sys

import pytest

from tests.test_layout import ROOT


@pytest.mark.timeout(180)
def test_trainer_and_bare_loop_make_the_same_steps():
    sizes = {"rounds": 2, "steps": 3, "warm-up": 1, "threads": 1, "layers": 1, "seq-len": 16}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "benchmarks/trainer_overhead.py", *options],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=170,
    )  # fmt: skip
    # It ends otherwise when the losses of the two differ.
    assert done.returncode == 0, done.stderr
    assert "2 rounds of 3 steps" in done.stdout
    assert "| wall |" in done.stdout
    assert "| processor time |" in done.stdout
    assert "P11" in done.stdout
