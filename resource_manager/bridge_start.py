"""Starts a bridge's pipeline on the machine that was rented for it: what a run's supervisor does there."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from brain.ml.run_files import LOG_FILE, METRICS_FILE
from resource_manager.launch_target import RunHandle
from resource_manager.launch_targets.local import LocalRun
from tools_utilities.process_environment import OWN_PATH, child_environment, own_program

BRIDGE_FILE = "bridge.json"
"""What says that a folder is a pipeline's, and no training run's."""
PROGRAM = "tools_utilities.bridge.rented_process"


def pipeline_start(folder: Path) -> Callable[[], RunHandle] | None:
    """Return what starts the pipeline of a folder; None: the folder is none of a pipeline."""
    if not (folder / BRIDGE_FILE).is_file():
        return None
    return lambda: _started(folder)


def _started(folder: Path) -> RunHandle:
    with (folder / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
            own_program(PROGRAM, str(folder), str(folder / METRICS_FILE)),
            env=child_environment(OWN_PATH),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    return LocalRun(process, folder)
