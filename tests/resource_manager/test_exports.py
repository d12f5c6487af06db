"""`export`: folders for schedulers. Their scripts are run for real, by stand-ins for srun and pods."""

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from brain.ml.training_job import load_job
from resource_manager.exports.kubernetes import JOB_FOLDER, RUN_FOLDER, object_name
from resource_manager.exports.skypilot import FOLDER as SKY_FOLDER
from tests import servers
from tests.projects import Said, make_manager
from tests.servers import free_ports
from tools_utilities.errors import InputNeededError, UsageError

ONE = ["data/datasets/one"]
TINY = {"layers": 1, "batch_size": 8, "seq_len": 32, "max_steps": 3, "device": "cpu"}
ODD = 'a b $HOME\'s "x"'


@pytest.fixture
def bucket(project, moto_endpoint, make_bucket, put_objects, aws_environment):
    """Data that other machines can read."""
    name = make_bucket(moto_endpoint)
    folder = project / "data/datasets/one"
    put_objects(
        moto_endpoint, name, {f"d/train/{one.name}": one.read_bytes() for one in folder.iterdir()}
    )
    aws_environment.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    return f"s3://{name}/d/train/"


def tokenizer_text() -> str:
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[UNK]", "</s>", *(f"w{n}" for n in range(20))]
    kinds = tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]")
    return str(tokenizers.Tokenizer(kinds).to_str())


def exported(project: Path, folder: str, **slots: Any) -> dict[str, str]:
    manager, *_ = make_manager(project)
    assert manager.export(Said(out=folder, **slots)) == 0
    files = [path for path in Path(folder).iterdir() if path.is_file()]
    return {path.name: path.read_text(errors="replace") for path in files}


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def run_script(path: Path, programs: Path, cwd: Path, **more: str) -> None:
    paths = os.pathsep.join([str(programs), os.environ["PATH"]])
    repository = str(Path(__file__).parents[2])
    environment = {**os.environ, "PATH": paths, "PYTHONPATH": repository, **more}
    done = subprocess.run(
        ["bash", str(path)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def last_event(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1]))


# What is said.


def test_export_needs_a_scheduler_that_it_knows(project):
    manager, *_ = make_manager(project)
    with pytest.raises(InputNeededError, match="kubernetes, skypilot, slurm"):
        manager.export(Said(data=ONE))
    with pytest.raises(UsageError, match="parquet"):
        manager.export(Said(data=ONE, format="parquet"))
    assert not (project / "runs").exists()


def test_a_folder_that_is_there_is_left_alone(project, tmp_path):
    (tmp_path / "out").mkdir()
    manager, *_ = make_manager(project)
    with pytest.raises(UsageError, match="is there already"):
        manager.export(Said(data=ONE, format="slurm", out=str(tmp_path / "out")))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_plan_alone_writes_nothing(project, tmp_path):
    manager, _, out, _ = make_manager(project)
    given = Said(data=ONE, format="slurm", out=str(tmp_path / "out"), plan_only=True)
    assert manager.export(given) == 0
    assert "data" in out.getvalue()
    assert not (tmp_path / "out").exists()


def test_what_is_only_here_is_refused_where_files_do_not_travel(project, tmp_path):
    for name in ("kubernetes", "skypilot"):
        manager, *_ = make_manager(project)
        with pytest.raises(UsageError, match=f"only on this machine.*{name}"):
            manager.export(Said(data=ONE, format=name, out=str(tmp_path / name)))
        assert not (tmp_path / name).exists()


def test_a_folder_of_checkpoints_is_refused_there_too(project, bucket, tmp_path):
    manager, *_ = make_manager(project)
    given = Said(data=[bucket], format="kubernetes", overrides={"checkpoint_dir": str(tmp_path)})
    with pytest.raises(UsageError, match="checkpoint_dir"):
        manager.export(given)


def test_the_next_command_and_what_to_bring_are_told(project, bucket, tmp_path):
    manager, _, out, err = make_manager(project)
    assert manager.export(Said(data=[bucket], format="kubernetes", out=str(tmp_path / "k"))) == 0
    assert "kubectl apply -f" in out.getvalue()
    told = err.getvalue()
    assert "AWS_SECRET_ACCESS_KEY" in told
    assert "quark-credentials" in told
    assert "go with the machine" in told


def test_no_secret_and_nothing_for_others_is_in_the_files(project, bucket, tmp_path):
    for name in ("slurm", "kubernetes", "skypilot"):
        found = exported(project, str(tmp_path / name), data=[bucket], format=name)
        assert not [key for key, text in found.items() if servers.SECRET_KEY in text]
        for path in (tmp_path / name).iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_earlier_run_is_exported_as_it_is_repeated(project, tmp_path):
    manager, target, *_ = make_manager(project)
    assert manager.train(Said(data=ONE, name="fox-1", lr=0.5, seed=9, keep=7)) == 0
    out = str(tmp_path / "out")
    assert manager.export(Said(run="fox-1", format="slurm", out=out, keep=2)) == 0
    job = load_job(Path(out) / "job.yaml")
    before = target.jobs[0]
    assert (job.lr, job.seed, job.keep, job.train) == (0.5, 9, 2, before.train)
    assert job.name != "fox-1"
    assert job.resume == "auto"


# Slurm.


def test_no_gpu_is_asked_for_or_planned_unless_it_is_said(project, tmp_path):
    for said, device, asked in (
        ({}, "slurm · cpu", 0), ({"gpus": 2}, "slurm · cuda", 2), ({"device": "cuda"}, "slurm · cuda", 1),
    ):  # fmt: skip
        manager, _, _, err = make_manager(project)
        out = tmp_path / f"out-{asked}"
        assert manager.export(Said(data=ONE, format="slurm", out=str(out), **said)) == 0
        assert device in err.getvalue()
        assert (f"--gpus-per-node={asked}" in (out / "run.sbatch").read_text()) == bool(asked)


def test_a_batch_script_asks_for_what_was_said(project, tmp_path):
    found = exported(
        project, str(tmp_path / "out"), data=ONE, format="slurm", name="fox-1", gpus=4, nodes=2,
        gpu_type="H100", workers=3, batch_size=64, max_seconds=3600,
    )  # fmt: skip
    asked = [line[8:] for line in found["run.sbatch"].splitlines() if line.startswith("#SBATCH ")]
    assert asked == [
        "--job-name=fox-1", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16",
        "--gpus-per-node=h100:4", "--time=1:20:00", "--signal=TERM@600", "--requeue",
        "--open-mode=append", "--output=%x-%j.log",
    ]  # fmt: skip


def test_the_batch_script_trains_and_goes_on(project, tmp_path):
    out, runs = tmp_path / "out", tmp_path / ODD
    overrides = {"out_dir": str(runs)}
    exported(project, str(out), data=ONE, format="slurm", name="fox-1", overrides=overrides, **TINY)
    program(tmp_path / "bin", "srun", 'exec "$@"')
    run_script(out / "run.sbatch", tmp_path / "bin", tmp_path, SLURM_SUBMIT_DIR=str(out))
    assert last_event(runs / "fox-1")["step"] == 3
    # Submitted again with more to do: it goes on.
    text = (out / "job.yaml").read_text()
    (out / "job.yaml").write_text(text.replace("max_steps: 3", "max_steps: 5"))
    run_script(out / "run.sbatch", tmp_path / "bin", tmp_path, SLURM_SUBMIT_DIR=str(out))
    assert last_event(runs / "fox-1")["step"] == 5
    steps = [
        json.loads(line)["step"]
        for line in (runs / "fox-1/metrics.jsonl").read_text().splitlines()
        if '"event":"step"' in line
    ]
    assert steps == [1, 2, 3, 4, 5]


SRUN = """
shift  # --ntasks-per-node=1
"$@" & first=$!
"$@" & second=$!
wait $first && wait $second
"""


def test_the_nodes_of_a_batch_script_meet_and_train_as_one(project, tmp_path):
    out, runs = tmp_path / "out", tmp_path / "runs"
    given = {**TINY, "nodes": 2, "overrides": {"out_dir": str(runs)}}
    exported(project, str(out), data=ONE, format="slurm", name="fox-1", **given)
    port = free_ports(1)[0]
    script = out / "run.sbatch"
    script.write_text(script.read_text().replace(":29400", f":{port}"))
    program(tmp_path / "bin", "srun", SRUN)
    program(tmp_path / "bin", "scontrol", "echo 127.0.0.1; echo other")
    more = {"SLURM_SUBMIT_DIR": str(out), "SLURM_JOB_NODELIST": "n[1-2]"}
    run_script(script, tmp_path / "bin", tmp_path, **more)
    end = last_event(runs / "fox-1")
    assert (end["event"], end["step"]) == ("end", 3)
    start = json.loads((runs / "fox-1/metrics.jsonl").read_text().splitlines()[0])
    assert start["world_size"] == 2


# Kubernetes.


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def test_a_pytorch_job_has_a_master_and_workers(project, bucket, tmp_path):
    found = exported(
        project, str(tmp_path / "out"), data=[bucket], format="kubernetes", name="fox-1",
        nodes=3, gpus=2, gpu_type="A100", batch_size=48,
        overrides={"checkpoint_dir": bucket.replace("d/train/", "saved")},
    )  # fmt: skip
    config, job = documents(found["run.yaml"])
    assert config["data"]["job.yaml"] == (tmp_path / "out/job.yaml").read_text()
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    roles = job["spec"]["pytorchReplicaSpecs"]
    assert {role: one["replicas"] for role, one in roles.items()} == {"Master": 1, "Worker": 2}
    pod = roles["Worker"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["name"] == "pytorch"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "A100"}
    assert '--rendezvous "$MASTER_ADDR:29400"' in container["command"][2]


def test_pods_and_the_rest_are_valid_objects(project, bucket, tmp_path):
    validate = pytest.importorskip("kubernetes_validate")
    found = exported(project, str(tmp_path / "out"), data=[bucket], format="kubernetes", gpus=2)
    config, job = documents(found["run.yaml"])
    [(_, master)] = job["spec"]["pytorchReplicaSpecs"].items()
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": job["metadata"], **master["template"],
    }  # fmt: skip
    for document in (config, pod):
        validate.validate(document, "1.31", strict=True)


def test_a_pod_trains(project, bucket, tmp_path):
    out = tmp_path / "out"
    found = exported(project, str(out), data=[bucket], format="kubernetes", name="fox-1", **TINY)
    job = documents(found["run.yaml"])[1]
    pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    root = tmp_path / "pod"
    here = {
        JOB_FOLDER: str(root / "job"),
        RUN_FOLDER: str(root / "runs"),
        "/quark/cache": str(root),
    }
    (root / "job").mkdir(parents=True)
    texts = [found["job.yaml"], pod["containers"][0]["command"][2]]
    for there, place in here.items():
        texts = [text.replace(there, place) for text in texts]
    (root / "job/job.yaml").write_text(texts[0])
    (root / "command").write_text(texts[1])
    program(tmp_path / "bin", "python", f'exec {shlex.quote(sys.executable)} "$@"')
    # As the operator numbers pods, which is not how ranks are numbered.
    run_script(root / "command", tmp_path / "bin", tmp_path, RANK="0", WORLD_SIZE="3")
    assert last_event(root / "runs/fox-1")["step"] == 3


def test_files_of_this_machine_do_not_go_into_pods(project, bucket, tmp_path):
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer_text())
    manager, *_ = make_manager(project)
    given: dict[str, Any] = {"data": [bucket], "overrides": {"tokenizer": str(tokenizer)}}
    with pytest.raises(UsageError, match="kubernetes takes none along"):
        manager.export(Said(format="kubernetes", **given))
    found = exported(project, str(tmp_path / "out"), format="skypilot", name="fox-1", **given)
    assert (tmp_path / "out/files/tokenizer.json").read_text() == tokenizer.read_text()
    assert f"tokenizer: {SKY_FOLDER}/runs/fox-1/files/tokenizer.json" in found["job.yaml"]


def test_names_are_such_as_kubernetes_takes():
    assert object_name("fox-12") == "quark-fox-12"
    assert object_name("My_Run.2") == "quark-my-run-2"
    assert len(object_name("x" * 90)) == 50
    assert not object_name("x" * 43 + "_").endswith("-")


# SkyPilot.


def test_a_task_names_what_it_needs_and_no_secret(project, bucket, tmp_path):
    found = exported(
        project, str(tmp_path / "out"), data=[bucket], format="skypilot", name="fox-1", gpus=4,
        nodes=2, gpu_type="RTX4090", spot=True, batch_size=64,
    )  # fmt: skip
    text = found["task.yaml"]
    task = yaml.safe_load(text)
    assert (task["name"], task["num_nodes"]) == ("fox-1", 2)
    assert task["resources"] == {"accelerators": "RTX4090:4", "use_spot": True}
    assert "--secret AWS_ACCESS_KEY_ID --secret AWS_SECRET_ACCESS_KEY" in text.splitlines()[0]
    assert task["setup"].count(next(name for name in found if name.endswith(".whl"))) == 1


def test_no_gpu_is_guessed(project, bucket, tmp_path):
    manager, *_ = make_manager(project)
    with pytest.raises(InputNeededError, match="skypilot needs the name of the GPUs"):
        manager.export(Said(data=[bucket], format="skypilot", gpus=4, batch_size=64))


def test_a_task_runs_where_its_folder_was_sent(project, bucket, tmp_path):
    out = tmp_path / "out"
    found = exported(project, str(out), data=[bucket], format="skypilot", name="fox-1", **TINY)
    root = tmp_path / "machine"
    (root / "environment/bin").mkdir(parents=True)
    job = (out / "job.yaml").read_text().replace(SKY_FOLDER, str(root))
    (out / "job.yaml").write_text(job.replace("/quark/cache", str(root / "cache")))
    script = tmp_path / "run"
    script.write_text(yaml.safe_load(found["task.yaml"])["run"].replace(SKY_FOLDER, str(root)))
    program(root / "environment/bin", "python", f'exec {shlex.quote(sys.executable)} "$@"')
    run_script(script, tmp_path / "bin", out)
    assert last_event(root / "runs/fox-1")["step"] == 3


def test_the_wheel_is_installable_and_the_job_is_readable(project, bucket, tmp_path):
    exported(project, str(tmp_path / "out"), data=[bucket], format="skypilot", name="fox-1")
    [wheel] = (tmp_path / "out").glob("*.whl")
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, wheel],
        check=True, capture_output=True,
    )  # fmt: skip
    assert (target / "brain/ml/train.py").is_file()
    job = load_job(tmp_path / "out/job.yaml")
    assert job.run_dir == f"{SKY_FOLDER}/runs/fox-1"
    assert msgspec.structs.asdict(job)["remote"] is None


SKY_CHECK = """
import sys, sky, yaml
from sky.utils import common_utils, schemas
for path in sys.argv[1:]:
    config = yaml.safe_load(open(path))
    common_utils.validate_schema(config, schemas.get_task_schema(), path)
    if "accelerators" not in config["resources"]:  # a GPU's name is looked up on the web
        task = sky.Task.from_yaml(path)
        print(task.name, task.num_nodes)
"""


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_skypilot_takes_its_tasks(project, bucket, tmp_path, monkeypatch):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    install = [environment / "bin/pip", "install", "-q", "skypilot==0.14.1"]
    if subprocess.run(install, capture_output=True, timeout=900, check=False).returncode:
        pytest.skip("SkyPilot cannot be installed here")
    for name, said in (("cpu", {}), ("gpu", {"gpus": 4, "gpu_type": "RTX4090", "spot": True})):
        exported(project, str(tmp_path / name), data=[bucket], format="skypilot", nodes=2, **said)
    monkeypatch.chdir(tmp_path / "cpu")
    paths = [tmp_path / "cpu/task.yaml", tmp_path / "gpu/task.yaml"]
    done = subprocess.run(
        [environment / "bin/python", "-c", SKY_CHECK, *paths],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "2"
