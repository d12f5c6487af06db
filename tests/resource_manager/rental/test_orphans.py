"""`doctor`: machines that nobody knows of any more are listed, and destroyed only when asked."""

import io
import json

import pytest

from resource_manager.rental.orphans import check_rented, offer_to_destroy, rented
from resource_manager.rental.rental_api import Wanted
from resource_manager.rental.rental_record import RentalRecord, write_rental
from tests.rental_fake import KEY
from tools_utilities.console import Console
from tools_utilities.scripts.quark_cli import run_program


@pytest.fixture
def make_machine(api):
    def make(label: str) -> int:
        return int(api.create(1, Wanted(label=label, image="x", disk_gb=50)))

    return make


@pytest.fixture
def out_dir(tmp_path):
    for name, state in (("fox-1", "running"), ("fox-2", "unproven")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "job.yaml").write_text("")
        record = RentalRecord(
            label=f"quark:{name}:aa", offer_id=1, price_hour=1.0, began_at=0.0, cap_seconds=60.0,
            state=state,
        )  # fmt: skip
        write_rental(tmp_path / "runs" / name, record)
    return tmp_path / "runs"


class Asked(Console):
    """A terminal at which the answers are known."""

    def __init__(self, *answers: str) -> None:
        super().__init__(stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO())
        self.can_ask, self.answers = True, list(answers)
        self.questions: list[str] = []

    def confirm(self, question, *, default=True, explain=lambda _answer: None):
        assert default is False
        self.questions.append(question)
        return self.answers.pop(0) == "yes"


def test_what_no_run_here_knows_is_an_orphan(api, make_machine, out_dir):
    labels = ("quark:fox-1:aa", "quark:fox-2:aa", "quark:fox-1:bb", "somebody's")
    known, unproven, other, _ = (make_machine(label) for label in labels)
    found = rented(api, out_dir)
    assert [one.id for one in found.known] == [known]
    assert [one.id for one in found.orphans] == [unproven, other]


def test_each_orphan_is_asked_about(fake, api, make_machine, out_dir):
    first, second = make_machine("quark:fox-8:aa"), make_machine("quark:fox-9:aa")
    check, orphans, provider = check_rented(
        out_dir, {"VAST_API_KEY": KEY, "VAST_URL": fake.url}, lambda _account: api
    )
    assert check is not None
    assert provider is not None
    assert check.state == "warn"
    assert f"instance {first} (quark:fox-8:aa), running, $1.250 an hour" in check.found
    assert check.fix.endswith(f"vastai destroy instance {first} {second}")
    console = Asked("no", "yes")
    assert offer_to_destroy(orphans, provider, console) == (second,)
    assert fake.ours() == [first]
    assert console.questions[0].startswith(f"Destroy instance {first} (quark:fox-8:aa)")


def test_the_doctor_says_it_and_destroys_nothing_unasked(
    fake, make_machine, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VAST_API_KEY", KEY)
    monkeypatch.setenv("VAST_URL", fake.url)
    number = make_machine("quark:fox-9:aa")
    run_program(["doctor", "--json", "--yes"])
    checks = {one["name"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert str(number) in checks["rented"]["found"]
    assert fake.ours() == [number]
    fake.fault("GET", 401)
    run_program(["doctor", "--json"])
    checks = {one["name"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["rented"]["state"] == "warn"
    monkeypatch.delenv("VAST_API_KEY")
    run_program(["doctor", "--json"])
    assert "rented" not in {one["name"] for one in json.loads(capsys.readouterr().out)["checks"]}
