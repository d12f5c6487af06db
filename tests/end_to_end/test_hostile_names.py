"""Names with brackets, escapes, marks of direction and line feeds: shown escaped on every screen."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from knowledge_hub.hub import Reading
from knowledge_hub.session import examples
from resource_manager.live_view import LiveRun
from resource_manager.manager import CommandOptions, ResourceManager
from resource_manager.run_summary import summary_lines
from tests.fakes import Reply, StubS3
from tests.projects import END, RecordingTarget, Said, write_group
from tests.tools_utilities.test_console import make
from tools_utilities.errors import QuarkError
from tools_utilities.reading_dialogue import Offered
from tools_utilities.terminal_completion import SentenceCompleter, SessionWords, StoreFolders
from tools_utilities.terminal_menu import Menu
from tools_utilities.terminal_session import reading_line
from tools_utilities.terminal_text import plain, shown

NAMES = (
    "run[train]",
    "[",
    "]bold[/bold]",
    "\x1b[31mred\x1b[0m",
    "cost$5$^_",
    "a\u202egnp.exe",
    "two\nlines",
    "nul\x7f\t",
)
"""Of folders; `[` and `x]` become the path `[/x]`."""
HOSTILE = "a[/x] \x1b[2J\x1b]0;title\x07 \u202e\u2066 \r\n\x00 [bold]"
STEP = {
    "event": "step", "step": 1, "epoch": 0.5, "loss": 2.0, "lr": 0.1, "grad_norm": 1.0, "samples": 8,
    "tokens": 80, "tokens_per_second": 10.0, "wait_cause": HOSTILE, "data_wait_share": 0.9,
    "time": 1.0,
}  # fmt: skip
EVENTS = (
    {"event": "start", "run": HOSTILE, "total_steps": 9, "world_size": 1, "time": 1.0},
    STEP,
    {"event": "warning", "message": HOSTILE, "time": 1.0},
    {"event": "stall", "rank": 0, "message": HOSTILE, "time": 1.0},
    {"event": "checkpoint", "step": 1, "path": HOSTILE, "seconds": 1.0, "time": 1.0},
    {**END, "reason": HOSTILE},
)


def check_shown(text: str) -> None:
    """Nothing but printable characters and the line feeds of the program itself."""
    odd = {char for char in text.replace("\n", "") if not char.isprintable()}
    assert not odd, [line for line in text.splitlines() if not line.isprintable()][:3]


def check_holds(text: str, name: str) -> None:
    """The whole name is there, escaped, wherever it was folded."""
    assert "".join(shown(name).split()) in "".join(text.split())


@pytest.fixture
def project(tmp_path, aws_environment):
    for name in NAMES:
        write_group(tmp_path / "data" / name, count=8)
    write_group(tmp_path / "data/[/x]", count=8)
    (tmp_path / "quark.yaml").write_text("layers: 1\nseq_len: 64\nbatch_size: 8\ndevice: cpu\n")
    aws_environment.chdir(tmp_path)
    return tmp_path


class Seen:
    """A manager at a terminal of 80 columns, and what it wrote."""

    def __init__(
        self, project: Path, *events: Any, code: int = 0, answers: str = "", **options: Any
    ):
        about: Any = {"no_color": True, "columns": 80, "term": "dumb", "yes": not answers}
        console, self.out, self.err = make(answers=answers, **about)
        self.manager: Any = ResourceManager(
            console=console, target=RecordingTarget(*events, code=code), start_dir=project,
            options=CommandOptions(**options),
        )  # fmt: skip

    def text(self) -> str:
        text = str(self.out.written() + self.err.written())
        check_shown(text)
        return text


@pytest.fixture
def hostile_run(project):
    """A run whose folder and events have hostile names."""
    seen = Seen(project, *EVENTS)
    (project / "data/plain").mkdir()
    shutil.copytree(project / "data/run[train]", project / "data/plain", dirs_exist_ok=True)
    assert seen.manager.train(Said(data=["data/plain"], name="fox-1")) == 0
    seen.text()
    name = "f\x1b[31m\u202eox[train]$_^$"
    (project / "runs/fox-1").rename(project / "runs" / name)
    return name


def test_discovery_and_the_preview_of_records(project):
    seen = Seen(project)
    assert seen.manager.discover(Said(data=["data"])) == 0
    text = seen.text()
    for name in NAMES:
        check_holds(text, f"data/{name}/")
    seen = Seen(project, groups="all")
    (project / "data/two\nlines/train-00000.jsonl").write_text(json.dumps({HOSTILE: HOSTILE}))
    assert seen.manager.inspect(Said(data=["data"])) == 0
    text = seen.text()
    for name in NAMES:
        check_holds(text, f"data/{name}/")


def test_the_picker_asks_and_the_plan_names_what_was_picked(project):
    seen = Seen(project, *EVENTS, answers="/[\np 1\nall\nn\n")
    assert seen.manager.train(Said(data=["data"], max_steps=2)) == 2
    text = seen.text()
    for name in NAMES:
        assert text.replace("\n", "").replace(" ", "").count("".join(shown(name).split())) > 1


def test_the_picker_drawn_with_keys(project):
    choices: list[Any] = []
    seen = Seen(project)
    console: Any = seen.manager.console
    console.can_ask = True
    console.pick = lambda _question, given, _preview: choices.__iadd__(given) and []
    with pytest.raises(QuarkError):
        seen.manager.train(Said(data=["data"], max_steps=2))
    assert len(choices) == len(NAMES) + 1
    menu = Menu(f"Which? {HOSTILE}", choices, lambda _index: [HOSTILE])
    for keys in ("", "p", "/\x1b[31m", "\u202e"):
        for key in keys:
            menu.type(key)
        for width in (39, 79):
            rows = [text for _, text in [*menu.lines(width)[0], *menu.footer(width)]]
            check_shown("\n".join(rows))


def test_a_run_while_it_goes_on_and_its_summary():
    run = LiveRun(HOSTILE)
    for event in EVENTS:
        run.take(event)
        for width in (39, 79):
            lines = [*run.lines(width, draw=True, saying=HOSTILE), run.log_line()]
            check_shown("\n".join(plain(line) for line in lines))
    text = "\n".join(plain(line) for line in summary_lines(run, width=79, draw=True))
    check_shown(text)
    check_holds(text, HOSTILE)


def test_runs_that_exist(project, hostile_run):
    for act in ("list_runs", "show_run", "logs"):
        seen = Seen(project)
        assert getattr(seen.manager, act)(Said(run="latest")) == 0
        text = seen.text()
        if act != "logs":
            check_holds(text, hostile_run)
    seen = Seen(project)
    assert seen.manager.why("lr") == 0
    seen.text()
    seen = Seen(project, answers="n\n")
    assert seen.manager.delete_run(Said(run="latest")) == 2
    check_holds(seen.text(), hostile_run)


def test_errors_of_a_run_of_a_store_and_of_names(project):
    error = {"event": "error", "message": HOSTILE, "hint": HOSTILE, "time": 1.0, "exit_code": 1}
    seen = Seen(project, error, code=1, groups="1")
    assert seen.manager.train(Said(data=["data"], name="fox-1")) == 1
    check_holds(seen.text(), HOSTILE)
    with StubS3({}) as s3:
        body = f"<Error><Code>Odd\x1b[31m</Code><Message>{HOSTILE}</Message></Error>".encode()
        s3.script = lambda _request: Reply(418, body=body)
        seen = Seen(project)
        said = Said(data=["s3://mine/x/"], overrides={"endpoint_url": s3.url, "bucket": "mine"})
        with pytest.raises(QuarkError) as caught:
            seen.manager.discover(said)
        seen.manager.console.error(caught.value)
        seen.text()
        assert seen.manager.doctor(said) == 1
        seen.text()
    seen.manager.console.error(QuarkError(HOSTILE, hint=HOSTILE))
    seen.manager.console.warn(HOSTILE)
    check_holds(seen.text(), HOSTILE)


def test_the_session_completes_only_what_can_be_typed(project, hostile_run):
    folders = StoreFolders(lambda uri: [f"{uri}{name}/" for name in NAMES])
    completer = SentenceCompleter(
        SessionWords(words=("train",)), lambda: [hostile_run, "fox-9"], folders, start_dir=project
    )
    for typed in ("data/", "f", "s3://b/", "s3://b/"):
        offered = list(completer.get_completions(Document(typed), CompleteEvent()))
        check_shown("\n".join(one.text + one.display_text for one in offered))
        for _ in range(100):
            if folders.entries("s3://b/"):
                break
    paths = [one.text for one in completer.get_completions(Document("data/"), CompleteEvent())]
    assert "data/run[train]/" in paths
    assert "data/[/" in paths

    read: Any = lambda _text: Reading(  # noqa: E731 - of the type that is asked for
        sentence=HOSTILE, status="ok", intent="train", canonical=HOSTILE
    )
    drawn = reading_line(read, HOSTILE, 79)
    check_shown("".join(text for _, text, *_ in drawn))
    check_shown("\n".join(examples()))


def test_answers_offered(project, hostile_run):
    console, _, err = make(answers="1\n", term="dumb")
    console.note(*(f"{one.answer} {one.about}" for one in [Offered(hostile_run, HOSTILE)]))
    check_shown(err.written())
