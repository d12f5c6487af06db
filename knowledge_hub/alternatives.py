"""`X or Y` and `X instead of Y`: two values of one slot, of which a phrase may be said only once.

`on vast or aws`, `cosine or linear schedule`, `a 50 GB cache instead of 20 GB`: both values are read
in the words of the one phrase. Two values of one slot are ambiguous; two stop rules both count.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from knowledge_hub.captures import UNSURE, is_word_value
from knowledge_hub.numbers import read_duration, read_money, read_number
from knowledge_hub.phrases import Matcher, slots_of
from knowledge_hub.sentence import Token
from knowledge_hub.slots import STOP_RULES
from knowledge_hub.vocabulary import CONNECTORS
from knowledge_hub.work import GLUE, Piece, Work

LITERAL_KINDS: Final = frozenset({"path", "quoted", "slash"})
LITERAL_SLOTS: Final = frozenset({"data", "val", "out", "source", "init_from", "cache_dir"})
NAME_SLOTS: Final = frozenset({"model", "name", "worker", "partition_key"})
MOST_SHARED: Final = 3
"""Joints of one sentence that are read as sharing words: bounds the work on a line of `or`."""
LONGEST_LEFT: Final = 7
LONGEST_VALUE: Final = 4


class Shared(NamedTuple):
    """Two values that share the words of one phrase."""

    start: int
    end: int
    first: dict[str, Any]
    second: dict[str, Any]


def take_instead(work: Work) -> None:
    """`X instead of Y` sets X and owns Y."""
    tried = 0
    for at, token in enumerate(work.tokens[:-2]):
        if token.norm != "instead" or work.tokens[at + 1].norm != "of" or not work.free(at):
            continue
        before = work.piece_at(work.word_before(at))
        after = work.next_word(at + 2)
        end = _replaced_end(work, before, after) if before is not None and before.slots else None
        if before is not None and end is not None:
            work.own(Piece(at, end, before.label, {}))
            continue
        tried += 1
        shared = _shared(work, at, after) if tried <= MOST_SHARED else None
        owner = work.piece_at(after)
        if shared is not None and shared.first.keys() & shared.second.keys():
            _replace(work, shared, shared.first)
        elif before is not None and before.slots and owner is not None and not owner.intent:
            # What is to be replaced is not there: setting it would be the opposite of what is said.
            work.disown(owner)


def _replaced_end(work: Work, before: Piece, at: int) -> int | None:
    """Return where the replaced thing ends, or None when it is nothing of its kind."""
    if at >= len(work.tokens):
        return None
    owner = work.piece_at(at)
    if owner is None:
        return _replaced_word_end(work, before, at)
    if owner.label == "number" and _is_number(next(iter(before.slots.values()))):
        forget_number(work, owner)
    elif not (owner.slots.keys() & before.slots.keys() or _both_stop(owner.slots, before.slots)):
        return None
    owner.slots, owner.intent, owner.override = {}, None, None
    return owner.end


def _replaced_word_end(work: Work, before: Piece, at: int) -> int | None:
    """Return where a replaced number, literal, run or name ends that no piece owns."""
    token = work.tokens[at]
    number = read_number(work.tokens, at)
    if number is not None and any(_is_number(value) for value in before.slots.values()):
        return None if _goes_on(work, number.end) else number.end
    fits = (
        (token.kind in LITERAL_KINDS and before.label in LITERAL_SLOTS)
        or (token.kind == "run" and before.label in ("run", "init_from"))
        or (
            token.kind == "word"
            and before.label in NAME_SLOTS
            and is_word_value(token.norm)
            and token.norm not in CONNECTORS
        )
    )
    return at + 1 if fits else None


def _goes_on(work: Work, end: int) -> bool:
    """Whether a unit follows the number that ends at `end`: `instead of 90 minutes`."""
    if end >= len(work.tokens) or work.tokens[end - 1].stop or not work.free(end):
        return False
    return work.tokens[end].kind == "word" and work.tokens[end].norm not in (*CONNECTORS, "then")


def forget_number(work: Work, piece: Piece) -> None:
    """A bare number that turns out to belong to something is no longer in doubt."""
    piece.label = "-"
    if all(other.label != "number" for other in work.pieces):
        work.unsure.pop("number", None)


def _both_stop(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return bool(first.keys() & STOP_RULES) and bool(second.keys() & STOP_RULES)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def take_or(work: Work) -> None:
    """`or` joins two stop rules; between two values of one slot it is ambiguous."""
    tried = 0
    for at, token in enumerate(work.tokens):
        if token.norm != "or" or not work.free(at) or token.kind != "word":
            continue
        left = work.piece_at(work.word_before(at))
        place = work.next_word(at + 1)
        while (
            place < len(work.tokens) and work.free(place) and work.tokens[place].norm in CONNECTORS
        ):
            place = work.next_word(place + 1)
        right = work.piece_at(place)
        if left is not None and right is not None and _or_between(work, at, left, right):
            continue
        if left is not None and right is None and _or_stop_rule(work, at, left, place):
            continue
        tried += 1
        shared = _shared(work, at, work.next_word(at + 1)) if tried <= MOST_SHARED else None
        if shared is not None:
            _choose(work, shared)
        elif left is not None and right is None:
            _or_before_value(work, at, left, place)


def _or_between(work: Work, at: int, left: Piece, right: Piece) -> bool:
    """`3 epochs or 5 epochs`, `8 or 16 gpus`: both sides are owned."""
    same = [slot for slot in left.slots if slot in right.slots]
    differ = [slot for slot in same if left.slots[slot] != right.slots[slot]]
    if left.label == "number":
        slot = next(iter(right.slots), "number")
        forget_number(work, left)
        _make_unsure(work, slot, [work.text(left.start, left.end), right.slots.get(slot)])
        work.own(Piece(at, at + 1, slot, {}))
    elif same:
        for slot in differ:
            _make_unsure(work, slot, [left.slots[slot], right.slots[slot]])
        work.own(Piece(at, at + 1, same[0], {}))
    elif _both_stop(left.slots, right.slots):
        work.owner[at] = GLUE
    else:
        return False
    return True


def _make_unsure(work: Work, slot: str, values: list[Any]) -> None:
    slot = "format" if slot.endswith("_format") else slot
    shown = [str(value[0]) if isinstance(value, list) else str(value) for value in values]
    work.unsure[slot] = (f"Which {slot}?", shown)


def _or_before_value(work: Work, at: int, left: Piece, place: int) -> None:
    """`on s3://b/a or s3://b/c`, `train quark or resnet50`."""
    if place >= len(work.tokens) or not left.slots:
        return
    slot = next(iter(left.slots))
    token = work.tokens[place]
    end = None
    number = read_number(work.tokens, place)
    if number is not None and _is_number(left.slots[slot]):
        end = number.end
    elif token.kind in (*LITERAL_KINDS, "run") and isinstance(left.slots[slot], str | list):
        end = place + 1
    is_free = end is not None and not _is_reported(work, place, end)
    if end is not None and is_free and all(work.free(spot) for spot in range(place, end)):
        _make_unsure(work, slot, [left.slots[slot], work.text(place, end)])
        work.own(Piece(at, end, slot, {}))
    elif token.kind == "word" and slot in NAME_SLOTS:
        _make_unsure(work, slot, [left.slots[slot], token.norm])
        work.own(Piece(at, place + 1, slot, {}))


def _or_stop_rule(work: Work, at: int, left: Piece, place: int) -> bool:
    """`after 6 hours or $15`: the second rule, of another kind, needs no word of its own."""
    if place >= len(work.tokens) or not left.slots.keys() & STOP_RULES:
        return False
    rules = {
        "max_cost": read_money(work.tokens, place),
        "max_seconds": read_duration(work.tokens, place, minutes=False),
    }
    for slot, found in rules.items():
        if slot in left.slots:
            continue  # two values of one rule: which of them is not said
        if (
            found
            and not _is_reported(work, place, found[1])
            and all(work.free(spot) for spot in range(place, found[1]))
        ):
            work.owner[at] = GLUE
            work.own(Piece(place, found[1], slot, {slot: found[0]}))
            return True
    return False


def _choose(work: Work, shared: Shared) -> None:
    first, second = shared.first, shared.second
    if first.keys() & second.keys():
        differ = [slot for slot in first if first[slot] != second.get(slot)]
        for slot in differ:
            _make_unsure(work, slot, [first[slot], second.get(slot)])
    _replace(work, shared, first | second)


def _replace(work: Work, shared: Shared, slots: dict[str, Any]) -> None:
    """Let one piece own all words of both values."""
    for at in range(shared.start, shared.end):
        piece = work.piece_at(at)
        if piece is not None:
            if piece.label == "number":
                forget_number(work, piece)
            piece.slots = {}
    work.own(Piece(shared.start, shared.end, next(iter(slots)), slots))


def _shared(work: Work, at: int, after: int) -> Shared | None:
    """Return the two values around token `at` that one phrase holds, the longest phrase first.

    The words left of the joint are `head value tail`, those right of it `value rest`; one of tail
    and rest is empty. The first value is read in `head value tail rest`, the second in the same
    words with its own value.
    """
    tokens = work.tokens
    for start in range(max(0, at - LONGEST_LEFT), at):
        left = tokens[start:at]
        for end, rest in _right_sides(tokens, after):
            first = _phrase(work, [*left, *rest])
            if first is None or not _may_take(work, start, end + len(rest)):
                continue
            for head, tail in _frames(left, with_tail=not rest):
                second = _phrase(work, [*head, *tokens[after:end], *tail, *rest])
                if second is not None and _belong(first, second):
                    return Shared(start, end + len(rest), first, second)
    return None


def _right_sides(tokens: list[Token], after: int) -> Iterator[tuple[int, list[Token]]]:
    """Yield where the second value ends, with the words after it that both values share."""
    for length in range(LONGEST_VALUE, 0, -1):
        for rest in range(LONGEST_VALUE):
            if after + length + rest <= len(tokens):
                yield after + length, tokens[after + length : after + length + rest]


def _frames(left: list[Token], *, with_tail: bool) -> Iterator[tuple[list[Token], list[Token]]]:
    """Yield the words before and after the first value, which is never empty."""
    for head in range(len(left) - 1, -1, -1):
        last = len(left) if not with_tail else head + 1
        for tail in range(len(left), last - 1, -1):
            yield left[:head], left[tail:]


def _phrase(work: Work, tokens: list[Token]) -> dict[str, Any] | None:
    """Return what the tokens set when one phrase (no verb) spans all of them."""
    plain = [token._replace(stop="") if token.stop == "," else token for token in tokens]
    match = Matcher(work.table, plain).longest(0)
    if match is None or match.end != len(tokens) or match.phrase.intent:
        return None
    slots = slots_of(match)
    return None if any(value == UNSURE for value in slots.values()) else slots


def _belong(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() or (
        len(first) == 1 and len(second) == 1 and _both_stop(first, second)
    )


def _is_reported(work: Work, start: int, end: int) -> bool:
    """Whether one of the words is reported already: a value out of its limits (`3 or 0 steps`)."""
    return any(start < last and first < end for first, last, _ in work.dropped)


def _may_take(work: Work, start: int, end: int) -> bool:
    """Whether the words are nobody's, or pieces that lie wholly among them and are no verb's."""
    if _is_reported(work, start, end):
        return False
    for at in range(start, end):
        piece = work.piece_at(at)
        if piece is None:
            continue
        if piece.start < start or piece.end > end or piece.intent or piece.is_noun:
            return False
        if piece.label == "intent" or piece.override:
            return False
    return True
