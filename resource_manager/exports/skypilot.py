"""SkyPilot: a task that its own program starts on a cloud, with Quark's wheel and the job beside it.

SkyPilot is not imported. Secrets are named and not written: `sky launch --secret NAME` sends them.
A spot machine that is taken away is found again by `sky jobs launch`; checkpoints in a store are what
the run then goes on from.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resource_manager.export_format import Export, ExportFormat, start_command
from tools_utilities.yaml_text import dump_yaml

TASK = "task.yaml"
FOLDER = "/tmp/quark"  # noqa: S108 - of a machine that is this run's alone; home folders differ


class SkyPilot:
    """The format `skypilot`."""

    name = "skypilot"
    ships = True
    sends_files = True
    needs_gpu_type = True
    credentials = "as --secret of sky"

    def __init__(self, folder: str = FOLDER) -> None:
        """`folder`: Quark's own on the machines."""
        self.folder = folder
        self.run_root, self.cache_folder = f"{folder}/runs", f"{folder}/cache"

    def texts(self, export: Export) -> Mapping[str, str]:
        """Return the task."""
        head = "" if export.job.nodes == 1 else '$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
        python = f"{self.folder}/environment/bin/python"
        task: dict[str, Any] = {
            "name": export.job.name,
            "num_nodes": export.job.nodes,
            "resources": resources_of(export),
            "workdir": ".",
            "setup": "\n".join(
                ["set -e", *environment_commands(self.folder, "python3", export.wheel), ""]
            ),
            "run": "\n".join(
                [
                    "set -e",
                    f"mkdir -p {shlex.quote(export.folder)}",
                    f"cp -r . {shlex.quote(export.folder)}/",
                    f"exec {start_command(export, (python,), head)}",
                    "",
                ]
            ),
        }
        return {TASK: _told(export) + dump_yaml(task)}

    def next_command(self, folder: Path) -> str:
        """Return the command that starts it."""
        return f"cd {shlex.quote(str(folder))} && sky jobs launch {TASK}"


def _told(export: Export) -> str:
    secrets = "".join(f" --secret {name}" for name in export.variables)
    return f"# Quark's run {export.job.name}. Start it here, in its folder: sky jobs launch{secrets} {TASK}\n"


def environment_commands(folder: str, python: str, wheel: str) -> list[str]:
    """Return lines of shell that make Quark's environment in a folder of a cloud's machine.

    The Python of its image may be too old (SkyPilot's own images have 3.10); then `uv`, which SkyPilot
    puts there, brings one.
    """
    made = shlex.quote(f"{folder}/environment")
    inside, named = shlex.quote(f"{folder}/environment/bin/python"), shlex.quote(python)
    new_enough = "import sys; sys.exit(sys.version_info < (3, 11))"
    return [
        f"mkdir -p {shlex.quote(folder)}",
        f"if [ ! -x {inside} ]; then",
        f"  if {named} -c {shlex.quote(new_enough)}; then {named} -m venv {made}",
        f'  else "$(command -v uv || echo "$HOME/.local/bin/uv")" venv --seed --python 3.12 {made}; fi',
        "fi",
        f"{inside} -m pip install -c constraints.txt ./{shlex.quote(wheel)}",
    ]


def resources_of(export: Export) -> dict[str, Any]:
    """Return what a task asks for on each node."""
    found: dict[str, Any] = {}
    if export.gpus:
        found["accelerators"] = f"{export.gpu_type}:{export.gpus}"
    else:
        found["cpus"] = f"{max(2, export.job.processes * (1 + export.job.workers))}+"
    if export.spot:
        found["use_spot"] = True
    return found


EXPORT_FORMAT: ExportFormat = SkyPilot()
