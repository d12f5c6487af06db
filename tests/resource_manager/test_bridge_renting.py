"""Renting for a pipeline, by doubles of the provider (loopback) and of the way to the machine (this file)."""

import io
import signal
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from brain.ml.run_files import LOG_FILE, METRICS_FILE
from brain.ml.training_job import Remote
from resource_manager import bridge_boarding
from resource_manager.bridge_order import STATE_FOLDER
from resource_manager.bridge_renting import VastRenter
from resource_manager.remote_record import RemoteRecord, read_record, write_record
from resource_manager.rental.offers_command import open_api
from resource_manager.rental.orphans import rented
from resource_manager.rental.rental_api import OfferTakenError
from resource_manager.rental.rental_http import account_from
from resource_manager.rental.rental_record import read_rental, write_rental
from resource_manager.rental.renting import Times
from tests.rental_fake import KEY, RentalFake, offer, rental_fake
from tests.training import wait_for
from tools_utilities.bridge.bridge_settings import (
    BridgeSettings,
    PipelineSettings,
    R2Settings,
    VastSettings,
)
from tools_utilities.bridge.pipelines import PipelineError
from tools_utilities.console import Console
from tools_utilities.errors import (
    ChangedError,
    MachineError,
    QuarkError,
    RunStoppedError,
    StillBilledError,
    UsageError,
)

TIMES = Times(appear=0.3, create=0.3, load=0.3, answer=0.3, destroy=0.5, look=0.01, lost=0.02)
MADE = {"total_tasks": 25, "num_shards": 3, "output": "s3://bucket/set"}
SETTINGS = BridgeSettings(
    pipeline=PipelineSettings(name="jsonl", input_uri="s3://bucket/in/"),
    r2=R2Settings(
        bucket="bucket", prefix="set", endpoint_url="http://127.0.0.1:9", region="us-east-1",
        access_key_id="AKIDEXAMPLE", secret_access_key="hunter2hunter2",
    ),
    vast=VastSettings(api_key=KEY, max_price_usd_hour=2.0, max_cost_usd=15.0),
)  # fmt: skip


class Run:
    """A pipeline over there."""

    pid = 42

    def __init__(self, code: int | None = 0, **told: Any) -> None:
        self.code = code
        self.told = told or {"event": "end", "exit_code": 0, "made": MADE}
        self.folder: Path | None = None

    def poll(self):
        if self.code is not None and self.folder is not None:
            with (self.folder / METRICS_FILE).open("ab") as file:
                file.write(msgspec.json.encode({"time": time.time(), **self.told}) + b"\n")
            self.folder = None
        return self.code

    def interrupt(self):
        self.code, self.told = 130, {"event": "end", "exit_code": 130}

    def terminate(self):
        self.code, self.told = 143, {"event": "error", "exit_code": 143, "message": "terminated"}

    def kill(self):
        self.code = 137

    def news(self):
        return []


class Boarding:
    """Takes the place of the way to the machine."""

    made: ClassVar[list["Boarding"]] = []
    runs: ClassVar[list[Run]] = []
    refuses: ClassVar[QuarkError | None] = None

    def __init__(self, pipeline: Any, remote: Remote, _tell: Any, deadline_seconds: float) -> None:
        self.pipeline, self.remote, self.deadline_seconds = pipeline, remote, deadline_seconds
        self.attached = False
        Boarding.made.append(self)

    def look(self):
        if Boarding.refuses is not None:
            raise Boarding.refuses

    def launch(self):
        run, folder = Boarding.runs.pop(0), self.pipeline.folder
        record = RemoteRecord(
            remote=self.remote, run="runs/x", metrics_base=0, log_base=0, state="running"
        )
        write_record(folder, record)
        run.folder = folder
        return run

    def attach(self):
        self.attached = True
        run = Boarding.runs.pop(0)
        run.folder = self.pipeline.folder
        return run

    def break_off(self):
        """Nothing is waited for."""

    def close(self):
        """Nothing is open."""


class Terminal(Console):
    """What is said."""

    def __init__(self) -> None:
        self.said = io.StringIO()
        super().__init__(stdin=io.StringIO(), stdout=io.StringIO(), stderr=self.said)


@pytest.fixture
def fake():
    with rental_fake() as provider:
        provider.offers = [offer(1), offer(2, dph_total=1.1, machine_id=9)]
        yield provider


@pytest.fixture
def boarding(monkeypatch):
    monkeypatch.setattr(bridge_boarding, "PipelineBoarding", Boarding)
    Boarding.made, Boarding.runs, Boarding.refuses = [], [Run()], None
    return Boarding


class Renting:
    """A renter, what it begins with, and what it says."""

    def __init__(self, fake: RentalFake, home: Path) -> None:
        self.fake, self.home, self.terminal = fake, home, Terminal()
        self.begun = 0
        self.sent: list[str] = []
        self.here: dict[str, str] = {}
        self.begins_with: dict[str, Any] | QuarkError | None = None

    @property
    def said(self) -> str:
        return self.terminal.said.getvalue()

    @property
    def folder(self) -> Path:
        [found] = (self.home / STATE_FOLDER).iterdir()
        return found

    @property
    def renter(self) -> VastRenter:
        return VastRenter(
            self.terminal,
            times=TIMES,
            here=lambda: {"VAST_URL": self.fake.url, **self.here},
            begins=self._begin,
        )

    def _begin(self, rented, _here):
        self.begun += 1
        self.sent.append(rented.sent.variables.get("AWS_SESSION_TOKEN", ""))
        if isinstance(self.begins_with, QuarkError):
            raise self.begins_with
        return self.begins_with

    def run(self, **changes: Any) -> dict[str, Any] | None:
        return self.renter.run(changed(**changes), None)


@pytest.fixture
def renting(fake, boarding, aws_environment, tmp_path):
    return Renting(fake, tmp_path / "home")


def changed(**changes: Any) -> BridgeSettings:
    """Return the settings with changes in sections: `vast={…}`."""
    sections = {
        name: msgspec.structs.replace(getattr(SETTINGS, name), **values)
        for name, values in changes.items()
        if values is not None
    }
    left_out = {name: None for name, values in changes.items() if values is None}
    return msgspec.structs.replace(SETTINGS, **sections, **left_out)


def puts(fake: RentalFake) -> list[tuple[str, Any]]:
    return [(path, body) for method, path, body in fake.requests if method == "PUT"]


def test_the_cheapest_offer_is_rented_used_and_destroyed(renting, fake, boarding):
    assert renting.run() == MADE
    [(path, wanted)] = puts(fake)
    assert path == "/asks/2/"
    assert wanted["label"].startswith("quark:bridge-set:")
    assert (wanted["disk"], wanted["image"]) == (50.0, "vastai/pytorch:@vastai-automatic-tag")
    assert "CONTAINER_API_KEY" in wanted["onstart"]  # the machine's own end
    assert KEY not in msgspec.json.encode(fake.requests).decode()
    [there] = boarding.made
    cap = 15 / 1.1 * 3600
    assert cap - 330 < there.deadline_seconds <= cap - 300
    assert (fake.made, fake.ours()) == ([7000], [])
    assert "instance 7000 is destroyed, as read back" in renting.said
    assert "hunter2hunter2" not in renting.said
    # Another run of it owes nothing.
    assert read_rental(renting.folder) is None


def test_every_setting_of_vast_has_its_effect(renting, fake, boarding):
    fake.offers = [offer(number, dph_total=1.0) for number in (5, 6)]
    renting.run(
        vast={
            "offer_id": 6, "image": "mine:1", "storage_gb": 80.0, "workdir": "/data/work",
            "max_cost_usd": None, "max_hours": 2.0, "python": "/opt/py", "packages": "inherit",
            "repo_url": "https://example.org/me/quark.git", "repo_ref": "v1",
        }
    )  # fmt: skip
    [(path, wanted)] = puts(fake)
    assert path == "/asks/6/"
    assert (wanted["disk"], wanted["image"]) == (80.0, "mine:1")
    searched = next(body for method, _, body in fake.requests if method == "POST")
    assert searched["disk_space"] == {"gte": 80.0}
    [there] = boarding.made
    assert 2 * 3600 + 2400 - 30 < there.deadline_seconds <= 2 * 3600 + 2400
    assert (there.remote.folder, there.remote.python) == ("/data/work/.quark", "/opt/py")
    assert there.remote.packages == "inherit"
    order = there.pipeline.order
    assert (order.repo_url, order.repo_ref) == ("https://example.org/me/quark.git", "v1")
    assert order.workdir == "/data/work"
    assert "named by vast.offer_id" in renting.said
    assert "code        https://example.org/me/quark.git at v1" in renting.said
    assert fake.keys == {KEY}


def test_the_plan_says_what_it_costs_and_rents_nothing(renting, fake):
    fake.offers[1]["duration"] = 7200.0
    lines = renting.renter.plan_lines(SETTINGS, "other")
    text = "\n".join(lines)
    assert "source      s3://bucket/in/" in text
    assert "prefix      s3://bucket/other at http://127.0.0.1:9" in text
    assert "offer       2 on vast · 4 x RTX 4090 · Norway, NO · the cheapest of 2" in text
    assert "$1.100 an hour with its disk" in text
    assert "at most $15.00 of the $15 that were said" in text
    assert "AWS_SECRET_ACCESS_KEY" in text
    assert "long-lived: AWS_ACCESS_KEY_ID" in text
    assert "warning: offer 2 ends in 2 h, before the cap" in text
    assert "hunter2hunter2" not in text
    assert (fake.made, renting.begun) == ([], 0)
    assert not (renting.home / STATE_FOLDER).exists()


@pytest.mark.parametrize(
    ("vast", "offers", "error", "said"),
    [
        ({}, [], OfferTakenError, r"nothing with 50 GB of disk for \$2 an hour"),
        ({}, [offer(1, dph_total=2.01)], OfferTakenError, "vast offers nothing"),
        (
            {"offer_id": 7},
            [offer(1)],
            OfferTakenError,
            r"offer 7 \(vast.offer_id\) is not to be had",
        ),
        (
            {"offer_id": 1},
            [offer(1, dph_total=2.5), offer(2)],
            UsageError,
            r"costs \$2.500 an hour",
        ),
    ],
)
def test_no_other_and_no_dearer_machine_is_rented(renting, fake, vast, offers, error, said):
    fake.offers = offers
    with pytest.raises(error, match=said):
        renting.run(vast=vast)
    assert fake.made == []


@pytest.mark.parametrize(("left", "error"), [([], OfferTakenError), ([1.2], ChangedError)])
def test_an_offer_that_changes_at_the_last_moment_is_not_taken(renting, fake, left, error):
    searches: list[int] = []

    def change(method: str, _path: str) -> None:
        searches.append(method == "POST")
        if sum(searches) == 2:
            fake.offers = [offer(2, dph_total=price) for price in left]

    fake.on_request = change
    with pytest.raises(error, match="nothing was rented"):
        renting.run()
    assert fake.made == []


def test_what_the_preflight_refuses_rents_nothing(renting, fake):
    renting.begins_with = PipelineError("s3://bucket/set: AccessDenied")
    with pytest.raises(PipelineError, match="AccessDenied"):
        renting.run()
    assert fake.requests == []


def test_what_is_finished_already_rents_nothing(renting, fake):
    renting.begins_with = MADE
    assert renting.run() == MADE
    assert "nothing was rented" in renting.said
    assert fake.requests == []


@pytest.mark.nightly
def test_a_machine_that_cannot_do_it_is_destroyed(renting, fake, boarding):
    boarding.refuses = MachineError("ssh:x cannot reach the store at 127.0.0.1:9: refused")
    with pytest.raises(MachineError, match="cannot reach the store"):
        renting.run()
    assert (fake.made, fake.ours()) == ([7000], [])


def test_an_error_over_there_is_raised_with_its_code(renting, fake, boarding):
    boarding.runs = [Run(3, event="error", exit_code=3, message="no files", hint="Look.")]
    with pytest.raises(PipelineError, match="no files") as caught:
        renting.run()
    assert (caught.value.exit_code, caught.value.hint) == (3, "Look.")
    assert fake.ours() == []


@pytest.mark.nightly
def test_an_end_without_a_word_names_the_log(renting, fake, boarding):
    boarding.runs = [Run(1, event="warning", message="x")]
    with pytest.raises(PipelineError, match="ended with exit code 1 and did not say why") as caught:
        renting.run()
    assert LOG_FILE in caught.value.hint
    assert fake.ours() == []


@pytest.mark.parametrize("always", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_what_cannot_be_destroyed_is_exit_7(renting, fake, boarding, always):
    """Also when the pipeline failed: what may still be billed comes first."""
    boarding.runs = [Run(0 if always else 3, event="error", exit_code=3, message="m"), Run()]
    fake.undying_all = True
    with pytest.raises(StillBilledError, match="instances 7000 may still be there") as caught:
        renting.run()
    assert (caught.value.exit_code, caught.value.detail["ids"]) == (7, [7000])
    assert "vastai destroy instance 7000" in caught.value.hint
    fake.undying_all = False

    assert renting.run() == MADE  # and the next command ends what is left before it rents
    assert "of an earlier command: instance 7000 is destroyed" in renting.said
    assert (fake.made, fake.ours()) == ([7000, 7001], [])


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, 130, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_stops_it_and_the_machine_is_destroyed(renting, fake, boarding, number, code):
    boarding.runs = [run := Run(None)]

    def send() -> None:
        wait_for(lambda: run.folder is not None, 20)
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(RunStoppedError) as caught:
        renting.run()
    sender.join()
    assert caught.value.exit_code == code
    assert "the same command again" in caught.value.hint
    assert (fake.made, fake.ours()) == ([7000], [])


@pytest.mark.nightly
def test_ctrl_c_while_the_machine_is_made_destroys_it(renting, fake):
    fake.boot = ["loading"]

    def asked(method: str, _path: str) -> None:
        if method == "PUT":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    fake.on_request = asked
    with pytest.raises(RunStoppedError):
        renting.run()
    assert (fake.made, fake.ours()) == ([7000], [])


def leave_running(renting: Renting, fake: RentalFake, **changes: Any) -> None:
    """As a command that was killed with its pipeline running: its records, its machine."""
    Boarding.runs = [Run(3, event="error", exit_code=3, message="m")]
    with pytest.raises(PipelineError):
        renting.run(**changes)
    folder = renting.folder
    record, there = read_rental(folder), read_record(folder)
    assert record is not None
    assert there is not None
    fake._create(1, {"label": record.label, "image": "x", "disk": 50})
    write_rental(
        folder, msgspec.structs.replace(record, state="running", instances=(7001,), ended_at=None)
    )
    write_record(folder, msgspec.structs.replace(there, state="running"))
    Boarding.made, Boarding.runs, renting.begun = [], [Run()], 0


def test_a_machine_that_was_left_running_is_watched_again(renting, fake, boarding):
    leave_running(renting, fake)
    api = open_api(account_from({"VAST_API_KEY": KEY, "VAST_URL": fake.url}))
    found = rented(api, renting.home / "runs", renting.home)
    assert ([one.id for one in found.known], found.orphans) == ([7001], ())  # the doctor knows it
    assert renting.run() == MADE
    assert "was left running; this command watches it again" in renting.said
    assert [one.attached for one in boarding.made] == [True]
    assert (renting.begun, fake.made, fake.ours()) == (0, [7000, 7001], [])


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline": {"samples_per_shard": 7}},
        pytest.param({"vast": {"repo_url": "https://e.org/q"}}, marks=pytest.mark.nightly),
    ],
)
def test_a_machine_of_other_settings_is_ended_first(renting, fake, boarding, changes):
    leave_running(renting, fake)
    assert renting.run(**changes) == MADE
    assert "of an earlier command: instance 7001 is destroyed" in renting.said
    assert [one.attached for one in boarding.made] == [False]
    assert (renting.begun, fake.made, fake.ours()) == (1, [7000, 7001, 7002], [])


@pytest.mark.nightly
def test_a_machine_that_is_gone_is_followed_by_another(renting, fake, boarding):
    leave_running(renting, fake)
    with fake._lock:
        fake.instances.clear()
    assert renting.run() == MADE
    assert (renting.begun, fake.made, fake.ours()) == (1, [7000, 7001, 7002], [])


def lost_at_the_first(fake: RentalFake) -> Run:
    """A run whose machine is taken away as soon as it runs."""

    class Lost(Run):
        def poll(self):
            with fake._lock:
                fake.instances.pop(7000, None)

    return Lost(None)


def test_a_lost_machine_is_followed_by_the_next_offer(renting, fake, boarding):
    boarding.runs = [lost_at_the_first(fake), Run()]
    assert renting.run() == MADE
    assert [path for path, _ in puts(fake)] == ["/asks/2/", "/asks/1/"]
    assert (fake.made, fake.ours()) == ([7000, 7001], [])


@pytest.mark.nightly
def test_a_named_offer_is_not_followed_by_another(renting, fake, boarding):
    boarding.runs = [lost_at_the_first(fake)]
    with pytest.raises(MachineError, match="the machine of offer 2 was lost") as caught:
        renting.run(vast={"offer_id": 2})
    assert "the same command again" in caught.value.hint
    assert (fake.made, fake.ours()) == ([7000], [])


def test_two_commands_do_not_watch_over_one_machine(renting, fake, boarding):
    boarding.runs = [run := Run(None), Run()]
    refused: list[str] = []

    def second() -> None:
        wait_for(lambda: run.folder is not None, 20)
        other = Renting(fake, renting.home)
        try:
            other.run()
        except QuarkError as error:
            refused.append(str(error))
        run.code = 0

    thread = threading.Thread(target=second)
    thread.start()
    assert renting.run() == MADE
    thread.join()
    assert refused == ["bridge-set: another process watches over its machine"]
    assert (fake.made, fake.ours()) == ([7000], [])
