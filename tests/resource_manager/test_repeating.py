"""`again` and `finetune`: what a run takes over from an earlier one."""

import json
from pathlib import Path

import msgspec
import pytest

from brain.ml.training_job import Every
from resource_manager.plan import Plan
from resource_manager.repeating import settings_of_job
from tests.projects import RecordingTarget, Said, make_manager
from tools_utilities.errors import DataNotFoundError, UsageError

ONE = ["data/datasets/one"]
NOT_OF_THE_RUN = ("name", "run_dir")


@pytest.fixture
def trained(project):
    """A run `fox-1` with settings of its own."""
    manager, target, _, err = make_manager(project)
    given = Said(
        data=ONE, name="fox-1", batch_size=48, lr=0.5, seed=9, epochs=2, keep=7,
        checkpoint_every={"steps": 5}, partition="hash", overrides={"num_partitions": 4},
    )  # fmt: skip
    assert manager.train(given) == 0
    return project, manager, target, err


def plan_of(job) -> Plan:
    return msgspec.json.decode((Path(job.run_dir) / "plan.json").read_bytes(), type=Plan)


def test_again_is_the_same_job_under_another_name(trained):
    _, manager, target, err = trained
    assert manager.again(Said()) == 0
    first, second = target.jobs
    assert first.checkpoint_every == Every(steps=5)
    same = msgspec.structs.replace(second, name=first.name, run_dir=first.run_dir)
    assert same == first
    assert second.name != first.name
    assert plan_of(second).differences == ()
    assert "repeats fox-1" in err.getvalue()


def test_the_run_stands_above_the_environment_and_below_the_sentence(trained):
    project, manager, target, _ = trained
    (project / "quark.yaml").write_text("seed: 1\nbatch_size: 3\nbatch_scope: device\n")
    manager.again(Said(run="fox-1", keep=2))
    job = target.jobs[-1]
    assert (job.seed, job.batch_size, job.keep) == (9, 48, 2)
    why = {item.name: item.why for item in plan_of(job).settings}
    assert why["seed"] == "run fox-1"
    assert why["keep"] == "sentence"
    assert not {"betas", "cache_bytes", "batch_scope", "prefetch"} & why.keys()  # defaults
    assert plan_of(job).differences == ("keep: 7 → 2",)


def test_relative_edits_are_of_that_run(trained):
    _, manager, target, _ = trained
    manager.again(
        Said(run="fox-1", batch_size={"scale": 0.5}, lr={"scale": 2.0}, epochs={"add": 1})
    )
    job = target.jobs[-1]
    assert (job.batch_size, job.lr, job.epochs) == (24, 1.0, 3.0)


def test_a_stop_rule_stands_instead_of_the_runs(trained):
    _, manager, target, _ = trained
    manager.again(Said(max_steps=4))
    assert (target.jobs[-1].epochs, target.jobs[-1].max_steps) == (None, 4)


def test_again_on_other_data_and_without_validation(trained):
    _, manager, target, _ = trained
    manager.again(Said(data=["data/datasets/two"], groups={"pick": [1]}))
    assert [source.prefix for source in target.jobs[-1].train] == ["data/datasets/two/a/"]
    manager.again(Said(run="fox-1", val=False))
    assert target.jobs[-1].val == ()
    manager.again(Said(run="fox-1", val="data/datasets/two/b"))
    assert [source.prefix for source in target.jobs[-1].val] == ["data/datasets/two/b/"]
    assert [source.prefix for source in target.jobs[-1].train] == ["data/datasets/one/train-"]


def test_again_of_data_that_is_gone_and_of_groups_of_nothing(trained):
    project, manager, target, _ = trained
    with pytest.raises(UsageError, match="groups"):
        manager.again(Said(groups={"pick": [1]}))
    for path in (project / "data/datasets/one").iterdir():
        path.unlink()
    with pytest.raises(DataNotFoundError):
        manager.again(Said())
    assert len(target.jobs) == 1


def test_again_without_any_run(project):
    with pytest.raises(DataNotFoundError, match="no runs"):
        make_manager(project)[0].again(Said())


def test_again_as_plan_only_makes_no_folder(trained):
    project, manager, target, _ = trained
    assert manager.again(Said(plan_only=True)) == 0
    assert len(target.jobs) == 1
    assert [path.name for path in (project / "runs").iterdir()] == ["fox-1"]


def test_every_setting_of_a_job_comes_back(trained):
    _, _, target, _ = trained
    kept = settings_of_job(target.jobs[0])
    assert kept["num_partitions"] == 4
    assert kept["checkpoint_every"] == {"steps": 5}
    assert kept["gpus"] is None


def add_checkpoint(project, run: str, *, layers: int = 2, model: str = "quark") -> None:
    folder = project / "runs" / run / "checkpoints/step-00000002"
    folder.mkdir(parents=True)
    shape = {"layers": layers, "vocab_size": 259, "seq_len": 64}
    (folder / "state.json").write_text(json.dumps({"model": model, "shape": shape}))


def test_finetune_starts_from_the_last_checkpoint_of_the_model_and_fits_it(trained):
    project, manager, target, err = trained
    with pytest.raises(DataNotFoundError, match="has a checkpoint"):
        manager.finetune(Said(data=ONE))
    add_checkpoint(project, "fox-1", layers=2)
    assert manager.finetune(Said(data=ONE, model="quark", lr=2e-5)) == 0
    job = target.jobs[-1]
    assert job.init_from == str(project / "runs/fox-1")
    assert (job.layers, job.lr, job.seed) == (2, 2e-5, 42)
    assert "starts from the weights of fox-1" in err.getvalue()
    assert {item.why for item in plan_of(job).settings if item.name == "layers"} == {
        "checkpoint of fox-1"
    }


def test_finetune_from_a_named_run_or_folder(trained):
    project, manager, target, _ = trained
    add_checkpoint(project, "fox-1", layers=3)
    folder = "runs/fox-1/checkpoints/step-00000002"
    for start in ("fox-1", folder):
        manager.finetune(Said(data=ONE, init_from=start))
        assert target.jobs[-1].layers == 3
    assert target.jobs[-1].init_from == str(project / folder)
    with pytest.raises(UsageError, match="no such run"):
        manager.finetune(Said(data=ONE, init_from="fox-99"))
    with pytest.raises(DataNotFoundError, match=r"state\.json"):
        manager.finetune(Said(data=ONE, init_from="./data"))


def test_finetune_looks_for_its_own_model_only(trained):
    project, manager, _, _ = trained
    add_checkpoint(project, "fox-1")
    job_file = project / "runs/fox-1/job.yaml"
    job_file.write_text(job_file.read_text().replace("model: quark", "model: other"))
    with pytest.raises(DataNotFoundError, match="model quark"):
        manager.finetune(Said(data=ONE, model="quark"))


def test_repeating_a_failed_run(project):
    error = {
        "event": "error", "rank": 0, "kind": "X", "message": "m", "hint": "", "exit_code": 3,
        "detail": {}, "time": 2.0,
    }  # fmt: skip
    manager, target, _, _ = make_manager(project, RecordingTarget(error, code=3))
    assert manager.train(Said(data=ONE, seed=3)) == 3
    assert manager.again(Said()) == 3
    assert target.jobs[-1].seed == 3


@pytest.mark.parametrize(
    ("said", "uri", "prefix"),
    [
        ("s3://bucket/saved/here/", "s3://bucket", "saved/here/fox-1/"),
        ("s3://bucket", "s3://bucket", "fox-1/"),
        ("file:///big/disk", "file:///big/disk", "fox-1/"),
    ],
)
def test_checkpoint_dir_is_the_runs_own_place_there_and_comes_back(
    project, said: str, uri: str, prefix: str
):
    manager, target, _, _ = make_manager(project)
    given = Said(data=ONE, name="fox-1", overrides={"checkpoint_dir": said})
    assert manager.train(given) == 0
    target_of = target.jobs[0].checkpoints
    assert (target_of.store.uri, target_of.prefix) == (uri, prefix)
    assert settings_of_job(target.jobs[0])["checkpoint_dir"] == said.rstrip("/")
    assert manager.again(Said(name="fox-2")) == 0
    assert target.jobs[1].checkpoints.prefix == prefix.replace("fox-1", "fox-2")
