"""ResourceManager from Python: data to plan to launch, with a target that only records."""

import json
from pathlib import Path

import msgspec
import pytest

from brain.ml.training_job import load_job
from resource_manager.data_actions import next_lines
from resource_manager.manager import CommandOptions, ResourceManager
from resource_manager.plan import Plan, with_groups
from tests.projects import END, RecordingTarget, Said, make_manager, write_group
from tests.resource_manager.test_plan import make_plan as plan_with
from tools_utilities.errors import (
    ChangedError,
    DataNotFoundError,
    InputNeededError,
    UsageError,
)
from tools_utilities.settings import load_settings
from tools_utilities.terminal_text import plain


def test_it_constructs_without_arguments():
    assert callable(ResourceManager().run_training_job)


def test_the_only_group_is_trained_on_and_its_sibling_validates(project):
    manager, target, out, err = make_manager(project)
    code = manager.run_training_job(
        dataset_local_path="data/datasets/one", overrides={"max_steps": "2", "lr": 0.5}
    )
    assert code == 0
    [job] = target.jobs
    assert [source.prefix for source in job.train] == ["data/datasets/one/train-"]
    assert [source.prefix for source in job.val] == ["data/datasets/one/val-"]
    assert job.train[0].store.uri == f"file://{project.resolve()}"
    assert job.max_steps == 2
    assert job.epochs is None
    assert job.lr == 0.5
    assert job.cache_dir is None  # a local folder is read in place
    assert "the only group" in err.getvalue()
    assert "beside the training data" in err.getvalue()
    assert "1.1" in out.getvalue()


def test_the_run_folder_holds_the_job_and_the_plan(project):
    manager, target, _, _ = make_manager(project)
    manager.run_training_job(
        dataset_local_path="data/datasets/one", overrides={"name": "fox-1", "max_steps": 2}
    )
    run_dir = project / "runs/fox-1"
    assert load_job(run_dir / "job.yaml") == target.jobs[0]
    assert (run_dir / "job.yaml").stat().st_mode & 0o077 == 0
    plan = msgspec.json.decode((run_dir / "plan.json").read_bytes(), type=Plan)
    assert plan.name == "fox-1"
    assert plan.steps == 2
    assert plan.data[0].records_decoded > 0


def test_plan_only_writes_nothing(project):
    before = sorted(project.rglob("*"))
    manager, target, out, _ = make_manager(project, options=CommandOptions(plan_only=True))
    assert manager.run_training_job(dataset_local_path="data/datasets/one") == 0
    assert target.jobs == []
    assert "data/datasets/one/train-" in out.getvalue()
    assert sorted(project.rglob("*")) == before


def test_several_groups_need_a_choice(project):
    manager, target, _, err = make_manager(project, options=CommandOptions(command="quark x"))
    with pytest.raises(InputNeededError) as caught:
        manager.run_training_job(dataset_local_path="data/datasets/two")
    assert "quark x --groups 1" in caught.value.hint
    assert "data/datasets/two/a/" in err.getvalue()
    assert "data/datasets/two/b/" in err.getvalue()
    assert target.jobs == []
    assert not (project / "runs").exists()


def test_an_injected_chooser_chooses(project):
    offered: list[str] = []

    def choose(groups):
        offered.extend(group.prefix for group in groups)
        return [groups[-1]]

    manager, target, _, _ = make_manager(project, choose_shard_groups=choose)
    assert manager.run_training_job(dataset_local_path="data/datasets/two") == 0
    assert len(offered) == 2
    assert [source.prefix for source in target.jobs[0].train] == [offered[-1]]


def test_groups_by_flag_and_by_slot(project):
    for options, slots in ((CommandOptions(groups="all"), {}), (None, {"groups": {"rule": "all"}})):
        manager, target, _, _ = make_manager(project, options=options)
        manager.run_training_job(dataset_local_path="data/datasets/two", overrides=slots)
        assert len(target.jobs[0].train) == 2


def test_no_group_is_told_with_the_folders_and_reasons(project):
    write_group(project / "data/datasets/few", count=3)
    manager, _, _, err = make_manager(project)
    with pytest.raises(DataNotFoundError) as caught:
        manager.run_training_job(dataset_local_path="data/datasets/few")
    assert caught.value.exit_code == 3
    assert "3 objects, fewer than 8" in err.getvalue()
    assert "data/datasets/few/" in err.getvalue()


def test_only_hold_outs_are_never_trained_on_unasked(project):
    write_group(project / "data/datasets/held", "val-")
    manager, _, _, _ = make_manager(project)
    with pytest.raises(DataNotFoundError) as caught:
        manager.run_training_job(dataset_local_path="data/datasets/held")
    assert "train_prefix=data/datasets/held/" in caught.value.hint


def test_train_prefix_wins_and_needs_no_path(project):
    manager, target, _, _ = make_manager(project)
    prefix = "data/datasets/two/a/train-"
    assert manager.run_training_job(overrides={"train_prefix": prefix}) == 0
    assert [source.prefix for source in target.jobs[0].train] == [prefix]
    assert target.jobs[0].val == ()


def test_val_prefix_and_no_validation(project):
    manager, target, _, _ = make_manager(project)
    path = "data/datasets/two/a"
    manager.run_training_job(
        dataset_local_path=path, overrides={"val_prefix": "data/datasets/one/val-"}
    )
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides={"val": False})
    manager.run_training_job(dataset_local_path=path, overrides={"val": "data/datasets/one"})
    assert [[source.prefix for source in job.val] for job in target.jobs] == [
        ["data/datasets/one/val-"], [], ["data/datasets/one/val-"],
    ]  # fmt: skip


def test_an_alias_stands_for_its_path_and_the_plan_says_so(project):
    manager, target, _, err = make_manager(project)
    assert manager.run_training_job(dataset_local_path="mine") == 0
    assert target.jobs[0].train[0].prefix == "data/datasets/one/train-"
    assert "mine stands for data/datasets/one" in err.getvalue()


def test_a_path_of_another_machine_is_told(project):
    manager, target, _, err = make_manager(project)
    assert manager.run_training_job(dataset_local_path="/Users/x/quark/data/datasets/one") == 0
    assert target.jobs[0].train[0].prefix == "data/datasets/one/train-"
    [note] = [line for line in err.getvalue().splitlines() if line.startswith("note: ")]
    assert "/Users/x/quark/data/datasets/one" in note
    assert "data/datasets/one/" in note


def test_injected_settings_stand_below_the_command(project):
    settings = load_settings(start_dir=project, overrides={"lr": "0.25", "seed": "5"})
    manager, target, _, _ = make_manager(project, settings=settings)
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides={"seed": "6"})
    assert target.jobs[0].lr == 0.25
    assert target.jobs[0].seed == 6


def test_a_taken_name_is_refused_before_anything_is_written(project):
    manager, _, _, _ = make_manager(project)
    given = {"name": "fox-1", "max_steps": 1}
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides=given)
    before = sorted(project.rglob("*"))
    with pytest.raises(UsageError, match="fox-1 exists"):
        manager.run_training_job(dataset_local_path="data/datasets/one", overrides=given)
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize(
    "overrides",
    [{"model": "resnet50"}, {"where": "vast"}, {"init_from": "none-1"}, {"then": [{}]}],
)
def test_what_cannot_be_run_is_refused(project, overrides):
    manager, target, _, _ = make_manager(project)
    with pytest.raises(UsageError):
        manager.run_training_job(dataset_local_path="data/datasets/one", overrides=overrides)
    with pytest.raises(UsageError):
        manager.run_training_job("evaluate", dataset_local_path="data/datasets/one")
    assert target.jobs == []
    assert not (project / "runs").exists()


def test_no_data_at_all(project):
    with pytest.raises(InputNeededError, match="needs data"):
        make_manager(project)[0].run_training_job()


ERROR = {
    "event": "error", "rank": 1, "kind": "RecordError", "message": "d/x.jsonl: record 3: bad",
    "hint": "Repair it.", "exit_code": 3, "detail": {}, "time": 2.0,
}  # fmt: skip


def test_a_models_own_error_says_where_it_came_from(project):
    error = {
        **ERROR, "kind": "ValueError", "message": "ValueError: too deep", "exit_code": 1,
        "frame": "models/mine.py:7 in forward",
    }  # fmt: skip
    manager, _, _, err = make_manager(project, RecordingTarget(error, code=1))
    assert manager.run_training_job(dataset_local_path="data/datasets/one") == 1
    said = "error: rank 1, models/mine.py:7 in forward: ValueError: too deep"
    assert said in err.getvalue().splitlines()


def test_a_failed_run_says_its_first_error_once(project):
    manager, _, out, err = make_manager(project, RecordingTarget(ERROR, code=3))
    assert manager.run_training_job(dataset_local_path="data/datasets/one") == 3
    assert err.getvalue().splitlines()[-2:] == [
        "error: rank 1: d/x.jsonl: record 3: bad", "hint: Repair it.",
    ]  # fmt: skip
    assert out.getvalue() == ""


def test_a_run_that_says_nothing_shows_the_end_of_its_log_escaped(project):
    manager, _, _, err = make_manager(project, RecordingTarget(code=9))
    assert manager.run_training_job(dataset_local_path="data/datasets/one") == 9
    assert "last words \\x1b[31m" in err.getvalue()
    assert "\x1b" not in err.getvalue()
    assert "ended with exit code 9" in err.getvalue()


def test_events_as_json(project):
    manager, _, out, _ = make_manager(project, json=True)
    manager.run_training_job(dataset_local_path="data/datasets/one")
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["plan", "end"]


def test_a_reading_is_carried_out_with_where_each_setting_came_from(project):
    manager, target, _, err = make_manager(project)
    reading = Said(data=["data/datasets/one"], max_steps=2, seed=3, overrides={"lr": 0.5})
    assert manager.train(reading) == 0
    assert (target.jobs[0].max_steps, target.jobs[0].seed, target.jobs[0].lr) == (2, 3, 0.5)
    plan = msgspec.json.decode((Path(target.jobs[0].run_dir) / "plan.json").read_bytes(), type=Plan)
    assert {item.name: item.why for item in plan.settings} == {
        "max_steps": "sentence", "seed": "sentence", "lr": "--override",
    }  # fmt: skip
    assert "canonical words" in err.getvalue()


def test_a_relative_value_is_taken_of_the_default(project):
    manager, target, _, _ = make_manager(project)
    manager.train(Said(data=["data/datasets/one"], batch_size={"scale": 0.5}, max_steps=1))
    assert target.jobs[0].batch_size == 16


def test_resume_changes_only_what_was_said(project):
    manager, target, _, _ = make_manager(project)
    first = {"name": "fox-1", "epochs": 1, "lr": 0.5, "seed": 9}
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides=first)
    manager.resume(Said(run="latest", epochs={"add": 2}))
    manager.resume(Said(run="fox-1", from_step=4, max_steps=50, lr={"scale": 2.0}))
    one, more, other = target.jobs
    assert more == msgspec.structs.replace(one, epochs=3.0, resume="latest")
    assert (other.from_step, other.max_steps, other.epochs, other.lr) == (4, 50, None, 1.0)
    assert (other.seed, other.run_dir) == (9, one.run_dir)


def test_resume_shows_its_plan_first(project):
    manager, target, _, _ = make_manager(project)
    first = {"name": "fox-1", "epochs": 2, "lr": 0.5}
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides=first)
    kept = (project / "runs/fox-1/plan.json").read_bytes()
    planned = CommandOptions(plan_only=True)
    manager, _, out, _ = make_manager(project, options=planned)
    assert manager.resume(Said(run="fox-1", epochs={"add": 2}, lr=0.1)) == 0
    text = out.getvalue()
    for part in ("fox-1  train quark", "data/datasets/one/", "lr: 0.5 → 0.1", "4 epochs",
                 "note: goes on from its start", "quark canonical words"):  # fmt: skip
        assert part in text
    assert len(target.jobs) == 1
    manager, target, out, err = make_manager(project, json=True)
    manager.resume(Said(run="fox-1", max_steps=70, from_step=4))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    plan = next(event["plan"] for event in events if event["event"] == "plan")
    assert (plan["steps"], plan["steps_known"], plan["limits"]) == (70, True, ["70 steps"])
    assert plan["notes"] == ["goes on from step 4"]
    assert (project / "runs/fox-1/plan.json").read_bytes() == kept
    (project / "runs/fox-1/plan.json").unlink()
    manager, _, _, err = make_manager(project, options=planned)
    manager.resume(Said(run="fox-1", max_steps=70))
    assert "fox-1: goes on from its start" in err.getvalue()


def test_resume_of_a_finished_run_needs_a_new_limit(project):
    manager, _, _, _ = make_manager(project)
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides={"name": "fox-1"})
    with pytest.raises(UsageError) as caught:
        manager.resume(Said())
    assert "quark resume fox-1 for 1 more epoch" in caught.value.hint


def test_resume_of_a_broken_job_file(project):
    manager, _, _, _ = make_manager(project)
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides={"name": "fox-1"})
    (project / "runs/fox-1/job.yaml").write_text("odd: 1\n")
    with pytest.raises(ChangedError):
        manager.resume(Said(run="fox-1", max_steps=5))


def test_list_and_show(project):
    manager, _, out, _ = make_manager(project)
    given = {"name": "fox-1", "max_steps": 2}
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides=given)
    out.truncate(0)
    assert manager.list_runs(Said()) == 0
    assert manager.list_runs(Said(state="running")) == 0
    assert manager.show_run(Said(run="latest")) == 0
    text = out.getvalue()
    assert text.count("fox-1  finished") == 2
    assert "1.1" in text
    assert " s ago\n" in text


def test_list_shows_as_many_as_are_asked_for(project):
    manager, _, out, err = make_manager(project)
    for name in ("fox-1", "fox-2"):
        manager.train(Said(data=["data/datasets/one"], name=name))
    out.truncate(out.seek(0))
    assert manager.list_runs(Said(lines=1)) == 0
    assert len(out.getvalue().splitlines()) == 2
    assert manager.list_runs(Said(state="lost")) == 0
    assert "no lost runs in" in err.getvalue()


def test_a_run_stopped_before_its_first_step_says_how_to_go_on(project):
    end = {**END, "reason": "interrupt", "exit_code": 130, "step": 0}
    manager, _, _, err = make_manager(project, RecordingTarget(end, code=130))
    assert manager.train(Said(data=["data/datasets/one"], name="fox-1")) == 130
    assert "stopped before the first step" in err.getvalue()
    assert "resume  quark resume fox-1\n" in err.getvalue()
    assert "delete  quark delete fox-1\n" in err.getvalue()
    assert manager.resume(Said(run="fox-1")) == 130


def test_stop_needs_a_running_run_and_a_confirmation(project):
    manager, _, _, _ = make_manager(project)
    with pytest.raises(DataNotFoundError):
        manager.stop_runs(Said(run="fox-1"))
    with pytest.raises(UsageError, match="no run is running"):
        manager.stop_runs(Said(run="all"))
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides={"name": "fox-1"})
    with pytest.raises(UsageError, match="not running"):
        manager.stop_runs(Said(run="fox-1"))
    (project / "runs/fox-1/metrics.jsonl").unlink()  # as if it had just been launched
    with pytest.raises(InputNeededError) as caught:
        manager.stop_runs(Said(run="fox-1"))
    assert "fox-1" in str(caught.value)
    assert "--yes" in caught.value.hint
    manager, _, out, _ = make_manager(project)
    assert manager.stop_runs(Said(run="fox-1", plan_only=True)) == 0
    assert out.getvalue() == "would stop fox-1\n"


def test_discover(project):
    manager, _, out, err = make_manager(project)
    assert manager.discover(Said(data=["data/datasets"])) == 0
    assert "next  quark 'train quark with data/datasets' --groups 1\n" in err.getvalue()
    for prefix in ("one/train-", "two/a/", "two/b/"):
        assert f"data/datasets/{prefix}" in out.getvalue()
    assert manager.discover(Said(data=["."])) == 0
    assert manager.discover(Said(data=["data/datasets/two/a"])) == 0
    assert "      quark 'inspect data/datasets/two/a'\n" in err.getvalue()
    assert next_lines('a"b', 1) == next_lines("a\x1b", 1) == []
    train = plain(next_lines("my set/[x]", 1)[0])
    assert train == """next  quark 'train quark with "my set/[x]"'"""


def test_the_command_of_a_plan_makes_the_choice_again(project):
    for choose, options, flag in (
        (lambda groups: [groups[1]], CommandOptions(), "--groups 2"),
        (None, CommandOptions(groups="1,2"), "--groups 1,2"),
    ):
        manager, target, _, _ = make_manager(project, choose_shard_groups=choose, options=options)
        assert manager.train(Said(data=["data/datasets/two"], max_steps=2)) == 0
        path = Path(target.jobs[0].run_dir) / "plan.json"
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
        assert plan.canonical == f"canonical words {flag}"
    manager, target, _, _ = make_manager(project)
    manager.train(Said(data=["data/datasets/one"], max_steps=2))
    path = Path(target.jobs[0].run_dir) / "plan.json"
    assert msgspec.json.decode(path.read_bytes(), type=Plan).canonical == "canonical words"


def test_two_choices_have_no_one_command():
    plan = plan_with()
    assert with_groups(plan, None, {"--groups 1", "--groups 2"}).canonical is None
    assert with_groups(plan, None, set()) == plan


def test_adaptive_is_refused_with_what_to_use_instead(project):
    manager, target, _, _ = make_manager(project)
    with pytest.raises(UsageError, match="adaptive") as caught:
        manager.run_training_job(
            dataset_local_path="data/datasets/one", overrides={"partition": "adaptive"}
        )
    assert "round_robin" in caught.value.hint
    assert "process" in caught.value.hint
    assert target.jobs == []


def test_what_discovery_did_not_look_at_is_said_in_the_plan(tmp_path, monkeypatch):
    monkeypatch.setattr("tools_utilities.folder_walk.MAX_FOLDERS", 3)
    (tmp_path / "quark.yaml").write_text("layers: 1\nseq_len: 32\nbatch_size: 4\ndevice: cpu\n")
    for name in ("a", "b", "c", "d"):
        write_group(tmp_path / f"data/sets/{name}")
    manager, _, out, err = make_manager(
        tmp_path, options=CommandOptions(groups="1", plan_only=True)
    )
    assert manager.train(Said(data=["data/sets"], max_steps=2)) == 0
    assert "note: 2 folders were not looked into; point closer" in out.getvalue()
    manager, _, _, err = make_manager(tmp_path)
    assert manager.discover(Said(data=["data/sets"])) == 0
    assert "note: 2 folders were not looked into" in err.getvalue()
