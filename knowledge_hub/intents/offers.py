"""List machines for rent, cheapest first."""

from knowledge_hub.intent import Intent
from knowledge_hub.slots import OFFER_SLOTS

INTENT: Intent = Intent(
    name="offers",
    summary="List machines for rent, cheapest first.",
    examples=(
        "cheapest offers for 8 h100s under $20 an hour",
        "prices on vast",
    ),
    slots=OFFER_SLOTS,
)
