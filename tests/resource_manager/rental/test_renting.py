"""The life of a rented machine under faults: exactly one is made, and nothing is left, or it is named."""

from typing import Any

import pytest

from resource_manager.rental.offers import Offer, Wish
from resource_manager.rental.rental_api import OfferTakenError, Wanted
from resource_manager.rental.renting import BootError, CancelledError, Rental, Watch, label_of
from tests.rental_fake import GARBAGE, LOST, NOT_SENT, TWICE, offer
from tools_utilities.errors import ChangedError, MachineError, QuarkError, StillBilledError

LABEL = label_of("fox-1", "1f0c")
WANTED = Wanted(label=LABEL, image="pytorch", disk_gb=50)


@pytest.fixture
def make_rental(api, clock):
    def make(**rest):
        return Rental(api, LABEL, clock=clock, sleep=clock.sleep, watch=Watch(**rest))

    return make


@pytest.fixture
def first(api):
    [found] = api.search(Wish()).offers
    return found


def whole_life(rental: Rental, first: Offer) -> None:
    """Rent, wait, destroy, as a launch does: whatever happens, destroy."""
    try:
        rental.wait_running(rental.rent(first, WANTED).id)
    finally:
        rental.destroy()


def test_a_life_without_faults(fake, make_rental, first):
    fake.boot = [None, "created", "loading", "running"]
    told: list[str] = []
    numbers: list[int] = []
    whole_life(make_rental(tell=told.append, noted=numbers.append), first)
    assert (fake.made, fake.destroyed, fake.ours()) == ([7000], [7000], [])
    assert told == [f"instance 7000: {word}" for word in ("created", "loading")]
    assert set(numbers) == {7000}


@pytest.mark.parametrize("hidden", [0, 3])
@pytest.mark.parametrize("fault", [LOST, GARBAGE, TWICE])
def test_a_creation_that_is_not_known_is_looked_up_and_one_is_kept(
    fake, make_rental, first, fault, hidden
):
    fake.hidden_looks = hidden
    fake.fault("PUT", fault)
    rental = make_rental()
    kept = rental.rent(first, WANTED)
    assert [one[0] for one in fake.requests].count("PUT") == 1
    assert fake.ours() == [kept.id] == [7000]
    assert make_rental().rent(first, WANTED).id == kept.id  # asked again: the same one
    assert rental.destroy() == (7000,)
    assert fake.ours() == []


@pytest.mark.parametrize("fault", [500, NOT_SENT])
def test_a_lost_creation_that_never_was(fake, make_rental, first, clock, fault):
    fake.fault("PUT", fault)
    with pytest.raises(MachineError, match="not in the list after 60 s"):
        whole_life(make_rental(), first)
    assert fake.made == fake.ours() == []
    assert clock.now >= 60  # a late one would have been seen


def test_a_lost_creation_that_appears_during_the_teardown_is_destroyed(
    fake, make_rental, first, clock
):
    fake.hidden_looks = 25
    fake.fault("PUT", LOST)
    with pytest.raises(MachineError, match="not in the list"):
        whole_life(make_rental(), first)
    assert (fake.made, fake.destroyed, fake.ours()) == ([7000], [7000], [])


@pytest.mark.parametrize("status", [404, 409])
def test_a_taken_offer_leaves_nothing(fake, make_rental, first, status):
    fake.fault("PUT", status)
    with pytest.raises(OfferTakenError):
        whole_life(make_rental(), first)
    assert fake.made == []


@pytest.mark.parametrize(
    ("boot", "said"),
    [
        ([None], "being made for more than 300 s"),
        (["created"], "created for more than 300 s"),
        (["loading"], "loading for more than 1200 s"),
        (["loading", "exited"], "exited"),
        ([None, "offline"], "offline"),
    ],
)
def test_a_boot_that_does_not_end_is_ended(fake, make_rental, first, boot, said):
    fake.boot = boot
    with pytest.raises(BootError, match=said):
        whole_life(make_rental(), first)
    assert (fake.destroyed, fake.ours()) == ([7000], [])


def test_a_machine_that_vanishes_while_it_boots(fake, make_rental, first):
    fake.boot = ["loading"]
    rental = make_rental()
    kept = rental.rent(first, WANTED)
    fake.instances.clear()
    with pytest.raises(BootError, match="gone from the list"):
        rental.wait_running(kept.id)


def test_a_machine_dearer_than_confirmed_is_destroyed(fake, make_rental, first):
    fake.offers = [offer(1, dph_total=first.price_hour * 1.1)]
    with pytest.raises(ChangedError, match=r"\$1.375 an hour, \$1.250 was confirmed"):
        make_rental().rent(first, WANTED)
    assert (fake.destroyed, fake.ours()) == ([7000], [])


@pytest.mark.parametrize("fault", [429, 500, LOST, NOT_SENT, GARBAGE])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_trouble_that_passes_changes_nothing(fake, make_rental, first, method, fault):
    fake.fault(method, fault)
    whole_life(make_rental(), first)
    assert (fake.made, fake.ours()) == ([7000], [])


def test_a_list_that_fails_for_good_is_no_proof(fake, make_rental, first, clock):
    rental = make_rental()
    rental.rent(first, WANTED)
    began = clock.now
    fake.fault("GET", always=503)
    with pytest.raises(StillBilledError, match="instances 7000 may still be there") as caught:
        rental.destroy()
    assert caught.value.exit_code == 7
    assert caught.value.detail["ids"] == [7000]
    assert "vastai destroy instance 7000" in caught.value.hint
    assert fake.ours() == []  # asked for all the same
    assert clock.now - began <= 30


@pytest.mark.parametrize("fault", [503, 418])
def test_a_destruction_that_fails_for_good_is_told(fake, make_rental, first, clock, fault):
    rental = make_rental()
    rental.rent(first, WANTED)
    began = clock.now
    fake.fault("DELETE", always=fault)
    with pytest.raises(StillBilledError) as caught:
        rental.destroy()
    assert caught.value.detail["ids"] == fake.ours() == [7000]
    assert clock.now - began <= 30
    fake.heal()
    rental.destroy()
    assert fake.ours() == []


def test_a_destruction_that_is_only_said_is_no_proof(fake, make_rental, first, clock):
    rental = make_rental()
    rental.rent(first, WANTED)
    fake.undying_all = True
    began = clock.now
    with pytest.raises(StillBilledError, match="instances 7000"):
        rental.destroy()
    assert clock.now - began <= 30


def test_what_is_not_of_the_label_is_not_touched(fake, api, make_rental, first):
    other = api.create(1, Wanted(label=label_of("fox-1", "other"), image="x", disk_gb=50))
    whole_life(make_rental(), first)
    assert fake.ours() == [other]


def test_cancelled_at_every_step(fake, make_rental, first):
    """Whenever somebody asks for the end: nothing is left, and nothing is made after it."""
    fake.boot = [None, "loading", "loading", "running"]
    asked, met = 0, set()
    while True:
        remaining = asked

        def cancelled():
            nonlocal remaining
            remaining -= 1
            return remaining < 0

        made = len(fake.made)
        try:
            whole_life(make_rental(cancelled=cancelled), first)
        except CancelledError:
            met.add(len(fake.made) - made)
        else:
            break
        finally:
            assert fake.ours() == []
        asked += 1
    assert met == {0, 1}
    assert asked >= 3


def test_an_exception_at_every_request(fake, api, make_rental, first):
    """Whichever request is the last one that works: nothing is left, or what is left is named."""
    for last in range(12):
        fake.heal()
        seen = [0]

        def breaks(_method, _path, seen=seen, last=last):
            seen[0] += 1
            if seen[0] == last:
                for method in ("GET", "PUT", "DELETE"):
                    fake.fault(method, always=503)

        fake.on_request = breaks
        named: list[Any] = []
        try:
            whole_life(make_rental(), first)
        except StillBilledError as error:
            named = list(error.detail["ids"])
        except QuarkError:
            named = []
        assert set(fake.ours()) <= set(named)
        fake.on_request = lambda _method, _path: None
        fake.heal()
        make_rental().destroy()
        assert fake.ours() == []
