"""`show`: figures and curves of one run, at the terminal and as files."""

import json
from pathlib import Path
from typing import Any

import pytest

from resource_manager.rental.rental_record import GONE, RentalRecord, write_rental
from resource_manager.run_figures import figures_of, is_slow_data, read_record
from resource_manager.runs import find_run
from tests.projects import Said, make_manager
from tests.resource_manager.run_folders import step, write_run


def shown(project: Path, name: str = "fox-1") -> str:
    manager, _, out, _ = make_manager(project)
    assert manager.show_run(Said(run=name)) == 0
    return str(out.getvalue())


def test_curves_of_loss_and_validation_are_drawn_and_kept_as_files(project):
    validation = {"event": "eval", "time": 2e9, "step": 30, "loss": 2.25, "samples": 8}
    first = {**validation, "step": 10, "loss": 2.125}
    write_run(project / "runs", "fox-1", [step(n) for n in range(1, 60)], more=[first, validation])
    text = shown(project)
    assert "● loss   ○ validation" in text
    assert "best 2.125 at step 10" in text
    plots = project / "runs/fox-1/plots"
    assert (plots / "loss.png").read_bytes().startswith(b"\x89PNG")
    page = (plots / "report.html").read_text()
    for title in ("loss", "learning rate", "gradient norm", "throughput", "waiting for data"):
        assert title in page
    assert page.count("<circle") == 2
    assert str(plots / "report.html") in text


def test_what_a_rented_run_has_cost_is_shown_with_its_cap(project):
    folder = write_run(project / "runs", "fox-1", [step(n) for n in range(1, 9)])
    assert "of $15" not in shown(project)
    record = RentalRecord(
        label="x", offer_id=1, price_hour=1.2, began_at=1000.0, cap_seconds=7200.0, max_cost=15.0,
        instances=(7,), state=GONE, ended_at=4600.0,
    )  # fmt: skip
    write_rental(folder, record)
    told = " ".join(shown(project).split())
    assert "cost $1.20 of $15 folder" in told


def test_a_name_is_no_markup_in_a_page(project):
    write_run(project / "runs", "<b>&$x$", [step(n) for n in range(1, 9)])
    shown(project, "<b>&$x$")
    page = (project / "runs/<b>&$x$/plots/report.html").read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page


def test_the_machine_gets_figures_too(project):
    write_run(project / "runs", "fox-1", [step(n) for n in range(1, 11)])
    manager, _, out, _ = make_manager(project, json=True)
    manager.show_run(Said(run="fox-1"))
    told = json.loads(out.getvalue())
    assert told["run"]["name"] == "fox-1"
    assert told["figures"]["data_wait_share"] == pytest.approx(0.01)


SLOW = {"data_wait_share": 0.4, "wait_cause": "store"}


def slow_step(number: int) -> dict[str, Any]:
    waits = {"store": number * 0.04, "open": number * 0.001}
    return {**step(number, wait_seconds=waits), **SLOW}


def test_a_loader_slower_than_the_model_is_reported_as_such(project):
    write_run(project / "runs", "fox-1", [slow_step(n) for n in range(1, 40)])
    assert "40.0% of the time in steps: the loader is slower than the model, most for store" in (
        " ".join(shown(project).split())
    )


def test_a_loader_that_keeps_up_is_not_blamed_for_the_first_steps_of_epochs(project):
    steps = [
        step(n, per_epoch=10, epoch=(n - 1) // 10 + 0.5, data_wait_share=0.9 if n % 10 == 1 else 0)
        for n in range(1, 41)
    ]
    write_run(project / "runs", "fox-1", steps)
    text = " ".join(shown(project).split())
    assert "9.0% of the time in steps, at the start of epochs; else the loader keeps up" in text
    write_run(project / "runs", "fox-2", [step(n) for n in range(1, 40)])
    assert "1.0% of the time in steps " in " ".join(shown(project, "fox-2").split())


def test_the_first_step_after_a_resume_is_no_steady_one(project):
    steps = [
        step(n, data_wait_share=0.9 if n in (1, 20) else 0.0,
             wait_seconds={"open": 0.09 if n < 20 else 0.08})
        for n in range(1, 40)
    ]  # fmt: skip
    write_run(project / "runs", "fox-1", steps)
    figures = figures_of(read_record(find_run(project / "runs", "fox-1")))
    assert figures.steady_wait_share == 0
    assert not is_slow_data(figures)


def test_a_folder_that_cannot_be_written_is_shown_all_the_same(project):
    folder = write_run(project / "runs", "fox-1", [step(n) for n in range(1, 9)])
    (folder / "plots").write_text("no folder")
    assert "fox-1" in shown(project)


def test_a_job_file_of_another_version_is_shown_all_the_same(project):
    folder = write_run(project / "runs", "fox-1", [step(n) for n in range(1, 9)])
    (folder / "job.yaml").write_text("schema: 99\n")
    assert "fox-1" in shown(project)
