"""Weights & Biases, through its own library. `WANDB_MODE=offline` keeps everything on this machine."""

from collections.abc import Sequence
from typing import Any

from brain.ml.tracker import Figures, OpenTracker, TrackedRun, Tracker

STEP = "step"


class _Wandb:
    def __init__(self, run: Any) -> None:
        self._run = run
        self.id = str(run.id)
        # Steps are told by a figure of their own: the library's counter cannot go back on a resume.
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)

    def log(self, figures: Sequence[Figures]) -> None:
        for one in figures:
            self._run.log({STEP: one.step, **one.values, "_timestamp": one.at})

    def close(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)


class _WandbTracker:
    name = "wandb"
    package = "wandb"

    def open(self, run: TrackedRun) -> OpenTracker:
        import wandb

        settings = wandb.Settings(
            # Nothing is taken beside what it is told: no output, no code, no address of a repository.
            console="off", disable_git=True, disable_code=True, disable_job_creation=True,
            x_disable_meta=True, x_save_requirements=False, silent=True,
        )  # fmt: skip
        opened = wandb.init(
            name=run.name, id=run.earlier_id, resume="allow" if run.earlier_id else None,
            dir=str(run.folder), config=dict(run.config), settings=settings,
        )  # fmt: skip
        return _Wandb(opened)


TRACKER: Tracker = _WandbTracker()
