"""`ssh:HOST` with a real OpenSSH server: a run's whole life on another machine."""

import io
import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from brain.ml.checkpoint_files import check, list_checkpoints
from brain.ml.training_job import Every, Remote
from resource_manager.launch_target import RunHandle
from resource_manager.launch_targets.ssh import SshTarget
from resource_manager.remote_host import OutOfReachError, RemoteHost
from resource_manager.remote_record import read_record
from resource_manager.runs import last_events, list_runs, read_run
from tests import servers, ssh_server, training
from tests.resource_manager.launch_targets.conftest import CANARY, ODD_FOLDER
from tests.training import wait_for
from tools_utilities.errors import MachineError, UsageError

pytestmark = pytest.mark.timeout(300)
ENDLESS = {"max_steps": 1_000_000, "checkpoint_every": Every(steps=20), "keep": 2}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def target(ssh_path, said) -> Iterator[SshTarget]:
    target = SshTarget(said.append)
    yield target
    target.close()


def run_folder(machine: ssh_server.Remote, run_dir: Path) -> Path:
    record = read_record(run_dir)
    assert record is not None
    return machine.home / ODD_FOLDER.removeprefix("~/") / record.run


def processes(run: Path) -> dict[str, int]:
    supervisor = json.loads((run / "supervisor.json").read_text())["process"]["pid"]
    told = run / "process.json"
    ranks = json.loads(told.read_text())["ranks"] if told.exists() else []
    return {"supervisor": supervisor, **{f"rank {n}": r["pid"] for n, r in enumerate(ranks)}}


def gone(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


def holders_of(canary: bytes, *folders: Path) -> list[Path]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if canary in path.read_bytes()]


def command_lines() -> bytes:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


def test_the_whole_life_of_a_run(machine, target, make_remote_job, said, tmp_path):
    job = make_remote_job(**ENDLESS)
    run_dir = Path(job.run_dir)
    the_look_makes_nothing(machine, target, job)

    # Launched and left alone: the connection goes, the run stays.
    quarks = machine.home / ODD_FOLDER.removeprefix("~/")
    installed = list(quarks.glob("environments/*[0-9a-f]/complete"))  # by another test
    pid = target.launch(target.plan(job)).pid
    target.close()
    machine.break_connections()
    run = run_folder(machine, run_dir)
    assert processes(run)["supervisor"] == pid
    assert any("installing packages" in line for line in said) == (not installed)

    # Asked from another command.
    wait_for(lambda: target.status(run_dir).state == "running" and last_events(run_dir))
    assert "INFO" in target.logs(run_dir).read_text()
    assert [info.status for info in list_runs(run_dir.parent)] == ["running"]
    assert target.verify_gone(run_dir) != ()
    the_secret_is_in_the_run_alone(run, machine.home, tmp_path / "runs")

    handle = attached_through_a_broken_connection(machine, run_dir)
    handle.interrupt()  # who looks on ends nothing
    assert handle.poll() is None
    assert not any(gone(pid) for pid in processes(run).values())

    # Stopped: it saves, and everything it has comes here.
    target.stop(run_dir)
    assert handle.wait(60) == 130
    assert all(gone(pid) for pid in processes(run).values())
    assert target.verify_gone(run_dir) == ()
    info = read_run(run_dir)
    assert (info.status, info.where, info.exit_code) == ("interrupted", "ssh:gpu-box", 130)
    everything_is_here(run, run_dir)

    # And goes on here, from where it was.
    here = msgspec.structs.replace(
        job, remote=None, cache_dir=None, resume="latest", max_steps=info.step + 3
    )
    assert training.train_here(here) == 0
    start = training.events(run_dir, "start")[-1]
    assert start["resumed_from_step"] == info.checkpoint_step == info.step

    # Gone there too.
    target.remove(run_dir)
    assert not run.exists()


def the_look_makes_nothing(machine, target, job) -> None:
    before = sorted(machine.home.rglob("*"))
    found = target.look(job)
    assert sorted(machine.home.rglob("*")) == before
    facts = dict(found.facts)
    assert "AWS_SECRET_ACCESS_KEY" in facts["sends"]
    assert "long-lived" in facts["sends"]
    assert CANARY not in repr(found)
    assert CANARY not in repr(target.plan(job))


def the_secret_is_in_the_run_alone(run: Path, *folders: Path) -> None:
    rank = processes(run)["rank 0"]
    assert CANARY.encode() in Path(f"/proc/{rank}/environ").read_bytes()
    assert not (run / "environment").exists()
    for canary in (CANARY.encode(), json.dumps(CANARY)[1:-1].encode()):
        assert holders_of(canary, *folders) == []
        assert canary not in command_lines()


def attached_through_a_broken_connection(machine, run_dir: Path) -> RunHandle:
    handle = SshTarget().attach(run_dir)
    assert handle.poll() is None
    wait_for(lambda: list_checkpoints(run_dir / "checkpoints"))
    machine.break_connections()
    news: list[str] = []

    def is_back() -> bool:
        news.extend(handle.news())
        return any("connected again" in line for line in news)

    wait_for(is_back)
    assert "the run goes on there, trying again" in news[0]
    return handle


def everything_is_here(run: Path, run_dir: Path) -> None:
    for name in ("metrics.jsonl", "log"):
        assert (run_dir / name).read_bytes() == (run / name).read_bytes()
    saved = list_checkpoints(run_dir / "checkpoints")
    there = list_checkpoints(run / "checkpoints")
    # One may have been brought before the run over there let it go.
    assert {path.name for path in there} <= {path.name for path in saved}
    assert there
    for path in saved:
        check(path)


@pytest.mark.nightly
def test_a_run_goes_back_to_the_machine_from_a_checkpoint_here(machine, target, make_remote_job):
    """What a rank that is killed leaves is saved already; the next launch is sent it."""
    job = make_remote_job("fox-2", **{**ENDLESS, "checkpoint_every": Every(steps=2)})
    run_dir = Path(job.run_dir)
    handle = target.launch(target.plan(job))
    assert handle.poll() is None
    wait_for(lambda: list_checkpoints(run_dir / "checkpoints"))
    os.kill(processes(run_folder(machine, run_dir))["rank 0"], signal.SIGKILL)
    assert handle.wait(60) == 137
    killed = read_run(run_dir)
    assert killed.status == "lost"
    assert killed.checkpoint_step

    again = msgspec.structs.replace(job, resume="latest", max_steps=killed.checkpoint_step + 4)
    said: list[str] = []
    second = SshTarget(said.append).launch(target.plan(again))
    assert [line for line in said if "installing" in line] == []
    assert second.wait(120) == 0
    start = training.events(run_dir, "start")[-1]
    assert start["resumed_from_step"] == killed.checkpoint_step
    assert read_run(run_dir).status == "finished"
    assert read_run(run_dir).step == killed.checkpoint_step + 4


@pytest.mark.nightly
def test_a_supervisor_that_is_killed_leaves_a_run_that_saves_and_ends(
    machine, target, make_remote_job
):
    job = make_remote_job("fox-3", **ENDLESS)
    run_dir = Path(job.run_dir)
    handle = target.launch(target.plan(job))
    assert handle.poll() is None
    wait_for(lambda: training.losses(run_dir))
    os.kill(processes(run_folder(machine, run_dir))["supervisor"], signal.SIGKILL)
    assert handle.wait(90) == 143
    assert any("its processes are gone" in line for line in handle.news())
    assert read_run(run_dir).status == "interrupted"
    assert target.verify_gone(run_dir) == ()


@pytest.mark.nightly
def test_a_second_interrupt_ends_every_process_at_once(machine, target, make_remote_job):
    job = make_remote_job("fox-4", processes=2, **ENDLESS)
    run_dir = Path(job.run_dir)
    handle = target.launch(target.plan(job))
    assert handle.poll() is None
    wait_for(lambda: training.losses(run_dir))
    pids = processes(run_folder(machine, run_dir))
    assert len(pids) == 3
    handle.kill()
    assert handle.wait(60) == 137
    assert all(gone(pid) for pid in pids.values())
    assert target.verify_gone(run_dir) == ()


def on_a_small_disk(
    ssh_program: ssh_server.Server, folder: Path, patch: pytest.MonkeyPatch, size: int
):
    if os.geteuid() != 0:
        pytest.skip("a disk of its own size needs root")
    patch.setenv("PATH", f"{folder}/bin{os.pathsep}{os.environ['PATH']}")
    return ssh_server.machine(folder, ssh_program, disk_bytes=size)


def test_a_disk_that_is_full_before_the_start_is_said(
    ssh_program, ssh_path, make_remote_job, tmp_path
):
    job = make_remote_job("fox-5")
    with on_a_small_disk(ssh_program, tmp_path / "m", ssh_path, 1 << 20):
        target = SshTarget()
        with pytest.raises(UsageError, match=r"free below .* and 3 checkpoints") as refused:
            target.look(job)
        assert "remote_folder=PATH" in refused.value.hint
        host = RemoteHost(job.remote or Remote(where=""))
        with (tmp_path / "big").open("wb+") as big, pytest.raises(MachineError) as full:
            big.truncate(3 << 20)
            host.put("wheels/big", big)
        assert "No space left on device" in str(full.value)
        assert "Make room in" in full.value.hint
        host.put("wheels/small", io.BytesIO(b"x"))  # there is room again
        host.close()
        target.close()


@pytest.mark.nightly
def test_a_disk_that_a_run_fills_is_said(ssh_program, ssh_path, make_remote_job, tmp_path, said):
    job = make_remote_job(
        "fox-6", max_steps=1_000_000, checkpoint_every=Every(steps=1), keep=1_000_000
    )
    run_dir = Path(job.run_dir)
    with on_a_small_disk(ssh_program, tmp_path / "m", ssh_path, 48 << 20):
        target = SshTarget(said.append)
        handle = target.launch(target.plan(job))
        assert handle.wait(200) == 1
        assert any("the disk there is full" in line for line in handle.news())
        assert read_run(run_dir).status == "failed"
        assert "No space left" in str(last_events(run_dir)) + (run_dir / "log").read_text()
        check(list_checkpoints(run_dir / "checkpoints")[0])


@pytest.mark.nightly
def test_packages_are_installed_by_the_index_that_the_machine_is_set_up_for(
    machine, ssh_path, remote, tmp_path
):
    """A wheelhouse in the machine's own pip config stands for an index."""
    wheel = tmp_path / "wheelhouse/quark_odd_package-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "quark_odd_package-1.0.dist-info"
        archive.writestr("quark_odd_package.py", "FOUND = 'yes'\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: quark-odd-package\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    config = machine.home / ".config/pip/pip.conf"
    config.parent.mkdir(parents=True)
    config.write_text(f"[global]\nno-index = true\nfind-links = {wheel.parent}\n")
    try:
        with RemoteHost(remote) as host:
            host.enter()
            wanted = {"key": "pip", "mode": "install", "constraints": "quark-odd-package==1.0\n"}
            made, _ = host.ask("install", b"quark-odd-package\n", **wanted)
            again, _ = host.ask("install", b"never looked at\n", **wanted)
    finally:
        config.unlink()
    assert again == made
    program = "import quark_odd_package as p, sys; print(p.FOUND, 'torch' in sys.modules)"
    said = subprocess.run(
        [made["python"], "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout == "yes False\n"
    alone = subprocess.run(
        [made["python"], "-c", "import msgspec"], capture_output=True, check=False
    )
    assert alone.returncode == 1  # nothing of the Python that it was made with


def test_what_is_not_there_is_said(machine, ssh_path, odd_python):
    for where, python, said, hint in (
        ("ssh:gpu-box", "~/no 'such python", "there is no ~/no 'such python", "remote_python=PATH"),
        ("ssh:127.0.0.1:1", odd_python, "it does not answer", "Check that it is up"),
        ("ssh:nobody@gpu-box", odd_python, "it does not let you in", "the key and the agent"),
    ):
        with pytest.raises(MachineError) as caught:
            RemoteHost(Remote(where=where, python=python)).look()
        assert said in str(caught.value)
        assert hint in caught.value.hint


def test_an_unknown_host_key_is_never_trusted_silently(machine, ssh_path, odd_python):
    known = machine.folder / "known_hosts"
    before = known.read_text()
    known.write_text(before.replace("AAAAC3", "AAAAC4"))
    known.write_text("")
    try:
        with pytest.raises(OutOfReachError, match="host key is not the known one") as caught:
            RemoteHost(Remote(where="ssh:gpu-box", python=odd_python)).look()
        assert known.read_text() == ""
    finally:
        known.write_text(before)
    assert "compare the key" in caught.value.hint


def test_a_store_that_the_machine_cannot_reach_is_refused(machine, target, make_remote_job):
    job = make_remote_job("fox-7")
    (closed,) = servers.free_ports(1)
    source = job.train[0]
    moved = msgspec.structs.replace(source.store, endpoint_url=f"http://127.0.0.1:{closed}")
    job = msgspec.structs.replace(
        job, train=(msgspec.structs.replace(source, store=moved),), val=()
    )
    with pytest.raises(MachineError, match=f"cannot reach the store at 127.0.0.1:{closed}"):
        target.look(job)
