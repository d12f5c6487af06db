"""Machines that are lost in mid-run, for real: a server that is killed with all its processes, then the next."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from brain.ml.checkpoint_files import list_checkpoints
from brain.ml.sample_log import final_samples, hash_of
from resource_manager.rental.rental_record import read_rental
from resource_manager.runs import read_run
from tests import ssh_server, training
from tests.conftest import MakeBucket, PutObjects
from tests.rental_fake import KEY, RentalFake, offer, rental_fake
from tests.resource_manager.launch_targets.test_vast_sentences import PROGRAM, ROOT
from tools_utilities.object_store import StoreSpec

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="a rented machine's user is root"),
]
SHARDS, ROWS, BATCH, EPOCHS = 4, 240, 8, 30
STEPS_AN_EPOCH = SHARDS * ROWS // BATCH
LOST_AT = 30
SENTENCE = (
    "train quark with {data}/d/train/ for {epochs} epochs, save every 20 steps, on vast under $2 an hour,"
    " stop after $15, named fox-1"
)


def tokens_of(row: int) -> list[int]:
    """No two rows alike."""
    return [3 + row // 200, 3 + row % 200, *range(10, 10 + row % 7)]


@pytest.fixture
def store(moto_endpoint: str, make_bucket: MakeBucket, put_objects: PutObjects) -> StoreSpec:
    bucket, shards = make_bucket(moto_endpoint), {}
    for shard in range(SHARDS):
        rows = range(shard * ROWS, (shard + 1) * ROWS)
        lines = [json.dumps({"input_ids": tokens_of(row)}) for row in rows]
        shards[f"d/train/train-{shard:05d}.jsonl"] = ("\n".join(lines) + "\n").encode()
    put_objects(moto_endpoint, bucket, shards)
    return StoreSpec(uri=f"s3://{bucket}", endpoint_url=moto_endpoint, region="us-east-1")


@pytest.fixture
def second(
    ssh_program: ssh_server.Server, machine: ssh_server.Remote, tmp_path: Path
) -> Iterator[ssh_server.Remote]:
    """The machine that is lost: another server, with a home of its own."""
    with ssh_server.machine(tmp_path / "second", ssh_program) as other:
        other.let_in(machine)
        yield other


@pytest.fixture
def fake(machine: ssh_server.Remote, second: ssh_server.Remote) -> Iterator[RentalFake]:
    with rental_fake() as provider:
        provider.offers = [
            offer(1, num_gpus=1), offer(2, num_gpus=1, dph_total=1.1),
            offer(3, num_gpus=1, dph_total=1.2, machine_id=1002),  # the same host as 2
        ]  # fmt: skip
        provider.fleet = [("127.0.0.1", second.port), ("127.0.0.1", machine.port)]
        yield provider


@pytest.fixture
def project(
    tmp_path: Path, store: StoreSpec, fake: RentalFake, odd_python: str,
    ssh_path: pytest.MonkeyPatch,
) -> Path:  # fmt: skip
    folder = tmp_path / "project"
    folder.mkdir()
    settings = {
        "layers": 1, "seq_len": 16, "batch_size": BATCH, "device": "cpu", "min_size_kb": 0.1,
        "min_objects": 1, "endpoint_url": store.endpoint_url, "region": store.region,
        "remote_python": odd_python, "remote_packages": "inherit", "cache_gb": 1,
        "sample_log": True, "remote_folder": "~/.quark-rented",
    }  # fmt: skip
    (folder / "quark.yaml").write_text(json.dumps(settings))
    ssh_path.setenv("PYTHONPATH", str(ROOT))
    ssh_path.setenv("VAST_API_KEY", KEY)
    ssh_path.setenv("VAST_URL", fake.url)
    return folder


@contextmanager
def program(
    project: Path, *arguments: str, into: int | IO[bytes] = subprocess.PIPE
) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [*PROGRAM, *arguments], cwd=project, stdout=into, stderr=subprocess.STDOUT, text=True
    ) as started:
        try:
            yield started
        finally:
            started.terminate()


def sentence(store: StoreSpec, extra: str = "") -> str:
    return SENTENCE.format(data=store.uri, epochs=EPOCHS) + extra


def lose(fake: RentalFake, machine: ssh_server.Remote, number: int) -> None:
    """The host goes away: nothing on it lives, and the provider says so."""
    machine.lose()
    fake.end(number)


def samples_of(machine: ssh_server.Remote) -> dict[int, list[str]]:
    # The machine serves several tests; the run of this one is the newest there.
    found = (machine.home / ".quark-rented/runs").glob("fox-1-*")
    return final_samples(max(found, key=lambda run: run.stat().st_mtime_ns))


def await_step(run_dir: Path, step: int) -> Callable[[], bool]:
    return lambda: (run_dir / "job.yaml").is_file() and read_run(run_dir).step >= step


@pytest.mark.parametrize("in_store", [True, False], ids=["from the store", "from here"])
def test_a_run_goes_on_on_the_next_offer_and_trains_on_every_sample_once(
    project, store, fake, machine, second, in_store
):
    run_dir = project / "runs/fox-1"
    extra = f" --override checkpoint_dir={store.uri}/saved" if in_store else ""
    with program(project, sentence(store, extra)) as started, ExitStack() as others:
        training.wait_for(await_step(run_dir, LOST_AT), 120)
        if not in_store:
            training.wait_for(lambda: list_checkpoints(run_dir / "checkpoints"), 60)
        seen = project / "seen"
        file = others.enter_context(seen.open("wb"))
        looking = others.enter_context(program(project, "attach fox-1", into=file))
        # The first line is of what is known here; by the second it is connected.
        training.wait_for(lambda: seen.read_text().count("fox-1: step") > 1, 100)
        lose(fake, second, 7000)
        said, _ = started.communicate(timeout=400)
        looking.wait(100)
    assert started.returncode == 0, said
    assert looking.returncode == 0, seen.read_text()
    assert "its machine was lost; it goes on on another one" in seen.read_text()
    assert "instance 7000 was lost; instance 7000 is destroyed, as read back" in said
    assert "renting offer 1 at $1.250 an hour" in said

    asked = [(path, body) for method, path, body in fake.requests if method == "PUT"]
    assert [path for path, _ in asked] == ["/asks/2/", "/asks/1/"]  # 3 is the host that was lost
    assert (fake.made, fake.destroyed, fake.ours()) == ([7000, 7001], [7000, 7001], [])
    record = read_rental(run_dir)
    assert record is not None
    assert record.is_over
    assert record.spent_before > 0
    assert record.cap_seconds == pytest.approx((15 - record.spent_before) / 1.25 * 3600, abs=1)
    assert f"sleep {record.cap_seconds:.0f};" in asked[1][1]["onstart"]

    starts = training.events(run_dir, "start")
    resumed = starts[-1]["resumed_from_step"]
    assert [one["resumed_from_step"] for one in starts] == [None, resumed]
    assert resumed
    assert resumed % 20 == 0
    before = {step: made for step, made in samples_of(second).items() if step <= resumed}
    steps = before | {step: made for step, made in samples_of(machine).items() if step > resumed}
    assert sorted(steps) == list(range(1, EPOCHS * STEPS_AN_EPOCH + 1))
    expected = Counter(hash_of(tokens_of(row)) for row in range(SHARDS * ROWS))
    for epoch in range(EPOCHS):
        first = epoch * STEPS_AN_EPOCH + 1
        made = [one for step in range(first, first + STEPS_AN_EPOCH) for one in steps[step]]
        assert Counter(made) == expected, epoch


def test_a_run_whose_machines_are_all_lost_is_told_and_can_go_on(
    project, store, fake, machine, second
):
    fake.offers = fake.offers[1:]
    run_dir = project / "runs/fox-1"
    with program(project, sentence(store)) as started:
        training.wait_for(await_step(run_dir, LOST_AT), 120)
        training.wait_for(lambda: list_checkpoints(run_dir / "checkpoints"), 60)
        lose(fake, second, 7000)
        said, _ = started.communicate(timeout=400)
    assert started.returncode == 1, said
    assert "the machine was lost, and no other offer fits now" in said
    assert "quark resume fox-1" in said
    assert (fake.made, fake.ours()) == ([7000], [])

    saved = read_run(run_dir).checkpoint_step
    assert saved
    with program(project, f"resume fox-1 for {saved + 3} steps locally") as started:
        said, _ = started.communicate(timeout=120)
    assert started.returncode == 0, said
    assert read_run(run_dir).step == saved + 3
