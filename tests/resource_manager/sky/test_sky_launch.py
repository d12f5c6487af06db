"""`aws` and the other clouds, by a stand-in for SkyPilot's program whose machines are real processes."""

import json
import stat
from pathlib import Path

import msgspec
import pytest
import yaml

from brain.ml.training_job import TrainingJob
from resource_manager.launch_target import WritesTasks
from resource_manager.launch_targets.sky import SkyTarget
from resource_manager.rental.rental_record import (
    RENTING,
    RUNNING,
    UNPROVEN,
    read_rental,
    write_rental,
)
from resource_manager.rental.rented_run import RentedRun
from resource_manager.runs import read_events, read_run
from resource_manager.sky.sky_orphans import check_launched
from tests.resource_manager.sky.conftest import CANARY, TIMES
from tests.training import wait_for
from tools_utilities.errors import ChangedError, MachineError, StillBilledError, UsageError


def launched(target: SkyTarget, job: TrainingJob) -> RentedRun:
    target.look(job)
    run = target.launch(target.plan(job))
    assert isinstance(run, RentedRun)
    return run


def secrets_in(folder: Path) -> list[Path]:
    texts = (CANARY.encode(), json.dumps(CANARY)[1:-1].encode())
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(text in path.read_bytes() for text in texts)]


def test_a_run_is_launched_held_to_the_plan_and_nothing_is_left(
    sky, target, make_cloud_job, machine
):
    job = make_cloud_job(terms={"gpus": 2, "gpu_type": "A100"}, processes=2, batch_size=8)
    found = target.look(job)
    facts = dict(found.facts)
    assert facts["sky"].startswith("AWS (us-east-1) · m6i.large · 2 x A100 · the cheapest")
    assert facts["price"].startswith("$2.00 an hour as SkyPilot's catalogue has it")
    assert "at most $15.00 of the $15 that were said: ended after 7 h 30 min" in facts["cap"]
    assert "AWS_SECRET_ACCESS_KEY" in facts["sends"]
    assert (found.accelerators.cards, sky.machines()) == (2, [])

    run = target.launch(target.plan(job))
    assert run.wait(60) == 0
    record = read_rental(Path(job.run_dir))
    assert record is not None
    assert (record.where, record.state) == ("aws", "gone")
    assert f"cluster {record.label} is gone, as read back" in " ".join(run.news())
    assert sky.machines() == []

    seen = sky.seen(record.label)
    asked = seen["task"]["resources"]
    assert (asked["infra"], asked["accelerators"]) == ("aws/us-east-1", "A100:2")
    assert asked["max_hourly_cost"] == 2.0
    assert asked["autostop"] == {"idle_minutes": 5, "down": True}
    assert seen["secrets"]["AWS_SECRET_ACCESS_KEY"] == CANARY
    assert "setup" not in seen["task"]

    run_dir = Path(job.run_dir)
    info = read_run(run_dir)
    assert (info.status, info.step, info.checkpoint_step) == ("finished", 2, 1)
    assert (run_dir / "log").read_text() == "training begins\ntraining ends\n"
    assert [event["event"] for event in read_events(run_dir)] == [
        "start",
        "step",
        "checkpoint",
        "end",
    ]
    # The canary is in no argument and in no file here or on the machine.
    assert CANARY not in json.dumps(sky.calls)
    assert secrets_in(run_dir) == []
    assert secrets_in(machine) == []
    [kept] = (run_dir / "sky").iterdir()
    assert (kept.name, stat.S_IMODE(kept.stat().st_mode)) == ("task.yaml", 0o600)
    assert {"job.yaml", "constraints.txt", "task.yaml"} < set(seen["files"])


@pytest.mark.nightly
def test_the_cheapest_of_all_clouds_is_taken_where_none_is_said(sky, target, make_cloud_job):
    job = make_cloud_job("sky")
    assert dict(target.look(job).facts)["sky"].startswith("GCP (us-central1) · n2-standard-2")
    assert target.launch(target.plan(job)).wait(60) == 0
    [name] = [path.name for path in (sky.folder / "seen").iterdir()]
    assert sky.seen(name)["task"]["resources"]["infra"] == "gcp/us-central1"
    assert read_run(Path(job.run_dir)).where.startswith("sky ($0.0")


@pytest.mark.nightly
def test_the_output_that_is_cut_off_is_taken_up_again_and_nothing_is_told_twice(
    sky, target, make_cloud_job
):
    sky.fault("logs", "cut", "cut")
    job = make_cloud_job()
    assert launched(target, job).wait(60) == 0
    run_dir = Path(job.run_dir)
    assert (run_dir / "log").read_text() == "training begins\ntraining ends\n"
    assert len(read_events(run_dir)) == 4


@pytest.mark.nightly
def test_a_run_that_fails_says_so(sky, target, make_cloud_job, machine):
    (machine / "mode").write_text("crash")
    job = make_cloud_job()
    run = launched(target, job)
    assert run.wait(60) == 1
    assert sky.machines() == []
    assert "no space left" in (Path(job.run_dir) / "log").read_text()


@pytest.mark.nightly
def test_ctrl_c_saves_and_destroys(sky, target, make_cloud_job, machine):
    (machine / "mode").write_text("long")
    job = make_cloud_job()
    run = launched(target, job)
    wait_for(lambda: read_run(Path(job.run_dir)).step == 1)
    run.interrupt()
    assert run.wait(60) == 130
    assert read_run(Path(job.run_dir)).checkpoint_step == 1
    assert sky.machines() == []
    assert len(sky.called("exec")) == 1


@pytest.mark.nightly
def test_where_nothing_can_be_run_there_it_is_cancelled(sky, target, make_cloud_job, machine):
    (machine / "mode").write_text("long")
    sky.fault("exec", "failing")
    job = make_cloud_job()
    run = launched(target, job)
    wait_for(lambda: read_run(Path(job.run_dir)).step == 1)
    run.terminate()
    assert run.wait(60) == 143
    assert (len(sky.called("cancel")), sky.machines()) == (1, [])


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["slow", "queued"])
def test_ctrl_c_while_it_is_being_made_leaves_nothing(sky, target, make_cloud_job, fault):
    sky.fault("launch", fault)
    run = launched(target, make_cloud_job())
    wait_for(lambda: sky.read("requests", []) or sky.machines())
    run.interrupt()
    assert run.wait(60) == 130
    assert (sky.machines(), sky.read("requests", [])) == ([], [])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "error"),
    [("refused", MachineError), ("sync", MachineError), ("elsewhere", ChangedError)],
)
def test_a_launch_that_goes_wrong_leaves_nothing(sky, target, make_cloud_job, fault, error):
    sky.fault("launch", fault)
    job = make_cloud_job()
    with pytest.raises(error):
        launched(target, job).wait(60)
    assert sky.machines() == []
    record = read_rental(Path(job.run_dir))
    assert record is not None
    assert record.is_over


@pytest.mark.nightly
def test_an_end_that_fails_once_is_asked_for_again(sky, target, make_cloud_job):
    sky.fault("down", "failing")
    sky.fault("status", "", "failing")
    assert launched(target, make_cloud_job()).wait(60) == 0
    assert (len(sky.called("down")), sky.machines()) == (2, [])


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["down", "status"])
def test_what_cannot_be_shown_to_be_gone_is_exit_7_with_what_to_type(
    sky, make_cloud_job, tmp_path, command
):
    target = SkyTarget(times=msgspec.structs.replace(TIMES, end=0.5))
    job = make_cloud_job()
    target.look(job)
    sky.fault(command, "always", "failing")
    with pytest.raises(StillBilledError) as caught:
        target.launch(target.plan(job)).wait(60)
    record = read_rental(Path(job.run_dir))
    assert record is not None
    assert (record.state, caught.value.exit_code) == (UNPROVEN, 7)
    assert f"sky down --yes {record.label}" in caught.value.hint
    check = check_launched(tmp_path / "runs")
    assert check is not None
    assert record.label in check.fix
    # What `list` asks tries again.
    sky.write("faults", {})
    said: list[str] = []
    later = SkyTarget(said.append, times=TIMES)
    found = later.status(Path(job.run_dir))
    # Where it is could not be read back in the beginning: then nothing of it was taken for the run's.
    assert (found.state, found.why) == ("ended" if command == "down" else "lost", "")
    assert ("gone" in " ".join(said), sky.machines()) == (True, [])
    target.close()


@pytest.mark.nightly
def test_a_launcher_that_was_killed_while_it_was_made_is_cleaned_up_after(
    sky, target, make_cloud_job
):
    sky.fault("launch", "slow")
    job = make_cloud_job()
    run = launched(target, job)
    wait_for(sky.machines)
    record = read_rental(Path(job.run_dir))
    assert record is not None
    run.interrupt()
    run.wait(60)
    # As it stands when the launcher was killed and SkyPilot went on.
    write_rental(Path(job.run_dir), msgspec.structs.replace(record, state=RENTING))
    sky.place(record.label).mkdir()
    (sky.place(record.label) / "record").write_text('{"cloud": "AWS", "region": "us-east-1"}')
    assert target.for_command(lambda _line: None).status(Path(job.run_dir)).state == "lost"
    assert sky.machines() == []


@pytest.mark.nightly
def test_the_cap_ends_what_does_not_end_itself(sky, target, make_cloud_job, machine, monkeypatch):
    from resource_manager.rental import rental_terms, rented_run
    from resource_manager.sky import sky_keeper

    (machine / "mode").write_text("long")
    sky.fault("exec", "always", "failing")
    for module in (rental_terms, rented_run, sky_keeper):
        monkeypatch.setattr(module, "COLLECT_SECONDS", 0.0)
    monkeypatch.setattr(rental_terms, "LEAST_RUN_SECONDS", 0.0)
    job = make_cloud_job(terms={"max_cost": 0.0003})  # ten seconds
    assert launched(target, job).wait(60) == 130
    assert sky.machines() == []


# Spot: managed jobs.


@pytest.mark.nightly
def test_a_spot_machine_is_a_managed_job_held_to_the_price_that_was_said(
    sky, target, make_cloud_job
):
    job = make_cloud_job(terms={"spot": True})
    facts = dict(target.look(job).facts)
    assert facts["price"].startswith("$0.03 an hour as SkyPilot's catalogue has it")
    assert "at most $2.00, as said; none that is dearer" in facts["price"]
    assert "SkyPilot starts it again there" in facts["if lost"]
    assert "controller" in facts["at the end"]
    assert target.launch(target.plan(job)).wait(60) == 0
    assert sky.machines() == []
    [name] = sky.managed()
    asked = sky.seen(name)["task"]["resources"]
    assert (asked["use_spot"], asked["max_hourly_cost"], asked["infra"]) == (
        True,
        2.0,
        "aws/us-west-2",
    )
    assert "autostop" not in asked
    assert sky.called("launch", "--yes", "--detach-run") == []


@pytest.mark.nightly
def test_a_managed_job_is_stopped_and_its_end_is_read_back(sky, target, make_cloud_job, machine):
    (machine / "mode").write_text("long")
    job = make_cloud_job(terms={"spot": True})
    run = launched(target, job)
    wait_for(lambda: read_run(Path(job.run_dir)).step == 1)
    run.interrupt()
    assert run.wait(60) == 130
    assert (list(sky.managed().values()), sky.machines()) == (["CANCELLED"], [])


@pytest.mark.nightly
def test_a_controller_that_stopped_when_it_was_idle_is_woken_for_the_last_word(
    sky, target, make_cloud_job
):
    job = make_cloud_job(terms={"spot": True})
    assert launched(target, job).wait(60) == 0
    record = read_rental(Path(job.run_dir))
    assert record is not None
    # As it stands when nobody watched its end.
    write_rental(Path(job.run_dir), msgspec.structs.replace(record, state=RUNNING, ended_at=None))
    sky.write("controller", "stopped")
    later = target.for_command(lambda _line: None)
    assert later.status(Path(job.run_dir)).state == "ended"
    assert len(sky.called("jobs", "queue", "--verbose", "--all", "--refresh")) >= 1


@pytest.mark.nightly
def test_a_managed_job_whose_machines_may_be_left_is_exit_7(sky, make_cloud_job):
    target = SkyTarget(times=msgspec.structs.replace(TIMES, end=0.5))
    sky.write("schedule_state", "ALIVE")  # it does not say that they are removed
    with pytest.raises(StillBilledError) as caught:
        launched(target, make_cloud_job(terms={"spot": True})).wait(60)
    assert "sky jobs cancel --yes --name quark-fox-1-" in caught.value.hint
    target.close()


# Without the program, and what is refused.


def test_without_the_program_the_task_is_written_and_the_command_said(
    sky, make_cloud_job, tmp_path
):
    target = SkyTarget(found=lambda: None)
    job = make_cloud_job(terms={"spot": True})
    machine = target.look(job)
    assert not machine.starts
    assert "sky is not on the PATH" in dict(machine.facts)["sky"]
    assert isinstance(target, WritesTasks)
    command = target.written(job, tmp_path / "task")
    secrets = "--secret AWS_ACCESS_KEY_ID --secret AWS_SECRET_ACCESS_KEY"
    assert command == (
        f"cd {tmp_path}/task && sky jobs launch --name quark-fox-1 {secrets} task.yaml"
    )
    assert {"task.yaml", "job.yaml"} < {path.name for path in (tmp_path / "task").iterdir()}
    assert secrets_in(tmp_path / "task") == []
    assert sky.calls == []
    with pytest.raises(UsageError):
        target.launch(target.plan(job))


def test_ones_own_kubernetes_has_a_time_and_no_price(sky, target, make_cloud_job):
    own = {"max_price_hour": None, "max_cost": None}
    machine = target.look(make_cloud_job("k8s", terms=own, max_seconds=3600.0))
    facts = dict(machine.facts)
    assert facts["sky"].startswith("Kubernetes (lab) · no GPU")
    assert (facts["price"], machine.price) == ("SkyPilot knows none there", None)
    assert facts["cap"] == "ended after 1 h 45 min, by this command and by itself"
    assert sky.machines() == []


def test_checkpoints_must_have_a_store(target, make_cloud_job):
    with pytest.raises(UsageError, match="where the checkpoints go") as caught:
        target.plan(make_cloud_job(checkpoints=None))
    assert "checkpoint_dir=s3://" in caught.value.hint
    assert target.plan(make_cloud_job(checkpoints=None, evaluate_only=True)).price is not None


@pytest.mark.nightly
def test_what_is_dearer_than_was_said_is_not_found(sky, target, make_cloud_job):
    with pytest.raises(MachineError, match=r"finds nothing that fits on aws.*No launchable"):
        target.look(make_cloud_job(terms={"max_price_hour": 0.09}))
    assert sky.machines() == []


def test_what_is_dearer_with_its_gpus_is_not_taken(sky, target, make_cloud_job):
    row = {"cloud": "GCP", "region": "us-central1", "instance": "n1", "price": 0.1, "spot": 0.1}
    sky.write("catalogue", [{**row, "beside": 2.5}])
    with pytest.raises(MachineError, match=r"GCP \(us-central1\) at \$2.60 an hour, and \$2 were"):
        target.look(make_cloud_job("gcp"))


@pytest.mark.nightly
def test_a_zone_is_told_from_a_region_by_skypilot(sky, target, make_cloud_job):
    row = {"cloud": "AWS", "region": "us-east-1", "instance": "m6i", "price": 0.1, "spot": 0.05}
    sky.write("catalogue", [{**row, "zone": "us-east-1a"}])
    job = make_cloud_job()
    target.look(job)
    target.written(job, Path(job.run_dir) / "task")
    task = yaml.safe_load((Path(job.run_dir) / "task/task.yaml").read_text())
    assert task["resources"]["infra"] == "aws/*/us-east-1a"
    assert task["resources"]["max_hourly_cost"] == 0.105


def test_an_old_skypilot_is_refused(target, make_cloud_job, sky, tmp_path):
    program = tmp_path / "skypilot/programs/sky"
    program.write_text("#!/bin/sh\necho skypilot, version 0.10.2\n")
    with pytest.raises(UsageError, match=r"it takes SkyPilot 0\.14 or newer"):
        target.look(make_cloud_job())
    assert sky.calls == []
