"""Which code a run was made with."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from brain.ml.code_versions import code_versions
from brain.ml.training_job import TrainingJob


def job(folder: Path | None, model: str = "quark") -> TrainingJob:
    project = None if folder is None else str(folder)
    return TrainingJob(name="fox-1", run_dir="/r", train=(), model=model, project_dir=project)


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_versions_of_what_decides_the_results():
    found = code_versions(job(None))
    assert found["torch"].startswith("2.")
    assert found["python"].count(".") == 2
    assert "project" not in found


@pytest.mark.parametrize("packed", [False, True])
def test_a_projects_commit_and_the_source_of_ones_own_model(tmp_path, packed):
    (tmp_path / "mine").mkdir()
    source = tmp_path / "mine/models.py"
    source.write_text("def build(config): ...\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    if packed:
        git(tmp_path, "pack-refs", "--all")
    found = code_versions(job(tmp_path, "mine.models:build"))
    assert found["project"] == commit[:12]
    assert found["model"] == hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    git(tmp_path, "checkout", "-q", "--detach")
    assert code_versions(job(tmp_path / "mine"))["project"] == commit[:12]


def test_a_worktree_and_no_checkout_at_all(tmp_path):
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "commit", "-q", "--allow-empty", "-m", "first")
    git(main, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    commit = git(main, "rev-parse", "HEAD")[:12]
    assert code_versions(job(tmp_path / "side"))["project"] == commit
    (main / ".git/HEAD").unlink()
    assert "project" not in code_versions(job(main))
