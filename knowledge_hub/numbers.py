"""Numbers as people write and say them, and their units: durations, sizes, money.

Every function reads tokens from an index on and returns what it read with the index after it, or
None. A number never reaches over a closing mark.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from knowledge_hub.sentence import Token

BIGGEST: Final = 10**18
_DIGITS = re.compile(
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)?(?P<part>\.[0-9]+)?(?P<half>½)?"
    r"(?:e(?P<power>[+-]?[0-9]{1,3})|[x\u00d7]10\^(?P<ten>[+-]?[0-9]{1,3}))?(?P<suffix>k|m|b|%)?"
)
_UNITS: Final = {
    word: number
    for number, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
_TENS: Final = {
    word: 10 * number
    for number, word in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], start=2
    )
}
_BIG: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_POWERS: Final = {"": 0, "k": 3, "m": 6, "b": 9, "%": -2}
SCALES: Final = _BIG | {"hundred": 100, "dozen": 12}
NUMBER_WORDS: Final = frozenset(
    [*_UNITS, *_TENS, *SCALES, "half", "couple", "single", "percent", "point"]
) - {"point"}
SECONDS: Final = {
    unit: seconds
    for seconds, units in {
        1: "s sec secs second seconds",
        60: "m min mins minute minutes",
        3600: "h hr hrs hour hours",
        86400: "d day days",
        604800: "week weeks",
    }.items()
    for unit in units.split()
}
BYTES: Final = {
    unit: size
    for size, units in {
        1: "byte bytes",
        10**3: "kb kilobyte kilobytes",
        10**6: "mb megabyte megabytes",
        10**9: "gb g gigabyte gigabytes",
        10**12: "tb terabyte terabytes",
        2**10: "kib kibibyte kibibytes",
        2**20: "mib mebibyte mebibytes",
        2**30: "gib gibibyte gibibytes",
        2**40: "tib tebibyte tebibytes",
    }.items()
    for unit in units.split()
}
_STARTS: Final = frozenset("0123456789.\u00bd$")
_AMOUNT = r"([0-9][0-9_]*(?:,[0-9]{3})*(?:\.[0-9]+)?|\.[0-9]+)"
_CLOCK = re.compile(rf"(?:{_AMOUNT}(?:days?|d|hours?|hrs?|h|mins?|minutes?|m|seconds?|secs?|s))+")
_CLOCK_PART = re.compile(rf"{_AMOUNT}([a-z]+)")
_SIZE = re.compile(rf"{_AMOUNT}([a-z]+)")
_MONEY = re.compile(rf"\${_AMOUNT}(k)?(?:/(h|hr|hour))?|{_AMOUNT}(?:usd|dollars?)")


class Number(NamedTuple):
    """A number read."""

    value: int | float
    end: int
    suffix: str = ""
    """`m` or `b` where a million or billion is only one reading; `%`; `k`."""


def _tidy(value: float) -> int | float:
    return int(value) if float(value).is_integer() and abs(value) < BIGGEST else value


def may_be_number(tokens: list[Token], at: int) -> bool:
    """Whether a number, an amount or a duration may begin at `at`; cheap, never wrongly no."""
    word = tokens[at].norm
    if word[:1] in _STARTS:
        return bool(word)
    if word in ("a", "an"):
        after = _norm(tokens, at + 1)
        return after in SCALES or after in SECONDS or after in ("couple", "single")
    return word in NUMBER_WORDS or ("-" in word and word.partition("-")[0] in NUMBER_WORDS)


def read_number(tokens: list[Token], at: int, *, kilo: int = 1000) -> Number | None:
    """Return the number that starts at `at`. `kilo` is what a `k` stands for."""
    if at >= len(tokens) or tokens[at].kind not in ("word", "slash"):
        return None
    token = tokens[at]
    if not may_be_number(tokens, at):
        return None
    if token.norm[0] in _STARTS:
        return _read_digits(tokens, at, kilo)
    return _read_words(tokens, at)


def _read_digits(tokens: list[Token], at: int, kilo: int) -> Number | None:
    found = _DIGITS.fullmatch(tokens[at].norm)
    if not found or not (found["whole"] or found["part"] or found["half"]):
        return None
    if len(tokens[at].norm) > len(str(BIGGEST)) + 16 or (found["half"] and found["part"]):
        return None
    suffix = found["suffix"] or ""
    power = int(found["power"] or found["ten"] or 0)
    digits = (found["whole"] or "0").replace(",", "").replace("_", "")
    written = f"{digits}{'.5' if found['half'] else found['part'] or ''}"
    if suffix == "k" and kilo != 1000:  # noqa: PLR2004 - the usual k
        value = float(f"{written}e{power}") * kilo
    else:
        value = float(f"{written}e{power + _POWERS[suffix]}")
    if value >= BIGGEST:
        return None
    exact: int | float = int(digits) if written.isdigit() and not (suffix or power) else value
    return _scaled(tokens, Number(_tidy(exact), at + 1, suffix))


def _scaled(tokens: list[Token], number: Number) -> Number:
    """A scale word, a percent sign or `and a half` after a number."""
    value, end, suffix = number
    if tokens[end - 1].stop:
        return number
    if not suffix and _norm(tokens, end) == "and" and _half_after(tokens, end):
        value, end = value + 0.5, end + 3
    while not suffix and _norm(tokens, end) in SCALES and not tokens[end - 1].stop:
        value, end = value * SCALES[tokens[end].norm], end + 1
    if not suffix and _norm(tokens, end) in ("percent", "%") and not tokens[end - 1].stop:
        value, end, suffix = float(f"{value}e-2"), end + 1, "%"
    if value >= BIGGEST:
        return number
    return Number(_tidy(value), end, suffix)


def _half_after(tokens: list[Token], end: int) -> bool:
    return (_norm(tokens, end + 1), _norm(tokens, end + 2)) == ("a", "half") and not (
        tokens[end].stop or tokens[end + 1].stop
    )


def _norm(tokens: list[Token], at: int) -> str:
    return tokens[at].norm if at < len(tokens) else ""


def _read_words(tokens: list[Token], at: int) -> Number | None:
    first, second = tokens[at].norm, _norm(tokens, at + 1)
    if first == "half":
        start = at + 2 if second in ("a", "an") and not tokens[at].stop else at + 1
        return _scaled_half(tokens, start) if start > at + 1 else None
    if first in ("a", "an"):
        return _read_article(tokens, at)
    if first == "single":
        return Number(1, at + 1)
    return _read_spelled(tokens, at)


def _scaled_half(tokens: list[Token], end: int) -> Number:
    if _norm(tokens, end) in SCALES:
        return Number(_tidy(0.5 * SCALES[tokens[end].norm]), end + 1)
    return Number(0.5, end)


def _read_article(tokens: list[Token], at: int) -> Number | None:
    """`a dozen`, `a couple of`, `a hundred`, `a single`."""
    if tokens[at].stop:
        return None
    second = _norm(tokens, at + 1)
    if second == "couple" and _norm(tokens, at + 2) == "of":
        return Number(2, at + 3)
    if second == "single":
        return Number(1, at + 2)
    if second in ("dozen", "hundred", "thousand", "million", "billion"):
        return _read_spelled(tokens, at + 1, start=1)
    return None


def _spelled_parts(tokens: list[Token], at: int) -> Iterator[tuple[list[str], int]]:
    """Yield the number words from `at` on, a hyphened word as its parts, each with its end."""
    last = ""
    while at < len(tokens) and tokens[at].kind == "word":
        words = tokens[at].norm.split("-")
        if words == ["and"] and last in SCALES and _starts_small(tokens, at + 1):
            # `two hundred and fifty`: the `and` counts only with a small number after it.
            words = []
        elif not all(word in _UNITS or word in _TENS or word in SCALES for word in words):
            return
        yield words, at + 1
        if tokens[at].stop:
            return
        last = words[-1] if words else ""
        at += 1


def _starts_small(tokens: list[Token], at: int) -> bool:
    first = _norm(tokens, at).partition("-")[0]
    return first in _UNITS or first in _TENS


def _read_spelled(tokens: list[Token], at: int, start: int = 0) -> Number | None:
    total, current, last, end = 0, start, 10**12, at
    room = 10 if start else 100
    """What `current` may still take: 100 after nothing, 10 after tens, 0 after units."""
    if start:
        room = 0
    for words, after in _spelled_parts(tokens, at):
        state = _add_words(words, total, current, last, room)
        if state is None:
            break
        total, current, last, room = state
        if words:
            end = after
    if end == at:
        return None
    number = Number(total + current, end)
    return _scaled(tokens, number) if not tokens[end - 1].stop else number


def _add_words(
    words: list[str], total: int, current: int, last: int, room: int
) -> tuple[int, int, int, int] | None:
    """Return the sum after more words, or None where they do not go on with the number."""
    for word in words:
        if word in _UNITS:
            value = _UNITS[word]
            if room <= value and not (room == 10 and value < 10) and room != 100:  # noqa: PLR2004
                return None
            if room == 10 and (value == 0 or value >= 10):  # noqa: PLR2004 - `twenty zero`
                return None
            current, room = current + value, 0
        elif word in _TENS:
            if room != 100:  # noqa: PLR2004
                return None
            current, room = current + _TENS[word], 10
        elif word in ("hundred", "dozen"):
            if not 0 < current < 100:  # noqa: PLR2004
                return None
            current, room = current * SCALES[word], 100 if word == "hundred" else 0
        else:
            if not current > 0 or _BIG[word] >= last:
                return None
            total, current, last, room = total + current * _BIG[word], 0, _BIG[word], 100
    return total, current, last, room


def read_duration(tokens: list[Token], at: int, *, minutes: bool) -> tuple[int, int] | None:
    """Return the seconds said at `at`. `minutes`: a lone `5m` is minutes here."""
    total, end, lone = 0.0, at, False
    while True:
        part = _duration_part(tokens, end)
        if part is None:
            break
        seconds, end, is_lone = part
        lone = is_lone if not total else False
        total += seconds
        if tokens[end - 1].stop:
            break
        if _norm(tokens, end) == "and" and _duration_part(tokens, end + 1):
            end += 1
    if end == at or (lone and not minutes) or total <= 0 or not total.is_integer():
        return None
    return int(total), end


def _duration_part(tokens: list[Token], at: int) -> tuple[float, int, bool] | None:
    """Return (seconds, end, whether it is a bare `5m`) of one amount and its unit."""
    if at >= len(tokens):
        return None
    word = tokens[at].norm
    if _CLOCK.fullmatch(word):
        parts = _CLOCK_PART.findall(word)
        if any(unit not in SECONDS for _, unit in parts):
            return None
        seconds = sum(_plain(amount) * SECONDS[unit] for amount, unit in parts)
        lone = len(parts) == 1 and parts[0][1] == "m"
        return seconds, at + 1, lone
    number = read_number(tokens, at)
    if number is None and word in ("a", "an") and not tokens[at].stop:
        number = Number(1, at + 1)
    if number is None or number.suffix or tokens[number.end - 1].stop:
        return None
    unit = _norm(tokens, number.end)
    if unit not in SECONDS or tokens[number.end].kind != "word":
        return None
    value, end = number.value, number.end + 1
    if _norm(tokens, end) == "and" and not tokens[end - 1].stop and _half_after(tokens, end):
        value, end = value + 0.5, end + 3
    return value * SECONDS[unit], end, unit == "m"


def _plain(amount: str) -> float:
    return float(amount.replace(",", "").replace("_", ""))


def read_size(tokens: list[Token], at: int) -> tuple[int, int] | None:
    """Return the bytes said at `at`: `50 GB`, `100MB`, `1.5 GiB`, `50G`."""
    if at >= len(tokens):
        return None
    joined = _SIZE.fullmatch(tokens[at].norm)
    if joined and joined[2] in BYTES:
        amount, unit, end = _plain(joined[1]), joined[2], at + 1
    else:
        number = read_number(tokens, at)
        if number is None or number.suffix not in ("", "k") or tokens[number.end - 1].stop:
            return None
        amount, unit, end = number.value, _norm(tokens, number.end), number.end + 1
        if unit not in BYTES:
            return None
    size = round(amount * BYTES[unit], 6)
    return (int(size), end) if size < BIGGEST and float(size).is_integer() else None


def read_money(tokens: list[Token], at: int) -> tuple[int | float, int] | None:
    """Return the dollars said at `at`; a rate in one word (`$2/hour`) is not money."""
    money = _money(tokens, at)
    return (money[0], money[1]) if money and not money[2] else None


def read_rate(tokens: list[Token], at: int) -> tuple[int | float, int] | None:
    """Return the dollars an hour said at `at`: `$2 an hour`, `$2/hr`, `2 dollars per hour`."""
    money = _money(tokens, at)
    if money is None:
        return None
    value, end, is_rate = money
    if is_rate:
        return value, end
    if tokens[end - 1].stop:
        return None
    if _norm(tokens, end) in ("a", "an", "per", "each", "every") and not tokens[end].stop:
        end += 1
        if _norm(tokens, end) in ("hour", "hr"):
            return value, end + 1
    return None


def _money(tokens: list[Token], at: int) -> tuple[int | float, int, bool] | None:
    if at >= len(tokens):
        return None
    found = _MONEY.fullmatch(tokens[at].norm) if tokens[at].kind in ("word", "odd") else None
    if found:
        amount = _plain(found[1] or found[4]) * (1000 if found[2] else 1)
        return (_tidy(amount), at + 1, bool(found[3])) if 0 < amount < BIGGEST else None
    number = read_number(tokens, at)
    if number is None or number.suffix not in ("", "k") or tokens[number.end - 1].stop:
        return None
    if _norm(tokens, number.end) in ("usd", "dollar", "dollars") and number.value > 0:
        return number.value, number.end + 1, False
    return None
