"""Values said as a change (`half the batch size`, `2 more epochs`) made absolute. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from tools_utilities.errors import UsageError
from tools_utilities.setting_keys import KEYS_BY_NAME

CHANGES = ("add", "scale")


def make_absolute(
    values: Mapping[str, Any], base_of: Callable[[str], float | None]
) -> dict[str, Any]:
    """Return `values` with every `{"add": n}` and `{"scale": f}` applied to `base_of(name)`.

    Raises:
        UsageError: a change of something that has no value to change.
    """
    return {name: _absolute(name, value, base_of) for name, value in values.items()}


def _absolute(name: str, value: Any, base_of: Callable[[str], float | None]) -> Any:
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in CHANGES:
        return value
    [(change, amount)] = value.items()
    base = base_of(name)
    if base is None:
        raise UsageError(
            f"{name}: there is no value to change", hint=f"Give {name} as a number instead."
        )
    result = base + amount if change == "add" else base * amount
    return round(result) if KEYS_BY_NAME[name].kind == "int" else float(result)
