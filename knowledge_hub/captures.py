"""Converters of the phrase table: from tokens to a slot's value.

Each takes the tokens and an index and returns the value with the index after it, or None when what
stands there is not such a value. `UNSURE` is a value that has two readings (`batch size 5m`).
"""

import re
from collections.abc import Callable
from typing import Any, Final

from knowledge_hub.literals import is_function
from knowledge_hub.numbers import (
    NUMBER_WORDS,
    read_duration,
    read_money,
    read_number,
    read_rate,
    read_size,
)
from knowledge_hub.sentence import Token
from knowledge_hub.vocabulary import CONNECTORS, NEVER_GLUE, POLITE

UNSURE: Final = "\0two readings"
GPUS: Final = {
    name.lower(): name
    for name in [
        "V100",
        "A10",
        "A40",
        "A100",
        "A6000",
        "L4",
        "L40",
        "L40S",
        "H100",
        "H200",
        "B200",
        "GH200",
        "MI300X",
        "T4",
        "RTX3090",
        "RTX4090",
        "RTX5090",
    ]
}
SHARD_FORMATS: Final = ("jsonl", "parquet", "webdataset", "litdata", "mds")
EXPORT_FORMATS: Final = {
    "slurm": "slurm",
    "kubernetes": "kubernetes",
    "k8s": "kubernetes",
    "skypilot": "skypilot",
}
CODECS: Final = ("zstd", "gzip", "none")
MARKS: Final = frozenset({"done", "complete", "completed", "finished", "failed"})
"""How a shard can be marked."""
LONGEST_PICK: Final = 4096
"""Groups that one sentence may pick: `1-1000000000` is no choice."""
_WORD = re.compile(r"[a-z][a-z0-9_.-]*[a-z0-9_]|[a-z]")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_RANGE = re.compile(r"([0-9]{1,6})[-\u2013]([0-9]{1,6})")

Captured = tuple[Any, int] | None
MatchLength = Callable[[int], int]
"""How many tokens the longest phrase at an index spans: a list ends where another phrase begins."""
Converter = Callable[[list[Token], int, MatchLength], Captured]


def _whole(value: float, least: int) -> Any:
    return int(value) if float(value).is_integer() and value >= least else None


def _count(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    number = read_number(tokens, at)
    if number is None or number.suffix == "%":
        return None
    value = _whole(number.value, 0)
    return None if value is None else (value, number.end)


def _int(tokens: list[Token], at: int, _: MatchLength, kilo: int = 1000) -> Captured:
    number = read_number(tokens, at, kilo=kilo)
    if number is None or number.suffix == "%":
        return None
    if number.suffix in ("m", "b"):
        return UNSURE, number.end
    value = _whole(number.value, 0)
    return None if value is None else (value, number.end)


def _k1024(tokens: list[Token], at: int, match: MatchLength) -> Captured:
    return _int(tokens, at, match, kilo=1024)


def _num(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    number = read_number(tokens, at)
    if number is None:
        return None
    return (UNSURE if number.suffix in ("m", "b") else number.value), number.end


def _time(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    return read_duration(tokens, at, minutes=True)


def _clock(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    return read_duration(tokens, at, minutes=False)


def _every(tokens: list[Token], at: int, match: MatchLength) -> Captured:
    """`500 steps`, `ten minutes`, `5k samples`, `hour`, `step`."""
    counted = _count(tokens, at, match)
    if counted and not tokens[counted[1] - 1].stop and counted[1] < len(tokens):
        unit = tokens[counted[1]].norm
        if unit in ("step", "steps", "sample", "samples") and counted[0] > 0:
            return {f"{unit.rstrip('s')}s": counted[0]}, counted[1] + 1
    unit = tokens[at].norm if at < len(tokens) else ""
    singles = {"step": ("steps", 1), "sample": ("samples", 1), "second": ("seconds", 1)}
    singles |= {"minute": ("seconds", 60), "hour": ("seconds", 3600), "day": ("seconds", 86400)}
    if unit in singles:
        return dict([singles[unit]]), at + 1
    duration = read_duration(tokens, at, minutes=True)
    return ({"seconds": duration[0]}, duration[1]) if duration else None


def _literal(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    if at < len(tokens) and tokens[at].kind in ("path", "quoted", "slash") and tokens[at].value:
        return tokens[at].value, at + 1
    return None


def _start(tokens: list[Token], at: int, match: MatchLength) -> Captured:
    return _run(tokens, at, match) or _literal(tokens, at, match)


def _run(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    if at < len(tokens) and tokens[at].kind == "run":
        return tokens[at].value, at + 1
    return None


def is_word_value(text: str) -> bool:
    """Whether a folded word may be a name: ASCII, begins with a letter."""
    return _WORD.fullmatch(text) is not None


def _word(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    """A name: a plain word or what looks like a run id, folded; or a quoted word as it is."""
    if at >= len(tokens):
        return None
    token = tokens[at]
    if token.kind == "quoted" and token.value.strip():
        return token.value, at + 1
    if token.kind not in ("word", "run") or not is_word_value(token.norm):
        return None
    if token.norm in CONNECTORS or token.norm in NEVER_GLUE or token.norm in POLITE | {"done"}:
        return None
    return token.norm, at + 1


def _worker(tokens: list[Token], at: int, match: MatchLength) -> Captured:
    """A worker's name: `as failed` is what becomes of a shard."""
    if at < len(tokens) and tokens[at].kind == "word" and tokens[at].norm in MARKS:
        return None
    return _word(tokens, at, match)


def _gpu(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    if at >= len(tokens):
        return None
    name, end = tokens[at].norm.replace("rtx-", "rtx"), at + 1
    if name == "rtx" and not tokens[at].stop and end < len(tokens):
        name, end = f"rtx{tokens[end].norm}", end + 1
    if name.removesuffix("s") in ("3090", "4090", "5090"):
        name = f"rtx{name}"
    if name in ("a100-80gb", "a100-80gbs"):
        return "A100-80GB", end
    known = GPUS.get(name) or (GPUS.get(name[:-1]) if name.endswith("s") else None)
    if known is None:
        return None
    if known == "A100" and not tokens[end - 1].stop:
        memory = read_size(tokens, end)
        if memory and memory[0] == 80 * 10**9 and not _is_cache(tokens, memory[1]):
            return "A100-80GB", memory[1]
    return known, end


def _is_cache(tokens: list[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].norm in ("cache", "chunks", "of")


def _next_in_list(tokens: list[Token], at: int) -> int | None:
    """Return where the next element of a list begins after the element that ends at `at`."""
    joined = tokens[at - 1].stop
    if joined not in ("", ","):
        return None
    if at < len(tokens) and tokens[at].norm == "and" and not tokens[at].stop:
        return at + 1
    return at if joined == "," else None


def _listed(
    tokens: list[Token],
    at: int,
    match: MatchLength,
    one: Callable[[int], Captured],
    *,
    yields: int = 1,
) -> tuple[list[Any], int] | None:
    """Read a list; it ends where a phrase begins that is `yields` tokens longer than its element."""
    values: list[Any] = []
    end, place = at, at
    while place < len(tokens):
        found = one(place)
        # `weights 0.7 and 0.3 and 8 gpus`: the 8 begins a phrase of its own.
        if found is None or (values and match(place) >= found[1] - place + yields):
            break
        values.append(found[0])
        end = found[1]
        following = _next_in_list(tokens, end)
        if following is None:
            break
        place = following
    return (values, end) if values else None


def _is_unsure(tokens: list[Token], at: int, end: int) -> bool:
    """`groups 1,200`: two groups, or number 1200? `1,20` is cut at its comma (`sentence.py`)."""
    return any(_THOUSANDS.fullmatch(token.norm) for token in tokens[at:end])


def _ints(tokens: list[Token], at: int, match: MatchLength) -> Captured:
    def one(place: int) -> Captured:
        span = _RANGE.fullmatch(tokens[place].norm) if tokens[place].kind == "word" else None
        if span:
            first, last = int(span[1]), int(span[2])
            if first < 1 or last < first or last - first >= LONGEST_PICK:
                return None
            return list(range(first, last + 1)), place + 1
        number = read_number(tokens, place)
        if number is None or number.suffix or _whole(number.value, 1) is None:
            return None
        return [int(number.value)], number.end

    found = _listed(tokens, at, match, one)
    if found is None:
        return None
    if _is_unsure(tokens, at, found[1]):
        return UNSURE, found[1]
    picked = list(dict.fromkeys(number for part in found[0] for number in part))
    return ({"pick": picked}, found[1]) if len(picked) <= LONGEST_PICK else None


def _nums(tokens: list[Token], at: int, match: MatchLength) -> Captured:
    def one(place: int) -> Captured:
        number = read_number(tokens, place)
        return None if number is None or number.suffix in ("m", "b") else number[:2]

    found = _listed(tokens, at, match, one)
    return (UNSURE, found[1]) if found and _is_unsure(tokens, at, found[1]) else found


def _words(tokens: list[Token], at: int, match: MatchLength) -> Captured:
    def one(place: int) -> Captured:
        while place < len(tokens) and tokens[place].norm in POLITE and not tokens[place].stop:
            place += 1
        if place < len(tokens) and tokens[place].norm in NUMBER_WORDS:
            return None
        return _word(tokens, place, match)

    # `except val and shuffled`: a word that says something by itself is no name in a list.
    return _listed(tokens, at, match, one, yields=0)


def _function(tokens: list[Token], at: int, _: MatchLength) -> Captured:
    if at < len(tokens) and tokens[at].kind == "word" and is_function(tokens[at].text):
        return tokens[at].text, at + 1
    return None


def _one_of(names: dict[str, str]) -> Converter:
    def convert(tokens: list[Token], at: int, _: MatchLength) -> Captured:
        if at < len(tokens) and tokens[at].kind == "word" and tokens[at].norm in names:
            return names[tokens[at].norm], at + 1
        return None

    return convert


NUMERIC: Final = frozenset(
    {"count", "int", "k1024", "num", "time", "clock", "size", "money", "rate", "ints", "nums"}
)
"""Converters that read nothing where no number begins."""
CONVERTERS: Final[dict[str, Converter]] = {
    "count": _count,
    "int": _int,
    "k1024": _k1024,
    "num": _num,
    "time": _time,
    "clock": _clock,
    "every": _every,
    "size": lambda tokens, at, _: read_size(tokens, at),
    "money": lambda tokens, at, _: read_money(tokens, at),
    "rate": lambda tokens, at, _: read_rate(tokens, at),
    "lit": _literal,
    "start": _start,
    "run": _run,
    "word": _word,
    "worker": _worker,
    "gpu": _gpu,
    "ints": _ints,
    "nums": _nums,
    "words": _words,
    "fn": _function,
    "format": _one_of({name: name for name in SHARD_FORMATS}),
    "scheduler": _one_of(EXPORT_FORMATS),
    "codec": _one_of({name: name for name in CODECS}),
}
