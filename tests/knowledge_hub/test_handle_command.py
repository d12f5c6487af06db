"""`KnowledgeHub().handle_command`: a sentence carried out from Python."""

from pathlib import Path
from typing import Any

import pytest

from brain.ml.training_job import TrainingJob
from knowledge_hub.hub import KnowledgeHub
from tests.projects import RecordingTarget, Said, make_manager, write_group

KEYS = TrainingJob.__struct_fields__
SAID = {"lr": 0.5, "max_steps": 3, "seed": 11, "name": "fox-1", "batch_size": 4}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project with one run, of which some settings were said and one stands in quark.yaml."""
    folder: Path = tmp_path_factory.mktemp("quark")
    write_group(folder / "data/one")
    (folder / "quark.yaml").write_text("layers: 2\n")
    manager, _, _, _ = make_manager(folder, RecordingTarget())
    said: dict[str, Any] = {"data": ["data/one"], **SAID}
    manager.train(Said(**said))
    return folder


def test_a_dataset_alias_of_the_project_is_known(tmp_path, monkeypatch, capsys):
    (tmp_path / "quark.yaml").write_text("datasets: {genomes: data/nowhere/}\n")
    monkeypatch.chdir(tmp_path)

    code = KnowledgeHub().handle_command("train quark with genomes for 2 steps")

    assert code == 3  # read and looked for, not a word that nobody knows
    assert "data/nowhere" in capsys.readouterr().err


def test_a_word_nobody_knows_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert KnowledgeHub().handle_command("train quark with genomes for 2 steps") == 2
    assert "genomes" in capsys.readouterr().err


@pytest.mark.parametrize("key", KEYS)
def test_why_of_every_key_of_a_job_file(project, monkeypatch, capsys, key):
    monkeypatch.chdir(project)

    assert KnowledgeHub().handle_command(f"why {key}?") == 0

    told = capsys.readouterr()
    assert "of run fox-1" in told.err
    lines = told.out.splitlines()
    assert lines[0].startswith(key)
    if key in SAID:
        assert f"{key}={SAID[key]}: sentence" in told.out
    elif key == "layers":
        assert "layers=2: quark.yaml" in told.out
    else:
        assert len([line for line in lines if line.strip()]) >= 2


def test_why_of_what_is_no_setting_names_the_nearest(project, monkeypatch, capsys):
    monkeypatch.chdir(project)

    assert KnowledgeHub().handle_command("why batch_siz") == 2
    assert "batch_size" in capsys.readouterr().err
    assert KnowledgeHub().handle_command("why") == 2
    assert "quark why lr" in capsys.readouterr().err
