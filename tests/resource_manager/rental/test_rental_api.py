"""The provider's API on a loopback double: documented shapes, patience, and nothing said of the key."""

import msgspec
import pytest

from resource_manager.rental.offers import Wish
from resource_manager.rental.rental_api import OfferTakenError, Wanted
from resource_manager.rental.rental_http import (
    USUAL_URL,
    Account,
    RefusedError,
    ReplyLostError,
    account_from,
)
from tests.rental_fake import GARBAGE, KEY, LOST, NOT_SENT, offer
from tools_utilities.errors import AccessError, MachineError, UsageError

WANTED = Wanted(label="fox-1", image="pytorch/pytorch", disk_gb=50)


def test_a_search_asks_for_what_was_wished_and_gives_what_fits_cheapest_first(fake, api):
    fake.offers = [
        offer(1, dph_total=1.9), offer(2, dph_total=0.4, gpu_name="RTX 3090"), offer(3, dph_total=1.1),
        offer(4, dph_total=2.1), offer(5, num_gpus=8), offer(6, reliability2=0.5),
        offer(7, disk_space=10.0), offer(8, rented=True), offer(9, rentable=False),
    ]  # fmt: skip
    found = api.search(Wish(gpu_type="RTX4090", gpus=4, max_price_hour=2.0))
    assert [one.id for one in found.offers] == [3, 1]
    assert (found.read, found.complete) == (9, True)
    method, path, body = fake.requests[-1]
    assert (method, path) == ("POST", "/bundles/")
    assert body["gpu_name"] == {"in": ["RTX 4090"]}
    assert (body["num_gpus"], body["dph_total"]) == ({"eq": 4}, {"lte": 2.0})
    assert (body["type"], body["rentable"]) == ("on-demand", {"eq": True})
    one = found.offers[0]
    assert (one.gpus, one.gpu_name, one.place, one.price_hour) == (4, "RTX 4090", "Norway, NO", 1.1)
    assert one.gpu_memory_gb == pytest.approx(24.564)


def test_a_spot_machine_costs_its_bid_and_its_disk(fake, api):
    fake.offers = [offer(1, min_bid=0.6, dph_total=9.0, storage_cost=0.146), offer(2, min_bid=None)]
    [found] = api.search(Wish(spot=True, max_price_hour=0.7)).offers
    assert found.bid_hour == 0.6
    assert found.price_hour == pytest.approx(0.6 + 0.146 * 50 / 730)
    assert fake.requests[-1][2]["type"] == "bid"
    assert "dph_total" not in fake.requests[-1][2]
    assert api.search(Wish(spot=True, max_price_hour=0.605)).offers == ()


def test_builds_of_a_gpu_go_by_its_name(fake, api):
    fake.offers = [
        offer(1, gpu_name="H100 SXM"), offer(2, gpu_name="H100 NVL"), offer(3, gpu_name="H200"),
        offer(4, gpu_name="A100 PCIE", gpu_ram=40960), offer(5, gpu_name="A100 SXM4", gpu_ram=81920),
        offer(6, gpu_name="L40S"),
    ]  # fmt: skip

    def ids(gpu_type: str) -> list[int]:
        return [one.id for one in api.search(Wish(gpu_type=gpu_type)).offers]

    assert [ids(name) for name in ("H100", "A100", "A100-80GB", "L40S")] == [
        [1, 2],
        [4, 5],
        [5],
        [6],
    ]


def test_rows_that_cannot_be_read_are_passed_over(fake, api):
    fake.offers = [
        offer(1, id="x"), offer(2, gpu_name=None), offer(3, dph_total=None), offer(4, dph_total=True),
        offer(5, dph_total=-1), offer(6, dph_total=1e300), offer(7, gpu_ram=None, duration="?"),
    ]  # fmt: skip
    assert [one.id for one in api.search(Wish()).offers] == [7]
    fake.offers = [{}]
    assert api.search(Wish()).offers == ()


def test_an_instance_is_made_listed_and_destroyed(fake, api):
    number = api.create(1, msgspec.structs.replace(WANTED, onstart="true", bid_hour=0.5))
    method, path, body = fake.requests[-1]
    assert (method, path) == ("PUT", "/asks/1/")
    assert (body["label"], body["image"], body["disk"]) == ("fox-1", "pytorch/pytorch", 50)
    assert (body["price"], body["onstart"], body["runtype"]) == (0.5, "true", "ssh_direct")
    listed = {one.id: one for one in api.instances()}
    assert (listed[number].label, listed[number].status) == ("fox-1", "running")
    assert (listed[number].ssh_host, listed[number].ssh_port) == fake.ssh
    assert (listed[1].label, listed[2].price_hour) == ("", None)
    api.destroy(number)
    assert fake.ours() == []
    api.destroy(number)  # gone already


def test_a_direct_port_is_taken_before_the_proxy(fake, api):
    number = api.create(1, WANTED)
    fake.instances[number] |= {
        "public_ipaddr": "192.0.2.7 ",
        "ports": {"22/tcp": [{"HostPort": "40022"}]},
    }
    one = next(one for one in api.instances() if one.id == number)
    assert (one.ssh_host, one.ssh_port) == ("192.0.2.7", 40022)


@pytest.mark.parametrize("fault", [429, 500, 503, LOST, NOT_SENT, GARBAGE])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_what_may_be_repeated_is_repeated(fake, api, clock, method, fault):
    number = api.create(1, WANTED)
    fake.fault(method, fault, fault)
    calls = {
        "GET": api.instances, "POST": lambda: api.search(Wish()), "DELETE": lambda: api.destroy(number),
    }  # fmt: skip
    calls[method]()
    assert clock.now > 1
    assert fake.ours() == ([] if method == "DELETE" else [number])


def test_patience_ends(fake, api, clock):
    fake.fault("GET", always=503)
    with pytest.raises(MachineError, match="answered 503; tried for 90 s"):
        api.instances()
    assert 60 < clock.now <= 90


def test_a_creation_is_repeated_only_where_it_was_not_done(fake, api):
    fake.fault("PUT", 429)
    api.create(1, WANTED)
    assert len(fake.made) == 1
    for fault in (500, LOST, NOT_SENT, GARBAGE):
        sent = len([one for one in fake.requests if one[0] == "PUT"])
        fake.fault("PUT", fault)
        with pytest.raises(ReplyLostError):
            api.create(1, WANTED)
        assert len([one for one in fake.requests if one[0] == "PUT"]) == sent + 1
    assert len(fake.made) == 3  # once, lost, garbage


@pytest.mark.parametrize("status", [400, 404, 409, 410])
def test_a_taken_offer_is_told(fake, api, status):
    fake.fault("PUT", status)
    with pytest.raises(OfferTakenError, match="offer 1 cannot be had any more; nothing was rented"):
        api.create(1, WANTED)
    assert (fake.made, len(fake.requests)) == ([], 1)


def test_a_machine_that_cannot_be_reached_is_waited_for(clock):
    from resource_manager.rental.rental_api import RentalApi
    from resource_manager.rental.rental_http import RentalHttp
    from tests.servers import free_ports

    account = Account(key=KEY, url=f"http://127.0.0.1:{free_ports(1)[0]}")
    api = RentalApi(RentalHttp(account, clock=clock, sleep=clock.sleep))
    for call in (api.instances, lambda: api.create(1, WANTED)):  # nothing was sent: no lost reply
        with pytest.raises(MachineError, match="no answer") as caught:
            call()
        assert not isinstance(caught.value, ReplyLostError)


def test_a_list_that_cannot_be_read_is_no_empty_list(fake, api, monkeypatch):
    for rows in (None, "x", [{"label": "fox-1"}], ["x"]):
        monkeypatch.setattr(fake, "_listed", lambda rows=rows: rows)
        with pytest.raises(MachineError):
            api.instances()


def test_the_key_is_shown_nowhere(fake, make_api):
    wrong = "wrong-key-0123456789abcdef"
    with pytest.raises(AccessError) as caught:
        make_api(wrong).instances()  # the provider's answer repeats it
    told = f"{caught.value} {caught.value.hint} {caught.value.detail}"
    assert wrong not in told
    assert "VAST_API_KEY" in told
    assert wrong not in repr(Account(key=wrong))
    assert fake.keys == {wrong}
    fake.fault("GET", 418)
    with pytest.raises(RefusedError, match="418: planted"):
        make_api().instances()


def test_a_redirect_does_not_take_the_key_along(fake, make_api):
    fake.fault("GET", 302)
    with pytest.raises(RefusedError):
        make_api().instances()
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("variables", "error", "said"),
    [
        ({}, AccessError, "VAST_API_KEY is not set"),
        ({"VAST_API_KEY": " "}, AccessError, "VAST_API_KEY is not set"),
        ({"VAST_API_KEY": "a\nb"}, AccessError, "is not a key"),
        (
            {"VAST_API_KEY": "k", "VAST_URL": "http://example.org"},
            UsageError,
            "not an https address",
        ),
        ({"VAST_API_KEY": "k", "VAST_URL": "example.org"}, UsageError, "not an https address"),
    ],
)
def test_an_account_needs_a_key_and_a_safe_address(variables, error, said):
    with pytest.raises(error, match=said):
        account_from(variables)


def test_the_usual_address_is_the_providers():
    assert account_from({"VAST_API_KEY": "k"}).url == USUAL_URL
    assert account_from({"VAST_API_KEY": "k", "VAST_URL": "https://x.org/"}).url == "https://x.org"
