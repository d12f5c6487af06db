"""A provider on loopback, and its API as Quark asks it, with a clock that tests turn."""

from collections.abc import Callable, Iterator

import pytest

from resource_manager.rental.rental_api import RentalApi
from resource_manager.rental.rental_http import Account, RentalHttp
from tests.rental_fake import KEY, RentalFake, rental_fake


class TurnedClock:
    """Seconds that pass when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def fake() -> Iterator[RentalFake]:
    with rental_fake() as provider:
        yield provider


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def make_api(fake: RentalFake, clock: TurnedClock) -> Callable[..., RentalApi]:
    def make(key: str = KEY) -> RentalApi:
        account = Account(key=key, url=fake.url)
        return RentalApi(RentalHttp(account, clock=clock, sleep=clock.sleep))

    return make


@pytest.fixture
def api(make_api: Callable[..., RentalApi]) -> RentalApi:
    return make_api()
