"""A small project, and a ResourceManager in it whose target only records what it is to launch."""

import io
import json
from pathlib import Path

from brain.ml.training_job import TrainingJob
from resource_manager.accelerators import Accelerators
from resource_manager.launch_target import LaunchPlan, Machine, RunStatus
from resource_manager.manager import ResourceManager
from tools_utilities.console import Console, Surroundings

END = {
    "event": "end", "reason": "done", "exit_code": 0, "step": 2, "epoch": 0.1, "loss": 1.0,
    "val_loss": 1.1, "seconds": 1.0, "samples": 8, "tokens": 80, "stats": {}, "time": 2.0,
}  # fmt: skip


class EndedRun:
    """A run that ended before anybody looked."""

    pid = 1

    def __init__(self, code: int):
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout_seconds: float | None = None) -> int:
        return self.code

    def interrupt(self) -> None:
        raise AssertionError

    terminate = kill = interrupt

    def news(self) -> list[str]:
        return []


class RecordingTarget:
    """A target that writes the events it was given instead of training."""

    name = "recording"

    def __init__(self, *events: dict[str, object], code: int = 0):
        self.events = events
        self.code = code
        self.jobs: list[TrainingJob] = []

    def for_command(self, tell: object, *, may_ask: bool = True) -> "RecordingTarget":
        return self

    def close(self) -> None:
        """Nothing is open."""

    def look(self, job: TrainingJob) -> Machine:
        return Machine(accelerators=Accelerators(cuda=False, cards=0, mps=False))

    def attach(self, run_dir: Path) -> EndedRun:
        return EndedRun(self.code)

    def status(self, run_dir: Path) -> RunStatus:
        return RunStatus(state="ended", exit_code=self.code)

    def logs(self, run_dir: Path) -> Path:
        return run_dir / "log"

    def stop(self, run_dir: Path) -> None:
        raise AssertionError

    remove = collect = stop

    def verify_gone(self, run_dir: Path) -> tuple[str, ...]:
        return ()

    def plan(self, job: TrainingJob) -> LaunchPlan:
        return LaunchPlan(job=job, argv=(), environment={}, log_path=Path(job.run_dir) / "log")

    def launch(self, plan: LaunchPlan) -> EndedRun:
        self.jobs.append(plan.job)
        with (Path(plan.job.run_dir) / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in self.events)
        plan.log_path.write_text("one\ntwo\nlast words \x1b[31m\n")
        return EndedRun(self.code)


def write_group(folder: Path, stem: str = "train-", count: int = 8) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        rows = (json.dumps({"id": n * 40 + i, "text": f"sample {i} of {n}"}) for i in range(60))
        (folder / f"{stem}{n:05}.jsonl").write_text("\n".join(rows) + "\n")


def make_manager(project: Path, target: RecordingTarget | None = None, **rest):
    out, err = io.StringIO(), io.StringIO()
    console = Console(
        Surroundings(json=bool(rest.pop("json", False)), yes=bool(rest.pop("yes", False))),
        stdin=io.StringIO(), stdout=out, stderr=err,
    )  # fmt: skip
    target = target or RecordingTarget(END)
    manager = ResourceManager(console=console, target=target, start_dir=project, **rest)
    return manager, target, out, err


class Said:
    """A reading."""

    def __init__(self, *, overrides: dict[str, object] | None = None, **slots: object):
        self.slots = {**slots, **(overrides or {})}
        self.overrides = overrides or {}
        self.canonical: str | None = "canonical words"
