"""`offers`, from the sentence to the table."""

import json

import pytest

from tests.rental_fake import KEY, offer
from tools_utilities.scripts.quark_cli import run_program


@pytest.fixture(autouse=True)
def account(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("VAST_API_KEY", KEY)
    monkeypatch.setenv("VAST_URL", fake.url)
    monkeypatch.chdir(tmp_path)


def test_offers_are_listed_cheapest_first(fake, capsys, tmp_path):
    fake.offers = [offer(31, dph_total=1.5), offer(32, dph_total=1.25), offer(33, gpu_name="L4")]
    assert run_program(["cheapest offers for 4 rtx 4090s under $2 an hour"]) == 0
    out, err = capsys.readouterr()
    assert out == (
        "offer  GPUs          GB each  cores  RAM GB  disk GB      up  Mb/s  where       $/hour\n"
        "   32  4 x RTX 4090       25     32     128      500  99.8 %   900  Norway, NO   1.250\n"
        "   31  4 x RTX 4090       25     32     128      500  99.8 %   900  Norway, NO   1.500\n"
    )
    assert "2 of 2 offers: 4 x RTX4090, at most $2 an hour; verified hosts" in err
    assert [method for method, _, _ in fake.requests] == ["POST"]
    assert list(tmp_path.iterdir()) == []
    assert KEY not in out + err


def test_how_many_are_shown_of_how_many(fake, capsys):
    fake.offers = [offer(number) for number in range(100, 137)]
    assert run_program(["prices on vast"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 21
    assert "20 of 37 offers" in err
    fake.offers = [offer(number) for number in range(1000, 1500)]
    assert run_program(["prices on vast"]) == 0
    assert "20 of at least 500 offers" in capsys.readouterr().err


def test_json_holds_every_offer(fake, capsys):
    fake.offers = [offer(number, min_bid=0.1 * number) for number in range(1, 31)]
    assert run_program(["spot offers on vast for rtx 4090s", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["wish"]["spot"] is True
    assert (told["complete"], len(told["offers"])) == (True, 30)
    assert told["offers"][0]["id"] == 1
    assert fake.requests[-1][2]["type"] == "bid"


def test_nothing_that_fits_is_said(fake, capsys):
    assert run_program(["offers for 8 h100s under $1 an hour"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "no machine of that kind is offered now" in err
    assert "without the highest price" in err


def test_a_plan_asks_nobody(fake, capsys):
    assert run_program(["offers for 8 h100s under $20 an hour", "--plan"]) == 0
    assert (
        "plan: ask vast for 8 x H100, at most $20 an hour; rents nothing" in capsys.readouterr().out
    )
    assert fake.requests == []


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("prices on aws", "only the offers of vast"),
        ("offers for 2 nodes", "a run on vast is one node"),
    ],
)
def test_what_is_not_on_offer_is_refused(fake, capsys, sentence, said):
    assert run_program([sentence]) == 2
    assert said in capsys.readouterr().err
    assert fake.requests == []


def test_without_a_key_nobody_is_asked(fake, capsys, monkeypatch):
    monkeypatch.delenv("VAST_API_KEY")
    assert run_program(["prices on vast"]) == 4
    assert "VAST_API_KEY is not set" in capsys.readouterr().err
    assert fake.requests == []


def test_odd_names_cannot_write_to_the_terminal(fake, capsys):
    fake.offers = [offer(1, geolocation="\x1b[31mX\n")]
    assert run_program(["prices on vast"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2
