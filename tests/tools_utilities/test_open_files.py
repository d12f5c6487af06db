"""The soft limit on open files is raised at the start of each program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
BEFORE = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096)); "
AFTER = "; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"


@pytest.mark.parametrize(
    "start",
    [
        "from tools_utilities.open_files import raise_open_file_limit; raise_open_file_limit()",
        "from tools_utilities.scripts.quark_cli import run_program; run_program(['--version'])",
        "from brain.ml.train import main; main([])",
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one(start):
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + start + AFTER],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )

    assert done.stdout.split()[-1] == "4096"
