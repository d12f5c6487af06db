"""Where things lie in a run folder, and who is running in it; imports no torch.

Files are written for their owner alone (0600); checkpoints are as the umask has it, to be handed on.

runs/<name>/
    job.yaml          what runs
    plan.json         what was confirmed
    process.json      the ranks that run, or ran last
    metrics.jsonl     events, appended
    log               standard output and error
    checkpoints/      step-00000123/ …, and `latest`
    plots/
"""

from pathlib import Path

import msgspec

from brain.ml.process_group import host_name
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared
from tools_utilities.private_files import read_plain, write_private
from tools_utilities.process_identity import ProcessIdentity

JOB_FILE = "job.yaml"
PLAN_FILE = "plan.json"
PROCESS_FILE = "process.json"
METRICS_FILE = "metrics.jsonl"
LOG_FILE = "log"
CHECKPOINTS_FOLDER = "checkpoints"
PLOTS_FOLDER = "plots"
BROKEN_FILE = "broken-step.json"
"""Names the samples of a step whose loss was no number."""


@prepared
class RunProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of one start of a run; rank 0 writes it when all ranks have met."""

    host: str
    """Of rank 0, for people; `ranks` say which machine they are on."""
    parent_pid: int
    """Of rank 0: its agent, or whoever started the one process."""
    ranks: tuple[ProcessIdentity, ...]
    started_at: float
    """Unix seconds."""
    agent: ProcessIdentity | None = None
    """Of rank 0: starts the ranks again while it lives; None: nobody does."""

    @property
    def ranks_here(self) -> tuple[ProcessIdentity, ...]:
        """The ranks whose process numbers mean something on this machine."""
        unknown = self.host == host_name()  # written by an earlier version
        return tuple(rank for rank in self.ranks if rank.here or (unknown and not rank.machine))

    @property
    def alive_here(self) -> tuple[ProcessIdentity, ...]:
        """The ranks of this machine that live."""
        return tuple(rank for rank in self.ranks_here if rank.alive)

    @property
    def agent_alive(self) -> bool:
        """Whether rank 0's agent is on this machine and lives."""
        return self.agent is not None and self.agent.here and self.agent.alive


def write_process(run_dir: Path, process: RunProcess) -> None:
    """Say who runs in a folder, atomically."""
    write_private(run_dir / PROCESS_FILE, msgspec.json.encode(process))


def read_process(run_dir: Path) -> RunProcess | None:
    """Return who runs, or ran last, in a folder; None when nobody has yet."""
    try:
        return decode_json(read_plain(run_dir / PROCESS_FILE), type=RunProcess)
    except (OSError, msgspec.DecodeError):
        return None
