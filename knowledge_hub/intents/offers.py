"""List machines for rent, cheapest first."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import OFFER_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.offers(reading))


INTENT: Intent = Intent(
    name="offers",
    summary="List machines for rent, cheapest first.",
    examples=(
        "cheapest offers for 8 h100s under $20 an hour",
        "prices on vast",
    ),
    slots=OFFER_SLOTS,
    run=_run,
)
