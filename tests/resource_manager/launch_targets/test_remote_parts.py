"""The parts of a launch elsewhere, without a connection: what is sent, what is refused, what is brought."""

import csv
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brain.ml import checkpoint_files
from brain.ml.checkpoint_files import Complete, record_of
from brain.ml.training_job import CheckpointTarget, DataSource, Remote, RentalTerms, TrainingJob
from resource_manager.accelerators import Accelerators
from resource_manager.launch_targets.ssh import LAUNCH_TARGET, SshTarget
from resource_manager.quark_wheel import build_wheel
from resource_manager.remote_credentials import (
    Sent,
    endpoint_of,
    expiry_warning,
    sent_variables,
    travelling_spec,
)
from resource_manager.remote_helper import Helper, RefusedError
from resource_manager.remote_host import OutOfReachError, RemoteHost, remote_word
from resource_manager.remote_mirror import RunMirror
from resource_manager.remote_preflight import accelerators_of, machine_of
from resource_manager.remote_record import (
    RemoteRecord,
    read_record,
    try_mirror_lock,
    write_record,
)
from resource_manager.remote_run import RemoteRun, collect
from resource_manager.remote_runs import error_here
from resource_manager.remote_session import session_policy, session_seconds
from resource_manager.remote_settings import (
    REMOTE_SETTINGS,
    changed_place,
    remote_of,
    settings_of_remote,
    ssh_address,
)
from resource_manager.remote_shipping import pointer, shipment_of
from tests import training
from tools_utilities.errors import AccessError, MachineError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.settings import load_settings

BOX = Remote(where="ssh:gpu-box")


def job_of(tmp_path: Path, **changes: Any) -> TrainingJob:
    source = DataSource(store=StoreSpec(uri="s3://bucket", region="eu-west-1"), prefix="d/")
    fields = {"name": "r", "run_dir": str(tmp_path / "r"), "train": (source,), "remote": BOX}
    return TrainingJob(**{**fields, **changes})


# Where.


@pytest.mark.parametrize(
    ("where", "arguments"),
    [
        ("ssh:gpu-box", ("--", "gpu-box")),
        ("ssh:me@gpu-box", ("--", "me@gpu-box")),
        ("ssh:root@1.2.3.4:2201", ("-p", "2201", "--", "root@1.2.3.4")),
        ("ssh:[::1]:22", ("-p", "22", "--", "::1")),
    ],
)
def test_an_address_is_what_ssh_takes(where, arguments):
    assert ssh_address(where).arguments == arguments


@pytest.mark.parametrize("where", ["ssh:-oProxyCommand=id", "ssh:a b", "ssh:", "ssh:a:b"])
def test_what_is_no_address_is_refused(where):
    with pytest.raises(UsageError, match="not an ssh host"):
        ssh_address(where)


def settings_of(tmp_path: Path, **overrides: Any):
    return load_settings(start_dir=tmp_path, environ={}, overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"where": "slurm"}, "`local`, `ssh:HOST`, `vast`, aws, gcp, azure, k8s, sky"),
        ({"where": "vast", "max_cost": "5"}, "nobody said what the machine may cost an hour"),
        ({"where": "vast", "max_price_hour": "2"}, "nobody said what ends the renting"),
        ({"where": "vast", "max_price_hour": "2", "max_cost": "5", "nodes": "2"}, "one node"),
        ({"where": "ssh:box", "max_cost": "5"}, "only rented machines have that"),
        ({"where": "ssh:box", "nodes": "2"}, "one node"),
        ({"where": "ssh:box", "remote_env": "A=secret"}, "not the name of a variable"),
        ({"spot": "true"}, "only rented machines have that"),
    ],
)
def test_places_that_cannot_be_launched_on_are_refused(tmp_path, overrides, said):
    with pytest.raises(UsageError, match=said):
        remote_of(settings_of(tmp_path, **overrides))


def test_a_place_and_its_settings_say_the_same(tmp_path):
    given = {
        "where": "ssh:box", "remote_python": "py3", "remote_folder": "/data/q",
        "remote_packages": "inherit", "remote_credentials": "none", "remote_env": "A,B",
    }  # fmt: skip
    remote = remote_of(settings_of(tmp_path, **given))
    assert settings_of_remote(remote) == {**given, "remote_env": ["A", "B"]}
    assert given.keys() - {"where"} == REMOTE_SETTINGS.keys()
    assert remote_of(settings_of(tmp_path)) is None
    assert changed_place(None, remote) == ("where: ssh:box → local",)
    assert changed_place(remote, remote) == ()


def test_what_an_earlier_machine_was_rented_for_is_no_mistake_elsewhere(tmp_path):
    told = settings_of(tmp_path, where="ssh:box", max_cost="5")
    earlier = msgspec.structs.replace(told, sources=told.sources | {"max_cost": "run fox-1"})
    remote = remote_of(earlier)
    assert remote is not None
    assert (remote.where, remote.terms) == ("ssh:box", None)


def test_a_rented_place_and_its_settings_say_the_same(tmp_path):
    given = {
        "where": "vast", "gpu_type": "H100", "gpus": "2", "spot": "true", "max_price_hour": "2.5",
        "max_seconds": "3600", "rental_image": "x/y:z", "rental_disk_gb": "80",
    }  # fmt: skip
    remote = remote_of(settings_of(tmp_path, **given))
    assert remote is not None
    assert remote.terms == RentalTerms(
        gpu_type="H100", gpus=2, spot=True, max_price_hour=2.5, image="x/y:z", disk_gb=80.0
    )
    back = {name: value for name, value in settings_of_remote(remote).items() if value is not None}
    again = remote_of(
        settings_of(tmp_path, max_seconds="3600", **{k: str(v) for k, v in back.items()})
    )
    assert again == remote
    assert changed_place(remote, remote) == ()


# What is sent.


def test_a_wheel_is_made_of_the_files_alone_and_names_what_it_needs(tmp_path):
    wheel, again = build_wheel(("hf",)), build_wheel()
    assert wheel.data == again.data
    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        names = set(archive.namelist())
        record = next(name for name in names if name.endswith("RECORD"))
        listed = {row[0] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
    assert listed == names
    assert {"brain/ml/train.py", "resource_manager/run_supervisor.py"} <= names
    assert "knowledge_hub/phrases.toml" in names
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyc")]
    assert any(line.startswith("torch") for line in again.requirements)
    more = set(wheel.requirements) - set(again.requirements)
    assert {line.split(">")[0] for line in more} == {
        "datasets",
        "peft",
        "transformers",
        "tokenizers",
    }
    torch = next(line for line in again.constraints if line.startswith("torch=="))
    assert "+" not in torch  # another machine needs another build


def test_a_wheel_installs_and_runs(tmp_path):
    wheel = build_wheel()
    path = tmp_path / wheel.file_name
    path.write_bytes(wheel.data)
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", tmp_path / "code"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, path], check=True)
    program = "import brain, sys; print(brain.__file__)"
    said = subprocess.run(
        [sys.executable, "-P", "-c", program], env={"PYTHONPATH": str(tmp_path / "code")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.startswith(str(tmp_path / "code"))


def test_credentials_are_sent_by_name_and_shown_by_name(tmp_path, aws_environment):
    aws_environment.setenv("WANDB_API_KEY", "w")
    job = job_of(tmp_path, remote=msgspec.structs.replace(BOX, variables=("WANDB_API_KEY",)))
    sent = sent_variables(job)
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert sent.variables["AWS_SECRET_ACCESS_KEY"] == secret
    assert sent.variables["WANDB_API_KEY"] == "w"
    assert sent.long_lived == ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    assert secret not in repr(sent)
    assert "HOME" not in sent.variables


def test_a_session_is_no_long_lived_credential(tmp_path, aws_environment):
    aws_environment.setenv("AWS_SESSION_TOKEN", "t")
    sent = sent_variables(job_of(tmp_path))
    assert sent.variables["AWS_SESSION_TOKEN"] == "t"
    assert sent.long_lived == ()


def test_profiles_become_variables(tmp_path, aws_environment):
    config = tmp_path / "credentials"
    config.write_text("[lab]\naws_access_key_id = A\naws_secret_access_key = S\n")
    aws_environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(config))
    lab = DataSource(store=StoreSpec(uri="s3://b", profile="lab", region="x"), prefix="")
    sent = sent_variables(job_of(tmp_path, train=(lab,)))
    assert sent.variables == {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}
    assert travelling_spec(lab.store).profile is None
    with pytest.raises(UsageError, match="need different AWS credentials"):
        sent_variables(job_of(tmp_path, val=(lab,)))


def test_a_session_is_made_for_the_run_alone(tmp_path, aws_environment, moto_endpoint):
    aws_environment.setenv("AWS_ENDPOINT_URL_STS", moto_endpoint)
    remote = msgspec.structs.replace(BOX, credentials="session")
    job = job_of(tmp_path, remote=remote, max_seconds=60.0)
    sent = sent_variables(job, prove=lambda *_: None)
    assert sent.variables["AWS_SESSION_TOKEN"]
    assert sent.variables["AWS_SECRET_ACCESS_KEY"] != os.environ["AWS_SECRET_ACCESS_KEY"]
    assert sent.long_lived == ()
    assert sent.expires_at is not None
    assert expiry_warning(sent, job.max_seconds) == ""
    minio = DataSource(store=StoreSpec(uri="s3://b", endpoint_url=moto_endpoint), prefix="")
    with pytest.raises(UsageError, match="is not Amazon's"):
        sent_variables(job_of(tmp_path, remote=remote, train=(minio,)))
    closed = "http://127.0.0.1:9"
    aws_environment.setenv("AWS_ENDPOINT_URL_STS", closed)
    aws_environment.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(AccessError, match="no session could be made"):
        sent_variables(job)


def test_a_session_has_read_the_data_before_it_is_sent(
    tmp_path, aws_environment, moto_endpoint, make_bucket, put_objects
):
    for service in ("STS", "S3"):
        aws_environment.setenv(f"AWS_ENDPOINT_URL_{service}", moto_endpoint)
    bucket = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, bucket, {"d/train-0": b"", "d/train-1": b"data"})
    remote = msgspec.structs.replace(BOX, credentials="session")
    there = DataSource(store=StoreSpec(uri=f"s3://{bucket}", region="us-east-1"), prefix="d/")
    assert sent_variables(job_of(tmp_path, remote=remote, train=(there,))).expires_at is not None
    gone = msgspec.structs.replace(
        there, store=StoreSpec(uri=f"s3://{bucket}-x", region="us-east-1")
    )
    with pytest.raises(AccessError, match=r"cannot read s3://\S+-x/d/: .*NoSuchBucket"):
        sent_variables(job_of(tmp_path, remote=remote, train=(there, gone)))


def test_a_session_may_do_what_the_run_does_and_no_more(tmp_path):
    store = StoreSpec(uri="s3://data")
    job = job_of(
        tmp_path,
        train=(DataSource(store=store, prefix="d/train-"),),
        checkpoints=CheckpointTarget(store=StoreSpec(uri="s3://mine"), prefix="runs/r/"),
    )
    allowed = [
        (tuple(one["Action"]), one["Resource"], one.get("Condition"))
        for one in session_policy(job)["Statement"]
    ]
    read, write = ("s3:GetObject",), ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
    assert allowed == [
        (read, "arn:aws:s3:::data/d/train-*", None),
        (("s3:ListBucket",), "arn:aws:s3:::data", {"StringLike": {"s3:prefix": ["d/*"]}}),
        (write, "arn:aws:s3:::mine/runs/r/*", None),
        (("s3:ListBucket",), "arn:aws:s3:::mine", {"StringLike": {"s3:prefix": ["runs/r/*"]}}),
    ]
    assert session_seconds(None) == 129_600
    assert session_seconds(60) == 3660
    assert session_seconds(10**6) == 129_600


def test_what_cannot_be_sent_is_refused(tmp_path, aws_environment):
    unset = msgspec.structs.replace(BOX, variables=("NOT_SET_HERE",))
    with pytest.raises(UsageError, match="NOT_SET_HERE not set here"):
        sent_variables(job_of(tmp_path, remote=unset))
    aws_environment.delenv("AWS_ACCESS_KEY_ID")
    aws_environment.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessError, match="no AWS credentials here to send") as caught:
        sent_variables(job_of(tmp_path))
    assert "remote_credentials=none" in caught.value.hint
    own = msgspec.structs.replace(BOX, credentials="none")
    assert sent_variables(job_of(tmp_path, remote=own)).variables == {}
    for scheme in ("gs", "az"):
        source = DataSource(store=StoreSpec(uri=f"{scheme}://b"), prefix="")
        with pytest.raises(AccessError, match="here to send"):
            sent_variables(job_of(tmp_path, train=(source,)), environ=dict)


def test_keys_of_other_clouds_are_sent(tmp_path):
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account", "private_key": "p"}')
    here = {"GOOGLE_APPLICATION_CREDENTIALS": str(key), "AZURE_STORAGE_ACCOUNT_KEY": "k", "X": "x"}
    sources = [DataSource(store=StoreSpec(uri=f"{name}://b"), prefix="") for name in ("gs", "az")]
    sent = sent_variables(job_of(tmp_path, train=tuple(sources)), environ=lambda: here)
    assert sent.variables == {
        "GOOGLE_SERVICE_ACCOUNT_KEY": key.read_text(), "AZURE_STORAGE_ACCOUNT_KEY": "k",
    }  # fmt: skip
    assert set(sent.long_lived) == set(sent.variables)


def test_credentials_that_end_first_are_warned_of():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    sent = Sent(variables={}, expires_at=now + timedelta(hours=1))
    assert expiry_warning(sent, 3000, now) == ""
    assert "end in 60 minutes, and it may take 7200 s" in expiry_warning(sent, 7200, now)
    assert "no time limit" in expiry_warning(sent, None, now)
    assert expiry_warning(Sent(variables={}), None, now) == ""


def test_endpoints_are_addresses():
    assert endpoint_of(StoreSpec(uri="s3://b", endpoint_url="http://127.0.0.1:9000")) == (
        "127.0.0.1:9000"
    )
    assert endpoint_of(StoreSpec(uri="https://data.example.org")) == "data.example.org:443"
    assert endpoint_of(StoreSpec(uri="s3://b")) is None


# What is refused.


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"train": (DataSource(store=StoreSpec(uri="file:///data"), prefix="x/"),)},
         "/data/x/: this data is only on this machine", "shard /data/x/ to s3://"),
        ({"checkpoints": CheckpointTarget(store=StoreSpec(uri="file:///c"), prefix="r/")},
         "checkpoint_dir=/c: a folder of this machine", "Leave it out"),
        ({"model": "mypkg.models:build"}, "your own code is on this machine", "start quark over"),
        ({"command": ("./train.sh",)}, "your own code is on this machine", "start quark over"),
        ({"nodes": 2}, "is one node", "gpus=N"),
        ({"processes": 3}, "32 cannot be dealt to 3 processes", "multiple of 3"),
    ],
)  # fmt: skip
def test_a_job_that_means_nothing_there_is_refused_in_the_plan(tmp_path, changes, said, hint):
    with pytest.raises(UsageError) as caught:
        LAUNCH_TARGET.plan(job_of(tmp_path, **changes))
    assert said in str(caught.value)
    assert hint in caught.value.hint


FOUND: dict[str, Any] = {
    "folder": "/home/me/.quark", "python": "3.12.1", "executable": "/usr/bin/python3",
    "system": "Linux", "machine": "x86_64", "host": "box", "free_bytes": 900_000_000_000,
    "writable": True, "cores": 16, "cards": ["NVIDIA H100, 81559 MiB"] * 2, "nvidia": 2,
    "uv": None, "pip": True, "venv": True, "torch_version": "", "reach": {},
}  # fmt: skip


def look(tmp_path: Path, job_changes: dict[str, Any] | None = None, **changes: Any):
    job = job_of(tmp_path, **(job_changes or {}))
    sent = Sent(variables={"A": "secret"})
    return machine_of(job, {**FOUND, **changes}, sent, wheel_bytes=1, run="/r")


def test_a_look_says_what_there_is(tmp_path):
    machine = look(tmp_path)
    assert machine.accelerators == Accelerators(cuda=True, cards=2, mps=False)
    assert machine.warnings == ()
    text = repr(machine)
    assert "NVIDIA H100" in text
    assert "Python 3.12.1" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"system": "Windows"}, "Windows is not supported"),
        ({"venv": False}, "neither uv nor venv with pip"),
        ({"writable": False}, "nothing can be written below"),
        ({"reach": {"127.0.0.1:9": "Connection refused"}}, "cannot reach the store at 127.0.0.1:9"),
    ],
)
def test_a_machine_that_lacks_something_is_refused(tmp_path, changes, said):
    with pytest.raises(MachineError, match=said):
        look(tmp_path, **changes)
    assert look(tmp_path, venv=False, uv="/usr/bin/uv")


def test_room_is_asked_for_checkpoints_and_warned_of_for_the_rest(tmp_path):
    with pytest.raises(UsageError, match="3 checkpoints"):
        look(tmp_path, free_bytes=100_000_000)
    packages = look(tmp_path, free_bytes=1_000_000_000).warnings
    assert "a first installation of the packages takes about 7.5 GiB" in packages[0]
    cached = look(tmp_path, {"cache_dir": "~/c"}, free_bytes=20_000_000_000).warnings
    assert "the cache of 18.6 GiB does not fit" in cached[0]


def test_devices_are_those_of_the_machine():
    def found(packages: str, **changes: Any) -> Accelerators:
        return accelerators_of({**FOUND, **changes}, packages, "ssh:box")

    cpu_torch = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"
    gpu_torch = "__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n"
    assert found("install", nvidia=0).cuda is False
    assert "ssh:box: no GPU driver" in found("install", nvidia=0).why
    assert found("inherit", torch_version=cpu_torch).cuda is False
    assert found("inherit", torch_version=gpu_torch).cards == 2
    assert found("inherit").cuda is None  # no torch there yet: nobody knows


# What a job becomes.


def test_paths_become_paths_there(tmp_path, aws_environment):
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    start = checkpoint(tmp_path / "start" / "checkpoints", 7)
    job = job_of(
        tmp_path, tokenizer=str(tokenizer), init_from=str(start), detach=True,
        cache_dir="~/.quark/cache", counts_dir="~/.quark/cache/counts",
    )  # fmt: skip
    shipment = shipment_of(job, "/there/run", "/home/me/.quark/cache")
    sent = shipment.job
    assert (sent.run_dir, sent.remote, sent.detach) == ("/there/run", None, False)
    assert sent.tokenizer == "/there/run/files/tokenizer.json"
    assert sent.init_from == "/there/run/files/start"
    assert sent.counts_dir == "/home/me/.quark/cache/counts"
    names = {name for _, name in shipment.files}
    assert {"files/tokenizer.json", "files/start/complete.json"} <= names
    assert pointer(shipment) is None


def test_a_run_that_goes_on_is_sent_its_newest_checkpoint(tmp_path, aws_environment):
    job = job_of(tmp_path, resume="latest")
    for step in (3, 9):
        checkpoint(Path(job.run_dir) / "checkpoints", step)
    shipment = shipment_of(job, "/there/run", None)
    assert {name.split("/")[1] for _, name in shipment.files} == {"step-00000009"}
    assert pointer(shipment) == ("checkpoints/latest", b"step-00000009\n")
    at_three = shipment_of(msgspec.structs.replace(job, from_step=3), "/there/run", None)
    assert at_three.pointed == "step-00000003"


# The helper, and what is brought.


class Direct(RemoteHost):
    """A connection to a helper in this process; what breaks it is up to the test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(BOX)
        self.helper = Helper(io.BytesIO(), io.BytesIO())
        self.helper.folder = folder
        self.breaks = 0

    def ask(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        if self.breaks:
            self.breaks -= 1
            raise OutOfReachError("ssh:gpu-box: the connection ended", hint="")
        fields, data = getattr(self.helper, f"do_{op}")(payload, **fields)
        return msgspec.json.decode(msgspec.json.encode(fields)), data


def checkpoint(folder: Path, step: int, content: bytes = b"{}") -> Path:
    hidden = checkpoint_files.begin(folder, step)
    (hidden / "state.json").write_bytes(content)
    complete = Complete(step=step, files={"state.json": record_of(hidden / "state.json")})
    return checkpoint_files.publish(folder, complete)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    (folder / "runs/r").mkdir(parents=True)
    return folder


@pytest.fixture
def mirror(tmp_path: Path) -> RunMirror:
    run_dir = tmp_path / "fox-9"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_bytes(b"earlier\n")
    record = RemoteRecord(remote=BOX, run="runs/r", metrics_base=8, log_base=0)
    return RunMirror(run_dir, write_record(run_dir, record), keep=2)


def end(there: Path, code: int, free: int = 1 << 40) -> None:
    (there / "runs/r/exit.json").write_text(json.dumps({"code": code, "free_bytes": free}))


def test_metrics_come_once_whatever_is_cut_off(there, mirror):
    told = there / "runs/r/metrics.jsonl"
    told.write_bytes(b"one\ntw")
    mirror.read(Direct(there))
    again = RunMirror(mirror.run_dir, mirror.record)  # another process, after this one was killed
    told.write_bytes(b"one\ntwo\n" + b"x" * (3 << 20))
    end(there, 0)
    status = again.read(Direct(there))
    assert (status.state, status.exit_code) == ("ended", 0)
    assert (mirror.run_dir / "metrics.jsonl").read_bytes() == b"earlier\n" + told.read_bytes()


def test_a_checkpoint_is_here_when_every_byte_was_checked(there, mirror):
    folder = there / "runs/r/checkpoints"
    checkpoint(folder, 4, b"1" * (2 << 20))
    host = Direct(there)
    mirror.read(host)
    here = mirror.run_dir / "checkpoints"
    assert mirror.bring_piece(host, all_of_them=False)
    assert checkpoint_files.list_checkpoints(here) == []
    while mirror.bring_piece(host, all_of_them=False):
        pass
    (brought,) = checkpoint_files.list_checkpoints(here)
    checkpoint_files.check(brought)
    assert checkpoint_files.pointed_to(here) == "step-00000004"


def test_what_a_broken_step_was_made_of_is_brought_and_the_hint_says_where(there, mirror):
    told = there / "runs/r/broken-step.json"
    here = mirror.run_dir / "broken-step.json"
    detail = {"step": 3, "file": str(told)}
    error = {"event": "error", "hint": f"{told} names the samples of the step.", "detail": detail}
    end(there, 1)
    host = Direct(there)
    collect(mirror, host, mirror.read(host))
    assert not here.exists()
    assert error_here(error, mirror.run_dir) == error

    told.write_bytes(b"x" * (3 << 20))
    collect(mirror, host, mirror.read(host))
    assert here.read_bytes() == told.read_bytes()
    assert here.stat().st_mode & 0o077 == 0
    hint = error_here(error, mirror.run_dir)["hint"]
    assert hint == f"{here} names the samples of the step."
    assert error_here({"event": "error", "hint": "x"}, mirror.run_dir)["hint"] == "x"


def test_a_checkpoint_that_goes_away_meanwhile_is_let_go(there, mirror):
    folder = there / "runs/r/checkpoints"
    checkpoint(folder, 4, b"1" * (2 << 20))
    host = Direct(there)
    mirror.read(host)
    mirror.bring_piece(host, all_of_them=False)
    mirror.bring_piece(host, all_of_them=False)
    checkpoint(folder, 5)
    checkpoint_files.keep_newest(folder, 1)
    while mirror.bring_piece(host, all_of_them=False):
        pass
    assert checkpoint_files.list_checkpoints(mirror.run_dir / "checkpoints") == []
    mirror.read(host)
    while mirror.bring_piece(host, all_of_them=True):
        pass
    assert [path.name for path in checkpoint_files.list_checkpoints(mirror.run_dir / "checkpoints")] == ["step-00000005"]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "state", "why"),
    [
        (lambda there: end(there, 1, free=10), "ended", "the disk there is full: 10 bytes free"),
        (lambda there: (there / "runs/r").rmdir(), "lost", "there is no runs/r over there"),
        (
            lambda there: (there / "runs/r/supervisor.json").write_text('{"process": {"pid": 0}}'),
            "lost",
            "its processes are gone",
        ),
    ],
)
def test_how_a_run_ended_is_said(there, mirror, make, state, why):
    make(there)
    status = mirror.read(Direct(there))
    assert status.state == state
    assert why in status.why


class Clock:
    """Time that passes by waiting alone."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_machine_out_of_reach_is_waited_for_and_then_given_up(mirror):
    clock = Clock()

    def connect() -> RemoteHost:
        raise OutOfReachError("ssh:gpu-box: it does not answer", hint="")

    run = RemoteRun(1, mirror, connect, clock=clock, sleep=clock.wait, patience_seconds=100)
    with pytest.raises(OutOfReachError, match="not reached for 100 s, the run may go on") as caught:
        run.wait(30)
    assert "`quark attach fox-9`" in caught.value.hint
    assert "trying again" in run.news()[0]


def test_whatever_ends_the_watching_is_told_to_who_polls(mirror):
    def connect() -> RemoteHost:
        raise ZeroDivisionError

    run = RemoteRun(1, mirror, connect)
    with pytest.raises(ZeroDivisionError):
        run.wait(30)
    with pytest.raises(ZeroDivisionError):
        run.poll()


def test_what_is_asked_is_asked_again_after_a_break_and_takes_effect_once(there, mirror):
    host = Direct(there)
    token = "t"
    for _ in range(2):
        host.ask("signal", run="runs/r", name="interrupt", token=token)
    assert (there / "runs/r/asked-t").exists()
    end(there, 130)
    host.breaks = 1
    run = RemoteRun(1, mirror, lambda: host, sleep=lambda _seconds: None)
    run.interrupt()
    assert run.wait(30) == 130
    assert len(list((there / "runs/r").glob("asked-*"))) == 2
    record = read_record(mirror.run_dir)
    assert record is not None
    assert (record.collected, record.exit_code) == (True, 130)


def test_only_one_process_fills_a_folder(there, mirror):
    """A second one waits for what the first has seen."""
    first = try_mirror_lock(mirror.run_dir)
    assert first is not None
    end(there, 0)
    run = RemoteRun(1, mirror, lambda: Direct(there))
    with pytest.raises(TimeoutError):
        run.wait(0.3)
    ended = msgspec.structs.replace(mirror.record, state="ended", exit_code=0, collected=True)
    write_record(mirror.run_dir, ended)
    assert run.wait(30) == 0
    first.close()


def test_a_run_that_is_being_sent_is_not_taken_for_lost(mirror):
    """Whoever launches holds the lock; who lists the runs asks nobody meanwhile."""
    with try_mirror_lock(mirror.run_dir) or pytest.fail("locked"):
        assert SshTarget().status(mirror.run_dir).state == "starting"


def test_nothing_outside_the_folder_is_touched(there):
    host = Direct(there)
    with pytest.raises(RefusedError, match="leads out of"):
        host.ask("put", b"x", path="../evil", offset=0, done=True, mode=0o600)
    with pytest.raises(RefusedError, match="leads out of"):
        host.ask("file", path="/etc/passwd", offset=0, most=10)


def test_the_environment_is_a_file_of_its_owner_alone_until_it_was_read(there, tmp_path):
    """The supervisor is a program that says what it found, in its place."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport os, sys, json\n"
        "folder = sys.argv[-1]; path = folder + '/environment'\n"
        "seen = {'mode': os.stat(path).st_mode, 'sent': open(path).read(), 'argv': sys.argv,\n"
        "        'code': os.environ['PYTHONPATH'], 'session': os.getsid(0) == os.getpid()}\n"
        "json.dump(seen, open(folder + '/supervisor.json.tmp', 'w'))\n"
        "os.rename(folder + '/supervisor.json.tmp', folder + '/supervisor.json')\n"
    )
    python.chmod(0o755)
    code = "/odd $HOME 'code' \"x\""
    host = Direct(there)
    host.ask(
        "start", b'{"S": "secret $HOME"}', run="runs/r", python=str(python), code=code,
        deadline_seconds=None,
    )  # fmt: skip
    assert host.helper.started is not None
    host.helper.started.wait()
    seen = json.loads((there / "runs/r/supervisor.json").read_text())
    assert stat.S_IMODE(seen["mode"]) == 0o600
    assert seen["sent"] == '{"S": "secret $HOME"}'
    assert "secret" not in " ".join(seen["argv"])
    assert (seen["code"], seen["session"]) == (code, True)


def test_a_supervisor_that_does_not_start_says_why(there, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module of that name >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(RefusedError, match="did not start: no module of that name"):
        Direct(there).ask(
            "start", b"{}", run="runs/r", python=str(python), code="/c", deadline_seconds=None
        )


def test_an_installation_that_fails_says_what_the_installer_said(there, tmp_path):
    with pytest.raises(RefusedError, match=r"ended with 1: .*no-such-package-of-anybody"):
        Direct(there).ask(
            "install", b"./no-such-package-of-anybody.whl\n", key="k",
            mode="inherit", constraints="",
        )  # fmt: skip
    assert not (there / "environments/k/complete").exists()


def test_a_program_is_one_word_of_any_shell():
    assert remote_word("python3") == "python3"
    assert remote_word("~/my env/python") == "~/'my env/python'"
    assert remote_word("/x/$HOME") == "'/x/$HOME'"


def test_a_run_of_another_machine_stands_as_it_was_last_seen(tmp_path):
    from resource_manager.runs import read_run

    job = training.make_job(tmp_path / "r", StoreSpec(uri="s3://b"), remote=BOX)
    run_dir = Path(job.run_dir)
    record = RemoteRecord(remote=BOX, run="runs/r", metrics_base=0, log_base=0, state="running")
    write_record(run_dir, record)
    later = 10**10
    assert read_run(run_dir, clock=lambda: later).status == "running"
    write_record(run_dir, msgspec.structs.replace(record, state="lost"))
    info = read_run(run_dir)
    assert (info.status, info.where) == ("lost", "ssh:gpu-box")
