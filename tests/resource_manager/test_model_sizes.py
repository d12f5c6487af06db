"""The size of the model and its tokenizer, as settings say them and the job holds them."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from brain.ml.training_job import TrainingJob
from knowledge_hub.hub import KnowledgeHub
from tests.end_to_end.test_own_models import again
from tests.projects import make_manager, write_group
from tests.training import ForkServer, events, losses
from tools_utilities.errors import UsageError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "quark.yaml").write_text("device: cpu\n")
    write_group(tmp_path / "data/datasets/words/train")
    return tmp_path


def job_of(project: Path, said: str = "", **overrides: Any) -> TrainingJob:
    manager, target, _, err = make_manager(project)
    sentence = f"train quark with data/datasets/words {said} " + " ".join(
        f"--override {name}={value}" for name, value in overrides.items()
    )
    assert manager.train(KnowledgeHub().read(sentence)) == 0, err.getvalue()
    (Path(target.jobs[0].run_dir) / "metrics.jsonl").unlink()
    job: TrainingJob = target.jobs[0]
    return job


def save_tokenizer(path: Path, *specials: str) -> Path:
    """Write a tokenizer of the words that the data is made of; ids begin with the special tokens."""
    words = [*specials, "[UNK]", "sample", "of", *map(str, range(80))]
    kinds = tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]")
    made = tokenizers.Tokenizer(kinds)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(list(specials))
    made.save(str(path))
    return path


def test_parameters_set_the_dial_to_what_comes_nearest(project: Path):
    assert job_of(project).layers == 4
    assert job_of(project, parameters=10_000_000).layers == 6
    assert job_of(project, parameters=500_000).layers == 2


def test_what_is_said_closer_to_the_command_sizes_the_model(project: Path):
    (project / "quark.yaml").write_text("device: cpu\nparameters: 10_000_000\n")
    assert job_of(project).layers == 6
    assert job_of(project, layers=3).layers == 3
    with pytest.raises(UsageError, match="layers=3 and parameters=500000"):
        job_of(project, layers=3, parameters=500_000)


def test_tokenizer_is_found_from_anywhere_and_names_its_end(project: Path, monkeypatch):
    path = save_tokenizer(project / "tokenizer.json", "<pad>", "</s>")
    monkeypatch.chdir(project.parent)
    job = job_of(project, tokenizer="tokenizer.json")
    assert (job.tokenizer, job.eos_id, job.token_ends) == (str(path), 1, False)
    said = job_of(project, tokenizer="tokenizer.json", eos_id=0)
    assert (said.eos_id, said.token_ends) == (0, True)


def test_plan_warns_of_a_tokenizer_without_an_end(project: Path):
    save_tokenizer(project / "tokenizer.json")
    job = job_of(project, tokenizer="tokenizer.json")
    [warning] = json.loads((Path(job.run_dir) / "plan.json").read_text())["warnings"]
    assert "eos_id=2, its 'of' would end the documents" in warning


def test_it_trains_with_a_tokenizer_file_in_worker_processes_too(
    project: Path, training_forks: ForkServer
):
    save_tokenizer(project / "tokenizer.json", "<pad>", "</s>")
    job = job_of(project, "for 20 steps, context 32, lr 1e-2", tokenizer="tokenizer.json", layers=1)
    assert training_forks.run(again(job, "here")) == 0
    here = Path(job.run_dir).with_name("here")
    found = losses(here)
    assert found[-1] < 0.8 * found[0]
    assert events(here, "start")[0]["parameters"] < 70_000  # 85 tokens, not 259
    assert training_forks.run(again(job, "there", workers=1)) == 0
    assert losses(Path(job.run_dir).with_name("there")) == found
