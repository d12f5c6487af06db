"""An ssh server that stands for another machine, and jobs for it."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brain.ml.training_job import Remote, TrainingJob
from tests import ssh_server, training
from tests.conftest import MakeBucket, PutObjects
from tools_utilities.object_store import StoreSpec

ODD_FOLDER = '~/Quark\'s "own" $HOME `id` folder'
"""Whatever a shell could take for something else."""
CANARY = "canary-7f3a/$HOME'\"`id`\\n"


@pytest.fixture(scope="session")
def ssh_program(tmp_path_factory: pytest.TempPathFactory) -> ssh_server.Server:
    try:
        return ssh_server.find_server(tmp_path_factory.mktemp("sshd") / "packages")
    except ssh_server.NoServerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def odd_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python whose name no shell may look into."""
    path = tmp_path_factory.mktemp("programs") / 'py $thon\'s "own" `id`'
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="session")
def machine(
    ssh_program: ssh_server.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ssh_server.Remote]:
    """Another machine, for all tests of a session: what is installed on it stays."""
    with ssh_server.machine(tmp_path_factory.mktemp("machine") / "m", ssh_program) as remote:
        yield remote


@pytest.fixture
def ssh_path(machine: ssh_server.Remote, aws_environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The ssh of these tests comes first on PATH, and the credentials are a canary."""
    aws_environment.setenv("PATH", f"{machine.programs}{os.pathsep}{os.environ['PATH']}")
    aws_environment.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    return aws_environment


@pytest.fixture
def remote(odd_python: str) -> Remote:
    return Remote(
        where=f"ssh:{ssh_server.HOST}", python=odd_python, packages="inherit", folder=ODD_FOLDER
    )


@pytest.fixture
def store(moto_endpoint: str, make_bucket: MakeBucket, put_objects: PutObjects) -> StoreSpec:
    bucket = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, bucket, training.text_shards())
    return StoreSpec(uri=f"s3://{bucket}", endpoint_url=moto_endpoint, region="us-east-1")


@pytest.fixture
def make_remote_job(tmp_path: Path, store: StoreSpec, remote: Remote) -> Callable[..., TrainingJob]:
    """Return `make_remote_job(name, **changes)` of a job that is written into its run folder."""

    def make(name: str = "fox-1", **changes: Any) -> TrainingJob:
        fields = {"remote": remote, "cache_dir": f"{ODD_FOLDER}/cache", **changes}
        return training.make_job(tmp_path / "runs" / name, store, **fields)

    return make
