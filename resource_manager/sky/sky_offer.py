"""What SkyPilot would take: its dry run's table, the one place it comes to, and the words that hold to it. Pure.

The table has a row for each cloud, the chosen one marked. Its price is of the catalogue that SkyPilot
keeps, for all nodes, rounded to cents.
"""

import re

import msgspec

from resource_manager.sky.sky_program import plain

CHOSEN = "\u2714"
HALF_CENT = 0.005
"""Prices in the table are rounded: this much more is the same price."""
LEAST_CELLS = 6
CLOUDS = {"kubernetes": "k8s"}
"""Clouds that are written otherwise than they are shown; the others as shown, in small letters."""
CUT = "..."
"""In the middle of a long name of a region."""
_PLACE = re.compile(r"([^()]+?)(?:\s*\((.+)\))?")


class SkyOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen row."""

    place: str
    """As SkyPilot shows it: `AWS (us-east-1)`."""
    instance: str
    price_hour: float
    """Dollars, of all nodes; 0 where it knows no price (Kubernetes)."""
    infra: str
    """What holds a task to that place."""

    @property
    def cloud(self) -> str:
        """The cloud, as a task names it."""
        return self.infra.partition("/")[0]

    def most_hour(self, said: float | None) -> float:
        """Return the most that an hour of it may cost: its price, which is shown in whole cents."""
        most = self.price_hour + HALF_CENT
        return most if said is None else min(most, said)


def chosen_offer(text: str) -> SkyOffer | None:
    """Return what a dry run has chosen; None: its output shows nothing chosen."""
    for line in plain(text).splitlines():
        if CHOSEN not in line:
            continue
        cells = re.split(r"\s{2,}", line.split(CHOSEN)[0].strip())
        if len(cells) < LEAST_CELLS:
            continue
        place, instance, price = cells[0], cells[1], _number(cells[-1])
        if price is not None:
            return SkyOffer(
                place=place, instance=instance, price_hour=price, infra=infras_of(place)[0]
            )
    return None


def infras_of(place: str) -> tuple[str, ...]:
    """Return the words that may hold a task to a place, the likeliest first.

    What stands behind the cloud is a region or a zone, which the table does not tell apart; a name that
    is cut short in it cannot be written, and the cloud alone is left.
    """
    found = _PLACE.fullmatch(place.strip())
    if found is None:
        return (place.strip().lower(),)
    shown, inner = found.groups()
    cloud = CLOUDS.get(shown.strip().lower(), shown.strip().lower())
    if inner is None or CUT in inner:
        return (cloud,)
    return (f"{cloud}/{inner}", f"{cloud}/*/{inner}")


def is_place(place: str, cloud: str, region: str) -> bool:
    """Tell whether a cluster's cloud and region, as read back, are a place that the table showed."""
    shown, _, inner = place.partition("(")
    if shown.strip().lower() != cloud.strip().lower():
        return False
    inner = inner.rstrip(")").strip()
    if not inner or not region:
        return True
    if CUT in inner:
        first, _, last = inner.partition(CUT)
        return region.startswith(first) and region.endswith(last)
    # A zone's name begins with its region's.
    return inner.startswith(region) or region.removeprefix("ssh-") == inner


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
