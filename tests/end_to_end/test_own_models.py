"""`package.module:build` as the model: from the sentence to a run, resumed, on several ranks, and refused."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brain.ml.sample_log import final_samples
from brain.ml.training_job import TrainingJob, save_job
from knowledge_hub.hub import KnowledgeHub
from resource_manager.launch_targets.local import LAUNCH_TARGET
from tests.end_to_end.test_training_ranks import free_port
from tests.projects import RecordingTarget, make_manager, write_group
from tests.training import ForkServer, events, losses
from tools_utilities.errors import UsageError
from tools_utilities.process_environment import OWN_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ("images", "tables")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the examples in it, their data made."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "quark.yaml").write_text("device: cpu\n")
    for name, data in zip(EXAMPLES, ("shapes", "flats"), strict=True):
        shutil.copytree(ROOT / "examples" / name, folder / "examples" / name)
        program = folder / "examples" / name / "make_shards.py"
        subprocess.run([sys.executable, program, f"data/datasets/{data}"], cwd=folder, check=True)
    write_group(folder / "data/datasets/words/train")
    write_group(folder / "data/datasets/words/val", stem="val-", count=2)
    return folder


def job_of(project: Path, sentence: str, **changes: Any) -> TrainingJob:
    """Return the job that a sentence makes, its folder and file made."""
    manager, target, _, err = make_manager(project)
    assert manager.train(KnowledgeHub().read(sentence)) == 0, err.getvalue()
    job: TrainingJob = msgspec.structs.replace(target.jobs[0], **changes)
    # What the recording target wrote is of no run.
    (Path(job.run_dir) / "metrics.jsonl").unlink()
    save_job(job, Path(job.run_dir) / "job.yaml")
    return job


def again(job: TrainingJob, name: str, **changes: Any) -> TrainingJob:
    """Return the job under another name, its folder and file made."""
    run_dir = Path(job.run_dir).with_name(name)
    run_dir.mkdir(exist_ok=True)
    made = msgspec.structs.replace(job, name=name, run_dir=str(run_dir), **changes)
    save_job(made, run_dir / "job.yaml")
    return made


IMAGES = "train examples.images.classifier:build with data/datasets/shapes for 3 epochs, lr 3e-3"
PRICES = "train examples.tables.flats:build_price with data/datasets/flats for 8 epochs, lr 1e-2"
SALES = "train examples.tables.flats:build_sold with data/datasets/flats for 8 epochs, lr 1e-2"


@pytest.mark.parametrize("sentence", [IMAGES, PRICES, SALES])
def test_the_sentence_stands_in_the_example_and_in_the_docs(sentence):
    name = sentence.split()[1].partition(":")[0].replace(".", "/")
    assert f'quark "{sentence}"' in (ROOT / f"{name}.py").read_text()
    assert f'quark "{sentence}"' in (ROOT / "docs/training.md").read_text()


def test_images_are_told_apart_and_a_resume_is_exact(project: Path, training_forks: ForkServer):
    """Held-out accuracy 20 points above the commonest class; BatchNorm and dropout go on bit for bit."""
    whole = job_of(project, IMAGES, schedule="constant")  # a stop rule bends the others
    assert training_forks.run(whole) == 0
    assert not whole.train[0].format or whole.train[0].format == "webdataset"
    [*_, evaluation] = events(Path(whole.run_dir), "eval")
    assert evaluation["accuracy"] >= 0.25 + 0.07 + 0.20  # the commonest has at most 32 %
    assert events(Path(whole.run_dir), "start")[0]["counts"] == "samples"

    parts = again(whole, "parts", max_steps=40, sample_log=True)
    assert training_forks.run(parts) == 0
    parts = again(parts, "parts", max_steps=None, resume="latest", workers=1)
    assert training_forks.run(parts) == 0
    assert losses(Path(parts.run_dir)) == losses(Path(whole.run_dir))
    seen = [one for samples in final_samples(Path(parts.run_dir)).values() for one in samples]
    assert len(seen) == 3 * 960
    assert len(set(seen)) == 960


def test_prices_are_learned_by_one_rank_and_by_two_alike(project: Path, training_forks: ForkServer):
    alone = job_of(project, PRICES)
    assert training_forks.run(alone) == 0
    [*_, evaluation] = events(Path(alone.run_dir), "eval")
    assert evaluation["r2"] >= 0.8
    two = again(alone, "two", max_steps=60, processes=2)
    pids = training_forks.start_ranks(two, 2, free_port())
    assert [training_forks.wait(pid) for pid in pids] == [0, 0]
    # Of one schedule: as far as the shorter run goes, but for its own end of the rate.
    one = again(alone, "one", max_steps=60)
    assert training_forks.run(one) == 0
    assert losses(Path(two.run_dir)) == pytest.approx(losses(Path(one.run_dir)), abs=1e-5)
    ours, theirs = events(Path(two.run_dir), "eval")[-1], events(Path(one.run_dir), "eval")[-1]
    assert (ours["samples"], ours["tokens"]) == (theirs["samples"], theirs["tokens"])
    assert ours["r2"] == pytest.approx(theirs["r2"], abs=1e-5)


def test_running_means_of_several_ranks_are_saved_as_they_were_evaluated(
    project: Path, training_forks: ForkServer
):
    """Each rank's BatchNorm has seen its own samples; one model is evaluated, and that one is saved."""
    two = again(job_of(project, IMAGES), "pair", max_steps=6, processes=2)
    pids = training_forks.start_ranks(two, 2, free_port())
    assert [training_forks.wait(pid) for pid in pids] == [0, 0]
    alone = again(two, "measured", train=(), evaluate_only=True, init_from=two.run_dir, processes=1)
    alone = again(alone, "measured", max_steps=None, epochs=None)
    assert training_forks.run(alone) == 0
    [ours], [found] = (events(Path(job.run_dir), "eval") for job in (two, alone))
    assert found["loss"] == pytest.approx(ours["loss"], rel=1e-6)


def test_sales_are_learned(project: Path, training_forks: ForkServer):
    job = job_of(project, SALES)
    assert training_forks.run(job) == 0
    [*_, evaluation] = events(Path(job.run_dir), "eval")
    assert evaluation["accuracy"] >= 0.58 + 0.20  # more than half are not sold


TEXT_MODEL = """
    import torch
    from torch import nn

    class Next(nn.Module):
        def __init__(self, vocab_size):
            super().__init__()
            self.table = nn.Embedding(vocab_size, 64)
            self.head = nn.Linear(64, vocab_size)

        def forward(self, tokens_BT):
            return self.head(self.table(tokens_BT))

    def build(config):
        assert config.seq_len == 32, config.seq_len
        return Next(config.vocab_size), nn.CrossEntropyLoss()

    def no_loss(config):
        return Next(config.vocab_size), nn.CrossEntropyLoss(reduction="none")

    def wrong_loss(config):
        return Next(config.vocab_size), lambda outputs, targets: outputs
"""


def test_own_model_of_text(project: Path, training_forks: ForkServer):
    """Without a collate a model gets tokens, as quark does; its loss the targets that count."""
    (project / "bigram.py").write_text(textwrap.dedent(TEXT_MODEL))
    sentence = "train bigram:build with data/datasets/words for 20 steps, context 32, lr 1e-2"
    mean = job_of(project, sentence)
    assert training_forks.run(mean) == 0
    found = losses(Path(mean.run_dir))
    assert found[-1] < 0.8 * found[0]
    each = again(mean, "each", model="bigram:no_loss")
    assert training_forks.run(each) == 0
    assert losses(Path(each.run_dir)) == pytest.approx(found, abs=1e-5)
    wrong = again(mean, "wrong", model="bigram:wrong_loss")
    assert training_forks.run(wrong) == UsageError.exit_code
    assert "the loss gave" in events(Path(wrong.run_dir), "error")[0]["message"]


def test_folders_of_a_project_are_never_taken_for_quarks_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    """A run and its loader worker, started in a project with a folder `brain/` and so on."""
    for name in OWN_PACKAGES:
        (project / name).mkdir()
        (project / name / "__init__.py").write_text("raise ImportError('of the project')\n")
    (project / "bigram.py").write_text(textwrap.dedent(TEXT_MODEL))
    monkeypatch.chdir(project)
    try:
        sentence = "train bigram:build with data/datasets/words for 3 steps, context 32"
        job = job_of(project, sentence, workers=1)
        handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
        assert handle.wait(60) == 0, (Path(job.run_dir) / "log").read_text()
    finally:
        for name in OWN_PACKAGES:
            shutil.rmtree(project / name)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nowhere.at.all:build", "there is no module nowhere.at.all in"),
        ("brain.models:build", "brain is a package of Quark's own"),
        ("examples.images.classifier:bild", "defines no bild"),
        ("examples.images.nothing:build", "there is no module examples.images.nothing"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_made(project: Path, model: str, said: str):
    manager, target, _, _ = make_manager(project, RecordingTarget())
    with pytest.raises(UsageError, match=said):
        manager.train(KnowledgeHub().read(f"train {model} with data/datasets/shapes"))
    assert not target.jobs


def test_sentence_keeps_the_model_byte_for_byte():
    reading = KnowledgeHub().read("train MyPkg.Models:Build_It with ./x")
    assert (reading.status, reading.slots["model"]) == ("ok", "MyPkg.Models:Build_It")
    assert reading.canonical == "train MyPkg.Models:Build_It with ./x"
