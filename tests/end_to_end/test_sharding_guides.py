"""The guides to sharding, followed literally, and test_sharding.sh."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools_utilities.bridge.program import ENVIRONMENT_EXAMPLE
from tools_utilities.yaml_text import load_yaml

CHECKOUT = Path(__file__).resolve().parents[2]


def commands_of(guide: str) -> str:
    """Return every shell block of a guide as one script."""
    text = (CHECKOUT / "docs" / guide).read_text()
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def follow(script: str, tmp_path: Path) -> str:
    """Run a script in a folder that has the repository's tools, and return what it printed."""
    (tmp_path / "tools_utilities").symlink_to(CHECKOUT / "tools_utilities")
    script = script.replace("export PYTHONPATH=demo", f"export PYTHONPATH=demo:{CHECKOUT}")
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{script}"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(CHECKOUT),
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_walk_through_with_two_processes_and_a_kill(tmp_path):
    printed = follow(commands_of("sharding.md"), tmp_path)

    assert "Shards: 8 total, 8 available, 0 in use, 0 completed" in printed
    assert "Shards: 8 total, 0 available, 0 in use, 8 completed" in printed
    assert "100 results, each once" in printed
    assert "machine0_host1" in printed
    records = [
        json.loads(path.read_text()) for path in tmp_path.glob("demo/sharded/shard_*/claim.json")
    ]
    assert len(records) == 8
    # The killed one held a shard, or had just completed it.
    followed = [record for record in records if record["gen"] > 1]
    first = [record for record in records if record["worker"] == "machine0_host0"]
    assert len(followed) == 1 or first


def test_the_quick_start(tmp_path):
    printed = follow(commands_of("quick-start.md"), tmp_path)

    assert printed.endswith("Shards: 4 total, 3 available, 0 in use, 1 completed\n")


def test_the_documented_shell_test(tmp_path):
    done = subprocess.run(
        ["bash", str(CHECKOUT / "test_sharding.sh")],
        env={**os.environ, "PYTHON": sys.executable, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "100 samples in 8 shards" in done.stdout
    assert '"assigned_to": "test_worker"' in done.stdout
    assert "./shard_007/metadata.json" in done.stdout
    assert "Shards: 8 total, 7 available, 0 in use, 1 completed" in done.stdout


def test_the_guides_snippets_name_what_the_bridge_reads():
    text = (CHECKOUT / "docs/dataset-guide.md").read_text()
    blocks = dict(re.findall(r"^```(hcl|yaml)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    (play,) = load_yaml(blocks["yaml"], source="dataset-guide.md")
    keys = play["tasks"][1]["ansible.builtin.copy"]

    named = {line.partition("=")[0] for line in keys["content"].splitlines()}
    assert named == {
        line.rstrip("=") for line in ENVIRONMENT_EXAMPLE.split() if line.startswith("R2_")
    }
    assert keys["mode"] == "0600"
    assert "quark-bridge run --config" in play["tasks"][2]["ansible.builtin.shell"]
    for block in re.findall(r"^```hcl\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        assert block.count("{") == block.count("}")
