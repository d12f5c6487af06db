"""Every experiment tracker: installed by an extra of its name, loaded only when a run is opened."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from brain.ml.tracking import trackers

ROOT = Path(__file__).resolve().parents[2]
TRACKERS = trackers()


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_it_is_found_by_its_file_and_installed_by_an_extra_of_its_name(name):
    tracker = TRACKERS[name]
    assert tracker.name == name
    assert (ROOT / f"brain/ml/trackers/{name}.py").is_file()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert any(one.startswith(tracker.package) for one in extras[name])


def test_no_library_is_loaded_before_a_run_is_opened():
    packages = sorted({tracker.package for tracker in TRACKERS.values()} | {"torch"})
    code = (
        "import sys; from brain.ml.tracking import trackers; trackers();"
        f"print([one for one in {packages} if one in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
