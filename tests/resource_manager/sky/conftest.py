"""A stand-in for SkyPilot's program on the PATH, machines that are folders, and jobs for them."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brain.ml.training_job import CheckpointTarget, Remote, RentalTerms, TrainingJob
from resource_manager.launch_targets.sky import SkyTarget
from resource_manager.sky.sky_life import SkyTimes
from tests import sky_fake, training
from tests.conftest import MakeBucket, PutObjects
from tools_utilities.object_store import StoreSpec

CANARY = "canary-7f3a/${HOME}'\"`id`\\n\\'"
ROOT = Path(__file__).parents[3]
TIMES = SkyTimes(launch=30.0, end=5.0, look=0.05)
PYTHON = """\
#!/bin/sh
test "$2" = pip && exit 0
export PYTHONPATH="{root}"
test -e "{folder}/real" && exec "{python}" "$@"
shift 3
exec "{python}" "{program}" "{folder}" "$@"
"""
"""The Python of a machine's environment: packages are there already, and a light program trains."""
LIGHT = """\
import json, pathlib, sys, time
folder, run, deadline, head = sys.argv[1:]
mode = pathlib.Path(folder, "mode")
mode = mode.read_text() if mode.exists() else ""

def tell(event, **rest):
    print("@quark " + json.dumps({"event": event, "time": time.time(), **rest}), flush=True)

print("training begins", flush=True)
tell("start", total_steps=2)
tell("step", step=1, loss=2.0)
stop = pathlib.Path(run, "stop")
while mode == "long" and not stop.exists():
    time.sleep(0.02)
if mode == "crash":
    sys.exit("no space left")
tell("checkpoint", step=1, path="s3://bucket/saved/step-1")
code = 130 if mode == "long" else 0
tell("end", reason="done", exit_code=code, step=2, loss=1.0)
print("training ends", flush=True)
sys.exit(code)
"""


@pytest.fixture
def sky(tmp_path: Path, aws_environment: pytest.MonkeyPatch) -> Iterator[sky_fake.Fake]:
    """The stand-in, first on the PATH; the credentials are a canary."""
    fake, programs = sky_fake.install(tmp_path / "skypilot")
    aws_environment.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    aws_environment.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    yield fake
    fake.end_all()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Quark's folder on every machine, with its environment made."""
    folder = tmp_path / "machine $HOME's"
    python = folder / "environment/bin/python"
    python.parent.mkdir(parents=True)
    (folder / "light.py").write_text(LIGHT)
    text = PYTHON.format(
        root=ROOT, python=sys.executable, program="$0", folder=str(folder).replace("$", "\\$")
    )
    python.write_text(text.replace('"$0"', '"' + f"{folder}/light.py".replace("$", "\\$") + '"'))
    python.chmod(0o755)
    return folder


@pytest.fixture
def store(moto_endpoint: str, make_bucket: MakeBucket, put_objects: PutObjects) -> StoreSpec:
    bucket = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, bucket, training.text_shards())
    return StoreSpec(uri=f"s3://{bucket}", endpoint_url=moto_endpoint, region="us-east-1")


@pytest.fixture
def make_cloud_job(tmp_path: Path, store: StoreSpec, machine: Path) -> Callable[..., TrainingJob]:
    """Return `make_cloud_job(where, terms={…}, **changes)` of a job written into its run folder."""

    def make(where: str = "aws", *, terms: Any = None, **changes: Any) -> TrainingJob:
        money = {"max_price_hour": 2.0, "max_cost": 15.0, "gpus": 0, **(terms or {})}
        remote = Remote(
            where=where, folder=str(machine),
            terms=RentalTerms(image="", disk_gb=50.0, **money),
        )  # fmt: skip
        saved = CheckpointTarget(store=store, prefix="saved/fox-1/")
        fields = {"remote": remote, "checkpoints": saved, "cache_bytes": 10**9, **changes}
        return training.make_job(tmp_path / "runs/fox-1", store, **fields)

    return make


@pytest.fixture
def target(sky: sky_fake.Fake):
    target = SkyTarget(times=TIMES)
    yield target
    target.close()
