"""The plan of a run that goes on: what holds now, and nothing that does not."""

import pytest

from resource_manager.manager import CommandOptions
from tests.projects import Said, make_manager

ONE = ["data/datasets/one"]


def settings_lines(project, **slots) -> list[str]:
    """Return the settings that the plan of a resume lists."""
    manager, _, out, _ = make_manager(project, options=CommandOptions(plan_only=True))
    assert manager.resume(Said(run="fox-1", **slots)) == 0
    lines = out.getvalue().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("  settings"))
    last = next(at for at in range(first + 1, len(lines)) if not lines[at].startswith(" " * 8))
    return [line.removeprefix("  settings").strip() for line in lines[first:last]]


@pytest.fixture
def started(project):
    manager, *_ = make_manager(project)
    said = Said(data=ONE, name="fox-1", max_steps=2, lr=0.01, batch_size=16)
    assert manager.train(said) == 0
    return project


def test_a_new_stop_rule_stands_instead_of_the_old_one(started):
    lines = settings_lines(started, max_steps=6)
    assert [line for line in lines if "max_steps" in line] == ["max_steps=6  (sentence)"]
    assert "lr=0.01  (sentence of its start)" in lines
    lines = settings_lines(started, epochs=3)
    assert "epochs=3.0  (sentence)" in lines
    assert not any("max_steps" in line for line in lines)


def test_a_change_is_listed_as_what_it_makes(started):
    lines = settings_lines(started, epochs={"add": 2}, batch_size={"scale": 0.5})
    assert [line for line in lines if "batch_size" in line] == ["batch_size=8  (sentence)"]
    [epochs] = [line for line in lines if "epochs" in line]
    assert epochs.startswith("epochs=2")
    assert "add" not in epochs


def test_what_an_earlier_resume_set_still_holds(started):
    manager, *_ = make_manager(started)
    assert manager.resume(Said(run="fox-1", max_steps=6, lr=0.5)) == 0
    lines = settings_lines(started, max_steps=8)
    assert [line for line in lines if line.startswith(("lr=", "max_steps="))] == [
        "max_steps=8  (sentence)", "lr=0.5  (an earlier resume)",
    ]  # fmt: skip
    manager, *_ = make_manager(started)
    assert manager.resume(Said(run="fox-1", max_seconds=60)) == 0
    lines = settings_lines(started, lr=0.25, max_samples=4000)
    assert not any(line.startswith(("max_steps", "max_seconds")) for line in lines)
    assert "lr=0.25  (sentence)" in lines


def test_the_command_of_a_resume_has_no_flags_of_the_start(project):
    manager, *_ = make_manager(project, options=CommandOptions(groups="1"))
    assert manager.train(Said(data=["data/datasets/two"], name="fox-1", max_steps=2)) == 0
    manager, _, out, _ = make_manager(project, options=CommandOptions(plan_only=True))
    assert manager.resume(Said(run="fox-1", max_steps=4)) == 0
    assert out.getvalue().endswith("same as\n  quark canonical words\n")
