"""Every word is owned, glue or reported: connectors, what is left, and the slots that result."""

from typing import Any, Final

from knowledge_hub.alternatives import take_instead, take_or
from knowledge_hub.captures import UNSURE, is_word_value
from knowledge_hub.slots import EVERYWHERE
from knowledge_hub.vocabulary import CONNECTORS, NEVER_GLUE, NOUNS
from knowledge_hub.work import FREE, GLUE, Piece, Work
from tools_utilities.errors import UsageError
from tools_utilities.setting_keys import KEYS_BY_NAME, check_limits

NEEDS_DATA_OR_PREFIX: Final = frozenset({"train", "finetune", "estimate", "export"})
AFTER_BUT: Final = frozenset({"with", "on", "for", "don't", "dont"})
BUT_INTENTS: Final = frozenset({"resume", "again", "train"})
AT_LEAST_ONE: Final = frozenset(["shards", "chunk_bytes", "samples_per_shard", "lines"])
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
    take_instead(work)
    take_or(work)
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
        if hint is None and _may_name_run(work, at):
            hint = f"run={token.norm}"
        work.dropped.append((at, at + 1, hint))
    work.dropped.sort()


def _may_name_run(work: Work, at: int) -> bool:
    """Whether a bare word stands where a run is due: `show genomes`, `logs of genomes`."""
    if work.intent is None or work.tokens[at].kind != "word":
        return False
    slots = work.intents[work.intent].slots
    is_said = any(piece.slots.keys() & {"run", "data"} for piece in work.pieces)
    if "run" not in slots or "data" in slots - {"run"} or is_said:
        return False
    before = work.word_before(at)
    if before >= 0 and work.tokens[before].norm == "of":
        before = work.word_before(before)
    word = work.tokens[at].norm
    is_name = is_word_value(word) and word not in CONNECTORS and word not in NEVER_GLUE
    return is_name and before + 1 in work.verb_ends


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
