"""Answers that are offered where a sentence leaves something open."""

import json
import os
from pathlib import Path

import pytest

from resource_manager.answers import MOST_RUNS, offered_answers
from tests.projects import END, RecordingTarget, Said, make_manager
from tools_utilities.reading_dialogue import Offered


def train(project: Path, name: str, *events: dict[str, object]) -> Path:
    manager, *_ = make_manager(project, RecordingTarget(*events))
    manager.train(Said(data=["data/datasets/one"], name=name))
    return project / "runs" / name / "job.yaml"


def test_runs_are_offered_newest_first_with_how_they_stand(project):
    os.utime(train(project, "fox-1", END), (1000, 1000))
    os.utime(train(project, "fox-2", {**END, "exit_code": 130}), (2000, 2000))
    offered = offered_answers("run", "show", project, clock=lambda: 2000 + 3 * 3600)
    assert offered == [
        Offered("fox-2", "interrupted, step 2, loss 1, 3 h ago"),
        Offered("fox-1", "finished, step 2, loss 1, 3 h ago"),
    ]


def test_only_runs_that_the_command_can_take(project):
    os.utime(train(project, "fox-1", END), (1000, 1000))
    train(project, "fox-2")  # begun just now: it is starting
    by_intent = {
        intent: [one.answer for one in offered_answers("run", intent, project)]
        for intent in ("show", "stop", "delete_run")
    }
    assert by_intent == {"show": ["fox-2", "fox-1"], "stop": ["fox-2"], "delete_run": ["fox-1"]}


def test_no_more_than_a_screen_holds(project):
    for number in range(MOST_RUNS + 2):
        folder = project / "runs" / f"fox-{number}"
        folder.mkdir(parents=True)
        (folder / "job.yaml").touch()
        (folder / "metrics.jsonl").write_text(json.dumps(END))
    assert len(offered_answers("run", None, project)) == MOST_RUNS


def test_datasets_are_offered_and_nothing_else_is(project):
    (project / "quark.yaml").write_text("datasets:\n  genomes: data/x/\n")
    assert offered_answers("data", "train", project) == [Offered("genomes", "data/x/")]
    assert offered_answers("shard", "claim", project) == []


@pytest.mark.parametrize("intent", ["show", None])
def test_without_runs_there_is_nothing_to_offer(project, intent):
    assert offered_answers("run", intent, project) == []
