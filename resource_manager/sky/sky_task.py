"""The task of a run that Quark itself hands to SkyPilot: what `export` writes, held to what was confirmed. Pure.

Beside the export's task it names one place and a highest price, its machine destroys itself when it is
idle, and all of it, the packages' installation too, ends at a deadline. Everything is in `run`: a
machine whose `setup` fails is kept by SkyPilot "for debugging purposes", and billed.
"""

import shlex
from typing import Any

import msgspec

from resource_manager.export_format import Export
from resource_manager.exports.skypilot import environment_commands, resources_of
from tools_utilities.yaml_text import dump_yaml

TASK = "task.yaml"
MARK = "@quark "
"""Before each event of the metrics in what the run prints."""
STOP_FILE = "stop"
"""In the run's folder there: asks it to save and end."""
FIRST_NODE = '$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
IDLE_MINUTES = 5
"""After the run's end, for its last lines to be read; then the machine destroys itself."""
KILL_SECONDS = 180
"""Behind the deadline, at which the run is asked to save."""
OVER_CODE = 143
SUPERVISOR = "resource_manager.sky.sky_supervisor"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a task is held to."""

    infra: str | None
    """None: wherever SkyPilot finds the cheapest."""
    price_hour: float | None
    """Dollars, of all nodes; None: its price is not known."""
    deadline: float | None = None
    """Unix seconds at which the run is asked to save and end; None: `seconds` from its start."""
    seconds: float = 0.0
    disk_gb: float = 0.0
    managed: bool = False
    """SkyPilot watches over its machines itself: they are removed with the job, and found again."""
    python: str = "python3"
    folder: str = ""
    """Quark's own folder there."""


def task_text(export: Export, held: Held) -> str:
    """Return the task, with the files beside it as its work folder."""
    task = {
        "name": export.job.name,
        "num_nodes": export.job.nodes,
        "resources": _resources(export, held),
        "workdir": ".",
        "run": _run(export, held),
    }
    return f"# Quark's run {export.job.name}, held to what was confirmed.\n{dump_yaml(task)}"


def dry_text(export: Export, held: Held) -> str:
    """Return a task that asks for the same machines and runs nothing."""
    task = {
        "name": export.job.name,
        "num_nodes": export.job.nodes,
        "resources": _resources(export, held),
        "run": "true",
    }
    return dump_yaml(task)


def _resources(export: Export, held: Held) -> dict[str, Any]:
    found: dict[str, Any] = resources_of(export)
    found["disk_size"] = int(held.disk_gb)
    if held.infra is not None:
        found["infra"] = held.infra
    if held.price_hour:
        found["max_hourly_cost"] = round(held.price_hour / export.job.nodes, 6)
    if not held.managed:
        found["autostop"] = {"idle_minutes": IDLE_MINUTES, "down": True}
    return found


def _run(export: Export, held: Held) -> str:
    python = shlex.quote(f"{held.folder}/environment/bin/python")
    inner = "\n".join(
        [
            "set -e",
            *environment_commands(held.folder, held.python, export.wheel),
            f"mkdir -p {shlex.quote(export.folder)}",
            f"cp -r . {shlex.quote(export.folder)}/",
            f'exec {python} -P -m {SUPERVISOR} {shlex.quote(export.folder)} "$1" "$2"',
        ]
    )
    program = f'bash -c {shlex.quote(inner)} quark "$deadline" "$head"'
    until = f"$(( $(date +%s) + {held.seconds:.0f} ))"
    return "\n".join(
        [
            f"deadline={until if held.deadline is None else f'{held.deadline:.0f}'}",
            f"left=$(( deadline + {KILL_SECONDS} - $(date +%s) ))",
            'if [ "$left" -le 0 ]; then',
            '  echo "the time of this run is over"',
            f"  exit {OVER_CODE}",
            "fi",
            f"head={FIRST_NODE}" if export.job.nodes > 1 else "head=",
            f'exec timeout --kill-after=30 "$left" {program}',
            "",
        ]
    )
