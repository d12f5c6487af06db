"""The program's flags for kept plans, `why`, and commands after `then`."""

import json

import msgspec
import pytest

from knowledge_hub.hub import intents
from tests.projects import write_group
from tools_utilities.scripts.quark_cli import run_program

TRAIN = "train with data/datasets/one for 2 steps, call it fox-1"


@pytest.fixture
def folder(tmp_path, aws_environment):
    write_group(tmp_path / "data/datasets/one")
    (tmp_path / "quark.yaml").write_text("seed: 7\n")
    for name in ("CI", "NO_COLOR", "COLUMNS", "TERM"):
        aws_environment.delenv(name, raising=False)
    aws_environment.chdir(tmp_path)
    return tmp_path


def test_a_plan_is_kept_and_refused_once_the_data_changed(folder, capsys):
    assert run_program([TRAIN, "--plan", "--out", "plan.json"]) == 0
    assert "quark --from-plan plan.json" in capsys.readouterr().err
    assert run_program(["--from-plan", "plan.json", "--plan"]) == 0
    assert "fox-1" in capsys.readouterr().out
    (folder / "data/datasets/one/train-00001.jsonl").unlink()
    assert run_program(["--from-plan=plan.json"]) == 6
    assert "data changed" in capsys.readouterr().err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    "argv",
    [
        [TRAIN, "--out", "plan.json"],
        ["list runs", "--plan", "--out", "plan.json"],
        ["resume", "--plan", "--out", "plan.json"],
        [TRAIN, "--from-plan", "plan.json"],
        ["--from-plan", "plan.json", "--override", "lr=1"],
        ["--from-plan", "none.json"],
        [TRAIN, "--plan", "--out"],
        ["why"],
        ["why", "lr", "fox-1", "now"],
        ["why", "layrs"],
    ],
)
def test_flags_that_do_not_go_together(folder, capsys, argv):
    assert run_program(argv) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert done.err.splitlines()[-1].startswith("hint: ")
    assert sorted(path.name for path in folder.iterdir()) == ["data", "home", "quark.yaml"]


def test_why_before_any_run(folder, capsys):
    for argv in (["why", "seed"], ["why seed"]):
        assert run_program([*argv, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["value"], told["why"]) == (7, ["quark.yaml"])


def test_then_is_planned_as_one_and_refused_as_one(folder, capsys, monkeypatch):
    later = msgspec.structs.replace(intents()["offers"], run=None)
    monkeypatch.setitem(intents(), "offers", later)
    assert run_program([f"{TRAIN} then show the last run", "--plan"]) == 0
    assert "after it: quark show the last run" in capsys.readouterr().err
    assert run_program([f"{TRAIN} then prices on vast"]) == 2
    assert "cannot carry it out yet" in capsys.readouterr().err
    assert not (folder / "runs").exists()
