"""`quark demo`: the whole path on real parts, in under three minutes, and its promises checked.

Makes a dataset from the standard library's sources, trains on it as anybody would (`quark "train
quark with data/datasets/demo …"`, a program of its own), interrupts that run once and resumes it,
trains its uninterrupted twin, and compares: both end with the same validation loss, well below the
entropy of the validation text's bytes.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.run_files import METRICS_FILE
from resource_manager.demo_data import DemoData, make_demo_data
from resource_manager.live_view import LiveRun
from resource_manager.run_summary import picture
from resource_manager.run_watch import read_events
from tools_utilities.console import Console
from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.run_words import said_run
from tools_utilities.terminal_text import COMMAND, Line, Span, human_bytes, human_seconds, pairs

DATASET = "data/datasets/demo"
DEMO_STEPS = 120
DEMO_SETTINGS = {"layers": 2, "seq_len": 128, "batch_size": 16, "lr": 3e-3}
"""A model small enough for two cores, large enough to learn what Python looks like."""
INTERRUPT_AT = 1 / 3
"""Share of the steps after which the first run is interrupted."""
LEAST_GAIN = 0.5
"""Nats by which the validation loss must be below the entropy of single bytes."""
MOST_DIFFERENCE = 1e-6
POLL_SECONDS = 0.05
STDERR = 2
INTERRUPTED = 130


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, for the screen and for `--json`."""

    schema: int = 1
    data: DemoData
    runs: tuple[str, str]
    """The interrupted and resumed run, and its uninterrupted twin."""
    interrupted_at: int
    """Last step before the interrupt."""
    val_losses: tuple[float, float]
    seconds: float
    kept: tuple[tuple[str, bool], ...]
    """Each promise, and whether it was kept."""


class Demo:
    """One demonstration in a project folder."""

    def __init__(
        self,
        root: Path,
        runs_dir: Path,
        console: Console,
        *,
        slots: Mapping[str, Any] | None = None,
        program: Sequence[str] | None = None,
        make_data: Callable[[Path], DemoData] = make_demo_data,
    ) -> None:
        self._root = root
        self._runs_dir = runs_dir
        self._console = console
        self._make_data = make_data
        self._slots = dict(slots or {})
        # The program beside these packages, installed or not, run by the Python that runs now.
        here = Path(__file__).resolve().parents[1] / "quark_cli.py"
        self._program = tuple(program or (sys.executable, str(here)))

    def run(self) -> int:
        """Run it; returns 0 when every promise was kept, else 1."""
        if self._slots.get("plan_only"):
            self._console.result(
                [f'plan: make {DATASET}/, then: quark "{self._sentence()}"'],
                {"schema": 1, "plan_only": True, "data": DATASET, "sentence": self._sentence()},
            )
            return 0
        began = time.monotonic()
        self._console.note([Span("1/4  ", "title"), f"making {DATASET}/ from Python's own sources"])
        data = self._make_data(self._root / DATASET)
        self._console.note(
            f"     {data.num_train_samples:,} training and {data.num_val_samples:,} validation"
            f" records, {human_bytes(data.num_bytes)}"
        )
        first, second = self._free_names()
        self._console.note([Span("2/4  ", "title"), f"training {first}, to be interrupted"])
        stopped_at = self._train_and_interrupt(first)
        self._console.note([Span("3/4  ", "title"), f"resuming {first} after step {stopped_at}"])
        self._expect(self._child(f"resume {first}"), 0)
        self._console.note([Span("4/4  ", "title"), f"training {second}, its uninterrupted twin"])
        self._expect(self._child(self._sentence(), name=second), 0)
        runs = (self._read(first), self._read(second))
        result = self._result(data, runs, stopped_at, time.monotonic() - began)
        self._console.result(
            result_lines(result, runs[0].losses, self._console), msgspec.to_builtins(result)
        )
        return 0 if all(kept for _, kept in result.kept) else 1

    def _sentence(self) -> str:
        said = [
            f"for {self._slots[name]:g} {unit}"
            for name, unit in (("epochs", "epochs"), ("max_seconds", "seconds"))
            if self._slots.get(name)
        ]
        steps = self._slots.get("max_steps") or (None if said else DEMO_STEPS)
        said += [f"for {steps} steps"] if steps else []
        return f"train quark with {DATASET} {' '.join(said)}"

    def _settings(self, name: str | None) -> list[str]:
        settings: dict[str, Any] = {**DEMO_SETTINGS, "data_mode": "local"}
        settings |= {key: self._slots[key] for key in ("device", "gpus") if self._slots.get(key)}
        settings |= {"name": name, "out_dir": str(self._runs_dir)}
        return [
            part for key, value in settings.items() for part in ("--override", f"{key}={value}")
        ]

    def _start(self, sentence: str, name: str | None) -> subprocess.Popen[bytes]:
        flags = self._settings(name) if name else ["--override", f"out_dir={self._runs_dir}"]
        # What the child would write as its result is progress here: our own result is one thing.
        return subprocess.Popen(  # noqa: S603 - our own program, arguments never through a shell
            [*self._program, sentence, "--yes", *flags],
            cwd=self._root,
            stdin=subprocess.DEVNULL,
            stdout=STDERR,
        )

    def _child(
        self,
        sentence: str,
        name: str | None = None,
        act: Callable[[subprocess.Popen[bytes]], None] | None = None,
    ) -> int:
        """Run the program on a sentence; `act` may do something to it meanwhile."""
        child = self._start(sentence, name)
        try:
            if act:
                act(child)
            return child.wait()
        finally:
            if child.poll() is None:  # we are leaving early: so does the child, saving
                child.terminate()
                child.wait()

    def _train_and_interrupt(self, name: str) -> int:
        """Train until a third is done, interrupt, and return the last step that was recorded."""
        metrics = self._runs_dir / name / METRICS_FILE

        def interrupt(child: subprocess.Popen[bytes]) -> None:
            while child.poll() is None:
                steps, total = _progress(metrics)
                if total and steps >= total * INTERRUPT_AT:
                    child.send_signal(signal.SIGINT)
                    return
                time.sleep(POLL_SECONDS)

        self._expect(self._child(self._sentence(), name, interrupt), INTERRUPTED)
        return _progress(metrics)[0]

    def _expect(self, code: int, expected: int) -> None:
        if code == INTERRUPTED and expected != code:
            raise KeyboardInterrupt
        if code != expected:
            raise QuarkError(
                f"the demo's run ended with exit code {code}, not {expected}",
                hint=f"Its log is in {self._runs_dir}; `quark doctor` checks this machine.",
            )

    def _free_names(self) -> tuple[str, str]:
        number = 1
        while any((self._runs_dir / f"demo-{n}").exists() for n in (number, number + 1)):
            number += 1
        return f"demo-{number}", f"demo-{number + 1}"

    def _read(self, name: str) -> LiveRun:
        run = LiveRun(name)
        for event in read_events(self._runs_dir / name / METRICS_FILE):
            run.take(event)
        if run.end.get("val_loss") is None:
            raise QuarkError(f"{name} ended without a validation loss")
        return run

    def _result(
        self, data: DemoData, runs: tuple[LiveRun, LiveRun], stopped_at: int, seconds: float
    ) -> DemoResult:
        losses = (float(runs[0].end["val_loss"]), float(runs[1].end["val_loss"]))
        gain = data.val_entropy - max(losses)
        steps = int(runs[0].end["step"])
        return DemoResult(
            data=data,
            runs=(runs[0].name, runs[1].name),
            interrupted_at=stopped_at,
            val_losses=losses,
            seconds=seconds,
            kept=(
                (f"learned: {gain:.2f} nats below single bytes", gain >= LEAST_GAIN),
                (
                    f"the same with and without the interruption (apart {abs(losses[0] - losses[1]):.1g})",
                    abs(losses[0] - losses[1]) <= MOST_DIFFERENCE,
                ),
                (f"interrupted at step {stopped_at} of {steps}", 0 < stopped_at < steps),
            ),
        )


def _progress(metrics: Path) -> tuple[int, int | None]:
    """Return (last step, steps in all) of a run so far."""
    try:
        events = read_events(metrics)
    except UsageError:
        return 0, None
    run = LiveRun("")
    for event in events:
        run.take(event)
    return int(run.step.get("step") or 0), run.start.get("total_steps")


def result_lines(result: DemoResult, losses: list[float], console: Console) -> list[Line]:
    """Return the demo's summary and its picture."""
    width = console.result_width
    rows = [
        ("data", f"{human_bytes(result.data.num_bytes)} of Python sources, 24 shards"),
        ("single bytes", f"{result.data.val_entropy:.4f} nats (entropy of the validation text)"),
        (result.runs[0], f"{result.val_losses[0]:.9g} nats, interrupted and resumed"),
        (result.runs[1], f"{result.val_losses[1]:.9g} nats, uninterrupted"),
        ("time", human_seconds(result.seconds)),
    ]
    marks = {True: Span("kept    ", "green"), False: Span("broken  ", "error")}
    promises: list[Line] = [[marks[kept], promise] for promise, kept in result.kept]
    return [
        [Span("demo", "title"), "  validation loss of the same run, twice"],
        *pairs(rows, width=width),
        *picture(losses, width=width, draw=console.draws_blocks),
        "",
        *promises,
        [Span("next  ", "dim"), Span(f"quark show {said_run(result.runs[0])}", COMMAND)],
    ]
