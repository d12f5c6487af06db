"""Every word is owned, glue or reported: `or`, `instead of`, connectors, and the slots that result."""

from typing import Any, Final

from knowledge_hub.captures import UNSURE, is_word_value
from knowledge_hub.numbers import read_duration, read_money, read_number
from knowledge_hub.slots import EVERYWHERE, STOP_RULES
from knowledge_hub.vocabulary import CONNECTORS, NOUNS
from knowledge_hub.work import FREE, GLUE, Piece, Work
from tools_utilities.errors import UsageError
from tools_utilities.setting_keys import KEYS_BY_NAME, check_limits

NEEDS_DATA_OR_PREFIX: Final = frozenset({"train", "finetune", "estimate", "export"})
AFTER_BUT: Final = frozenset({"with", "on", "for", "don't", "dont"})
BUT_INTENTS: Final = frozenset({"resume", "again", "train"})
AT_LEAST_ONE: Final = frozenset(["shards", "chunk_bytes", "samples_per_shard", "lines"])
LITERAL_KINDS: Final = frozenset({"path", "quoted", "slash"})
LITERAL_SLOTS: Final = frozenset({"data", "val", "out", "source", "init_from", "cache_dir"})
NAME_SLOTS: Final = frozenset({"model", "name", "worker", "partition_key"})
_FORMATS: Final = {"shard_format": "shard", "export_format": "export"}
_QUESTIONS: Final = {
    "data": "Which data?",
    "source": "Which file or folder is to be sharded?",
    "run": "Which run?",
    "runs": "Which runs?",
    "function": "Which function (package.module:name)?",
    "shard": "Which shard?",
    "intent": "What should be done?",
}


def settle(work: Work) -> None:
    """Join or report what stands between the pieces, then fill the slots."""
    _drop_bad_values(work)
    _instead(work)
    _or(work)
    _drop_unused(work)
    _connectors(work)
    _report_rest(work)
    _fill_slots(work)
    _needs(work)


def question_of(slot: str) -> str:
    """Return the question that asks for a slot."""
    return _QUESTIONS.get(slot, f"{slot}?")


def _drop_bad_values(work: Work) -> None:
    """A value out of its slot's limits is not understood: `for 0 epochs`."""
    for piece in list(work.pieces):
        for slot, value in piece.slots.items():
            reason = _bad_value(slot, value)
            if reason is not None:
                work.disown(piece, reason)
                break


def _bad_value(slot: str, value: Any) -> str | None:
    if slot in AT_LEAST_ONE and value == 0:
        return f"{slot} is at least 1"
    if isinstance(value, dict):
        amounts = [value[name] for name in ("add", "scale") if name in value]
        is_whole = slot != "epochs" or all(amount > 0 for amount in amounts)
        return None if is_whole and all(amount > 0 for amount in amounts) else "more than 0"
    key = KEYS_BY_NAME.get(slot)
    if key is None or value == UNSURE:
        return None
    try:
        check_limits(key, value)
    except UsageError as error:
        return error.hint
    return None


def _instead(work: Work) -> None:
    """`X instead of Y` sets X and owns Y."""
    for at, token in enumerate(work.tokens[:-2]):
        if token.norm != "instead" or work.tokens[at + 1].norm != "of" or not work.free(at):
            continue
        before = work.piece_at(work.word_before(at))
        if before is None or not before.slots:
            continue
        after = work.next_word(at + 2)
        end = _replaced_end(work, before, after)
        if end is not None:
            work.own(Piece(at, end, before.label, {}))
        elif (owner := work.piece_at(after)) is not None and not owner.intent:
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
        work.unsure.pop("number", None)
    elif not (owner.slots.keys() & before.slots.keys() or _both_stop(owner, before)):
        return None
    owner.slots, owner.intent, owner.override = {}, None, None
    return owner.end


def _replaced_word_end(work: Work, before: Piece, at: int) -> int | None:
    """Return where a replaced number, literal, run or name ends that no piece owns."""
    token = work.tokens[at]
    number = read_number(work.tokens, at)
    if number is not None and any(_is_number(value) for value in before.slots.values()):
        return number.end
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


def _both_stop(first: Piece, second: Piece) -> bool:
    return bool(first.slots.keys() & STOP_RULES) and bool(second.slots.keys() & STOP_RULES)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _or(work: Work) -> None:
    """`or` joins two stop rules; between two values of one slot it is ambiguous."""
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
        if left is None:
            _or_after_number(work, at, right)
        elif right is not None:
            _or_between(work, at, left, right)
        else:
            _or_before_value(work, at, left, place)


def _or_between(work: Work, at: int, left: Piece, right: Piece) -> None:
    same = [slot for slot in left.slots if slot in right.slots]
    if left.label == "number":
        slot = next(iter(right.slots), "number")
        work.unsure.pop("number", None)
        _make_unsure(work, slot, [work.text(left.start, left.end), right.slots.get(slot)])
        work.own(Piece(at, at + 1, slot, {}))
    elif same:
        for slot in same:
            _make_unsure(work, slot, [left.slots[slot], right.slots[slot]])
        work.own(Piece(at, at + 1, same[0], {}))
    elif _both_stop(left, right):
        work.owner[at] = GLUE


def _make_unsure(work: Work, slot: str, values: list[Any]) -> None:
    shown = [str(value[0]) if isinstance(value, list) else str(value) for value in values]
    work.unsure[slot] = (f"Which {slot}?", shown)


def _or_after_number(work: Work, at: int, right: Piece | None) -> None:
    """`3 or 5 epochs`."""
    start = at - 1
    number = read_number(work.tokens, start) if start >= 0 and work.free(start) else None
    if number is None or right is None or not right.slots:
        return
    slot = next(iter(right.slots))
    _make_unsure(work, slot, [number.value, right.slots[slot]])
    work.own(Piece(start, at + 1, slot, {}))


def _or_before_value(work: Work, at: int, left: Piece, place: int) -> None:
    """`batch size 32 or 64`, `on s3://b/a or s3://b/c`."""
    if place >= len(work.tokens) or not left.slots or _or_stop_rule(work, at, left, place):
        return
    slot = next(iter(left.slots))
    token = work.tokens[place]
    end = None
    number = read_number(work.tokens, place)
    if number is not None and _is_number(left.slots[slot]):
        end = number.end
    elif token.kind in ("path", "quoted", "slash", "run") and isinstance(
        left.slots[slot], str | list
    ):
        end = place + 1
    if end is not None and all(work.free(spot) for spot in range(place, end)):
        _make_unsure(work, slot, [left.slots[slot], work.text(place, end)])
        work.own(Piece(at, end, slot, {}))
    elif token.kind == "word" and slot in ("model", "name", "worker", "partition_key"):
        _make_unsure(work, slot, [left.slots[slot], token.norm])
        work.own(Piece(at, place + 1, slot, {}))


def _or_stop_rule(work: Work, at: int, left: Piece, place: int) -> bool:
    """`after 6 hours or $15`: the second rule needs no word of its own."""
    if not left.slots.keys() & STOP_RULES:
        return False
    rules = {
        "max_cost": read_money(work.tokens, place),
        "max_seconds": read_duration(work.tokens, place, minutes=False),
    }
    for slot, found in rules.items():
        if found and all(work.free(spot) for spot in range(place, found[1])):
            work.owner[at] = GLUE
            work.own(Piece(place, found[1], slot, {slot: found[0]}))
            return True
    return False


def _allowed(work: Work, name: str) -> bool:
    """Whether the intent has a use for what a phrase says."""
    if work.intent is None:
        return True
    if name in EVERYWHERE:
        return True
    if name in _FORMATS:
        return work.intent == _FORMATS[name]
    return name in work.intents[work.intent].slots


def _drop_unused(work: Work) -> None:
    for piece in list(work.pieces):
        names = [*piece.slots, *([piece.override[0]] if piece.override else [])]
        if any(not _allowed(work, name) for name in names) or (
            piece.slots.get("run") == "all" and work.intent != "stop"
        ):
            for name in names:
                work.unsure.pop(name, None)
            work.disown(piece, None)


def _connectors(work: Work) -> None:
    """A connector is glue directly before an owned phrase, or before one that is."""
    depth = 0
    """How many connectors stand between here and the owned phrase."""
    near = False
    for at in range(len(work.tokens) - 1, -1, -1):
        token = work.tokens[at]
        if work.owner[at] >= 0:
            near, depth = True, 0
        elif work.owner[at] == GLUE:
            continue
        elif token.kind == "word" and token.norm in CONNECTORS and near and depth < 2:  # noqa: PLR2004
            if token.stop not in ("", ":") and token.norm != "and":
                near = False
                continue
            work.owner[at] = GLUE
            depth += 1
        elif token.norm == "but" and work.intent in BUT_INTENTS and _may_follow_but(work, at):
            work.owner[at] = GLUE
        else:
            near = False


def _may_follow_but(work: Work, at: int) -> bool:
    after = at + 1
    while (
        after < len(work.tokens)
        and work.tokens[after].norm not in CONNECTORS
        and work.is_glue(after)
    ):
        after += 1
    if after >= len(work.tokens) or work.owner[after] == FREE:
        return False
    words = (
        work.tokens[after].norm,
        work.tokens[after + 1].norm if after + 1 < len(work.tokens) else "",
    )
    return words[0] in AFTER_BUT or words == ("do", "not")


def _report_rest(work: Work) -> None:
    """What is left is not understood; data written as a bare word gets a hint how to write it."""
    said = {at for start, end, _ in work.dropped for at in range(start, end)}
    for at, token in enumerate(work.tokens):
        if work.owner[at] != FREE or at in said:
            continue
        before = work.word_before(at)
        due = before >= 0 and work.tokens[before].norm in (
            "with",
            "on",
            "using",
            "from",
            "over",
            "in",
        )
        bare = token.kind == "word" and token.norm.isidentifier() and token.norm not in NOUNS
        hint = (
            f"./{token.text} or hf://{token.text}" if due and bare and _wants_data(work) else None
        )
        work.dropped.append((at, at + 1, hint))
    work.dropped.sort()


def _wants_data(work: Work) -> bool:
    has = any("data" in piece.slots for piece in work.pieces)
    return not has and work.intent is not None and "data" in work.intents[work.intent].needs


def _fill_slots(work: Work) -> None:
    for piece in work.pieces:
        for name, value in piece.slots.items():
            slot = "format" if name in _FORMATS else name
            if value == UNSURE:
                text = work.text(piece.start, piece.end)
                work.unsure.setdefault(slot, (f"{text}: two readings", [text]))
            elif slot in work.unsure:
                continue
            elif slot in ("data", "runs"):
                _add_listed(work, slot, value, piece)
            elif slot not in work.slots:
                work.slots[slot] = value
            elif not _same(work.slots[slot], value):
                work.conflicts.setdefault(slot, [work.slots[slot]]).append(value)
    for slot in [*work.conflicts, *work.unsure]:
        work.slots.pop(slot, None)
    _apply_overrides(work)


def _add_listed(work: Work, slot: str, value: list[Any], piece: Piece) -> None:
    said = work.slots.get(slot)
    if said is None:
        work.slots[slot] = list(value)
    elif piece.appends:
        said.extend(value)
    elif said != value:
        work.conflicts.setdefault(slot, [said]).append(value)


def _same(first: Any, second: Any) -> bool:
    return (
        type(first) is type(second) and first == second
        if isinstance(first, bool)
        else bool(first == second)
    )


def _apply_overrides(work: Work) -> None:
    """Overrides beat the sentence; the later of two of one key wins."""
    for piece in work.pieces:
        if piece.override is None:
            continue
        slot, key, value = piece.override
        if key in work.overrides and work.overrides[key] != value:
            work.warnings.append(f"{key} is given twice; the later one, {value}, counts")
        work.overrides[key] = value
        if slot == "set":
            work.slots.setdefault("set", {})[key] = value
        else:
            work.slots[slot] = value
            work.conflicts.pop(slot, None)
            work.unsure.pop(slot, None)


def _needs(work: Work) -> None:
    if work.is_two_verbs:
        # What is said twice may well be said of two commands.
        work.slots, work.conflicts = {}, {}
        return
    if work.intent is None:
        work.missing = ["intent"]
        return
    has_prefix = "train_prefix" in work.slots.get("set", {})
    for slot in work.intents[work.intent].needs:
        if slot == "data" and has_prefix and work.intent in NEEDS_DATA_OR_PREFIX:
            continue
        if slot not in work.slots and slot not in work.conflicts and slot not in work.unsure:
            work.missing.append(slot)
    if work.intent == "export" and not (work.slots.keys() & {"run", "data"} or has_prefix):
        work.missing.append("run")
    if work.intent == "compare" and len(work.slots.get("runs", [])) == 1:
        work.missing.append("runs")
