"""`offers`: the machines that can be rented now, cheapest first. Starts nothing, rents nothing."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from resource_manager.rental.offers import DISK_GB, LEAST_RELIABILITY, Offer, Wish
from resource_manager.rental.rental_api import FoundOffers, RentalApi
from resource_manager.rental.rental_http import Account, RentalHttp, account_from
from tools_utilities.console import SCHEMA, Console
from tools_utilities.errors import MachineError, UsageError
from tools_utilities.process_environment import environment_now
from tools_utilities.terminal_text import Line, pairs, table

MOST_SHOWN = 20
TITLES = ("offer", "GPUs", "GB each", "cores", "RAM GB", "disk GB", "up", "Mb/s", "where", "$/hour")
RIGHT = "rlrrrrrrlr"
NO_OFFER = 3
"""Exit code: there is nothing of that kind, as of data that is not there."""
OpenApi = Callable[[Account], RentalApi]


def open_api(account: Account) -> RentalApi:
    """Return the provider of an account."""
    return RentalApi(RentalHttp(account))


def wish_of(slots: Mapping[str, Any]) -> Wish:
    """Return what a sentence asks for.

    Raises:
        UsageError: a place that rents nothing out by this version, or several machines.
    """
    where = slots.get("where") or "vast"
    if where not in ("vast", "local"):
        raise UsageError(
            f"where={where}: only the offers of vast can be listed by this version",
            hint="Say: offers on vast. SkyPilot lists those of clouds: sky gpus list H100 --infra aws.",
        )
    nodes = slots.get("nodes") or 1
    if nodes != 1:
        raise UsageError(
            f"nodes={nodes}: a run on vast is one node",
            hint="Leave the nodes out; `8 h100s` are the GPUs of one machine.",
        )
    return Wish(
        gpu_type=slots.get("gpu_type"),
        gpus=slots.get("gpus"),
        spot=bool(slots.get("spot")),
        max_price_hour=slots.get("max_price_hour"),
    )


def offers_command(
    slots: Mapping[str, Any],
    console: Console,
    *,
    plan_only: bool = False,
    variables: Mapping[str, str] | None = None,
    opened: OpenApi = open_api,
) -> int:
    """List offers; returns 0, or 3 when none fits.

    Raises:
        UsageError, AccessError, MachineError: as of the wish, the key and the provider.
    """
    wish = wish_of(slots)
    if plan_only:
        console.result(
            [f"plan: ask vast for {wish_text(wish)}; rents nothing"],
            {"schema": SCHEMA, "plan_only": True, "wish": msgspec.to_builtins(wish)},
        )
        return 0
    api = opened(account_from(environment_now() if variables is None else variables))
    with console.working(f"asking {api.host}"):
        found = api.search(wish)
    console.result(offer_lines(found, console.result_width), as_json(found, wish))
    console.note(shown_text(found, wish))
    if not found.offers:
        console.failure("no machine of that kind is offered now", _wider(wish))
        return NO_OFFER
    return 0


def offers_for(api: RentalApi, wish: Wish) -> FoundOffers:
    """Return the offers that fit, of which there is at least one.

    Raises:
        MachineError: there is none.
    """
    found = api.search(wish)
    if not found.offers:
        raise MachineError(
            f"vast offers nothing that fits now: {wish_text(wish)}",
            hint='`quark "offers on vast"` lists what there is.',
        )
    return found


def wish_text(wish: Wish) -> str:
    """Return a wish in words."""
    count = "" if wish.gpus is None else f"{wish.gpus} x "
    parts = [f"{count}{wish.gpu_type or 'any GPU'}"]
    parts += ["spot"] if wish.spot else []
    parts += [] if wish.max_price_hour is None else [f"at most ${wish.max_price_hour:g} an hour"]
    return ", ".join(parts)


def offer_lines(found: FoundOffers, width: int | None) -> list[Line]:
    """Return the table of the cheapest offers, or a block for each where it does not fit."""
    shown = found.offers[:MOST_SHOWN]
    if not shown:
        return []
    rows = [_row(offer) for offer in shown]
    lines = table(TITLES, rows, width=width, right=RIGHT)
    if lines is not None:
        return list(lines)
    return [
        line
        for row in rows
        for line in (*pairs(zip(TITLES, row, strict=True), width=width, indent=0), "")
    ]


def shown_text(found: FoundOffers, wish: Wish) -> str:
    """Return how many offers are shown of how many, and what all of them have."""
    number = len(found.offers)
    more = "" if found.complete else "at least "
    return (
        f"{min(number, MOST_SHOWN)} of {more}{number} offers: {wish_text(wish)}; verified hosts, up at"
        f" least {LEAST_RELIABILITY:.0%} of the time; the price holds {DISK_GB:g} GB of disk"
    )


def as_json(found: FoundOffers, wish: Wish) -> dict[str, Any]:
    """Return every offer that fits, for `--json`."""
    return {
        "schema": SCHEMA,
        "wish": msgspec.to_builtins(wish),
        "complete": found.complete,
        "offers": [msgspec.to_builtins(offer) for offer in found.offers],
    }


def _row(offer: Offer) -> tuple[str, ...]:
    return (
        str(offer.id),
        f"{offer.gpus} x {offer.gpu_name}",
        f"{offer.gpu_memory_gb:.0f}",
        f"{offer.cpus:g}",
        f"{offer.memory_gb:.0f}",
        f"{offer.disk_gb:.0f}",
        # Never rounded up: 99.96 % is not always.
        f"{int(offer.reliability * 1000) / 10:.1f} %",
        f"{offer.down_mbps:.0f}",
        offer.place,
        f"{offer.price_hour:.3f}",
    )


def _wider(wish: Wish) -> str:
    if wish.max_price_hour is not None:
        return "Ask without the highest price to see what it costs now."
    return "Ask for fewer GPUs, another type, or later."
