"""What the plan of a run on SkyPilot says: where, for how much, until when, and what becomes of it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from brain.ml.training_job import RentalTerms, TrainingJob
from resource_manager.launch_target import Price
from resource_manager.remote_settings import has_price, infra_of
from resource_manager.rental.rental_terms import cap_seconds
from resource_manager.sky import sky_words
from resource_manager.sky.sky_offer import HALF_CENT, SkyOffer, chosen_offer, infras_of
from resource_manager.sky.sky_packing import Packed
from resource_manager.sky.sky_program import Answer, Sky
from resource_manager.sky.sky_task import IDLE_MINUTES, dry_text
from tools_utilities.errors import MachineError
from tools_utilities.terminal_text import human_bytes, human_seconds

TRIAL = "quark-look"
"""Name of the cluster that a dry run does not make."""


def rate_of(terms: RentalTerms, offer: SkyOffer | None) -> float:
    """Return the dollars an hour that are reckoned with; 0: nobody knows a price there.

    SkyPilot moves a managed job itself, so what it may cost at most is what was said; a price of 0 that it
    shows for a cloud is none.
    """
    said = terms.max_price_hour or 0.0
    if offer is None or terms.spot or not offer.price_hour:
        return said
    return offer.most_hour(terms.max_price_hour)


def cap_of(job: TrainingJob, terms: RentalTerms, rate: float, spent: float) -> float:
    """Return the seconds that its machines are kept at most, from the command on.

    Raises:
        UsageError: the money does not last for the beginning and the end.
    """
    if not rate:
        terms = msgspec.structs.replace(terms, max_cost=None)
    return cap_seconds(job, terms, rate or 1.0, spent)


def price_of_plan(
    job: TrainingJob, terms: RentalTerms, offer: SkyOffer | None, spent: float
) -> Price:
    """Return the price of a plan; dollars are 0 where nobody knows one."""
    rate = rate_of(terms, offer)
    return Price(
        dollars_per_hour=rate,
        basis="the highest price that was said"
        if offer is None or terms.spot
        else f"SkyPilot's catalogue for {offer.place}",
        max_dollars=terms.max_cost if rate else None,
        max_seconds=cap_of(job, terms, rate, spent),
    )


def find_offer(sky: Sky, packed: Packed, task: Path) -> SkyOffer:
    """Return what SkyPilot would take, and the words that hold it to that place; makes nothing.

    `task`: a file to write the question into.

    Raises:
        MachineError: it would take nothing within that price, or cannot be held to its choice.
    """
    first = _chosen(sky, packed, task, infra_of(packed.where))
    offer = chosen_offer(first.text)
    if offer is None:
        raise MachineError(
            f"SkyPilot finds nothing that fits on {packed.where}: {first.last_words}",
            hint="`sky check` says which clouds it may use, `sky gpus list` what there is.",
        )
    most = packed.terms.max_price_hour
    if most is not None and offer.price_hour > most + HALF_CENT:
        # Its own cap is of the instance, to which GCP adds the GPUs.
        raise MachineError(
            f"the cheapest that SkyPilot finds on {packed.where} is {offer.place} at"
            f" ${offer.price_hour:.2f} an hour, and ${most:g} were said",
            hint="Say a higher price, another cloud, or spot.",
        )
    # Which of them is right SkyPilot itself says; it may also be dearer there.
    for infra in infras_of(offer.place):
        held = chosen_offer(_chosen(sky, packed, task, infra).text)
        if held is not None and held.price_hour <= offer.price_hour:
            return msgspec.structs.replace(held, infra=infra)
    raise MachineError(f"SkyPilot chose {offer.place} and would not take it again")


def _chosen(sky: Sky, packed: Packed, task: Path, infra: str | None) -> Answer:
    held = msgspec.structs.replace(packed.held, infra=infra)
    task.write_text(dry_text(packed.made.export, held), encoding="utf-8")
    return sky.ask(sky_words.dry_run(TRIAL, str(task)))


def plan_facts(
    packed: Packed, offer: SkyOffer | None, price: Price, spent: float
) -> tuple[tuple[str, str], ...]:
    """Return the lines of the plan."""
    facts = [("sky", _machines(packed, offer)), *_money(packed, offer, price, spent)]
    facts.append(("sends", _sends(packed)))
    facts.append(("if lost", _if_lost(packed)))
    facts.append(("at the end", _at_the_end(packed, offer)))
    return tuple(facts)


def _machines(packed: Packed, offer: SkyOffer | None) -> str:
    terms, nodes = packed.terms, packed.job.nodes
    each = f"{terms.gpus} x {terms.gpu_type}" if terms.gpus else "no GPU"
    parts = [packed.where if offer is None else offer.place]
    parts += [] if offer is None or offer.instance == "-" else [offer.instance]
    parts += [each, *([f"{nodes} nodes"] * (nodes > 1)), *(["spot"] * terms.spot)]
    if offer is None:
        return " · ".join(
            [*parts, "sky is not on the PATH: its task is written, nothing is started"]
        )
    return " · ".join([*parts, "the cheapest that SkyPilot finds"])


def _money(
    packed: Packed, offer: SkyOffer | None, price: Price, spent: float
) -> Sequence[tuple[str, str]]:
    rate = price.dollars_per_hour
    lasts = human_seconds(price.max_seconds or 0.0)
    end = f"ended after {lasts}, by this command and by itself"
    if not rate or not has_price(packed.where):
        return (("price", "SkyPilot knows none there"), ("cap", end))
    most = (price.max_seconds or 0.0) / 3600 * rate
    said = "" if price.max_dollars is None else f" of the ${price.max_dollars:g} that were said"
    said += f", ${spent:.2f} are spent" if spent else ""
    return (
        ("price", f"{_rate_text(packed, offer, price)}; none that is dearer"),
        ("cap", f"at most ${most:.2f}{said}: {end}"),
    )


def _rate_text(packed: Packed, offer: SkyOffer | None, price: Price) -> str:
    rate, nodes = price.dollars_per_hour, packed.job.nodes
    hour = f"an hour for {nodes} nodes" if nodes > 1 else "an hour"
    if offer is None or not offer.price_hour:
        return f"${rate:.2f} {hour} at most, as said"
    now = f"${offer.price_hour:.2f} {hour} as SkyPilot's catalogue has it, without disk and traffic"
    return f"{now}, at most ${rate:.2f}, as said" if packed.terms.spot else now


def _sends(packed: Packed) -> str:
    wheel = packed.made.wheel
    size = 0 if wheel is None else len(wheel.data)
    names = sorted(packed.sent.variables)
    if packed.sent.long_lived:
        names.append(f"long-lived: {', '.join(packed.sent.long_lived)}")
    return " · ".join([f"Quark ({human_bytes(size)}) and the job", *names])


def _if_lost(packed: Packed) -> str:
    if packed.held.managed:
        return "SkyPilot starts it again there (a managed job), from its last checkpoint, until the cap"
    return "it has ended; quark resume goes on from its last checkpoint"


def _at_the_end(packed: Packed, offer: SkyOffer | None) -> str:
    if packed.held.managed:
        return (
            "its machines are removed, as read back; SkyPilot's own controller for managed jobs is one"
            " more machine, outside the cap, which SkyPilot stops when it is idle"
        )
    if offer is None:
        return f"the cluster destroys itself {IDLE_MINUTES} minutes after the run"
    return "the cluster is destroyed, as read back; the checkpoints are in the store"
