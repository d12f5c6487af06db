"""What Quark asks of the provider: search, create, list, destroy. One method a documented request."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from resource_manager.rental.offers import MOST_OFFERS, Offer, Wish, fitting, offers_of, query_of
from resource_manager.rental.rental_http import RefusedError, RentalHttp, ReplyLostError
from tools_utilities.errors import MachineError

GONE_STATUS = (404, 410)
TAKEN_STATUS = (400, 404, 409, 410)
"""How a creation is answered whose offer cannot be had (any more)."""


class OfferTakenError(MachineError):
    """The offer cannot be had any more; nothing was rented."""


class FoundOffers(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found."""

    offers: tuple[Offer, ...]
    """Those that fit, cheapest first."""
    read: int
    """Rows of the answer."""
    complete: bool
    """False: there may be more than were asked for."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A rented machine, as the provider lists it."""

    id: int
    label: str = ""
    status: str | None = None
    """`actual_status`: None (being made), created, loading, running, exited, offline …"""
    said: str = ""
    """What the provider says of it."""
    price_hour: float | None = None
    ssh_host: str = ""
    ssh_port: int | None = None
    started_at: float | None = None
    """Unix seconds."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is made of an offer."""

    label: str
    image: str
    disk_gb: float
    onstart: str = ""
    """Shell commands that the machine runs when it has started; never a secret."""
    bid_hour: float | None = None
    """Of a spot machine: the price that is offered, never more than was confirmed."""


class RentalApi:
    """The provider of one account."""

    def __init__(self, http: RentalHttp) -> None:
        self._http = http
        self.host, self.url = http.account.host, http.account.url

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Enter with less patience: no request of the block takes (much) longer."""
        before = self._http.patience_seconds
        self._http.patience_seconds = min(before, seconds)
        try:
            yield
        finally:
            self._http.patience_seconds = before

    def search(self, wish: Wish) -> FoundOffers:
        """Return the machines that can be rented now and are what was wished for."""
        answer = self._http.send("POST", "/bundles/", query_of(wish))
        rows = answer.get("offers")
        if not isinstance(rows, list):
            raise MachineError(
                f"{self.host}: a search was answered without offers",
                hint="The provider's API may have changed.",
            )
        offers = fitting(offers_of(rows, wish), wish)
        return FoundOffers(offers=tuple(offers), read=len(rows), complete=len(rows) < MOST_OFFERS)

    def create(self, offer_id: int, wanted: Wanted) -> int:
        """Rent an offer; returns the number of the instance.

        Raises:
            OfferTakenError: it cannot be had; nothing was rented.
            ReplyLostError: nobody can say: look it up by its label.
        """
        body: dict[str, Any] = {
            "client_id": "me", "image": wanted.image, "label": wanted.label,
            "disk": wanted.disk_gb, "runtype": "ssh_direct", "target_state": "running",
            "cancel_unavail": True,
        }  # fmt: skip
        if wanted.onstart:
            body["onstart"] = wanted.onstart
        if wanted.bid_hour is not None:
            body["price"] = wanted.bid_hour
        try:
            answer = self._http.send("PUT", f"/asks/{offer_id}/", body)
        except RefusedError as error:
            if error.detail.get("status") in TAKEN_STATUS:
                raise OfferTakenError(
                    f"offer {offer_id} cannot be had any more; nothing was rented",
                    hint="Run the same command again: it looks for the cheapest offer anew.",
                    said=str(error),
                ) from error
            raise
        number = answer.get("new_contract")
        if type(number) is not int:
            raise ReplyLostError(f"{self.host}: the answer to a creation holds no number")
        return number

    def instances(self) -> list[Instance]:
        """Return everything that the account has rented."""
        answer = self._http.send("GET", "/instances/")
        rows = answer.get("instances")
        if not isinstance(rows, list):
            raise MachineError(
                f"{self.host}: the list of instances cannot be read",
                hint="The provider's API may have changed; look at its console.",
            )
        return [_instance_of(row) for row in rows]

    def destroy(self, number: int) -> None:
        """Ask for an instance's end; one that is gone already is no error."""
        try:
            self._http.send("DELETE", f"/instances/{number}/")
        except RefusedError as error:
            if error.detail.get("status") not in GONE_STATUS:
                raise


def _instance_of(row: Any) -> Instance:
    """Return an instance; only its number must be there: whatever is listed may cost money.

    Raises:
        MachineError: a row without a number, of which nobody could say that it is gone.
    """
    number = row.get("id") if isinstance(row, dict) else None
    if type(number) is not int:
        raise MachineError(
            "the provider lists an instance without a number",
            hint="Its API may have changed; look at its console.",
        )
    status = row.get("actual_status")
    host, port = _ssh_of(row)
    return Instance(
        id=number,
        label=_text(row.get("label")),
        status=status if isinstance(status, str) else None,
        said=_text(row.get("status_msg")).strip()[:200],
        price_hour=_number(row.get("dph_total")),
        ssh_host=host,
        ssh_port=port,
        started_at=_number(row.get("start_date")),
    )


def _ssh_of(row: dict[str, Any]) -> tuple[str, int | None]:
    """Return where ssh reaches it: directly where a port is open, else by the provider's proxy."""
    ports = row.get("ports")
    opened = ports.get("22/tcp") if isinstance(ports, dict) else None
    for one in opened if isinstance(opened, list) else ():
        port = str(one.get("HostPort", "")) if isinstance(one, dict) else ""
        address = _text(row.get("public_ipaddr")).strip()
        if port.isascii() and port.isdigit() and address:
            return address, int(port)
    number = row.get("ssh_port")
    return _text(row.get("ssh_host")), number if type(number) is int else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
