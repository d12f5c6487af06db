"""`… on vast`, as a person types it: the program, a provider on loopback, a real ssh server as what it rents."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brain.ml.checkpoint_files import check, list_checkpoints
from resource_manager.rental.rental_record import read_rental
from resource_manager.runs import read_run
from tests import ssh_server, training
from tests.rental_fake import KEY, RentalFake, offer, rental_fake
from tests.resource_manager.launch_targets.conftest import CANARY
from tools_utilities.object_store import StoreSpec

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="a rented machine's user is root"),
]
PROGRAM = [sys.executable, "-m", "tools_utilities.scripts.quark_cli", "--yes"]
ROOT = Path(__file__).parents[3]
Quark = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def fake(machine: ssh_server.Remote) -> Iterator[RentalFake]:
    with rental_fake() as provider:
        provider.offers = [offer(1, num_gpus=1), offer(2, num_gpus=1, dph_total=1.1)]
        provider.boot = [None, "loading", "running"]
        provider.ssh = ("127.0.0.1", machine.port)
        yield provider


@pytest.fixture
def project(
    tmp_path: Path, store: StoreSpec, machine: ssh_server.Remote, fake: RentalFake, odd_python: str,
    ssh_path: pytest.MonkeyPatch,
) -> Path:  # fmt: skip
    folder = tmp_path / "project"
    folder.mkdir()
    settings = {
        "layers": 1, "seq_len": 32, "batch_size": 8, "device": "cpu", "min_size_kb": 0.1,
        "min_objects": 1, "endpoint_url": store.endpoint_url, "region": store.region,
        "remote_python": odd_python, "remote_packages": "inherit", "cache_gb": 1,
        "remote_folder": f"{machine.home}/rented",
    }  # fmt: skip
    (folder / "quark.yaml").write_text(json.dumps(settings))
    ssh_path.setenv("PYTHONPATH", str(ROOT))
    ssh_path.setenv("VAST_API_KEY", KEY)
    ssh_path.setenv("VAST_URL", fake.url)
    return folder


@pytest.fixture
def quark(project: Path) -> Quark:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [*PROGRAM, *arguments], cwd=project, capture_output=True, text=True, check=False
        )
        told = done.stdout + done.stderr
        assert CANARY not in told
        assert KEY not in told
        return done

    return run


def sentence(store: StoreSpec, rest: str) -> str:
    data = f"{store.uri}/d/train/"
    return f"train quark with {data} {rest} on vast under $2 an hour, stop after $15, named fox-1"


def secrets_in(folder: Path) -> list[Path]:
    texts = (CANARY.encode(), json.dumps(CANARY)[1:-1].encode(), KEY.encode())
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(text in path.read_bytes() for text in texts)]


@pytest.mark.nightly
def test_a_sentence_rents_trains_brings_and_destroys(project, quark, store, machine, fake):
    planned = quark(sentence(store, "for 6 steps"), "--plan")
    assert planned.returncode == 0, planned.stderr
    assert "offer       2 on vast · 1 x RTX 4090 · Norway, NO · the cheapest of 2" in planned.stdout
    assert "$1.100 an hour" in planned.stdout
    assert "of the $15 that were said" in planned.stdout
    assert (fake.made, (project / "runs").exists()) == ([], False)

    done = quark(sentence(store, "for 6 steps"))
    assert done.returncode == 0, done.stderr
    assert "renting offer 2 at $1.100 an hour" in done.stderr
    assert "of $15" in done.stderr.partition("fox-1: step")[2]
    assert "instance 7000 is destroyed, as read back" in done.stderr
    assert (fake.made, fake.destroyed, fake.ours()) == ([7000], [7000], [])

    run_dir = project / "runs/fox-1"
    [saved] = list_checkpoints(run_dir / "checkpoints")
    check(saved)
    assert secrets_in(run_dir) == []
    assert secrets_in(machine.home / "rented") == []
    assert read_run(run_dir).status == "finished"
    listed = quark("list runs")
    assert "vast ($0.0" in listed.stdout
    assert [name for name, _, _ in fake.requests].count("PUT") == 1


@pytest.mark.nightly
def test_ctrl_c_saves_brings_and_destroys(project, store, fake):
    command = [*PROGRAM, sentence(store, "for 1000000 steps, save every 20 steps")]
    run_dir = project / "runs/fox-1"
    with subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE, text=True) as started:
        training.wait_for(
            lambda: (run_dir / "job.yaml").is_file() and read_run(run_dir).step > 25, 120
        )
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=120)
    assert started.returncode == 130, said
    assert (fake.made, fake.destroyed, fake.ours()) == ([7000], [7000], [])
    step = read_run(run_dir).checkpoint_step
    assert step is not None
    assert step >= 20


@pytest.mark.nightly
def test_a_launcher_that_is_killed_leaves_a_run_that_is_found_and_ended(
    project, quark, store, fake
):
    command = [*PROGRAM, sentence(store, "for 1000000 steps, save every 20 steps")]
    run_dir = project / "runs/fox-1"
    with subprocess.Popen(command, cwd=project, stderr=subprocess.DEVNULL) as started:
        training.wait_for(
            lambda: (run_dir / "job.yaml").is_file() and read_run(run_dir).step > 25, 120
        )
        started.kill()
    assert fake.ours() == [7000]
    assert "running" in quark("list runs").stdout
    seen = project / "seen"
    with (
        seen.open("wb") as file,
        subprocess.Popen([*PROGRAM, "attach fox-1"], cwd=project, stderr=file) as looking,
    ):
        training.wait_for(lambda: "cost $0.0" in seen.read_text(), 120)
        looking.send_signal(signal.SIGINT)
        assert looking.wait(60) == 0
    assert " of $15" in seen.read_text()
    assert fake.ours() == [7000]
    assert "of $15" in quark("show fox-1").stdout
    stopped = quark("stop fox-1", "--yes")
    assert stopped.returncode == 0, stopped.stderr
    assert fake.ours() == []
    record = read_rental(run_dir)
    assert record is not None
    assert record.is_over
    assert len(list_checkpoints(run_dir / "checkpoints")) >= 1


@pytest.mark.nightly
@pytest.mark.parametrize("requests", range(1, 9))
def test_a_launcher_that_is_killed_at_any_request_leaves_nothing_that_is_not_found(
    project, quark, store, fake, requests
):
    command = [*PROGRAM, sentence(store, "for 6 steps")]
    seen: list[str] = []
    holder: list[subprocess.Popen[bytes]] = []

    def kills(method: str, _path: str) -> None:
        seen.append(method)
        if len(seen) == requests and holder:
            holder[0].kill()

    fake.on_request = kills
    with subprocess.Popen(command, cwd=project, stderr=subprocess.DEVNULL) as started:
        holder.append(started)
        started.wait(120)
    fake.on_request = lambda _method, _path: None
    quark("list runs")
    training.wait_for(lambda: bool(quark("list runs")) and not fake.ours(), 60)
    assert fake.ours() == []
