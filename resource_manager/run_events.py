"""A line of metrics.jsonl as an event whose fields are what they are taken for.

The file may come from a stranger's run folder, from a rented machine or from a program of one's own
that tells what it likes. A field of another type than its name promises is left out, as if it had not
been told; a line that is no event, or an event that does not say what it is about, is none at all.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from tools_utilities.json_text import decode_json

_LARGEST_WHOLE = 1 << 53
_LARGEST_TIME = 1e11
_LONGEST_TEXT = 1 << 16
_WHOLE = (
    "step", "total_steps", "samples", "tokens", "resumed_from_step", "exit_code", "retries",
    "world_size", "parameters", "rank",
)  # fmt: skip
_NUMBERS = (
    "epoch", "loss", "val_loss", "lr", "grad_norm", "tokens_per_second", "mfu", "step_seconds",
    "data_wait_share", "data_bytes_per_second", "cache_hit_rate", "eta_seconds", "seconds",
    "accuracy", "r2",
)  # fmt: skip
_TEXTS = (
    "message", "hint", "kind", "frame", "reason", "path", "wait_cause", "counts", "run", "device",
    "precision", "model",
)  # fmt: skip
_ABOUT_A_STEP = ("step", "eval")


def event_of(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None: it is none, such as a line that is half written."""
    try:
        told = decode_json(line)
    except msgspec.DecodeError:
        return None
    if not isinstance(told, dict) or not _text(told.get("event")):
        return None
    event = {name: _checked(name, value) for name, value in told.items()}
    event = {
        name: value for name, value in event.items() if value is not None or told[name] is None
    }
    if event["event"] in _ABOUT_A_STEP and event.get("step") is None:
        return None
    return event


def _checked(name: str, value: Any) -> Any:
    check = _CHECKS.get(name)
    return value if check is None else check(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    fits = number is not None and number == int(number) and abs(number) < _LARGEST_WHOLE
    return int(value) if fits else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None


def _time(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number < _LARGEST_TIME else None


def _text(value: Any) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None


def _numbers_by_name(value: Any) -> dict[str, float] | None:
    if not isinstance(value, dict):
        return None
    found = {name: _number(one) for name, one in value.items()}
    return {name: one for name, one in found.items() if one is not None}


def _slow_ranks(value: Any) -> list[dict[str, Any]] | None:
    if not isinstance(value, list):
        return None
    told = [one for one in value if isinstance(one, dict)]
    return [
        one
        for one in told
        if _whole(one.get("rank")) is not None
        and _number(one.get("times")) is not None
        and _text(one.get("waits")) is not None
    ]


def _texts_by_name(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    return {name: str(one) for name, one in value.items() if isinstance(one, str | int | float)}


def _data(value: Any) -> list[dict[str, str]] | None:
    """The fingerprints of what was trained on."""
    if not isinstance(value, list):
        return None
    texts = [_texts_by_name(one) or {} for one in value]
    return texts if all({"order", "change"} <= one.keys() for one in texts) else None


_CHECKS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_WHOLE, _whole),
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_TEXTS, _text),
    "event": _text,
    "time": _time,
    "wait_seconds": _numbers_by_name,
    "slow_ranks": _slow_ranks,
    "versions": _texts_by_name,
    "data": _data,
}
