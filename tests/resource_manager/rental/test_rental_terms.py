"""What a rented machine may cost, and the end that it makes itself."""

import shutil
from pathlib import Path

import msgspec
import pytest

from brain.ml.training_job import RentalTerms
from resource_manager.launch_target import Price
from resource_manager.rental.rental_api import Wanted
from resource_manager.rental.rental_record import RentalRecord, cost_reader, write_rental
from resource_manager.rental.rental_terms import START_SECONDS, cap_seconds, cost_line, own_end
from resource_manager.rental.rented_run import COLLECT_SECONDS
from tests import training
from tests.rental_fake import KEY
from tests.training import wait_for
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec

TERMS = RentalTerms(max_price_hour=2.0, max_cost=15.0, image="x", disk_gb=50.0)


@pytest.fixture
def job(tmp_path):
    return training.make_job(tmp_path / "fox-1", StoreSpec(uri="s3://bucket"))


def test_the_nearest_cap_counts(job):
    assert cap_seconds(job, TERMS, 1.25) == 12 * 3600
    timed = msgspec.structs.replace(job, max_seconds=600.0)
    assert cap_seconds(timed, TERMS, 1.25) == 600 + START_SECONDS + COLLECT_SECONDS
    alone = msgspec.structs.replace(TERMS, max_cost=None)
    assert cap_seconds(timed, alone, 1.25) == 600 + START_SECONDS + COLLECT_SECONDS


def test_what_a_run_costs_is_reckoned_from_an_earlier_one():
    price = Price(dollars_per_hour=1.2, basis="offer 1")
    assert cost_line(price, 3000.0)[1].startswith("about $1.20: ")
    assert cost_line(price, None)[1].startswith("not known")


def test_what_was_spent_ends_with_the_machine():
    record = RentalRecord(
        label="x", offer_id=1, price_hour=1.2, began_at=1000.0, cap_seconds=7200.0
    )
    assert record.spent(4600.0) == 0.0
    record = msgspec.structs.replace(record, instances=(7,))
    assert record.spent(4600.0) == pytest.approx(1.2)
    assert record.spent(99999.0) == pytest.approx(2.4)
    assert msgspec.structs.replace(record, ended_at=2800.0).spent(99999.0) == pytest.approx(0.6)


def test_what_is_spent_is_told_with_its_cap(tmp_path):
    now = [4600.0]
    told = cost_reader(tmp_path, lambda: now[0])
    assert told() == ""
    record = RentalRecord(
        label="x", offer_id=1, price_hour=1.2, began_at=1000.0, cap_seconds=7200.0, instances=(7,),
        spent_before=0.5, max_cost=15.0,
    )  # fmt: skip
    write_rental(tmp_path, record)
    assert told() == "$1.70 of $15"
    now[0] += 1800
    assert told() == "$2.30 of $15"
    timed = write_rental(tmp_path, msgspec.structs.replace(record, max_cost=None))
    assert timed.cost_text(99999.0) == "$2.90 of $2.90"


def test_what_earlier_machines_cost_comes_off_what_was_said(job):
    assert cap_seconds(job, TERMS, 1.25, spent=5.0) == 8 * 3600
    with pytest.raises(UsageError, match=r"max_cost=15, \$14.99 of it spent, pays") as caught:
        cap_seconds(job, TERMS, 1.25, spent=14.99)
    assert "Give at least 15.1" in caught.value.hint
    with pytest.raises(UsageError, match="pays 0"):
        cap_seconds(job, TERMS, 1.25, spent=16.0)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_a_machine_ends_itself_and_its_key_is_on_no_command_line(fake, api, tmp_path):
    """The script is executed as the provider would, with a curl that writes down its arguments."""
    seen = tmp_path / "seen"
    curl = tmp_path / "curl"
    curl.write_text(f'#!/bin/sh\necho "$@" >>"{seen}"\nexec {shutil.which("curl")} "$@"\n')
    curl.chmod(0o755)
    fake.runs_onstart, fake.path_first = True, str(tmp_path)
    fake.fault("DELETE", 503)  # it does not give up
    script = own_end(0, fake.url).replace("sleep 30", "sleep 0.1")
    assert KEY not in script
    number = api.create(1, Wanted(label="quark:fox-1:aa", image="x", disk_gb=50, onstart=script))
    wait_for(lambda: fake.destroyed == [number], 20)
    told = Path(seen).read_text()
    assert told.count("DELETE") == 2
    assert KEY not in told
