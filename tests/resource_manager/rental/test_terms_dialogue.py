"""What a rented machine may cost, asked for at the terminal where nobody said it."""

import io
from pathlib import Path

import msgspec
import pytest

from brain.ml.training_job import load_job
from knowledge_hub.hub import KnowledgeHub
from resource_manager.manager import CommandOptions, ResourceManager
from resource_manager.plan import Plan
from resource_manager.remote_settings import TermsNeededError
from resource_manager.rental.rental_record import GONE, RentalRecord, write_rental
from tests.projects import END, RecordingTarget, Said, make_manager
from tests.rental_fake import KEY, offer
from tests.resource_manager.test_run_watch import START, step_event
from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import AccessError, MachineError, UsageError

SENTENCE = "train quark with data/datasets/one for 3 steps on vast named fox-1"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Interrupted(Terminal):
    """Somebody types Ctrl-C."""

    def readline(self, _size: int | None = -1, /) -> str:  # type: ignore[override]  # as of StringIO
        raise KeyboardInterrupt


@pytest.fixture
def account(fake, monkeypatch):
    monkeypatch.setenv("VAST_API_KEY", KEY)
    monkeypatch.setenv("VAST_URL", fake.url)
    fake.offers = [
        offer(1, num_gpus=1), offer(2, num_gpus=1, dph_total=1.1), offer(3, num_gpus=2),
    ]  # fmt: skip
    return fake


@pytest.fixture
def at_terminal(project, account):
    """Return `at_terminal(typed)` → (manager, target, what was said)."""

    def make(typed="", stdin=None, **options):
        target, said = RecordingTarget(END), Terminal()
        console = Console(
            Surroundings(), stdin=stdin or Terminal(typed), stdout=io.StringIO(), stderr=said
        )
        manager = ResourceManager(
            console=console, target=target, start_dir=project, options=CommandOptions(**options)
        )
        return manager, target, said

    return make


def read(sentence: str):
    reading = KnowledgeHub().read(sentence)
    assert reading.status == "ok", reading
    return reading


def plan_of(run_dir: Path) -> Plan:
    return msgspec.json.decode((run_dir / "plan.json").read_bytes(), type=Plan)


def test_what_is_missing_is_asked_for_and_counts_as_said(at_terminal, project, fake):
    manager, target, said = at_terminal("cheap\n0\n$2 an hour\n15 an hour\n$15\ny\n")
    assert manager.train(read(SENTENCE)) == 0
    [job] = target.jobs
    assert (job.remote.terms.max_price_hour, job.remote.terms.max_cost) == (2.0, 15.0)
    told = said.getvalue()
    assert "nobody said what the machine may cost an hour" in told
    assert "2 offers fit now (1 x any GPU): $1.100 an hour is the cheapest, $1.250 the" in told
    assert told.count("Please type dollars") == 3
    assert load_job(project / "runs/fox-1/job.yaml").remote == job.remote
    plan = plan_of(project / "runs/fox-1")
    sources = {one.name: (one.value, one.why) for one in plan.settings}
    assert sources["max_price_hour"] == (2.0, "sentence")
    assert sources["max_cost"] == (15.0, "sentence")
    again = read(str(plan.canonical)).slots
    assert (again["max_price_hour"], again["max_cost"], again["max_steps"]) == (2.0, 15.0, 3)
    assert fake.made == []


@pytest.mark.parametrize(
    ("rest", "typed", "asked"),
    [
        ("under $2 an hour", "7.50\ny\n", ["whole run"]),
        ("stop after $15", "1.5/h\ny\n", ["an hour, in"]),
        ("for 3 hours", "1.5\ny\n", ["an hour, in"]),
    ],
)
def test_only_what_is_missing_is_asked_for(at_terminal, rest, typed, asked):
    manager, target, said = at_terminal(typed)
    assert manager.train(read(f"{SENTENCE} {rest}")) == 0
    questions = [line for line in ("an hour, in", "whole run") if line in said.getvalue()]
    assert questions == asked
    terms = target.jobs[0].remote.terms
    assert terms.max_price_hour in (1.5, 2.0)
    assert terms.max_cost in (None, 7.5, 15.0)


@pytest.mark.parametrize("typed", ["\n", "2\n\n", "", "2\n"])
def test_no_answer_rents_nothing(at_terminal, project, fake, typed):
    manager, target, _ = at_terminal(typed)
    with pytest.raises(UsageError, match="no answer: nothing was rented"):
        manager.train(read(SENTENCE))
    assert (target.jobs, fake.made, (project / "runs").exists()) == ([], [], False)


def test_ctrl_c_at_the_question_rents_nothing(at_terminal, project, fake):
    manager, target, _ = at_terminal(stdin=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        manager.train(read(SENTENCE))
    assert (target.jobs, fake.made, (project / "runs").exists()) == ([], [], False)


def test_off_a_terminal_nobody_is_asked_and_nothing_is_looked_for(project, account):
    manager, target, _, said = make_manager(project)
    with pytest.raises(TermsNeededError, match="may cost an hour") as caught:
        manager.train(read(SENTENCE))
    assert "under $2 an hour" in caught.value.hint
    assert (target.jobs, account.requests, said.getvalue().count("?")) == ([], [], 0)


def test_what_cannot_be_rented_is_said_before_anybody_types(at_terminal, account, monkeypatch):
    account.offers = []
    manager, _, said = at_terminal("2\n15\ny\n")
    with pytest.raises(MachineError, match="offers nothing that fits now: 1 x any GPU"):
        manager.train(read(SENTENCE))
    monkeypatch.delenv("VAST_API_KEY")
    with pytest.raises(AccessError, match="VAST_API_KEY is not set"):
        manager.train(read(SENTENCE))
    assert "in dollars?" not in said.getvalue()


def test_a_run_that_goes_on_on_a_rented_machine_asks_once(at_terminal, project):
    here, *_ = make_manager(project)
    here.train(Said(data=["data/datasets/one"], name="fox-1", max_steps=3, gpus=2))
    manager, target, said = at_terminal("2\n15\ny\n")
    assert manager.resume(read("resume fox-1 for 5 steps on vast")) == 0
    terms = target.jobs[0].remote.terms
    assert (terms.max_price_hour, terms.max_cost, terms.gpus) == (2.0, 15.0, 2)
    assert target.jobs[0].max_steps == 5
    assert "--override max_price_hour=2 --override max_cost=15" in said.getvalue()

    manager, target, said = at_terminal("y\n")
    assert manager.resume(read("resume fox-1 for 7 steps")) == 0
    assert target.jobs[0].remote.terms == terms
    assert "in dollars?" not in said.getvalue()


class RentingTarget(RecordingTarget):
    """A machine that has cost something by the time that the run is watched."""

    def launch(self, plan):
        record = RentalRecord(
            label="x", offer_id=1, price_hour=1.5, began_at=1000.0, cap_seconds=7200.0,
            max_cost=15.0, instances=(7,), state=GONE, ended_at=4600.0,
        )  # fmt: skip
        write_rental(Path(plan.job.run_dir), record)
        return super().launch(plan)


def test_what_is_spent_stands_in_the_lines_of_a_run(project, account):
    manager, _, _, said = make_manager(project, RentingTarget(START, step_event(1), END), yes=True)
    assert manager.train(read(f"{SENTENCE} under $2 an hour, stop after $15")) == 0
    assert "cost $1.50 of $15" in said.getvalue()


def test_a_run_again_keeps_what_was_typed(at_terminal):
    manager, *_ = at_terminal("2\n15\ny\n")
    assert manager.train(read(SENTENCE)) == 0
    manager, target, said = at_terminal("y\n")
    assert manager.again(read("again fox-1 named fox-2")) == 0
    assert target.jobs[0].remote.terms.max_cost == 15.0
    assert "in dollars?" not in said.getvalue()
