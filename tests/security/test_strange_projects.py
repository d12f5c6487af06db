"""A project of somebody else: looking at it runs nothing of it, and what it names gets nothing unasked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from brain.ml.training_job import TrainingJob, load_job, save_job
from tests.projects import Said, make_manager, write_group
from tools_utilities.errors import ChangedError, InputNeededError

ROOT = Path(__file__).resolve().parents[2]
SHADOWS = (
    *sorted(name for name in sys.stdlib_module_names if not name.startswith("_")),
    *(
        "torch",
        "numpy",
        "msgspec",
        "yaml",
        "boto3",
        "botocore",
        "pyarrow",
        "obstore",
        "rich",
        "typer",
    ),
    *("zstandard", "rapidfuzz", "prompt_toolkit", "sitecustomize", "usercustomize", "brain"),
    *(
        "knowledge_hub",
        "resource_manager",
        "tools_utilities",
        "quark_cli",
        "tensorboard",
        "safetensors",
    ),
    *(
        "matplotlib",
        "PIL",
        "urllib3",
        "google_crc32c",
        "transformers",
        "datasets",
        "wandb",
        "mlflow",
    ),
)


@pytest.fixture
def strange(tmp_path) -> Path:
    """Return a project whose every module, and whose programs, leave a mark when they are run."""
    folder: Path = tmp_path / "project"
    write_group(folder / "data/d")
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / name)!r} + '.ran', 'w')\n")
    command = f"sh -c 'touch {tmp_path}/program.ran'"
    (folder / "quark.yaml").write_text(
        f"models:\n  quark: {{command: {json.dumps(command)}}}\n  mine: {{command: {json.dumps(command)}}}\n"
        "tokenizer: bytes\n"
    )
    return folder


def quark(folder: Path, *arguments: str) -> str:
    environ = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "HOME": str(folder.parent / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "CACHE_DIR": str(folder.parent / "home/cache"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(ROOT / "quark_cli.py"), *arguments],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def ran(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.parent.glob("*.ran"))


def test_looking_runs_nothing_of_a_project(strange):
    assert "mine" in quark(strange, "train mine with data/d/ for 2 steps", "--plan")
    quark(strange, "inspect data/d/")
    assert ran(strange) == []


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_training_on_its_data_runs_nothing_of_it_either(strange):
    """`quark` is Quark's own model whatever quark.yaml calls so; workers and ranks import no module of it."""
    small = ("--override", "layers=1", "seq_len=16", "device=cpu", "--yes")
    for sentence in (
        "train quark with data/d/ for 2 steps",
        "train quark with data/d/ for 2 steps with 2 workers on 2 gpus",
    ):
        quark(strange, sentence, *small)
    for sentence in ("list runs", "doctor", "shard data/d/ into 2 shards into shards"):
        quark(strange, sentence, *(["--yes"] if "shard" in sentence else []))
    assert ran(strange) == []
    # The way that a program is meant to be started.
    quark(strange, "train mine with data/d/ for 2 steps", "--yes")
    assert ran(strange) == ["program"]


@pytest.fixture
def begun(tmp_path, aws_environment) -> Path:
    folder: Path = tmp_path / "project"
    write_group(folder / "data/d")
    (folder / "quark.yaml").write_text("models: {mine: {command: 'python mine.py'}}\n")
    (folder / "mine.py").write_text("")
    aws_environment.chdir(folder)
    manager, *_ = make_manager(folder, yes=True)
    said = Said(model="mine", data=["data/d/"], max_steps=2, name="fox-1")
    assert manager.train(said) == 0
    return folder


def changed_job(folder: Path, **changes: object) -> None:
    path = folder / "runs/fox-1/job.yaml"
    save_job(msgspec.structs.replace(load_job(path), **changes), path)


def test_a_run_starts_only_the_program_that_the_project_names(begun):
    manager, target, *_ = make_manager(begun, yes=True)
    assert manager.resume(Said(run="fox-1", max_steps=4)) == 0  # as it was started
    assert len(target.jobs) == 1
    changed_job(begun, command=("sh", "-c", "evil"))
    with pytest.raises(ChangedError, match="runs `sh -c evil`"):
        manager.resume(Said(run="fox-1", max_steps=6))
    changed_job(begun, command=("python", "mine.py"), project_dir=str(begun.parent))
    with pytest.raises(ChangedError, match="takes its program from"):
        manager.resume(Said(run="fox-1", max_steps=6))
    assert len(target.jobs) == 1


@pytest.mark.parametrize("yes", [True, False])
@pytest.mark.parametrize(
    ("name", "value"), [("where", "ssh:box"), ("remote_env", "AWS_SECRET_ACCESS_KEY,HF_TOKEN")]
)
def test_a_project_alone_sends_nothing_to_another_machine(begun, name, value, yes):
    """Where nobody is asked, who gets credentials is said by a person, not by a quark.yaml."""
    (begun / "quark.yaml").write_text(
        "where: ssh:box\nremote_env: [AWS_SECRET_ACCESS_KEY, HF_TOKEN]\n"
    )
    other = {"where": "remote_env", "remote_env": "where"}[name]
    said = {"where": "ssh:box", "remote_env": ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN"]}

    def train(**overrides: object) -> int:
        manager, target, *_ = make_manager(begun, yes=yes)
        given = Said(data=["data/d/"], max_steps=2, name="fox-2", overrides=overrides)
        try:
            manager.train(given)
        finally:
            started.extend(target.jobs)
        return len(target.jobs)

    started: list[TrainingJob] = []
    with pytest.raises(
        InputNeededError, match=f"{name}={value} stands in quark.yaml alone"
    ) as caught:
        train(**{other: said[other]})
    assert f"--override {name}={value}" in caught.value.hint
    assert started == []
    assert train(**said) == 1
    assert started[0].remote is not None
