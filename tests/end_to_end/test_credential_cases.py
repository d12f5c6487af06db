"""Credentials and clocks, through the whole program: cases B20 and B23 to the letter."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brain.ml.sample_log import final_samples
from tests import faults
from tests.fakes import Reply, Request, StubS3, xml_error
from tests.fault_exchange import Exchange
from tests.fault_proxy import ALWAYS, FaultProxy, Where
from tests.scripts.test_shard_manager import make_dataset
from tests.tools_utilities.test_object_store_s3 import Issuer
from tests.training import (
    ForkServer,
    events,
    losses,
    make_job,
    text_shards,
    train_here,
    write_shards,
)
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.scripts.shard_manager import ShardManager

CHECKOUT = Path(__file__).resolve().parents[2]
NUM_SHARDS = 16
READ_BEFORE = 5
"""Objects before the credentials end; those after them are held until they have."""
STEPS_BEFORE = 3


@pytest.fixture
def project(tmp_path: Path, aws_environment: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "quark"
    folder.mkdir()
    (folder / "quark.yaml").write_text("seed: 7\n")
    aws_environment.setenv("CACHE_DIR", str(tmp_path / "cache"))
    aws_environment.chdir(folder)
    return folder


@pytest.fixture
def issuer(tmp_path: Path, aws_environment: pytest.MonkeyPatch) -> Issuer:
    issuer = Issuer(tmp_path, aws_environment)
    issuer.issue("KEY-A")
    return issuer


def quark(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CHECKOUT / "quark_cli.py"), *arguments], cwd=project,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{project}"},
    )  # fmt: skip


def shards() -> dict[str, bytes]:
    return text_shards(shards=NUM_SHARDS, records=16)


def ends_in_mid_epoch(
    issuer: Issuer, run_dir: Path, then: Callable[[], None]
) -> Callable[[Request], Reply | None]:
    """The key is good until some steps were made: then `then`, and KEY-A is refused.

    What a run has not read by then is held back until it happens, so that it does need it.
    """

    def ended() -> bool:
        if issuer.good == "KEY-A" and len(losses(run_dir)) >= STEPS_BEFORE:
            then()
        return issuer.good != "KEY-A"

    def script(request: Request) -> Reply | None:
        number = re.search(r"/train-(\d+)\.jsonl$", request.key)
        late = number is not None and int(number[1]) >= READ_BEFORE
        deadline = time.monotonic() + 60
        while late and events(run_dir, "start") and not ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        return issuer.check(request)

    return script


def secrets_in(*places: Path) -> list[str]:
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert files
    return [
        path.name
        for path in files
        if any(word in path.read_bytes() for word in (b"secret-of-", b"token-of-"))
    ]


def test_b20_credentials_that_end_for_good_end_the_run_with_its_last_step_saved(
    project: Path, tmp_path: Path, issuer: Issuer, aws_environment: pytest.MonkeyPatch
):
    def end() -> None:
        issuer.good = "nobody"

    run_dir = project / "runs/fox-1"
    with StubS3(shards(), ends_in_mid_epoch(issuer, run_dir, end)) as stub:
        aws_environment.setenv("AWS_ENDPOINT_URL", stub.url)
        settings = {
            "bucket": "b", "profile": "p", "workers": 2, "prefetch": 1, "shuffle": "false",
            "layers": 1, "seq_len": 32, "device": "cpu", "batch_size": 4,
            "checkpoint_every": "1000steps",
        }  # fmt: skip
        flags = [part for name in settings for part in ("--override", f"{name}={settings[name]}")]
        sentence = f"train quark with {project}/d/train named fox-1 for 1 epoch"
        done = quark(project, sentence, *flags, "--yes")

    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert any("credentials" in line and "expired" in line for line in last), done.stderr
    assert "bad request" not in (done.stderr + done.stdout).lower()
    [error] = events(run_dir, "error")
    assert (error["exit_code"], error["detail"]["cause"]) == (1, 4)
    # Nothing was due to be saved: what is there was saved because the run had to end.
    steps = events(run_dir, "step")
    assert len(steps) >= STEPS_BEFORE
    name = f"step-{steps[-1]['step']:08d}"
    assert (run_dir / "checkpoints/latest").read_text().strip() == name
    assert not list((tmp_path / "cache").rglob("*.lock"))
    assert secrets_in(project, tmp_path / "cache") == []
    assert not any(word in done.stderr + done.stdout for word in ("secret-of-", "token-of-"))


@pytest.mark.nightly  # two whole runs
def test_b20_new_credentials_in_mid_run_are_used_and_nothing_is_seen_of_it(
    tmp_path: Path,
    issuer: Issuer,
    aws_environment: pytest.MonkeyPatch,
    training_forks: ForkServer,
):
    def renew() -> None:
        issuer.issue("KEY-B")
        issuer.good = "KEY-B"

    data = shards()
    settings: dict[str, Any] = {
        "workers": 2, "shuffle": False, "max_steps": None, "epochs": 1.0, "val": (),
        "sample_log": True,
    }  # fmt: skip
    run_dir = tmp_path / "run"
    with StubS3(data, ends_in_mid_epoch(issuer, run_dir, renew)) as stub:
        spec = StoreSpec(uri="s3://b", endpoint_url=stub.url, profile="p", region="us-east-1")
        job = make_job(run_dir, spec, cache_dir=str(tmp_path / "cache"), prefetch=1, **settings)
        given = {name: os.environ[name] for name in ("HOME", "AWS_CONFIG_FILE")}
        given |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "")
        assert training_forks.wait(training_forks.start(job, **given), 90) == 0
    assert issuer.good == "KEY-B"
    whole = make_job(tmp_path / "whole", write_shards(tmp_path / "data", data), **settings)
    assert train_here(whole) == 0
    assert final_samples(run_dir) == final_samples(tmp_path / "whole")
    assert losses(run_dir) == losses(tmp_path / "whole")
    assert secrets_in(run_dir, tmp_path / "cache") == []


def test_b20_a_claim_held_when_the_credentials_end_is_released(
    project: Path,
    tmp_path: Path,
    moto_endpoint: str,
    make_bucket: Callable[[str], str],
    put_objects: Callable[..., None],
    aws_environment: pytest.MonkeyPatch,
):
    """What the worker reads is refused from its third chunk on; the release is a put."""
    dataset = make_dataset(tmp_path / "made", samples=40, num_shards=2)
    (project / "own_code.py").write_text("def same(samples):\n    return samples\n")
    bucket = make_bucket(moto_endpoint)
    objects = {
        f"sharded/{path.relative_to(dataset)}": path.read_bytes()
        for path in dataset.rglob("*")
        if path.is_file()
    }
    put_objects(moto_endpoint, bucket, objects)
    with FaultProxy(moto_endpoint) as proxy:
        expired = faults.expired_token()

        async def from_now_on(exchange: Exchange) -> None:
            proxy.inject(expired, Where("GET HEAD"), times=ALWAYS)
            await expired(exchange)

        proxy.inject(from_now_on, Where("GET", r"chunk_"), after=2)
        aws_environment.setenv("AWS_ENDPOINT_URL", proxy.url)
        done = quark(project, f"process s3://{bucket}/sharded with own_code:same to ./out", "--yes")
        assert done.returncode == 1, done.stderr
        assert "expired" in done.stderr
        assert "bad request" not in done.stderr.lower()
        assert "Traceback" not in done.stderr
    store = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=moto_endpoint))
    manager = ShardManager(f"s3://{bucket}/sharded", "w", store=store)
    rows = manager.get_shard_status()["shards"]
    assert [row["status"] for row in rows] == ["available", "available"]
    assert sorted(row["attempts"] for row in rows) == [0, 1]


@pytest.mark.parametrize(
    "sentence",
    ["train quark with {project}/d/train for 2 steps", "train quark with s3://b/d/train/"],
)
def test_b23_a_wrong_clock_is_told_as_such_after_two_requests(
    project: Path, aws_environment: pytest.MonkeyPatch, sentence: str
):
    skewed = xml_error(
        403, "RequestTimeTooSkewed", "The difference between the times is too large.",
        RequestTime="20260101T000000Z", ServerTime="2026-01-01T00:21:40Z",
    )  # fmt: skip
    with StubS3({}, lambda _: skewed) as stub:
        aws_environment.setenv("AWS_ENDPOINT_URL", stub.url)
        flags = ["--override", "bucket=b", "--override", "data_mode=streaming", "--json"]
        done = quark(project, sentence.format(project=project), *flags, "--yes")
        assert 1 <= len(stub.requests) <= 2
    assert done.returncode == 4, done.stderr
    said = done.stdout + done.stderr
    assert "clock is behind the server by 1300 s" in said
    assert "Correct the clock" in said
    assert not any(word in said.lower() for word in ("denied", "wrong key", "credential"))
    assert "Traceback" not in said
    assert not (project / "runs").exists()
