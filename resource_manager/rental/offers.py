"""Offers of machines: what is searched for, what an offer is, and which ones fit. Pure.

The provider passes over fields of a query that it does not know, so every wish is checked again here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

HOURS_A_MONTH = 730.0
"""Storage is priced by the month."""
DISK_GB = 50.0
"""What a machine is rented with: packages (PyTorch takes some GB), cache and checkpoints."""
LEAST_RELIABILITY = 0.95
MOST_OFFERS = 500
"""Asked for at a time."""
MIB_A_GB = 1000.0
"""The provider gives memory in MB."""
_NAMES: Mapping[str, tuple[str, ...]] = {
    "V100": ("Tesla V100",),
    "T4": ("Tesla T4",),
    "A100": ("A100 SXM4", "A100 PCIE", "A100 SXM", "A100X"),
    "A6000": ("RTX A6000",),
    "H100": ("H100 SXM", "H100 PCIE", "H100 NVL"),
    "H200": ("H200", "H200 NVL"),
    "GH200": ("GH200 SXM", "GH200"),
    "RTX3090": ("RTX 3090",),
    "RTX4090": ("RTX 4090",),
    "RTX5090": ("RTX 5090",),
}
"""GPUs that the provider names otherwise; a name may have several builds."""
_LEAST_MEMORY_GB = {"A100-80GB": 79.0}


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine must have."""

    gpu_type: str | None = None
    """As the language says it: `RTX4090`, `A100-80GB`."""
    gpus: int | None = None
    spot: bool = False
    max_price_hour: float | None = None
    """Dollars, of the whole machine and its disk."""
    disk_gb: float = DISK_GB


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that can be rented now."""

    id: int
    machine_id: int | None = None
    gpu_name: str
    gpus: int
    gpu_memory_gb: float
    cpus: float
    memory_gb: float
    disk_gb: float
    reliability: float
    """Share of the time, 0 to 1."""
    down_mbps: float
    place: str
    price_hour: float
    """Dollars an hour, of the whole machine with its disk."""
    bid_hour: float | None = None
    """Of a spot offer: the least that is bid for the machine, without its disk."""
    hours: float | None = None
    """How long it can be rented at most; None: not said."""


def provider_names(gpu_type: str) -> tuple[str, ...]:
    """Return the names under which the provider lists a GPU."""
    plain = gpu_type.partition("-")[0]
    return _NAMES.get(plain, (plain,))


def query_of(wish: Wish) -> dict[str, Any]:
    """Return the body of a search."""
    query: dict[str, Any] = {
        "verified": {"eq": True},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "external": {"eq": False},
        "reliability2": {"gte": LEAST_RELIABILITY},
        "disk_space": {"gte": wish.disk_gb},
        "allocated_storage": wish.disk_gb,
        "type": "bid" if wish.spot else "on-demand",
        "order": [["dph_total", "asc"]],
        "limit": MOST_OFFERS,
    }
    if wish.gpu_type is not None:
        query["gpu_name"] = {"in": list(provider_names(wish.gpu_type))}
    if wish.gpus is not None:
        query["num_gpus"] = {"eq": wish.gpus}
    if wish.max_price_hour is not None and not wish.spot:
        query["dph_total"] = {"lte": wish.max_price_hour}
    return query


def offers_of(rows: Iterable[Any], wish: Wish) -> list[Offer]:
    """Return the offers of an answer that can be read, cheapest first."""
    found = (_offer_of(row, wish) for row in rows)
    return sorted(
        (offer for offer in found if offer is not None), key=lambda one: (one.price_hour, one.id)
    )


def fitting(offers: Iterable[Offer], wish: Wish) -> list[Offer]:
    """Return the offers that are what was wished for, in their order."""
    return [offer for offer in offers if fits(offer, wish)]


def fits(offer: Offer, wish: Wish) -> bool:
    """Tell whether an offer is what was wished for."""
    if wish.gpu_type is not None:
        if offer.gpu_name not in provider_names(wish.gpu_type):
            return False
        if offer.gpu_memory_gb < _LEAST_MEMORY_GB.get(wish.gpu_type, 0.0):
            return False
    return (
        (wish.gpus is None or offer.gpus == wish.gpus)
        and (wish.max_price_hour is None or offer.price_hour <= wish.max_price_hour)
        and offer.disk_gb >= wish.disk_gb
        and offer.reliability >= LEAST_RELIABILITY
    )


def _offer_of(row: Any, wish: Wish) -> Offer | None:
    """Return an offer; None for a row without a number, a name or a price."""
    if not isinstance(row, dict) or row.get("rentable") is False or row.get("rented") is True:
        return None
    number, name = row.get("id"), row.get("gpu_name")
    if type(number) is not int or not isinstance(name, str):
        return None
    bid = _number(row.get("min_bid")) if wish.spot else None
    price = _number(row.get("dph_total"))
    if wish.spot:
        storage = _number(row.get("storage_cost")) or 0.0
        price = None if bid is None else bid + storage * wish.disk_gb / HOURS_A_MONTH
    if price is None or price <= 0:
        return None
    seconds = _number(row.get("duration"))
    return Offer(
        id=number,
        machine_id=row["machine_id"] if type(row.get("machine_id")) is int else None,
        gpu_name=name,
        gpus=int(_number(row.get("num_gpus")) or 0),
        gpu_memory_gb=(_number(row.get("gpu_ram")) or 0.0) / MIB_A_GB,
        cpus=_number(row.get("cpu_cores_effective")) or _number(row.get("cpu_cores")) or 0.0,
        memory_gb=(_number(row.get("cpu_ram")) or 0.0) / MIB_A_GB,
        disk_gb=_number(row.get("disk_space")) or 0.0,
        reliability=_number(row.get("reliability2")) or _number(row.get("reliability")) or 0.0,
        down_mbps=_number(row.get("inet_down")) or 0.0,
        place=str(row.get("geolocation") or ""),
        price_hour=price,
        bid_hour=bid,
        hours=None if seconds is None else seconds / 3600,
    )


def _number(value: Any) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 else None  # noqa: PLR2004 - no figure of a machine; also inf
