"""`why`: where every key of a job file came from."""

import json
from typing import Any

import pytest

from brain.ml.training_job import TrainingJob, load_job
from resource_manager.provenance import SAID_BY_SLOT, SETTINGS_OF, provenance, why_question
from tests.projects import Said, make_manager
from tests.resource_manager.test_repeating import ONE, plan_of
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.setting_keys import KEYS_BY_NAME
from tools_utilities.terminal_text import plain

GIVEN: dict[str, Any] = {
    "name": "fox-1", "layers": 2, "cache_dir": "/tmp", "cache_gb": 3.0, "cache_policy": "lru",  # noqa: S108 - never used
    "prefetch": 3, "fetch_concurrency": 5, "workers": 1, "shuffle": False, "shuffle_mb": 64.0, "seed": 7, "mix_stop": "first_exhausted", "stall_seconds": 9.0,
    "partition": "hash", "num_partitions": 4, "equalize": "pad", "max_drop": 0.5, "on_bad": "skip",
    "bad_budget": 9, "on_missing": "skip", "allow_changed": True, "allow_nan": True, "strict": True,
    "text_key": "text", "vocab_size": 300, "token_dtype": "uint32", "seq_len": 64, "pad_id": 1, "eos_id": 3,
    "overlong": "error", "epochs": 2, "max_steps": 10, "max_tokens": 10_000, "max_samples": 900,
    "max_seconds": 60, "early_stop": 3, "batch_size": 16, "grad_accum": 2, "lr": 0.5, "schedule": "linear",
    "warmup_steps": 3, "optimizer": "sgd", "weight_decay": 0.2, "betas": [0.8, 0.9],
    "grad_clip": 2.0, "precision": "fp32", "compile": True, "parallel": "ddp", "device": "cpu",
    "gpus": 2, "nodes": 1, "checkpoint_every": {"steps": 5}, "eval_every": {"steps": 6}, "keep": 4,
    "resume": "auto", "detach": True, "out_dir": "runs", "train_prefix": "data/datasets/one/train-",
    "val_prefix": "data/datasets/one/val-", "min_nodes": 1, "rendezvous": "127.0.0.1:29500",
    "max_restarts": 1, "rejoin_seconds": 3.0, "sample_log": True, "tensor_parallel": 2, "checkpoint_dir": "checkpoints",
}  # fmt: skip
SETTINGLESS = {
    "schema",
    "counts_dir",
    "model",
    "project_dir",
    "command",
    "weights",
    "init_from",
    "from_step",
    "evaluate_only",
}
UNSAID = {"tokenizer", "template", "lora_rank", "lora_alpha", "remote", "track"}
"""Left at their defaults above: they need a file, no text_key, an hf: model, no rendezvous, a library."""
FIELDS = TrainingJob.__struct_fields__


@pytest.fixture
def given(project) -> tuple[TrainingJob, Any]:
    manager, _, _, _ = make_manager(project)
    overlong = KEYS_BY_NAME["overlong"].choices
    overrides = {**GIVEN, "overlong": overlong[-1]}
    assert manager.train(Said(overrides=overrides)) == 0
    job = load_job(project / "runs/fox-1/job.yaml")
    return job, plan_of(job)


@pytest.fixture
def plain_run(project) -> tuple[TrainingJob, Any]:
    manager, target, _, _ = make_manager(project)
    manager.train(Said(data=ONE))
    return target.jobs[0], plan_of(target.jobs[0])


@pytest.mark.parametrize("name", sorted(set(FIELDS) - SETTINGLESS - UNSAID))
def test_a_key_that_was_given_names_its_source(given, name):
    found = provenance(name, *given)
    assert found.name == name
    assert found.why
    assert all(why.endswith(": --override") for why in found.why)
    assert found.help


@pytest.mark.parametrize("name", FIELDS)
def test_a_key_that_was_not_given_says_how_it_was_decided(plain_run, name):
    found = provenance(name, *plain_run)
    [why] = found.why
    assert why == SAID_BY_SLOT.get(name) or why.startswith("default")
    if name not in {"train", "val"}:
        assert json.dumps(found.value)


def test_fields_and_settings_exist():
    assert set(SETTINGS_OF) | set(SAID_BY_SLOT) <= set(FIELDS)
    assert {key for keys in SETTINGS_OF.values() for key in keys} <= set(KEYS_BY_NAME)
    assert set(FIELDS) - set(SAID_BY_SLOT) - set(SETTINGS_OF) <= set(KEYS_BY_NAME)


def test_settings_are_asked_for_by_any_name(given):
    assert provenance("gpus", *given).value == 2
    assert provenance("learning_rate", *given).name == "lr"
    assert provenance("bucket", *given).why == ("default",)
    assert provenance("min_objects", *given).value == 8
    with pytest.raises(UsageError) as caught:
        provenance("layrs", *given)
    assert "layers" in caught.value.hint


def test_the_command(project):
    manager, _, out, err = make_manager(project)
    (project / "quark.yaml").write_text("seed: 5\n")
    assert manager.why("seed") == 0
    assert "no run yet" in err.getvalue()
    assert "quark.yaml" in out.getvalue()
    manager.train(Said(data=ONE, name="fox-1", lr=0.5))
    for asked in (("lr",), ("lr", "fox-1"), ("lr", "latest")):
        manager, _, out, err = make_manager(project)
        assert manager.why(*asked) == 0
        assert "of run fox-1" in err.getvalue()
        assert "lr=0.5: sentence" in out.getvalue()
    with pytest.raises(DataNotFoundError):
        manager.why("lr", "owl-9")
    manager, _, out, _ = make_manager(project, json=True)
    manager.why("seed")
    assert json.loads(out.getvalue())["why"] == ["seed=5: quark.yaml"]


def test_at_the_prompt(given):
    job, plan = given
    lines = why_question("why lr", job, plan, 80)
    assert lines is not None
    assert any("lr=0.5: --override" in plain(line) for line in lines)
    assert why_question("maybe", job, plan, 80) is None
    wrong = why_question("why layrs", job, plan, 80)
    assert wrong is not None
    assert "layers" in plain(wrong[0])
