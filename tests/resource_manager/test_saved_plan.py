"""Plans kept in a file: carried out exactly, or refused with exit 6."""

import json
from pathlib import Path

import msgspec
import pytest

from resource_manager.manager import CommandOptions
from resource_manager.saved_plan import load_plan
from tests.projects import Said, make_manager
from tests.resource_manager.test_repeating import plan_of
from tools_utilities.errors import ChangedError, UsageError

ONE = ["data/datasets/one"]


@pytest.fixture
def saved(project):
    path = project / "plan.json"
    options = CommandOptions(plan_only=True, plan_file=path)
    manager, target, out, err = make_manager(project, options=options)
    assert manager.train(Said(data=ONE, name="fox-1", lr=0.5, max_steps=3)) == 0
    assert target.jobs == []
    assert not (project / "runs").exists()
    assert "fox-1" in out.getvalue()
    assert f"quark --from-plan {path}" in err.getvalue()
    return project, path


def test_a_kept_plan_is_carried_out_exactly(saved):
    project, path = saved
    (project / "quark.yaml").write_text("seed: 99\nlayers: 7\n")  # said later: not in the plan
    manager, target, _, err = make_manager(project)
    assert manager.run_saved_plan(path) == 0
    kept = load_plan(path)
    assert target.jobs == [kept.job]
    assert (kept.job.lr, kept.job.seed, kept.job.layers) == (0.5, 42, 4)
    assert plan_of(kept.job) == kept.plan
    assert "fox-1" in err.getvalue()
    assert path.stat().st_mode & 0o077 == 0


def test_only_shown_again(saved):
    project, path = saved
    manager, target, out, _ = make_manager(project, options=CommandOptions(plan_only=True))
    assert manager.run_saved_plan(path) == 0
    assert target.jobs == []
    assert "lr=0.5" in out.getvalue()


def grow(project: Path) -> None:
    with (project / "data/datasets/one/train-00003.jsonl").open("a") as file:
        file.write('{"id": 1, "text": "more"}\n')


def add(project: Path) -> None:
    (project / "data/datasets/one/train-00008.jsonl").write_text('{"id": 1, "text": "more"}\n')


def remove(project: Path) -> None:
    (project / "data/datasets/one/train-00007.jsonl").unlink()


def swap(project: Path) -> None:
    """Other content of the same size."""
    path = project / "data/datasets/one/train-00000.jsonl"
    text = path.read_text().replace("sample 1 of", "sample 7 of")
    path.unlink()
    path.write_text(text)


def validation(project: Path) -> None:
    for path in (project / "data/datasets/one").glob("val-*"):
        path.unlink()


@pytest.mark.parametrize("change", [grow, add, remove, swap, validation])
def test_changed_data_is_refused(saved, change):
    project, path = saved
    change(project)
    manager, target, _, _ = make_manager(project)
    with pytest.raises(ChangedError, match="data changed") as caught:
        manager.run_saved_plan(path)
    assert caught.value.exit_code == 6
    assert "--plan --out" in caught.value.hint
    assert target.jobs == []
    assert not (project / "runs").exists()


@pytest.mark.parametrize(
    ("where", "value"),
    [(("job", "lr"), 0.1), (("plan", "canonical"), "x"), (("data",), []), (("job", "odd"), 1)],
)
def test_an_edited_plan_is_refused(saved, where, value):
    project, path = saved
    content = json.loads(path.read_text())
    inner = content
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ChangedError):
        make_manager(project)[0].run_saved_plan(path)


def test_it_is_carried_out_once(saved):
    project, path = saved
    manager, target, _, _ = make_manager(project)
    manager.run_saved_plan(path)
    with pytest.raises(UsageError, match="fox-1 exists"):
        manager.run_saved_plan(path)
    assert len(target.jobs) == 1


def test_changed_weights_are_refused(project):
    checkpoint = project / "runs/owl-1/checkpoints/step-00000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "complete.json").write_text("{}")
    path = project / "plan.json"
    options = CommandOptions(plan_only=True, plan_file=path)
    said = Said(data=ONE, name="fox-1", init_from="owl-1")
    make_manager(project, options=options)[0].train(said)
    (checkpoint / "complete.json").write_text('{"step": 2}')
    with pytest.raises(ChangedError, match="weights changed"):
        make_manager(project)[0].run_saved_plan(path)


def test_files_that_are_not_there(project):
    with pytest.raises(UsageError, match=r"none\.json"):
        make_manager(project)[0].run_saved_plan(project / "none.json")
    (project / "odd.json").write_bytes(msgspec.json.encode({"schema": 1}))
    with pytest.raises(ChangedError):
        make_manager(project)[0].run_saved_plan(project / "odd.json")
    options = CommandOptions(plan_only=True, plan_file=project / "no/such/plan.json")
    with pytest.raises(UsageError, match="--out"):
        make_manager(project, options=options)[0].train(Said(data=ONE))
