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
    run_root = f"{FOLDER}/runs"
    needs_gpu_type = True
    credentials = "as --secret of sky"

    def texts(self, export: Export) -> Mapping[str, str]:
        """Return the task."""
        head = "" if export.job.nodes == 1 else '$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
        python = f"{FOLDER}/environment/bin/python"
        task: dict[str, Any] = {
            "name": export.job.name,
            "num_nodes": export.job.nodes,
            "resources": _resources(export),
            "workdir": ".",
            "setup": "\n".join(
                [
                    "set -e",
                    f"mkdir -p {FOLDER}",
                    f"test -x {python} || python3 -m venv {FOLDER}/environment",
                    f"{python} -m pip install -c constraints.txt ./{export.wheel}",
                    "",
                ]
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


def _resources(export: Export) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if export.gpus:
        found["accelerators"] = f"{export.gpu_type}:{export.gpus}"
    else:
        found["cpus"] = f"{max(2, export.job.processes * (1 + export.job.workers))}+"
    if export.spot:
        found["use_spot"] = True
    return found


EXPORT_FORMAT: ExportFormat = SkyPilot()
