"""`compare`: what differs between runs, and what came of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from brain.ml.training_job import DataSource
from knowledge_hub.hub import KnowledgeHub
from resource_manager.compare_command import comparison_lines
from resource_manager.repeating import job_of
from resource_manager.run_comparison import compare_runs
from resource_manager.run_figures import read_record
from resource_manager.runs import find_run
from tests.projects import Said, make_manager
from tests.resource_manager.run_folders import VERSIONS, step, write_run
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.terminal_text import plain, width_of


def compared(project: Path, *names: str) -> dict[str, Any]:
    manager, _, out, _ = make_manager(project, json=True)
    assert manager.compare_runs(Said(runs=list(names))) == 0
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


def text_of(project: Path, *names: str) -> str:
    manager, _, out, _ = make_manager(project)
    assert manager.compare_runs(Said(runs=list(names))) == 0
    return str(out.getvalue())


def evals(*losses: float) -> list[dict[str, Any]]:
    return [
        {"event": "eval", "time": 2e9, "step": 10 * n, "loss": loss, "samples": 8}
        for n, loss in enumerate(losses, start=1)
    ]


def test_settings_that_differ_are_listed_and_no_others(project):
    write_run(project / "runs", "fox-1", [step(1)], lr=1e-3, seed=7)
    write_run(project / "runs", "fox-2", [step(1)], lr=3e-4, seed=7, detach=True)
    told = compared(project, "fox-1", "fox-2")
    assert told["settings"] == [{"name": "lr", "values": [0.001, 0.0003]}]
    assert told["runs"] == ["fox-1", "fox-2"]
    text = text_of(project, "fox-1", "fox-2")
    assert "lr        0.001  0.0003" in text
    assert "code: nothing differs" in text


@pytest.mark.parametrize(
    ("fingerprints", "prefix", "verdict"),
    [
        (("aa", "bb"), "one/", "same"),
        (("aa", "bb"), "moved/", "same"),
        (("cc", "bb"), "one/", "cut otherwise"),
        (("aa", "cc"), "one/", "changed"),
        (("cc", "cc"), "one/", "other"),
        (None, "one/", "unknown"),
        (None, "two/", "other"),
    ],
)
def test_data_is_compared_by_its_fingerprint(project, fingerprints, prefix, verdict):
    write_run(project / "runs", "fox-1", [step(1)])
    data = fingerprints and [dict(zip(("order", "change"), fingerprints, strict=True))]
    train = (DataSource(store=StoreSpec(uri="file:///d"), prefix=prefix),)
    write_run(project / "runs", "fox-2", [step(1)], start={"data": data}, train=train)
    told = compared(project, "fox-1", "fox-2")
    assert told["data"]["verdict"] == verdict
    assert told["data"]["train"] == [["file:///d/one/"], [f"file:///d/{prefix}"]]


def test_versions_that_differ_are_listed_and_unknown_ones_are_said(project):
    write_run(project / "runs", "fox-1", [step(1)])
    write_run(project / "runs", "fox-2", [step(1)], start={"versions": {**VERSIONS, "torch": "3"}})
    write_run(project / "runs", "fox-3", [step(1)], start={"versions": None})
    differs = {"name": "torch", "values": ["2.13.0", "3"]}
    assert compared(project, "fox-1", "fox-2")["versions"] == [differs]
    assert compared(project, "fox-1", "fox-3")["versions"] == []
    assert "before versions were written down" in text_of(project, "fox-1", "fox-3")


def test_results_are_those_of_the_events(project):
    slow = [step(n, step_seconds=0.2, tokens_per_second=500.0, data_wait_share=0.5,
                 wait_seconds={"store": n * 0.1}) for n in range(1, 41)]  # fmt: skip
    write_run(project / "runs", "fox-1", [step(n) for n in range(1, 41)], more=evals(3.0, 2.0, 2.5))
    write_run(project / "runs", "fox-2", slow)
    fast, late = compared(project, "fox-1", "fox-2")["figures"]
    assert (fast["best_val_loss"], fast["best_val_step"], fast["last_val_loss"]) == (2.0, 20, 2.5)
    assert fast["seconds"] == pytest.approx(4.0)
    assert fast["per_second"] == pytest.approx(1000)
    assert fast["data_wait_share"] == pytest.approx(0.01)
    assert late["seconds"] == pytest.approx(8.0)
    assert late["per_second"] == pytest.approx(500)
    assert (late["data_wait_share"], late["wait_cause"]) == (pytest.approx(0.5), "store")
    text = text_of(project, "fox-1", "fox-2")
    assert "2 (step 20)" in text
    assert "50.0% (store)" in text


def test_losses_are_aligned_by_steps_of_equal_batches(project):
    write_run(project / "runs", "fox-1", [step(n, loss=1.0) for n in range(1, 101)])
    write_run(project / "runs", "fox-2", [step(n, loss=2.0 + (n > 40)) for n in range(1, 51)])
    told = compared(project, "fox-1", "fox-2")
    assert told["by"] == "step"
    # As far as the shorter one goes.
    edges = [(one["after"], one["to"]) for one in told["stretches"]]
    assert edges == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50)]
    assert [one["losses"] for one in told["stretches"]] == [[1.0, 2.0]] * 4 + [[1.0, 3.0]]
    assert [len(curve) for curve in told["curves"]] == [100, 50]


def test_losses_are_aligned_by_samples_of_unequal_batches(project):
    write_run(project / "runs", "fox-1", [step(n) for n in range(1, 41)])
    bigger = [step(n, batch=16, loss=float(n)) for n in range(1, 41)]
    write_run(project / "runs", "fox-2", bigger, batch_size=16)
    told = compared(project, "fox-1", "fox-2")
    assert told["by"] == "samples"
    assert told["stretches"][-1]["to"] == 320
    # Samples 257 to 320 are steps 33 to 40 of the first, and 17 to 20 of the second.
    assert told["stretches"][-1]["losses"][1] == pytest.approx(18.5)
    assert "320" in text_of(project, "fox-1", "fox-2")


def test_of_steps_made_again_the_last_count(project):
    again = [{"event": "start", "time": 2e9, "resumed_from_step": 2, "versions": VERSIONS},
             step(3, loss=7.0)]  # fmt: skip
    write_run(project / "runs", "fox-1", [step(n, loss=1.0) for n in range(1, 10)], more=again)
    write_run(project / "runs", "fox-2", [step(n, loss=1.0) for n in range(1, 10)])
    assert compared(project, "fox-1", "fox-2")["curves"][0] == [[1, 1.0], [2, 1.0], [3, 7.0]]


def test_pictures_lie_in_the_first_runs_folder_and_load_nothing(project):
    for name in ("fox-1", "fox-2", "fox-3"):
        write_run(project / "runs", name, [step(n) for n in range(1, 30)])
    text = text_of(project, "fox-1", "fox-2", "fox-3")
    plots = project / "runs/fox-1/plots"
    page = (plots / "compare-fox-2-fox-3.html").read_text()
    assert str(plots / "compare-fox-2-fox-3.html") in text
    assert (plots / "compare-fox-2-fox-3.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("<polyline") >= 3
    assert "http:" not in page
    assert "https:" not in page
    assert "<script" not in page


def test_what_cannot_be_written_is_left_out(project):
    for name in ("fox-1", "fox-2"):
        write_run(project / "runs", name, [step(n) for n in range(1, 30)])
    (project / "runs/fox-1/plots").write_text("no folder")
    assert "compare-" not in text_of(project, "fox-1", "fox-2")


def test_a_run_without_steps_is_compared_by_what_it_was_told(project):
    write_run(project / "runs", "fox-1", [], lr=1.0)
    write_run(project / "runs", "fox-2", [step(n) for n in range(1, 5)])
    told = compared(project, "fox-1", "fox-2")
    assert told["stretches"] == []
    assert [one["name"] for one in told["settings"]] == ["lr"]
    write_run(project / "runs", "fox-3", [], lr=1.0)
    assert "settings: nothing differs" in text_of(project, "fox-1", "fox-3")
    assert not (project / "runs/fox-1/plots/compare-fox-3.html").exists()


def test_runs_that_are_not_there_or_one_alone_are_refused(project):
    write_run(project / "runs", "fox-1", [step(1)])
    manager, *_ = make_manager(project)
    with pytest.raises(DataNotFoundError, match="no run fox-2"):
        manager.compare_runs(Said(runs=["fox-1", "fox-2"]))
    with pytest.raises(UsageError, match="with itself"):
        manager.compare_runs(Said(runs=["fox-1", "fox-1"]))


def test_the_sentence_of_the_contract_is_carried_out(project):
    for name in ("fox-12", "heron-31"):
        write_run(project / "runs", name, [step(1)])
    reading = KnowledgeHub().read("compare fox-12 and heron-31")
    assert (reading.status, reading.slots) == ("ok", {"runs": ["fox-12", "heron-31"]})
    manager, _, out, _ = make_manager(project)
    assert manager.compare_runs(reading) == 0
    assert "heron-31" in out.getvalue()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_terminal_of_any_width_holds_it(project, columns):
    names = [f"fox-{n}" for n in range(1, 6)]
    for n, name in enumerate(names):
        write_run(project / "runs", name, [step(n) for n in range(1, 30)], lr=n / 7)
    infos = [find_run(project / "runs", name) for name in names]
    found = compare_runs([read_record(info) for info in infos], [job_of(info) for info in infos])
    lines = [plain(line) for line in comparison_lines(found, width=columns, draw=True)]
    # Prose is folded by the console, between words; tables and pictures must fit by themselves.
    prose = ("data: ", "code: ")
    assert all(width_of(line) <= columns for line in lines if not line.startswith(prose))
    for name in names:
        assert any(name in line for line in lines)
