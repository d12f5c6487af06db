"""Starts and stops the servers that tests talk to: moto and SeaweedFS, each a process on loopback.

A server dies with the process that started it, also when that is killed.
"""

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ACCESS_KEY = "quark-test-key"
SECRET_KEY = "quark-test-secret"
REGION = "us-east-1"

# Linux ends the child with its parent; elsewhere the fixture's own stop has to do.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def program(name: str) -> str | None:
    """Return the path of a program of this virtual environment (or of PATH), or None."""
    return shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)


def free_ports(count: int) -> list[int]:
    """Return `count` different free loopback ports."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def answers_http(url: str) -> bool:
    """Say whether anything at all answers at `url`; an error status is an answer."""
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - always one of our own servers
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False


@contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    ready: Callable[[], bool],
    environ: Mapping[str, str] | None = None,
    start_seconds: float = 60.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program while the block lasts; enters the block once `ready()` says yes."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _DIE_WITH_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env=dict(environ) if environ is not None else None,
        )
        try:
            _await(process, ready, log, start_seconds)
            yield process
        finally:
            process.kill()
            process.wait()


def _await(
    process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.args!r} did not start ({process.poll()}):\n{tail}")
        time.sleep(0.05)


@contextmanager
def moto_server(folder: Path) -> Iterator[str]:
    """Run moto's server; yields its base URL."""
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    ready_url = f"{url}/moto-api/data.json"
    with running(command, log=folder / "moto.log", ready=lambda: answers_http(ready_url)):
        yield url


@contextmanager
def weed_server(folder: Path, binary: str) -> Iterator[str]:
    """Run SeaweedFS with all its data under `folder`; yields the base URL of its S3 side."""
    listeners = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(listeners))
    data = folder / "weed"
    data.mkdir()
    command = [
        *(binary, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *("-master.telemetry=false", "-webdav=false", "-admin.ui=false"),
        *("-s3.port.lance=0", "-s3.port.iceberg=0", "-s3.autoCreateBucket=false"),
        *("-master.volumeSizeLimitMB=64", "-volume.max=100"),
        *(f"-{name}.localSocket={data / name}.sock" for name in ("filer", "s3")),
        *(f"-{name}.port={port}" for name, port in zip(listeners, ports[::2], strict=True)),
        *(f"-{name}.port.grpc={port}" for name, port in zip(listeners, ports[1::2], strict=True)),
    ]
    url = f"http://127.0.0.1:{ports[6]}"
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
        "HOME": str(data),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }
    log = folder / "weed.log"
    with running(command, log=log, ready=lambda: _weed_ready(url), environ=environ):
        yield url


def _weed_ready(url: str) -> bool:
    """Say whether an object can be written: the port answers before the volumes do."""
    from botocore.exceptions import BotoCoreError, ClientError

    if not answers_http(url):
        return False
    client = s3_client(url)
    try:
        if not client.list_buckets()["Buckets"]:
            client.create_bucket(Bucket="quark-is-it-up")
        client.put_object(Bucket="quark-is-it-up", Key="probe", Body=b"probe")
    except (BotoCoreError, ClientError):
        return False
    finally:
        client.close()
    return True


@cache
def _session():
    """Return the session of all clients: making one costs ten times what a client of it costs."""
    import boto3

    return boto3.session.Session(
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name=REGION
    )


def s3_client(endpoint: str):
    """Return a boto3 client of a test server, independent of the environment."""
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path"},
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=5,
        read_timeout=20,
    )
    return _session().client("s3", endpoint_url=endpoint, config=config)
