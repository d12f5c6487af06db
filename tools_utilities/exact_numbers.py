"""Whole numbers in columns of floats: JSON writes `0` for a float's 0.0, and no program meant another type."""

from typing import Any

EXACT_INTEGERS = 1 << 53
"""Whole numbers up to here, of either sign, are floats of 64 bits exactly."""


def widened(value: Any) -> Any:
    """Return the float that a whole number is; anything else, and what would be rounded, as it is."""
    if type(value) is int and -EXACT_INTEGERS <= value <= EXACT_INTEGERS:
        return float(value)
    return value
