"""Watching a run: what is shown, which signals are passed on, how it ends."""

import contextlib
import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from resource_manager.live_view import LiveRun, flow
from resource_manager.rental.rental_record import RentalRecord, cost_reader, write_rental
from resource_manager.run_summary import summary_lines
from resource_manager.run_watch import Bond, MetricsTail, RunWatch, last_log_lines, read_events
from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import UsageError
from tools_utilities.terminal_text import plain, width_of

START = {
    "event": "start", "schema": 1, "run": "fox-1", "world_size": 2, "device": "cpu",
    "parameters": 1000, "resumed_from_step": None, "total_steps": 100, "samples": None,
    "precision": "fp32",
}  # fmt: skip


def step_event(step: int, loss: float = 2.0) -> dict[str, object]:
    return {
        "event": "step", "step": step, "epoch": step / 100, "loss": loss, "lr": 1e-3,
        "grad_norm": 0.5, "samples": step * 8, "tokens": step * 2048, "tokens_per_second": 12345.6,
        "step_seconds": 0.1, "data_wait_share": 0.03, "data_bytes_per_second": 3.2e6,
        "cache_hit_rate": 0.97, "retries": 4, "eta_seconds": 80,
    }  # fmt: skip


END = {
    "event": "end", "reason": "done", "exit_code": 0, "step": 100, "epoch": 1.0, "loss": 1.5,
    "val_loss": 1.6, "seconds": 61.0, "samples": 800, "tokens": 204800, "stats": {},
}  # fmt: skip


class ScriptedRun:
    """A run that does one thing a poll: write events, receive a signal, or end."""

    pid = 0

    def __init__(self, metrics: Path, *script: object):
        self.metrics = metrics
        self.script = list(script)
        self.calls: list[str] = []

    def poll(self) -> int | None:
        action = self.script.pop(0)
        if isinstance(action, signal.Signals):  # also an int
            os.kill(os.getpid(), action)
        elif isinstance(action, int):
            return action
        elif action is not None:
            with self.metrics.open("a") as file:
                file.write(json.dumps(action) + "\n")
        return None

    def wait(self, timeout_seconds: float | None = None) -> int:
        raise NotImplementedError

    def interrupt(self) -> None:
        self.calls.append("interrupt")

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")

    def news(self) -> list[str]:
        return []


def watch(tmp_path: Path, *script: object, json_output: bool = False):
    out, err = io.StringIO(), io.StringIO()
    console = Console(Surroundings(json=json_output), stdin=io.StringIO(), stdout=out, stderr=err)
    handle = ScriptedRun(tmp_path / "metrics.jsonl", *script)
    clock = iter(range(0, 10_000, 11))
    watched = RunWatch(
        "fox-1", handle.metrics, console,
        clock=lambda: float(next(clock)), sleep=lambda _seconds: None,
    )  # fmt: skip
    code = watched.follow(lambda: handle)
    return watched, handle, code, out.getvalue(), err.getvalue()


def test_the_exit_code_is_the_runs_own(tmp_path):
    for code in (0, 1, 130, 42):
        folder = tmp_path / str(code)
        folder.mkdir()
        assert watch(folder, None, code)[2] == code


def test_off_a_terminal_progress_is_one_plain_line_at_a_time(tmp_path):
    watched, _, _, out, err = watch(tmp_path, START, step_event(1), step_event(2), None, END, 0)
    assert out == ""
    [first, second] = err.splitlines()
    assert first.startswith("fox-1: step 1/100 · loss 2 ")
    for fact in (
        "lr 0.001", "grad norm 0.5", "12,346 tokens/s", "ETA 1 min 20 s", "data 3.1 MiB/s",
        "cache hit 97%", "data wait 3%", "retries 4", "ranks 2",
    ):  # fmt: skip
        assert fact in second
    assert watched.run.end["val_loss"] == 1.6


def test_events_are_passed_on_as_lines_of_json(tmp_path):
    _, _, _, out, _ = watch(tmp_path, START, step_event(1), END, 0, json_output=True)
    assert [json.loads(line) for line in out.splitlines()] == [START, step_event(1), END]


def test_what_a_run_writes_last_is_seen(tmp_path):
    metrics = tmp_path / "metrics.jsonl"

    class LastWords(ScriptedRun):
        def poll(self) -> int | None:
            with self.metrics.open("a") as file:
                file.write(json.dumps(END) + "\n")
            return 0

    console = Console(
        Surroundings(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO()
    )
    watched = RunWatch("fox-1", metrics, console)
    assert watched.follow(lambda: LastWords(metrics)) == 0
    assert watched.run.end == END


def test_the_first_interrupt_saves_the_second_does_not_wait(tmp_path):
    _, handle, code, _, err = watch(tmp_path, START, signal.SIGINT, None, 130)
    assert handle.calls == ["interrupt"]
    assert code == 130
    assert "Saving, then stopping." in err

    folder = tmp_path / "twice"
    folder.mkdir()
    watched, handle, code, _, err = watch(folder, START, signal.SIGINT, signal.SIGINT, None, 137)
    assert handle.calls == ["interrupt", "kill"]
    assert "Stopping without saving." in err
    assert len(watched.signals) == 2


@pytest.mark.parametrize(
    ("number", "call"), [(signal.SIGTERM, "terminate"), (signal.SIGHUP, "interrupt")]
)
def test_termination_and_hang_up_save_too(tmp_path, number, call):
    assert watch(tmp_path, number, None, 143)[1].calls == [call]


def test_signal_handlers_are_put_back(tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    watch(tmp_path, 0)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_signal_during_the_launch_reaches_the_run(tmp_path):
    console = Console(
        Surroundings(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO()
    )
    handle = ScriptedRun(tmp_path / "metrics.jsonl", None, 130)

    def launch() -> ScriptedRun:
        os.kill(os.getpid(), signal.SIGINT)
        return handle

    watched = RunWatch("fox-1", handle.metrics, console, sleep=lambda _seconds: None)
    assert watched.follow(launch) == 130
    assert handle.calls == ["interrupt"]


def watch_rented(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: list[Any],
    keys: list[str],
    *,
    can_ask: bool = True,
) -> tuple[int, list[str], list[int], str]:
    """Watch a run that costs money; `keys`: what is typed at each look."""
    said = io.StringIO()
    console = Console(Surroundings(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=said)
    console.can_ask = can_ask
    handle = ScriptedRun(tmp_path / "metrics.jsonl", *script)
    left: list[int] = []
    bond = Bond(asks=True, leave=lambda: left.append(1))
    watched = RunWatch("fox-1", handle.metrics, console, bond=bond, sleep=lambda _seconds: None)
    typed = iter(keys)
    listening = contextlib.nullcontext(lambda: next(typed, ""))
    monkeypatch.setattr(RunWatch, "_keys", lambda _self: listening)
    code = watched.follow(lambda: handle)
    return code, handle.calls, left, said.getvalue()


@pytest.mark.parametrize(
    ("term", "shown"), [("", ["$1.70 of $15", "$2.90 of $15"]), ("dumb", ["$1.70 of $15"])]
)
def test_what_a_rented_machine_has_cost_is_shown_with_its_cap(tmp_path, term, shown):
    """In the picture from the first look on, and in the lines where nothing can be repainted."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = iter([4600.0, *[8200.0] * 50])
    record = RentalRecord(
        label="x", offer_id=1, price_hour=1.2, began_at=1000.0, cap_seconds=72000.0,
        instances=(7,), spent_before=0.5, max_cost=15.0,
    )  # fmt: skip
    write_rental(tmp_path, record)
    said = Terminal() if not term else io.StringIO()
    console = Console(
        Surroundings(term=term), stdin=io.StringIO(), stdout=io.StringIO(), stderr=said
    )
    handle = ScriptedRun(tmp_path / "metrics.jsonl", None, START, step_event(1), None, 0)
    ticks = iter(range(0, 10_000, 11))
    bond = Bond(cost=cost_reader(tmp_path, lambda: next(now)))
    watched = RunWatch(
        "fox-1", handle.metrics, console, bond=bond, clock=lambda: float(next(ticks)),
        sleep=lambda _seconds: None,
    )  # fmt: skip
    assert watched.follow(lambda: handle) == 0
    assert [
        cost for cost in ("$1.70 of $15", "$2.90 of $15") if f"cost {cost}" in said.getvalue()
    ] == shown
    assert said.getvalue().count("starting") == (1 if not term else 0)


@pytest.mark.parametrize("term", ["", "dumb"])
def test_what_is_said_of_the_way_to_a_run_is_no_warning(tmp_path, term):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Told(ScriptedRun):
        def news(self) -> list[str]:
            return ["instance 7000: loading"] if self.script else []

    said = Terminal()
    console = Console(
        Surroundings(term=term), stdin=io.StringIO(), stdout=io.StringIO(), stderr=said
    )
    handle = Told(tmp_path / "metrics.jsonl", None, START, step_event(1), 0)
    watched = RunWatch("fox-1", handle.metrics, console, sleep=lambda _seconds: None)
    assert watched.follow(lambda: handle) == 0
    assert "instance 7000: loading" in said.getvalue()
    assert "warning" not in said.getvalue()
    assert watched.run.warnings == []


INT = signal.SIGINT


@pytest.mark.parametrize(
    ("script", "keys", "code", "calls", "left"),
    [
        ([INT, None, None, 130], ["", "", "s"], 130, ["interrupt"], []),
        ([INT, None, None], ["", "x", "k"], 0, [], [1]),
        ([INT, None, None, None, 0], ["", "c"], 0, [], []),
        ([INT, None, INT, None, 130], [], 130, ["interrupt"], []),
        ([INT, None, INT, None, INT, None, 137], [], 137, ["interrupt", "kill"], []),
        ([INT, None, INT, None, 130], ["", "c", "", "s"], 130, ["interrupt"], []),
        ([signal.SIGTERM, None, 143], [], 143, ["terminate"], []),
    ],
)
def test_ctrl_c_at_a_run_that_costs_money_asks(
    tmp_path, monkeypatch, script, keys, code, calls, left
):
    told = watch_rented(tmp_path, monkeypatch, script, keys)
    assert told[:3] == (code, calls, left)
    assert told[3].count("It is on a rented machine") == min(1, script.count(INT)) + keys.count(
        "c"
    ) * (script.count(INT) > 1)


@pytest.mark.parametrize(("script", "keys"), [([None, None, 0], ["d"]), ([INT, None, 0], ["k"])])
def test_a_machine_that_is_being_made_cannot_be_left(tmp_path, monkeypatch, script, keys):
    monkeypatch.setattr(ScriptedRun, "can_leave", False, raising=False)
    code, calls, left, said = watch_rented(tmp_path, monkeypatch, script, keys)
    assert (code, calls, left) == (0, [], [])
    assert "no run to leave going yet" in said


def test_where_nobody_can_be_asked_ctrl_c_saves_and_stops(tmp_path, monkeypatch):
    code, calls, _, said = watch_rented(tmp_path, monkeypatch, [INT, None, 130], [], can_ask=False)
    assert (code, calls) == (130, ["interrupt"])
    assert "rented" not in said


def test_a_failing_watcher_leaves_no_run_behind(tmp_path):
    class Broken(ScriptedRun):
        def poll(self) -> int | None:
            raise OSError("gone")

    console = Console(
        Surroundings(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO()
    )
    handle = Broken(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="gone"):
        RunWatch("fox-1", handle.metrics, console).follow(lambda: handle)
    assert handle.calls == ["kill"]


def test_tail_waits_for_whole_lines_and_skips_what_an_earlier_run_wrote(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n')
    tail = MetricsTail(path)
    assert tail.read() == []
    with path.open("a") as file:
        file.write('{"event": "st')
        file.flush()
        assert tail.read() == []
        file.write('ep", "step": 2}\nnot json\n[1]\n')
    assert tail.read() == [{"event": "step", "step": 2}]
    assert [event["step"] for event in read_events(path)] == [1, 2]


def test_reading_no_metrics_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no metrics"):
        read_events(tmp_path / "none.jsonl")


def test_last_log_lines(tmp_path):
    path = tmp_path / "log"
    assert last_log_lines(path) == []
    path.write_bytes(b"x" * 9000 + b"\none\n\n  \ntwo \xff\nthree\nfour\n")
    assert last_log_lines(path) == ["two \\xff", "three", "four"]


def run_with(*events: dict[str, object]) -> LiveRun:
    run = LiveRun("fox-1")
    for event in events:
        run.take(event)
    return run


@pytest.mark.parametrize("width", [39, 79, 119])
def test_the_live_block_fits_any_width_and_says_everything(width):
    run = run_with(
        START,
        *[step_event(n, 5 / n) for n in range(1, 60)],
        {"event": "eval", "step": 50, "loss": 2.5},
    )
    lines = [plain(line) for line in run.lines(width, draw=True, saying="Saving, then stopping.")]
    assert all(width_of(line) <= width for line in lines)
    assert len(lines) <= 12
    text = " ".join(lines)
    for fact in (
        "fox-1", "step 59/100", "59%", "loss 0.0847", "▁", "validation 2.5 (step 50)", "lr 0.001",
        "grad norm 0.5", "tokens/s", "ETA", "data 3.1 MiB/s", "cache hit 97%", "data wait 3%",
        "retries 4", "ranks 2", "Saving, then stopping.",
    ):  # fmt: skip
        assert fact in text


def test_before_the_first_step_it_says_what_it_waits_for():
    assert plain(run_with().lines(80, draw=True)[0]) == "fox-1  starting …"
    assert plain(run_with(START).lines(80, draw=True)[0]) == "fox-1  waiting for the first step …"


EVALUATING = {"event": "evaluating", "step": 100}


def test_it_says_that_it_evaluates_until_something_else_comes(tmp_path):
    evaluating = "fox-1  evaluating …"
    assert plain(run_with(START, EVALUATING).lines(80, draw=True)[0]) == evaluating
    run = run_with(START, step_event(100), EVALUATING, {"event": "warning", "message": "odd"})
    assert [plain(line) for line in run.lines(80, draw=True)[-2:]] == [
        "evaluating …",
        "warning: odd",
    ]
    for event in ({"event": "eval", "step": 100, "loss": 2.5}, step_event(101), END):
        after = run_with(START, step_event(100), EVALUATING, event)
        assert "evaluating" not in " ".join(plain(line) for line in after.lines(80, draw=True))
    # Off a terminal: no step is made meanwhile.
    *_, err = watch(tmp_path, START, step_event(100), EVALUATING, None, END, 0)
    said = ["evaluating" in line for line in err.splitlines()]
    assert said == [False, True, False]


def test_losses_kept_are_bounded():
    run = run_with(*[step_event(n) for n in range(10_000)])
    assert 1000 < len(run.losses) <= 4096


def test_a_resumed_run_forgets_the_earlier_end():
    run = run_with(START, END, {"event": "error", "message": "x"}, START)
    assert run.end == {}
    assert run.error == {}


def test_flow_wraps_between_pieces():
    assert [plain(line) for line in flow(["aaa", "", "bbb", "ccc"], 9)] == ["aaa · bbb", "ccc"]


@pytest.mark.parametrize("width", [None, 40, 80])
def test_the_summary_has_every_figure_and_a_picture(width):
    run = run_with(
        START,
        *[step_event(n, 5 / n) for n in range(1, 101)],
        {"event": "checkpoint", "step": 100, "path": "runs/fox-1/checkpoints/step-00000100"},
        END,
    )
    lines = [plain(line) for line in summary_lines(run, width=width, draw=True)]
    text = "\n".join(lines)
    for fact in (
        "100, epoch 1.00",
        "1.5",
        "1.6",
        "800 (204,800 tokens)",
        "1 min 1 s",
        "step-00000100",
    ):
        assert fact in text
    assert "█" in text
    if width:
        assert all(width_of(line) <= width for line in lines)


def test_a_warning_is_said_when_it_comes_and_stays_in_the_view(tmp_path):
    odd = {"event": "warning", "message": "wandb: no key; the run goes on without it"}
    *_, err = watch(tmp_path, START, step_event(1), odd, step_event(2), END, 0)
    assert err.splitlines().count(f"warning: {odd['message']}") == 1
    run = run_with(START, step_event(1), {**odd, "message": "long words " * 50}, step_event(2))
    shown = [plain(line) for line in run.lines(39, draw=True)]
    assert sum("long" in line for line in shown) == 2
    assert all(width_of(line) <= 39 for line in shown)
