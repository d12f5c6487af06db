"""Every command that is offered after a run, or instead of one, works exactly as it is shown."""

import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from knowledge_hub.carrying_out import carry_out
from knowledge_hub.hub import KnowledgeHub
from knowledge_hub.sentence import join_arguments
from resource_manager.manager import CommandOptions, ResourceManager
from resource_manager.next_commands import after_end, runs_flag
from tests.projects import END, RecordingTarget, Said, make_manager
from tests.resource_manager.test_repeating import add_checkpoint
from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import DataNotFoundError, QuarkError, RunStoppedError, UsageError
from tools_utilities.settings import load_settings
from tools_utilities.terminal_text import plain

HUB = KnowledgeHub()
TRAIN = "train on data/datasets/one"
EVALUATE = "evaluate fox-1 on data/datasets/one"
START = {"event": "start", "run": "fox-1", "total_steps": 9, "resumed_from_step": None, "time": 1.0}
SAVED = {"event": "checkpoint", "step": 2, "path": "s3://b/x", "seconds": 0.1, "time": 1.5}
STOPPED = {**END, "reason": "interrupt", "exit_code": 130, "step": 2}
EVALUATED = {**END, "reason": "evaluated", "step": 0, "loss": None, "val_loss": 2.5}


class Shell:
    """A shell in a project: types commands, remembers what they wrote."""

    def __init__(self, project: Path):
        self.project = project
        self.jobs: list[object] = []

    def type(self, command: str, *events: dict[str, object], code: int = 0, **options) -> str:
        """Give a command; its run, if it starts one, writes `events`. Returns what it wrote."""
        target = RecordingTarget(*(events or (END,)), code=code)
        out = io.StringIO()
        console = Console(
            Surroundings(yes=True), stdin=io.StringIO(), stdout=out, stderr=out
        )  # fmt: skip
        manager = ResourceManager(
            console=console, target=target, start_dir=self.project,
            options=CommandOptions(**options),
        )  # fmt: skip
        words = shlex.split(command)
        reading = HUB.read(join_arguments(words[1:] if words[0] == "quark" else words))
        assert reading.status == "ok", (command, reading)
        ended = carry_out(reading, manager)
        self.jobs += target.jobs
        assert ended == code, (command, out.getvalue())
        return out.getvalue()


@pytest.fixture
def shell(project):
    return Shell(project)


def offered(text: str) -> list[str]:
    """Return the commands below a run's last words."""
    text = re.sub(r"^same as\n\s+quark .+$", "", text, flags=re.MULTILINE)  # the plan's own
    return re.findall(r"^(?:next|resume|again|delete|)\s+(quark .+)$", text, re.MULTILINE)


def in_hint(error: QuarkError) -> str:
    found = re.search(r"`(quark [^`]+)`|: (quark .+)$", error.hint)
    assert found, error.hint
    return found[1] or found[2]


@pytest.mark.parametrize("name", ["fox-1", "genomes"])
@pytest.mark.parametrize(
    "where", ["", " --override out_dir=other", " --override 'out_dir=my runs'"]
)
def test_after_a_run_that_ended(shell, name, where):
    text = shell.type(f"{TRAIN} for 2 steps named {name}{where}")
    commands = offered(text)
    assert [command.split()[1] for command in commands] == ["show", "resume"]
    for command in commands:
        shell.type(command)
    assert [job.name for job in shell.jobs] == [name, name]


@pytest.mark.parametrize("where", ["", " --override out_dir=other"])
def test_after_a_run_that_was_stopped(shell, where):
    command = f"{TRAIN} for 9 steps named fox-1{where}"
    [resume] = offered(shell.type(command, START, SAVED, STOPPED, code=130))
    assert resume == f"quark resume fox-1{where and f' --override out_dir={shell.project}/other'}"
    shell.type(resume)
    text = shell.type(
        f"{TRAIN} for 9 steps named fox-2{where}", START, {**STOPPED, "step": 0}, code=130
    )
    resume, delete = offered(text)
    shell.type(resume, START, {**STOPPED, "step": 0}, code=130)
    # `latest` is refused by training where there is no checkpoint.
    assert [job.resume for job in shell.jobs] == [None, "latest", None, "auto"]
    assert "deleted fox-2" in shell.type(delete)


def test_an_evaluation_that_was_stopped_is_made_again(shell):
    shell.type(f"{TRAIN} for 2 steps named fox-1")
    add_checkpoint(shell.project, "fox-1")
    stopped = {**STOPPED, "step": 0}
    text = shell.type(f"{EVALUATE} for 40 samples named eval-1", START, stopped, code=130)
    again, delete = offered(text)
    assert "resume" not in text
    assert (again, delete) == ("quark again eval-1", "quark delete eval-1")
    assert "an evaluation saves nothing" in text
    text = shell.type(again, START, EVALUATED)
    first, second = shell.jobs[-2:]
    assert second.evaluate_only
    assert second.name != "eval-1"
    assert (second.val, second.init_from, second.max_samples) == (
        first.val, first.init_from, 40,
    )  # fmt: skip
    assert "measures fox-1 as saved at step 2" in text
    [show] = offered(text)
    shell.type(show)
    shell.type(delete)


def test_an_evaluation_is_repeated_with_changes_of_its_own_kind(shell):
    shell.type(f"{TRAIN} for 2 steps named fox-1")
    add_checkpoint(shell.project, "fox-1")
    shell.type(f"{EVALUATE} for 40 samples named eval-1", START, EVALUATED)
    shell.type("again eval-1 on data/datasets/two, group 1, batch size 4", START, EVALUATED)
    job = shell.jobs[-1]
    assert job.evaluate_only
    assert job.batch_size == 4
    assert [source.prefix for source in job.val] == ["data/datasets/two/a/"]
    for words in ("with twice the learning rate", "for 2 epochs", "from checkpoint fox-1"):
        with pytest.raises(UsageError, match="is an evaluation: it has no use for"):
            shell.type(f"again eval-1 {words}")
    shell.type("delete fox-1")
    with pytest.raises(DataNotFoundError, match="the run that eval-1 measured is gone"):
        shell.type("again eval-1")


def test_a_run_in_the_background_is_found(shell):
    text = shell.type(f"{TRAIN} named fox-1 in the background", START)
    attach, show, logs, stop = offered(text)
    assert HUB.read(attach.removeprefix("quark ")).intent == "attach"
    shell.type(show)
    shell.type(logs)
    assert stop == "quark stop fox-1"
    assert "would stop fox-1" in shell.type(f"{stop} --override plan_only=true")


def test_after_a_run_that_failed_without_a_word(shell):
    text = shell.type(f"{TRAIN} named fox-1", code=9)
    [logs] = re.findall(r"`(quark logs [^`]+)`", text)
    assert "last words" in shell.type(logs)


@pytest.mark.parametrize(
    ("events", "code", "verb"),
    [
        ((END,), 0, "resume"),
        ((START, SAVED, STOPPED), 130, "resume"),
        ((START,), 0, "show"),
    ],
)
@pytest.mark.parametrize("where", ["", " --override out_dir=other"])
def test_instead_of_a_run_whose_name_is_taken(shell, events, code, verb, where):
    command = f"{TRAIN} for 9 steps named fox-1{where}"
    shell.type(command, *events, code=code)
    with pytest.raises(UsageError, match="run fox-1 exists") as caught:
        shell.type(command)
    following = in_hint(caught.value)
    assert following.split()[1] == verb
    shell.type(following)


def test_instead_of_a_name_that_no_run_has(shell):
    (shell.project / "runs/fox-1").mkdir(parents=True)
    with pytest.raises(UsageError, match="run fox-1 exists") as caught:
        shell.type(f"{TRAIN} named fox-1")
    assert caught.value.hint == "Choose another name."


def test_instead_of_what_an_evaluation_cannot_do(shell):
    shell.type(f"{TRAIN} for 2 steps named fox-1")
    add_checkpoint(shell.project, "fox-1")
    shell.type(f"{EVALUATE} named eval-1", START, EVALUATED)
    for command in (
        "resume eval-1",
        EVALUATE.replace("fox-1", "eval-1"),
        f"{EVALUATE} named eval-1",
    ):
        with pytest.raises(UsageError) as caught:
            shell.type(command)
        following = in_hint(caught.value)
        assert following == "quark again eval-1"
        shell.type(following, START, EVALUATED)
        assert shell.jobs[-1].evaluate_only


def test_instead_of_a_plan_that_was_carried_out(shell):
    plan = shell.project / "plan.json"
    shell.type(
        f"{TRAIN} for 2 steps named fox-1 --override out_dir=other", plan_only=True, plan_file=plan
    )
    manager = ResourceManager(
        console=Console(Surroundings(yes=True), stdin=None, stdout=io.StringIO(), stderr=io.StringIO()),
        target=RecordingTarget(END), start_dir=shell.project,
    )  # fmt: skip
    assert manager.run_saved_plan(plan) == 0
    with pytest.raises(UsageError, match="carried out already") as caught:
        manager.run_saved_plan(plan)
    assert "make a new plan" in caught.value.hint
    shell.type(in_hint(caught.value))


def test_a_folder_of_runs_that_is_usual_is_not_said(project):
    said = load_settings(
        start_dir=project, sentence={}, overrides={"out_dir": str(project / "runs")}
    )
    assert runs_flag(said) == ""
    assert runs_flag(load_settings(start_dir=project, sentence={}, overrides={})) == ""


def test_a_run_that_trained_nothing_is_only_shown(project):
    from brain.ml.training_job import TrainingJob

    job = TrainingJob(name="fox-1", run_dir="runs/fox-1", train=())
    assert [plain(line) for line in after_end(job, "evaluated")] == ["next  quark show fox-1"]


class _CtrlC(dict[str, object]):
    """Slots at which Ctrl-C strikes as soon as one is looked up."""

    def get(self, *_: object) -> object:
        raise KeyboardInterrupt

    def __getitem__(self, _: str) -> object:
        raise KeyboardInterrupt

    def __contains__(self, _: object) -> bool:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "action", ["stop_runs", "delete_run", "clean_cache", "process", "shard", "act_on_shards"]
)
def test_ctrl_c_in_what_acts_says_what_to_do_next(project, action):
    manager, _, _, _ = make_manager(project)
    said: Any = Said()
    said.slots, said.intent = _CtrlC(), "claim"
    with pytest.raises(RunStoppedError, match="interrupted") as caught:
        getattr(manager, action)(said)
    assert caught.value.exit_code == 130
    assert re.search(r"`[^`]+` shows|The same command", caught.value.hint)
