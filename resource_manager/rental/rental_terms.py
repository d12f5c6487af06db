"""What a rented run may cost and when it ends at the latest, from its terms. Pure."""

import shlex
from typing import Protocol

from brain.ml.training_job import RentalTerms, TrainingJob
from resource_manager.launch_target import Price
from resource_manager.plan import parameters_of
from resource_manager.remote_preflight import BYTES_PER_PARAMETER, ENVIRONMENT_BYTES
from resource_manager.rental.offers import Offer, Wish
from resource_manager.rental.rental_http import BASE_PATH
from resource_manager.rental.rented_run import COLLECT_SECONDS
from tools_utilities.errors import UsageError
from tools_utilities.terminal_text import human_bytes, human_seconds

START_SECONDS = 2400.0
"""What a machine may take until its run begins: its image, the packages."""
USUAL_START_SECONDS = 600.0
"""What is reckoned with for that."""
LEAST_RUN_SECONDS = 60.0
SYSTEM_BYTES = 2_000_000_000


def wish_of_terms(terms: RentalTerms) -> Wish:
    """Return what is searched for."""
    return Wish(
        gpu_type=terms.gpu_type,
        gpus=terms.gpus,
        spot=terms.spot,
        max_price_hour=terms.max_price_hour,
        disk_gb=terms.disk_gb,
    )


class Limited(Protocol):
    """A run, as far as its own time limit goes."""

    @property
    def max_seconds(self) -> float | None:
        """What it may take from its first step on; None: no limit of its own."""
        ...


def cap_seconds(job: Limited, terms: RentalTerms, price_hour: float, spent: float = 0.0) -> float:
    """Return how long a machine is kept at most, from its creation on.

    `spent`: dollars that the run's earlier machines have cost; they come off what was said for all.

    Raises:
        UsageError: the money does not last for its start and the bringing of its files.
    """
    caps = []
    if terms.max_cost is not None:
        caps.append(max(0.0, terms.max_cost - spent) / price_hour * 3600)
    if job.max_seconds is not None:
        caps.append(START_SECONDS + job.max_seconds + COLLECT_SECONDS)
    cap = min(caps)
    least = COLLECT_SECONDS + LEAST_RUN_SECONDS
    if cap < least:
        less = f", ${spent:.2f} of it spent," if spent else ""
        raise UsageError(
            f"max_cost={terms.max_cost:g}{less} pays {human_seconds(cap)} at ${price_hour:.3f} an"
            f" hour, and the end alone takes up to {human_seconds(least)}",
            hint=f"Give at least {spent + least / 3600 * price_hour:.2f}, or take a cheaper machine.",
        )
    return cap


def price_of(job: Limited, terms: RentalTerms, offer: Offer | None, spent: float = 0.0) -> Price:
    """Return the price of a plan: of the offer that was found, else the highest that may be."""
    rate = terms.max_price_hour if offer is None else offer.price_hour
    if rate is None:
        raise UsageError(
            "nobody said what the machine may cost", hint="Say it: … under $2 an hour."
        )
    return Price(
        dollars_per_hour=rate,
        basis="the highest price that was said" if offer is None else f"offer {offer.id} of vast",
        max_dollars=terms.max_cost,
        max_seconds=cap_seconds(job, terms, rate, spent),
    )


def check_disk(job: TrainingJob, terms: RentalTerms) -> None:
    """Refuse a disk that has no room for packages, checkpoints and cache.

    Raises:
        UsageError: with what it takes.
    """
    saved = 0
    if job.checkpoints is None and not job.evaluate_only:
        saved = (job.keep + 1) * BYTES_PER_PARAMETER * (parameters_of(job) or 0)
    cache = job.cache_bytes if job.cache_dir is not None else 0
    takes = SYSTEM_BYTES + ENVIRONMENT_BYTES + saved + cache
    if takes > terms.disk_gb * 1e9:
        raise UsageError(
            f"rental_disk_gb={terms.disk_gb:g}: packages, cache ({human_bytes(cache)}) and"
            f" checkpoints ({human_bytes(saved)}) take about {human_bytes(takes)}",
            hint=f"Rent more: --override rental_disk_gb={takes / 1e9 + 1:.0f}, or cache less.",
        )


def cost_line(price: Price, seconds: float | None) -> tuple[str, str]:
    """Return what a run is thought to cost, and by what; `seconds`: what an earlier one like it took."""
    if seconds is None:
        return "cost", "not known: no earlier run of this data and these limits tells its time"
    about = (USUAL_START_SECONDS + seconds) / 3600 * price.dollars_per_hour
    took, start = human_seconds(seconds), human_seconds(USUAL_START_SECONDS)
    return (
        "cost",
        f"about ${about:.2f}: {took} as an earlier run took where it ran, {start} to start",
    )


def price_lines(
    price: Price, offer: Offer, read_at: str, offers: int, spent: float = 0.0
) -> tuple[tuple[str, str], ...]:
    """Return the lines of the plan: the offer, its price, the cap; `spent`: dollars so far."""
    rate = price.dollars_per_hour
    most = (price.max_seconds or 0.0) / 3600 * rate
    said = "" if price.max_dollars is None else f" of the ${price.max_dollars:g} that were said"
    said += f", ${spent:.2f} are spent" if spent else ""
    kind = f"{offer.gpus} x {offer.gpu_name}"
    lasts = human_seconds(price.max_seconds or 0.0)
    end = f"the machine is destroyed after {lasts}, by this command and by itself"
    return (
        ("offer", f"{offer.id} on vast · {kind} · {offer.place or '-'} · the cheapest of {offers}"),
        (
            "price",
            f"${rate:.3f} an hour with its disk, as offered at {read_at}; never a dearer one",
        ),
        ("cap", f"at most ${most:.2f}{said}: {end}"),
    )


def own_end(seconds: float, url: str) -> str:
    """Return the shell commands by which a machine ends itself.

    The provider gives each machine a key that may do nothing but that (`CONTAINER_API_KEY`); it goes to
    curl by its standard input, and is on no command line.
    """
    address = shlex.quote(f"{url}{BASE_PATH}/instances/")
    inner = (
        f"sleep {seconds:.0f}; while :; do"
        ' printf \'header = "Authorization: Bearer %s"\\n\' "$CONTAINER_API_KEY" |'
        f' curl -fsS -K - -X DELETE {address}"$CONTAINER_ID/" && break; sleep 30; done'
    )
    return f"(nohup sh -c {shlex.quote(inner)} >/dev/null 2>&1 </dev/null &)\n"
