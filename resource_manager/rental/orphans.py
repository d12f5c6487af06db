"""Machines that Quark has rented and of which no run here knows: listed by `doctor`, destroyed on request."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from resource_manager.bridge_order import STATE_FOLDER
from resource_manager.doctor import Check
from resource_manager.rental.offers_command import OpenApi, open_api
from resource_manager.rental.rental_api import Instance, RentalApi
from resource_manager.rental.rental_http import KEY_VARIABLE, account_from
from resource_manager.rental.rental_record import RENTING, RUNNING, read_rental
from resource_manager.rental.renting import LABEL_PREFIX, Rental
from resource_manager.runs import run_dirs_of
from tools_utilities.console import Console
from tools_utilities.errors import QuarkError
from tools_utilities.terminal_text import human_seconds

NAME = "rented"


class Rented(msgspec.Struct, frozen=True, kw_only=True):
    """What an account has rented by Quark."""

    known: tuple[Instance, ...]
    """Of runs in the folder of runs here, and of this user's pipelines."""
    orphans: tuple[Instance, ...]


def rented(api: RentalApi, out_dir: Path, home: Path | None = None) -> Rented:
    """Return what is rented by Quark, by whether a run here knows of it.

    `home`: where pipelines note what is rented for them; None: the user's home folder.

    Raises:
        AccessError, MachineError: the provider does not say.
    """
    pipelines = sorted(((home or Path.home()) / STATE_FOLDER).glob("*/"))
    records = [read_rental(path) for path in (*run_dirs_of(out_dir), *pipelines)]
    # One that should be gone, or could not be proven to be, is nobody's any more.
    labels = {one.label for one in records if one is not None and one.state in (RENTING, RUNNING)}
    ours = [one for one in api.instances() if one.label.startswith(LABEL_PREFIX)]
    return Rented(
        known=tuple(one for one in ours if one.label in labels),
        orphans=tuple(one for one in ours if one.label not in labels),
    )


def check_rented(
    out_dir: Path, variables: Mapping[str, str], opened: OpenApi = open_api
) -> tuple[Check | None, tuple[Instance, ...], RentalApi | None]:
    """Return the check, the orphans and the provider; no check where there is no key."""
    if not variables.get(KEY_VARIABLE):
        return None, (), None
    try:
        api = opened(account_from(variables))
        found = rented(api, out_dir)
    except QuarkError as error:
        return Check(name=NAME, state="warn", found=str(error), fix=error.hint), (), None
    if not found.orphans:
        said = f"{len(found.known)} machines of runs here, none of others"
        return Check(name=NAME, state="ok", found=said), (), api
    numbers = " ".join(str(one.id) for one in found.orphans)
    return (
        Check(
            name=NAME,
            state="warn",
            found="of no run here: " + "; ".join(said_of(one) for one in found.orphans),
            fix=f"Destroy what is not another machine's: vastai destroy instance {numbers}",
        ),
        found.orphans,
        api,
    )


def said_of(one: Instance, clock: Callable[[], float] = time.time) -> str:
    """Return a machine in a line: number, label, state, price, age."""
    parts = [f"instance {one.id} ({one.label})", one.status or "being made"]
    parts += [] if one.price_hour is None else [f"${one.price_hour:.3f} an hour"]
    if one.started_at is not None:
        parts.append(f"for {human_seconds(max(0.0, clock() - one.started_at))}")
    return ", ".join(parts)


def offer_to_destroy(
    orphans: tuple[Instance, ...], api: RentalApi, console: Console
) -> tuple[int, ...]:
    """Ask about each, where somebody can be asked (default No); returns what was destroyed.

    Raises:
        StillBilledError: one could not be shown to be gone.
    """
    gone: list[int] = []
    for one in orphans:
        if console.can_ask and console.confirm(f"Destroy {said_of(one)}?", default=False):
            gone += Rental(api, one.label).destroy()
            console.note(f"instance {one.id} is destroyed, as read back")
    return tuple(gone)
