"""Which code a run was made with: versions, and of one's own model the very source. Imports no torch."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from brain.ml.model_name import is_own, split_own
from brain.ml.training_job import TrainingJob

PACKAGES = {"quark": "quark-launcher", "torch": "torch"}


def code_versions(job: TrainingJob) -> dict[str, str]:
    """Return what decides a run's results beside its job and data; what cannot be told is left out.

    `project` is the commit that the project's folder stands at (not what was changed since), `model`
    the beginning of the SHA-256 of the file of one's own model.
    """
    found = {"python": platform.python_version()}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue  # a checkout that was never installed
    folder = None if job.project_dir is None else Path(job.project_dir)
    commit = None if folder is None else _commit_of(folder)
    if commit:
        found["project"] = commit[:12]
    source = _source_of(job, folder)
    if source is not None:
        found["model"] = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return found


def _commit_of(folder: Path) -> str | None:
    """Return what a git checkout stands at, from its own files: the program need not be there."""
    git = next(
        (each / ".git" for each in (folder, *folder.parents) if (each / ".git").exists()), None
    )
    try:
        if git is None:
            return None
        if git.is_file():  # of a worktree: `gitdir: PATH`
            git = (git.parent / git.read_text("utf-8").removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head
        return _of_reference(git, head.removeprefix("ref: "))
    except OSError:
        return None


def _of_reference(git: Path, name: str) -> str | None:
    common = git / "commondir"
    main = (git / common.read_text("utf-8").strip()).resolve() if common.exists() else git
    for folder in (git, main):
        if (folder / name).is_file():
            return (folder / name).read_text("utf-8").strip()
    packed = main / "packed-refs"
    if packed.is_file():
        for line in packed.read_text("utf-8").splitlines():
            if line.endswith(f" {name}"):
                return line.split(" ", 1)[0]
    return None


def _source_of(job: TrainingJob, folder: Path | None) -> Path | None:
    """Return the file of one's own model, when it lies in the project."""
    if folder is None or not is_own(job.model):
        return None
    stem = folder.joinpath(*split_own(job.model)[0].split("."))
    candidates = (stem.with_suffix(".py"), stem / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)
