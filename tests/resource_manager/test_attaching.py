"""`attach`, and leaving a run that is watched: who goes, and what goes on."""

import io
import json
import os
import pty
import signal
import termios
from contextlib import nullcontext
from pathlib import Path

import pytest

from brain.ml.guardians import LET_GO_FILE, let_go
from resource_manager.launch_targets.local import LAUNCH_TARGET
from resource_manager.run_watch import KEYS_LOOKING, Bond, RunWatch
from tests.projects import Said, make_manager
from tests.resource_manager.run_folders import step, write_run
from tests.resource_manager.test_run_watch import END, START, ScriptedRun, step_event
from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import UsageError
from tools_utilities.terminal_keys import pressed_keys


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


class Running(ScriptedRun):
    """A run that never ends by itself."""

    def poll(self) -> int | None:
        return super().poll() if self.script else None


@pytest.fixture
def keyboard():
    """A real terminal's two ends: (the person's descriptor, the program's file)."""
    person, program = pty.openpty()
    with os.fdopen(program, "r", encoding="utf-8") as file:
        yield person, file
    os.close(person)


def watched(tmp_path: Path, bond: Bond, *script: object, stdin=None):
    err = io.StringIO() if stdin is None else Terminal()
    console = Console(
        Surroundings(term="dumb"), stdin=stdin or io.StringIO(), stdout=io.StringIO(), stderr=err
    )
    handle = Running(tmp_path / "metrics.jsonl", *script)
    watch = RunWatch(
        "fox-1", handle.metrics, console, bond=bond, clock=lambda: 0.0, sleep=lambda _: None
    )
    return watch, handle, err


def test_keys_come_without_enter_and_the_terminal_is_put_back(keyboard):
    person, file = keyboard
    before = termios.tcgetattr(file.fileno())
    with pressed_keys(file) as typed:
        during = termios.tcgetattr(file.fileno())
        assert not during[3] & termios.ICANON
        assert not during[3] & termios.ECHO
        assert during[3] & termios.ISIG  # Ctrl-C stays a signal
        os.write(person, b"d")
        assert typed() == ""  # it is not this process's own terminal: nothing is taken from others
    assert termios.tcgetattr(file.fileno()) == before


def test_a_person_leaves_a_run_by_a_key_and_it_is_let_go(tmp_path, monkeypatch):
    typed = iter(["", "x", "d"])
    monkeypatch.setattr(
        "resource_manager.run_watch.pressed_keys", lambda _: nullcontext(lambda: next(typed))
    )
    let: list[str] = []
    watch, handle, err = watched(
        tmp_path, Bond(leave=lambda: let.append("go")), START, stdin=Terminal()
    )
    assert watch.follow(lambda: handle) == 0
    assert watch.left
    assert let == ["go"]
    assert handle.calls == []
    assert "d leaves it running in the background · Ctrl-C saves and stops" in err.getvalue()


def test_who_asked_to_stop_cannot_leave_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "resource_manager.run_watch.pressed_keys", lambda _: nullcontext(lambda: "d")
    )
    watch, handle, _ = watched(
        tmp_path, Bond(leave=lambda: None), signal.SIGINT, 130, stdin=Terminal()
    )
    # The key is read after the signal has been passed on.
    assert watch.follow(lambda: handle) == 130
    assert not watch.left
    assert handle.calls == ["interrupt"]


def test_no_key_is_offered_off_a_terminal_or_where_the_run_cannot_go_on_alone(tmp_path):
    watch, handle, err = watched(tmp_path, Bond(leave=lambda: None), START, END, 0)
    assert watch.follow(lambda: handle) == 0
    assert "leaves it running" not in err.getvalue()
    (tmp_path / "two").mkdir()
    watch, handle, err = watched(tmp_path / "two", Bond(), START, END, 0, stdin=Terminal())
    assert watch.follow(lambda: handle) == 0
    assert "leaves it running" not in err.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_looks_on_goes_by_any_signal_and_the_run_hears_nothing(tmp_path, number):
    watch, handle, err = watched(tmp_path, Bond(looks_on=True), START, number)
    assert watch.follow(lambda: handle) == 0
    assert watch.left
    assert handle.calls == []
    assert "Saving" not in err.getvalue()


def test_the_view_of_who_looks_on_says_what_ctrl_c_does(tmp_path):
    watch, _, _ = watched(tmp_path, Bond(looks_on=True))
    watch.run.take(START)
    watch.run.take(step_event(3))
    assert KEYS_LOOKING in [line[0].text for line in watch._lines() if line and len(line) == 1]


def test_what_came_before_is_caught_up_with_and_told_of_the_last_start(tmp_path):
    lines = [START, step_event(1), step_event(2), step_event(3),
             {**START, "resumed_from_step": 2}, step_event(3, 9.0)]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = io.StringIO()
    console = Console(
        Surroundings(json=True), stdin=io.StringIO(), stdout=out, stderr=io.StringIO()
    )
    watch = RunWatch("fox-1", tmp_path / "metrics.jsonl", console, bond=Bond(looks_on=True))
    watch.catch_up()
    assert watch.run.losses == [2.0, 2.0, 9.0]
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(event["event"], event.get("step")) for event in told] == [("start", None), ("step", 3)]


def test_only_a_run_that_goes_on_can_be_watched(project):
    write_run(project / "runs", "fox-1", [step(1)])
    manager, *_ = make_manager(project)
    with pytest.raises(UsageError, match="fox-1 is not running: finished") as caught:
        manager.attach(Said(run="fox-1"))
    assert "quark show fox-1" in caught.value.hint


@pytest.mark.parametrize(
    ("ends", "code"), [({"exit_code": 130}, 130), ({"exit_code": 0}, 0), ({"exit_code": 4}, 4)]
)
def test_the_exit_code_is_the_runs_own(tmp_path, ends, code):
    folder = write_run(tmp_path, "fox-1", [step(1)], more=[{**END, **ends, "time": 9e9}])
    events = (folder / "metrics.jsonl").read_text().splitlines()[:-1]
    (folder / "metrics.jsonl").write_text("\n".join(events) + "\n")
    assert LAUNCH_TARGET.attach(folder).poll() == code


def test_a_run_that_is_lost_meanwhile_ends_the_view(tmp_path):
    folder = write_run(tmp_path, "fox-1", [step(1)])
    (folder / "metrics.jsonl").write_text(json.dumps({**START, "time": 1.0}) + "\n")
    assert LAUNCH_TARGET.attach(folder).poll() is None
    os.utime(folder / "job.yaml", (1, 1))  # nobody has been seen since
    assert LAUNCH_TARGET.attach(folder).poll() == 1


def test_a_view_that_breaks_leaves_the_run_alone(tmp_path):
    class Broken(Running):
        def poll(self) -> int | None:
            raise OSError("gone")

    watch, _, _ = watched(tmp_path, Bond(looks_on=True))
    handle = Broken(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="gone"):
        watch.follow(lambda: handle)
    assert handle.calls == []


def test_a_run_that_was_left_once_is_held_again_by_its_next_start(project):
    manager, *_ = make_manager(project)
    assert manager.train(Said(data=["data/datasets/one"], name="fox-1")) == 0
    run_dir = project / "runs/fox-1"
    let_go(run_dir)  # by this very process, as in a session
    manager, target, *_ = make_manager(project)
    assert manager.resume(Said(run="fox-1", max_steps=9)) == 0
    assert target.jobs[0].name == "fox-1"
    assert not (run_dir / LET_GO_FILE).exists()
