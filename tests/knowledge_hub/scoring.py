"""When a reading is what was expected: the comparison that sentences are scored with."""

import math
from typing import Any


def same(want: Any, got: Any) -> bool:
    """Whole numbers exactly, others within 1e-9; true is not 1; `*` matches anything."""
    if want == "*":
        return True
    if isinstance(want, dict | list):
        return _same_inside(want, got)
    plain = int | float
    if any(isinstance(value, bool) or value is None for value in (want, got)):
        return want is got
    if isinstance(want, plain) and isinstance(got, plain):
        if float(want).is_integer() and float(got).is_integer():
            return int(want) == int(got)
        return math.isclose(want, got, rel_tol=1e-9, abs_tol=1e-15)
    return type(want) is type(got) and bool(want == got)


def _same_inside(want: Any, got: Any) -> bool:
    if isinstance(want, dict):
        fits = isinstance(got, dict) and want.keys() == got.keys()
        return fits and all(same(value, got[key]) for key, value in want.items())
    return isinstance(got, list) and len(want) == len(got) and all(map(same, want, got))


def differences(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Return the fields in which a reading is not what was expected."""
    fields = ["status"] if want["status"] == "refused" else ["status", "intent", "confirm"]
    wrong = [field for field in fields if not same(want[field], got[field])]
    if want["status"] != "refused" and not same(want["slots"], got["slots"]):
        wrong.append("slots")
    return wrong
