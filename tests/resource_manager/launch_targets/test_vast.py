"""`vast`: renting for a run, by doubles of the provider (loopback) and of the ssh target (this file)."""

import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from brain.ml.training_job import Remote, RentalTerms, TrainingJob
from resource_manager.launch_target import RunStatus
from resource_manager.launch_targets.vast import VastTarget
from resource_manager.remote_host import OutOfReachError
from resource_manager.remote_record import RemoteRecord, write_record
from resource_manager.rental import cargo
from resource_manager.rental.offers_command import open_api
from resource_manager.rental.rental_api import OfferTakenError
from resource_manager.rental.rental_http import Account
from resource_manager.rental.rental_record import (
    RentalRecord,
    read_rental,
    try_rental_lock,
    write_rental,
)
from resource_manager.rental.rented_run import RentedRun
from resource_manager.rental.renting import BootError, Times
from tests import training
from tests.rental_fake import GARBAGE, KEY, LOST, TWICE, RentalFake, offer, rental_fake
from tests.training import wait_for
from tools_utilities.errors import (
    ChangedError,
    MachineError,
    QuarkError,
    StillBilledError,
    UsageError,
)
from tools_utilities.object_store import StoreSpec

TIMES = Times(appear=0.3, create=0.3, load=0.3, answer=0.3, destroy=0.5, look=0.01, lost=0.02)
TERMS = RentalTerms(gpus=4, max_price_hour=2.0, max_cost=15.0, image="pytorch", disk_gb=50)


class Run:
    """A run on the machine."""

    pid = 42

    def __init__(self, ends_with: int | None = 0) -> None:
        self.code = ends_with
        self.asked: list[str] = []

    def poll(self):
        return self.code

    def interrupt(self):
        self.asked.append("interrupt")
        self.code = 130

    def terminate(self):
        self.asked.append("terminate")
        self.code = 143

    def kill(self):
        self.asked.append("kill")
        self.code = 137

    def news(self):
        return []


class Ssh:
    """Takes the place of the ssh target on the rented machine."""

    made: ClassVar[list["Ssh"]] = []
    run = Run()
    refuses: QuarkError | None = None
    silent = 0

    def __init__(self, tell: Any, *, deadline_seconds: float | None = None) -> None:
        self.deadline_seconds, self.broken = deadline_seconds, threading.Event()
        self.jobs: list[TrainingJob] = []
        Ssh.made.append(self)

    def look(self, job):
        if Ssh.silent:
            Ssh.silent -= 1
            raise OutOfReachError("ssh: connection refused")
        if Ssh.refuses is not None:
            raise Ssh.refuses
        self.jobs.append(job)

    def plan(self, job):
        return job

    def launch(self, job):
        write_record(
            Path(job.run_dir),
            RemoteRecord(
                remote=job.remote, run="runs/x", metrics_base=0, log_base=0, state="running"
            ),
        )
        return Ssh.run

    def break_off(self):
        self.broken.set()

    def close(self):
        return None


@pytest.fixture
def fake():
    with rental_fake() as provider:
        yield provider


@pytest.fixture
def ssh(monkeypatch):
    monkeypatch.setattr(cargo, "SshTarget", Ssh)
    Ssh.made, Ssh.run, Ssh.refuses, Ssh.silent = [], Run(), None, 0
    return Ssh


@pytest.fixture
def target(fake, ssh, aws_environment):
    target = VastTarget(times=TIMES, opened=lambda: open_api(Account(key=KEY, url=fake.url)))
    yield target
    target.close()


@pytest.fixture
def make_target(fake):
    """Return `make_target()`: another process's."""
    return lambda: VastTarget(times=TIMES, opened=lambda: open_api(Account(key=KEY, url=fake.url)))


@pytest.fixture
def make_rented(tmp_path):
    def make(name="fox-1", **changes):
        store = StoreSpec(uri="s3://bucket", region="us-east-1")
        fields = {"remote": Remote(where="vast", terms=TERMS), "cache_bytes": 10**9, **changes}
        return training.make_job(tmp_path / "runs" / name, store, **fields)

    return make


def record_of(job: TrainingJob) -> RentalRecord:
    found = read_rental(Path(job.run_dir))
    assert found is not None
    return found


def launched(target: VastTarget, job: TrainingJob) -> RentedRun:
    target.look(job)
    run = target.launch(target.plan(job))
    assert isinstance(run, RentedRun)
    return run


def test_a_run_is_launched_on_what_was_rented_and_the_machine_is_gone(
    fake, target, make_rented, ssh
):
    job = make_rented()
    run = launched(target, job)
    assert run.wait(30) == 0
    [there] = ssh.made[0].jobs
    assert there.remote.where == f"ssh:root@{fake.ssh[0]}:{fake.ssh[1]}"
    assert there.remote.terms is None
    assert there.remote.known_hosts.startswith(job.run_dir)
    assert 12 * 3600 - 330 < ssh.made[0].deadline_seconds <= 12 * 3600 - 300
    assert (fake.made, fake.destroyed, fake.ours()) == ([7000], [7000], [])
    record = record_of(job)
    assert (record.state, record.instances, record.offer_id) == ("gone", (7000,), 1)
    assert record.label.startswith("quark:fox-1:")
    assert any("instance 7000 is destroyed, as read back" in line for line in run.news())
    assert KEY.encode() not in b"".join(
        path.read_bytes() for path in Path(job.run_dir).rglob("*") if path.is_file()
    )


def test_the_plan_says_what_it_costs_and_rents_nothing(fake, target, make_rented):
    fake.offers = [offer(1, dph_total=1.25), offer(2, dph_total=1.2), offer(3, dph_total=2.5)]
    job = make_rented(max_seconds=3600.0)
    assert target.plan(job).price.dollars_per_hour == 2.0
    machine = target.look(job)
    facts = dict(machine.facts)
    assert facts["offer"] == "2 on vast · 4 x RTX 4090 · Norway, NO · the cheapest of 2"
    assert facts["price"].startswith("$1.200 an hour with its disk, as offered at ")
    assert "at most $2.10 of the $15 that were said: the machine is destroyed after" in facts["cap"]
    assert (machine.accelerators.cuda, machine.accelerators.cards) == (True, 4)
    assert target.plan(job).price == machine.price
    assert (fake.made, list(Path(job.run_dir).iterdir())) == ([], [Path(job.run_dir) / "job.yaml"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cache_bytes": 10**12, "cache_dir": "~/c"}, "rental_disk_gb=50: packages, cache"),
        ({"terms": {"max_cost": 0.05}}, "max_cost=0.05 pays"),
        ({"nodes": 2}, "one node"),
    ],
)
def test_what_cannot_work_is_refused_before_anybody_is_asked(
    fake, target, make_rented, changes, said
):
    terms = msgspec.structs.replace(TERMS, **changes.pop("terms", {}))
    job = make_rented(remote=Remote(where="vast", terms=terms), **changes)
    with pytest.raises(UsageError, match=said):
        target.plan(job)
    assert fake.requests == []


def test_nothing_that_fits_is_an_error_of_the_plan(fake, target, make_rented):
    fake.offers = []
    with pytest.raises(MachineError, match="vast offers nothing that fits now: 4 x any GPU"):
        target.look(make_rented())


@pytest.mark.parametrize(
    ("offers", "error"),
    [
        ([], OfferTakenError),
        ([offer(1, dph_total=1.26)], ChangedError),
        ([offer(9)], OfferTakenError),
    ],
)
def test_an_offer_that_changed_since_the_plan_is_not_taken(
    fake, target, make_rented, offers, error
):
    job = make_rented()
    target.look(job)
    fake.offers = offers
    with pytest.raises(error):
        target.launch(target.plan(job)).wait(30)
    assert fake.made == []


@pytest.mark.parametrize(
    ("method", "fault"),
    [("PUT", 409), ("PUT", LOST), ("PUT", TWICE), ("PUT", GARBAGE), ("PUT", 500), ("PUT", 429)],
)
def test_faults_of_the_creation(fake, target, make_rented, method, fault):
    job = make_rented()
    target.look(job)
    fake.fault(method, fault)
    run = target.launch(target.plan(job))
    if fault in (409, 500):
        with pytest.raises(MachineError):
            run.wait(30)
    else:
        assert run.wait(30) == 0
        assert any("waiting for its ssh server" in line for line in run.news())
    assert fake.ours() == []
    assert record_of(job).state == "gone"


def test_two_launchers_race_for_one_offer_and_one_has_it(
    fake, target, make_rented, ssh, make_target
):
    ssh.run = Run(ends_with=None)
    fake.exclusive, both = True, threading.Barrier(2)
    fake.on_request = lambda method, _path: both.wait(20) if method == "PUT" else None
    runs = [launched(target, make_rented()), launched(make_target(), make_rented("owl-1"))]
    wait_for(lambda: any(run.pid == 42 for run in runs), 20)
    wait_for(lambda: any(run._ended.is_set() for run in runs), 20)
    [loser] = [run for run in runs if run._ended.is_set()]
    with pytest.raises(OfferTakenError, match="cannot be had any more"):
        loser.poll()
    assert (fake.made, fake.ours()) == ([7000], [7000])
    ssh.run.code = 0
    [winner] = [run for run in runs if run is not loser]
    assert winner.wait(30) == 0
    assert (fake.made, fake.ours()) == ([7000], [])


def test_a_run_that_is_launched_twice_has_one_machine(fake, target, make_rented, ssh, make_target):
    ssh.run = Run(ends_with=None)
    job, second = make_rented(), make_target()
    second.look(job)
    run = launched(target, job)
    wait_for(lambda: run.pid == 42, 10)
    with pytest.raises(UsageError, match="another process watches over its machine"):
        second.launch(second.plan(job)).wait(30)
    with pytest.raises(UsageError, match="another process watches over its machine"):
        second.remove(Path(job.run_dir))
    second.close()
    assert (fake.made, fake.ours()) == ([7000], [7000])
    ssh.run.code = 0
    assert run.wait(30) == 0
    assert fake.ours() == []


def test_what_a_run_has_cost_before_comes_off_its_cap(fake, target, make_rented):
    job = make_rented()
    run_dir = Path(job.run_dir)
    launched(target, job).wait(30)
    write_rental(run_dir, msgspec.structs.replace(record_of(job), spent_before=5.0))
    facts = dict(target.look(job).facts)
    assert "at most $10.00 of the $15 that were said, $5.00 are spent" in facts["cap"]
    assert target.launch(target.plan(job)).wait(30) == 0
    record = record_of(job)
    assert record.cap_seconds == pytest.approx(8 * 3600, abs=5)
    assert record.cost_text(time.time()) == "$5.00 of $15"
    write_rental(run_dir, msgspec.structs.replace(record, spent_before=14.99))
    with pytest.raises(UsageError, match=r"max_cost=15, \$14.99 of it spent, pays"):
        target.look(job)
    assert fake.made == [7000, 7001]


@pytest.mark.parametrize("boot", [["loading"], [None], ["exited"]])
def test_a_boot_that_never_ends(fake, target, make_rented, boot):
    fake.boot = boot
    with pytest.raises(BootError):
        launched(target, make_rented()).wait(30)
    assert (fake.made, fake.ours()) == ([7000], [])


def test_a_machine_that_never_answers_is_destroyed(fake, target, make_rented, ssh):
    ssh.silent = 10**6
    with pytest.raises(BootError, match="connection refused"):
        launched(target, make_rented()).wait(30)
    assert fake.ours() == []


def test_a_machine_that_cannot_do_it_is_destroyed(fake, target, make_rented, ssh):
    ssh.silent, ssh.refuses = 2, MachineError("it cannot reach the store")
    with pytest.raises(MachineError, match="cannot reach the store"):
        launched(target, make_rented()).wait(30)
    assert (fake.made, fake.ours()) == ([7000], [])


def test_what_cannot_be_destroyed_is_exit_7_and_is_known_later(fake, target, make_rented):
    fake.undying_all = True
    job = make_rented()
    run = launched(target, job)
    with pytest.raises(StillBilledError, match="instances 7000 may still be there") as caught:
        run.wait(30)
    assert (caught.value.exit_code, caught.value.detail["ids"]) == (7, [7000])
    run_dir = Path(job.run_dir)
    assert target.verify_gone(run_dir) == ("instance 7000 on vast",)
    fake.undying_all = False
    target.remove(run_dir)
    assert (fake.ours(), target.verify_gone(run_dir)) == ([], ())


def test_ctrl_c_in_a_detached_launch_tells_what_cannot_be_destroyed(
    fake, target, make_rented, monkeypatch
):
    def interrupted(self, _tell):
        wait_for(lambda: self.pid == 42 or fake.ours() != [], 10)
        raise KeyboardInterrupt

    monkeypatch.setattr(RentedRun, "await_running", interrupted)
    fake.undying_all = True
    job = make_rented(detach=True)
    target.look(job)
    with pytest.raises(StillBilledError, match="instances 7000 may still be there"):
        target.launch(target.plan(job))
    target.close()  # told once
    fake.undying_all = False


class StuckKeeper:
    """Whose machine does not go in any time."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def begin(self, _run):
        self.go_on.wait(30)
        raise MachineError("broken off")

    def cancel(self):
        return None

    def end(self):
        return ""

    def unproven(self):
        return StillBilledError("instance 7 may still be there")


def test_a_machine_whose_end_takes_too_long_is_told():
    keeper: Any = StuckKeeper()
    run = RentedRun(keeper, leave_seconds=0.05).start()
    try:
        with pytest.raises(StillBilledError, match="instance 7"):
            run.leave()
    finally:
        keeper.go_on.set()


def test_an_interrupt_is_heard_at_every_request(fake, target, make_rented, ssh):
    """Ctrl-C at whatever moment: the run ends as stopped, and nothing is left."""
    fake.boot = [None, "loading", "running"]
    for at in range(1, 11):
        ssh.run = Run(ends_with=None)
        seen: list[int] = []
        job = make_rented(f"fox-{at}")
        target.look(job)
        holder: list[RentedRun] = []

        def asks(_method, _path, seen=seen, at=at, holder=holder):
            seen.append(1)
            if len(seen) == at:
                wait_for(lambda: bool(holder), 10)
                holder[0].interrupt()

        fake.on_request = asks
        run = target.launch(target.plan(job))
        holder.append(run)
        if len(seen) < at:
            wait_for(lambda at=at, seen=seen, run=run: len(seen) >= at or run.pid == 42, 10)
            run.interrupt()
        assert run.wait(30) == 130
        fake.on_request = lambda _method, _path: None
        assert fake.ours() == []
        assert record_of(job).state == "gone"


def test_leaving_a_run_leaves_its_machine_and_leaving_a_boot_does_not(
    fake, target, make_rented, ssh
):
    fake.boot = ["loading"]
    slow = VastTarget(
        times=msgspec.structs.replace(TIMES, load=60.0),
        opened=lambda: open_api(Account(key=KEY, url=fake.url)),
    )
    run = launched(slow, make_rented())
    wait_for(lambda: fake.ours() == [7000], 10)
    slow.close()
    assert fake.ours() == []
    assert run.poll() == 130
    fake.boot, ssh.run = ["running"], Run(ends_with=None)
    run = launched(target, make_rented("fox-2"))
    wait_for(lambda: run.pid == 42, 10)
    target.close()
    assert fake.ours() == [7001]
    run.interrupt()
    assert run.wait(30) == 130
    assert fake.ours() == []


def test_the_cap_ends_the_run_then_the_machine(fake, target, make_rented, ssh, monkeypatch):
    ssh.run = Run(ends_with=None)
    run = launched(target, make_rented())
    wait_for(lambda: run.pid == 42, 10)
    soon = time.time() + 12 * 3600 - 200
    monkeypatch.setattr(time, "time", lambda: soon)
    assert run.wait(30) == 143
    assert ssh.run.asked == ["terminate"]
    assert fake.ours() == []


def test_a_run_that_ignores_the_cap_is_left_with_its_machine_gone(
    fake, target, make_rented, ssh, monkeypatch
):
    ssh.run = Run(ends_with=None)
    ssh.run.terminate = lambda: None
    run = launched(target, make_rented())
    wait_for(lambda: run.pid == 42, 10)
    late = time.time() + 12 * 3600 + 1
    monkeypatch.setattr(time, "time", lambda: late)
    assert run.wait(30) == 130
    assert fake.ours() == []


def test_a_launcher_that_was_killed_while_it_rented_is_cleaned_up_after(fake, target, make_rented):
    """Nothing holds the run's lock, and its machine is there: the next look destroys it."""
    job = make_rented()
    run_dir = Path(job.run_dir)
    launched(target, job).wait(30)
    record = msgspec.structs.replace(record_of(job), state="renting", ended_at=None)
    api = open_api(Account(key=KEY, url=fake.url))
    fake._create(1, {"label": record.label, "image": "x", "disk": 50})
    write_rental(run_dir, record)
    assert target.status(run_dir) == RunStatus(
        state="lost", why="its launcher ended while the machine was being made"
    )
    assert fake.ours() == []
    assert [one.label for one in api.instances() if one.label] == ["quark"]


def test_a_machine_that_ended_itself_is_known_as_gone(fake, target, make_rented, monkeypatch):
    job = make_rented()
    run_dir = Path(job.run_dir)
    launched(target, job).wait(30)
    write_rental(run_dir, msgspec.structs.replace(record_of(job), state="running"))
    monkeypatch.setattr(
        target._ssh,
        "status",
        lambda _dir: RunStatus(state="unreachable", why="refused"),
    )
    assert target.status(run_dir).why == "its machine is gone"
    assert record_of(job).is_over
    assert target.status(run_dir).state == "lost"


def lose(fake: RentalFake, number: int) -> None:
    """The provider takes a machine away."""
    with fake._lock:
        del fake.instances[number]


def test_a_lost_machine_is_followed_by_the_next_offer_from_the_last_checkpoint(
    fake, target, make_rented, ssh
):
    fake.offers = [
        offer(1, dph_total=1.0), offer(2, dph_total=1.1, machine_id=1001), offer(3, dph_total=1.9),
        offer(4, dph_total=2.1),
    ]  # fmt: skip
    ssh.run = Run(ends_with=None)
    job = make_rented()
    run = launched(target, job)
    wait_for(run._running.is_set, 10)
    lose(fake, 7000)
    wait_for(lambda: len(ssh.made) == 2, 10)
    ssh.run.code = 0
    assert run.wait(30) == 0
    asked = [path for method, path, _ in fake.requests if method == "PUT"]
    assert asked == ["/asks/1/", "/asks/3/"]  # 2 is the same host, 4 dearer than was said
    assert (fake.made, fake.ours()) == ([7000, 7001], [])
    first, second = (one.jobs[0] for one in ssh.made)
    assert (first.resume, second.resume) == (None, "auto")
    record = record_of(job)
    assert (record.offer_id, record.price_hour, record.is_over) == (3, 1.9, True)
    assert record.spent_before > 0
    assert record.cap_seconds == pytest.approx((15 - record.spent_before) / 1.9 * 3600, abs=1)


class Attaching:
    """Takes the place of the ssh target for who looks on."""

    def __init__(self, *runs: Run) -> None:
        self.runs, self.attached = [*runs], 0

    def attach(self, _run_dir):
        self.attached += 1
        return self.runs[self.attached - 1]

    def close(self):
        return None


@pytest.fixture
def looked_at(fake, target, make_rented):
    """A run that another process watches over: its folder, and `launch(name, **changes)` of it anew."""
    job = make_rented()
    run_dir = Path(job.run_dir)
    launched(target, job).wait(30)
    write_rental(run_dir, msgspec.structs.replace(record_of(job), state="running"))

    def launch(name: str, state: str = "running") -> None:
        where = Remote(where="ssh:root@127.0.0.1:9")
        record = RemoteRecord(remote=where, run=name, metrics_base=0, log_base=0, state=state)
        write_record(run_dir, record)

    launch("runs/a")
    return run_dir, launch


def test_who_looks_on_follows_a_run_to_its_next_machine(fake, target, looked_at):
    run_dir, launch = looked_at
    target._ssh = ssh = Attaching(Run(ends_with=None), Run(ends_with=None))
    viewer = target.attach(run_dir)
    wait_for(lambda: ssh.attached == 1 and viewer.can_leave, 10)
    launch("runs/b", "starting")
    time.sleep(0.6)  # a few looks: it is being sent
    assert ssh.attached == 1
    launch("runs/b")
    wait_for(lambda: ssh.attached == 2 and viewer.can_leave, 10)
    assert "its machine was lost; it goes on on another one" in viewer.news()
    ssh.runs[1].code = 0
    assert viewer.wait(30) == 0
    assert [run.asked for run in ssh.runs] == [[], []]


def test_who_looks_on_is_told_when_no_machine_is_left(fake, target, looked_at):
    run_dir, launch = looked_at
    target._ssh = Attaching(Run(ends_with=None))
    viewer = target.attach(run_dir)
    wait_for(lambda: viewer.can_leave, 10)
    launch("runs/a", "lost")
    rental = read_rental(run_dir)
    assert rental is not None
    watched = try_rental_lock(run_dir)
    assert watched is not None
    write_rental(run_dir, msgspec.structs.replace(rental, state="gone"))
    time.sleep(0.6)  # a few looks: who watches looks for the next machine
    assert viewer.poll() is None
    watched.close()
    with pytest.raises(MachineError, match="it goes on on no other") as caught:
        viewer.wait(30)
    assert "quark resume fox-1" in caught.value.hint


def test_losses_end_somewhere(fake, target, make_rented, ssh):
    fake.offers = [offer(number) for number in range(1, 9)]
    ssh.run = Run(ends_with=None)
    run = launched(target, make_rented())

    def loses_each():
        for number in fake.ours():
            if run._running.is_set():
                lose(fake, number)
        return run._ended.is_set()

    wait_for(loses_each, 30)
    with pytest.raises(MachineError, match="4 machines were lost in a row") as caught:
        run.poll()
    assert "quark resume fox-1" in caught.value.hint
    assert (len(fake.made), fake.ours()) == (4, [])


@pytest.mark.parametrize("host", [1001, None])
def test_a_loss_without_another_offer_is_told(fake, target, make_rented, ssh, host):
    fake.offers = [offer(1, machine_id=host)]  # the same one is still offered
    ssh.run = Run(ends_with=None)
    run = launched(target, make_rented())
    wait_for(run._running.is_set, 10)
    lose(fake, 7000)
    with pytest.raises(MachineError, match="no other offer fits now"):
        run.wait(30)
    assert fake.ours() == []


def test_a_provider_that_does_not_answer_has_lost_nothing(fake, target, make_rented, ssh):
    ssh.run = Run(ends_with=None)
    run = launched(target, make_rented())
    wait_for(run._running.is_set, 10)
    fake.fault("GET", *[418] * 5)
    seen = len(fake.requests)
    wait_for(lambda: len(fake.requests) > seen + 6, 10)
    ssh.run.code = 0
    assert run.wait(30) == 0
    assert fake.made == [7000]
