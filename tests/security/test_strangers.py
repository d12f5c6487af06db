"""Run folders that somebody else made, or damaged: shown or refused, whatever they hold."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from resource_manager.live_view import LiveRun
from resource_manager.run_events import event_of
from resource_manager.run_summary import summary_lines
from resource_manager.run_watch import MetricsTail
from tests.projects import Said, make_manager
from tests.resource_manager.run_folders import step, write_run
from tools_utilities.errors import QuarkError
from tools_utilities.terminal_text import plain, shown

VALUES: dict[str, Any] = {
    "text": "seven",
    "escape": "\x1b]0;owned\x07\x1b[2J\u202e",
    "number": -7.5,
    "huge": 10**400,
    "large": 1e308,
    "small": -(10**18),
    "true": True,
    "list": [[1], "x", None],
    "map": {"a": {"b": []}},
    "empty": {},
    "none": None,
}
EVENTS = (
    {"event": "start", "time": 999.0, "total_steps": 9, "world_size": 1, "data": [], "run": "r",
     "versions": {"python": "3"}, "counts": "tokens", "resumed_from_step": None, "device": "cpu",
     "precision": "fp32", "parameters": 7},
    {**step(3), "mfu": 0.5, "eta_seconds": 3.0, "cache_hit_rate": 0.5, "retries": 1,
     "data_bytes_per_second": 5.0, "wait_cause": "store",
     "slow_ranks": [{"rank": 1, "times": 2.0, "waits": "data"}]},
    {"event": "eval", "time": 1.0, "step": 3, "loss": 2.0, "accuracy": 0.5, "r2": 0.1, "samples": 8},
    {"event": "checkpoint", "time": 1.0, "step": 3, "path": "p", "seconds": 0.1},
    {"event": "warning", "time": 1.0, "message": "m"},
    {"event": "stall", "time": 1.0, "rank": 0, "message": "m"},
    {"event": "error", "time": 1.0, "message": "m", "hint": "h", "kind": "K", "frame": "f",
     "rank": 0, "exit_code": 1},
    {"event": "end", "time": 2e9, "reason": "max_steps", "exit_code": 0, "epoch": 1.0, "step": 9,
     "loss": 1.0, "val_loss": 2.0, "seconds": 9.0, "samples": 8, "tokens": 9, "stats": {}},
)  # fmt: skip


def some_now(names: Iterable[str], *now: str) -> list[Any]:
    """Return the cases; those that are not named wait for the night."""
    return [
        name if name in now else pytest.param(name, marks=pytest.mark.nightly) for name in names
    ]


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder: Path = tmp_path / "project"
    folder.mkdir()
    (folder / "quark.yaml").write_text("cache_dir: cache\n")
    return folder


def wild_events(value: Any) -> list[dict[str, Any]]:
    """Return every event with each of its fields in turn replaced, and left out."""
    replaced = [{**event, name: value} for event in EVENTS for name in event]
    return replaced + [
        {other: kept for other, kept in event.items() if other != name}
        for event in EVENTS
        for name in event
    ]


def told(project: Path, do: str, **slots: Any) -> str:
    """Carry a command out; returns all that it said. It may refuse, by an error of ours."""
    manager, _, out, err = make_manager(project)
    try:
        getattr(manager, do)(Said(**slots))
    except QuarkError as error:
        return f"{out.getvalue()}{err.getvalue()}{shown(str(error) + error.hint)}"
    return str(out.getvalue()) + str(err.getvalue())


@pytest.mark.parametrize("kind", some_now(VALUES, "text", "escape", "huge", "list", "map"))
def test_events_of_any_content_are_shown(project, kind):
    """Of a stranger's folder, of a rented machine, of a program of one's own: they tell what they like."""
    events = wild_events(VALUES[kind])
    write_run(project / "runs", "fox-1", [step(n) for n in range(1, 9)], more=events)
    write_run(project / "runs", "fox-2", [step(n) for n in range(1, 9)])
    metrics = project / "runs/fox-1/metrics.jsonl"
    with metrics.open("ab") as file:
        file.write(b"[1]\n" + b"[" * 100_000 + b"\nnull\n\xff\xfe\n" + b'{"event": {}}\n"x"\n')
    assert "fox-1" in told(project, "list_runs")
    assert "fox-1" in told(project, "show_run", run="fox-1")
    assert "fox-2" in told(project, "compare_runs", runs=["fox-1", "fox-2"])

    run = LiveRun("fox-1")
    seen = MetricsTail(metrics, whole=True).read()
    assert len(seen) > 20
    for event in seen:
        run.take(event)
        for line in [
            *run.lines(70, draw=True),
            run.log_line(),
            *summary_lines(run, width=70, draw=True),
        ]:
            assert "\x1b" not in plain(line)


def test_what_is_right_is_left_as_it_is():
    for event in EVENTS:
        assert event_of(json.dumps(event).encode()) == event


KINDS = ("folder", "link to itself", "link to nothing", "link away", "pipe")
FILES = (
    "job.yaml",
    "plan.json",
    "process.json",
    "remote.json",
    "rental.json",
    "metrics.jsonl",
    "log",
)
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "NULs": bytes(4096),
    "no UTF-8": b"\xff\xfe\x80" * 50,
    "deep JSON": b"[" * 200_000,
    "deep maps": b'{"a":' * 100_000,
    "deep YAML": b"{a: " * 20_000,
    "aliases": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(
        b"%c: &%c [%s]\n" % (new, new, b", ".join([b"*%c" % old] * 9))
        for old, new in zip(b"abcdefgh", b"bcdefghi", strict=True)
    ),
    "a tag": b"!!python/object/apply:os.system ['touch owned']\n",
    "a list": b"[1, 2]",
    "other fields": b'{"name": 7, "evil": true}',
}


@pytest.mark.parametrize("content", some_now(CONTENTS, "deep maps", "aliases", "no UTF-8", "a tag"))
def test_files_of_any_content_are_refused_by_name(project, content, monkeypatch):
    monkeypatch.chdir(project)
    for file in FILES:
        folder = write_run(project / "runs", f"fox-{file}", [])
        (folder / file).write_bytes(CONTENTS[content])
    look_at_all(project)
    assert not (project / "owned").exists()


@pytest.mark.parametrize("kind", some_now(KINDS, "folder", "link away", "pipe"))
def test_what_is_no_file_is_none(project, kind):
    for file in FILES:
        folder = write_run(project / "runs", f"fox-{file}", [])
        path = folder / file
        path.unlink(missing_ok=True)
        make: dict[str, Any] = {
            "folder": path.mkdir,
            "link to itself": lambda path=path: path.symlink_to(path.name),
            "link to nothing": lambda path=path: path.symlink_to("nothing"),
            "link away": lambda path=path: path.symlink_to("/etc/passwd"),
            "pipe": lambda path=path: os.mkfifo(path),
        }
        make[kind]()
    look_at_all(project)


def look_at_all(project: Path) -> None:
    assert "fox-" in told(project, "list_runs") or kind_hides_all(project)
    for file in FILES:
        name = f"fox-{file}"
        for do in ("show_run", "logs", "stop_runs"):
            told(project, do, run=name)
        told(project, "compare_runs", runs=[name, "fox-log"])
        told(project, "resume", run=name, plan_only=True)


def kind_hides_all(project: Path) -> bool:
    return not any((folder / "job.yaml").is_file() for folder in (project / "runs").iterdir())


def test_nothing_shown_moves_the_cursor(project):
    """Names of runs, errors, logs: all of it is somebody else's."""
    bad = "\x1b]0;owned\x07\x1b[2J\u202etxt\r\nfox-9  finished"
    name = "fox\x1b[2J\u202e"
    error = {"event": "error", "time": 3e9, "message": bad, "hint": bad, "exit_code": 1}
    start = {"counts": bad, "versions": {bad: bad}}
    folder = write_run(
        project / "runs", name, [step(n) for n in range(1, 4)], start=start, more=[error]
    )
    write_run(project / "runs", "fox-2", [step(n) for n in range(1, 4)])
    (folder / "log").write_text(f"a line {bad}\n", newline="")
    said = "".join(
        [
            told(project, "list_runs"),
            told(project, "show_run", run=name),
            told(project, "logs", run=name),
            told(project, "compare_runs", runs=[name, "fox-2"]),
            told(project, "show_run", run=f"{name}x"),
        ]
    )
    assert "owned" in said
    for odd in ("\x1b", "\x07", "\u202e", "\r"):
        assert odd not in said, repr(said[said.index(odd) - 80 : said.index(odd) + 20])
