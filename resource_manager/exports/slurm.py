"""Slurm: a batch script; one agent a node, started by srun, which meet on the first node.

The nodes share this machine's files, so the run is in `runs/` here as any other, and Quark is the one
that wrote the script. Before the time is up, and before a requeue, ranks save; a requeued or submitted
again job goes on from there.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from brain.ml.run_files import JOB_FILE
from resource_manager.export_format import SAVE_SECONDS, Export, ExportFormat, start_command

SCRIPT = "run.sbatch"
_MORE_SECONDS = 2 * SAVE_SECONDS
"""Over the run's own limit: to start, and to save."""


class Slurm:
    """The format `slurm`."""

    name = "slurm"
    ships = False
    sends_files = False
    run_root = ""
    needs_gpu_type = False
    credentials = "in the environment of sbatch"
    cache_folder = ""

    def texts(self, export: Export) -> Mapping[str, str]:
        """Return the script."""
        job = export.job
        # Not a pipe into `head`: who writes into one that is closed fails, and so would the script.
        first = 'read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
        run = ["srun", *(["--ntasks-per-node=1"] if job.nodes > 1 else [])]
        lines = [
            "#!/bin/bash",
            f"# Quark's run {job.name}. The nodes must see this folder and the run's under the same paths.",
            *(f"#SBATCH --{line}" for line in _directives(export)),
            "set -euo pipefail",
            f"run_dir={shlex.quote(export.folder)}",
            'mkdir -p -- "$run_dir"',
            f'install -m 600 -- "$SLURM_SUBMIT_DIR/{JOB_FILE}" "$run_dir/{JOB_FILE}"',
            *([first] if job.nodes > 1 else []),
            f"exec {' '.join(run)} {start_command(export, export.program, '$head')}",
        ]
        return {SCRIPT: "\n".join(lines) + "\n"}

    def next_command(self, folder: Path) -> str:
        """Return the command that submits it."""
        return f"cd {shlex.quote(str(folder))} && sbatch {SCRIPT}"


def _directives(export: Export) -> list[str]:
    job = export.job
    lines = [f"job-name={job.name}", f"nodes={job.nodes}", "ntasks-per-node=1"]
    lines += [f"cpus-per-task={job.processes * (1 + job.workers)}"]
    if export.gpus:
        kind = f"{export.gpu_type.lower()}:" if export.gpu_type else ""
        lines.append(f"gpus-per-node={kind}{export.gpus}")
    if job.max_seconds is not None:
        lines.append(f"time={_clock(job.max_seconds + _MORE_SECONDS)}")
    return [
        *lines,
        f"signal=TERM@{SAVE_SECONDS}",
        "requeue",
        "open-mode=append",
        "output=%x-%j.log",
    ]


def _clock(seconds: float) -> str:
    minutes = -(-int(seconds) // 60)
    return f"{minutes // 60}:{minutes % 60:02}:00"


EXPORT_FORMAT: ExportFormat = Slurm()
