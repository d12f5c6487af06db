"""What literals, run ids and bare numbers are for, by the words before them."""

from knowledge_hub.literals import is_function
from knowledge_hub.numbers import read_duration, read_money, read_number, read_rate, read_size
from knowledge_hub.overrides import BadOverrideError, read_override
from knowledge_hub.vocabulary import CONNECTORS, DATA_CONNECTORS, OUT_CONNECTORS
from knowledge_hub.work import Piece, Work

OF_IS_DATA = frozenset(
    ["claim", "complete", "discover", "fail", "inspect", "reset_shard", "shard_status"]
)
"""Intents of which `of LITERAL` is the data: `samples of s3://b/x`."""
BARE = "number"
"""The label of a number that has several readings."""


def take_overrides(work: Work) -> None:
    """`--override k=v …` and bare `k=v`."""
    flagged = False
    for at, token in enumerate(work.tokens):
        if token.kind == "flag":
            if _pair_at(work, at + 1):
                work.own(Piece(at, at + 1, "set", {}))
                flagged = True
            continue
        flagged = flagged and _pair_at(work, at)
        if token.kind == "pair" or flagged:
            _take_pair(work, at)


def _pair_at(work: Work, at: int) -> bool:
    if at >= len(work.tokens):
        return False
    token = work.tokens[at]
    return token.kind == "pair" or (token.kind == "quoted" and "=" in token.value)


def _take_pair(work: Work, at: int) -> None:
    token = work.tokens[at]
    key, value = token.key, token.value
    is_quoted = token.text[-1:] not in (value[-1:], "=") or token.text.endswith(('"', "'"))
    if token.kind == "quoted":
        key, _, value = token.value.partition("=")
    try:
        override = read_override(key, value, is_quoted=is_quoted)
    except BadOverrideError as error:
        piece = work.own(Piece(at, at + 1, "set", {}))
        work.disown(piece, error.suggest)
        return
    piece = work.own(Piece(at, at + 1, override.slot, {}))
    piece.override = override


def take_runs(work: Work) -> None:
    """Run ids that no phrase owns: the intent's run, the start of a finetune, else nobody's."""
    for at, token in enumerate(work.tokens):
        owner = work.piece_at(at)
        if work.is_finetune and owner is not None and _names_start(work, owner):
            owner.slots, owner.label = {"init_from": owner.slots["run"]}, "init_from"
        if token.kind == "quoted" and work.free(at):
            _take_named_run(work, at)
        if token.kind != "run" or not work.free(at):
            continue
        if work.intent == "compare":
            work.own(Piece(at, at + 1, "runs", {"runs": [token.value]})).appends = True
        elif work.is_finetune:
            if work.connector_before(at) == "from" or _is_after_verb(work, at):
                work.own(Piece(at, at + 1, "init_from", {"init_from": token.value}))
        elif work.intent is None or "run" in work.intents[work.intent].slots:
            work.own(Piece(at, at + 1, "run", {"run": token.value}))


def _take_named_run(work: Work, at: int) -> None:
    """`show "genomes"`, `rerun run "genomes"`: a name that is no run id, in quotes.

    Only where a run is due: behind the noun `run`, or where an intent has no data to take instead.
    `latest` and `all` are no run's names, and in quotes they mean nothing else.
    """
    name = work.tokens[at].value
    slot = "runs" if work.intent == "compare" else "run"
    if work.intent is None or not _takes(work, slot) or name in ("latest", "all") or not name:
        return
    before = work.word_before(at)
    owner = work.piece_at(before)
    is_noun = owner is not None and owner.is_noun and work.tokens[before].norm == "run"
    is_due = _is_after_verb(work, at) or work.connector_before(at) in ("of", "to")
    listed = slot == "runs" and (is_due or _goes_on_with_runs(work, at))
    if (is_noun and work.straight(before, at)) or (not _takes(work, "data") and (is_due or listed)):
        value: object = [name] if slot == "runs" else name
        work.own(Piece(at, at + 1, slot, {slot: value})).appends = True


def _goes_on_with_runs(work: Work, at: int) -> bool:
    """Whether a run stands before token `at`, joined by `and`, `with` or a comma."""
    joint = work.connector_before(at)
    before = work.word_before(work.word_before(at) if joint else at)
    owner = work.piece_at(before)
    follows = joint in ("and", "with", "to") or (not joint and work.tokens[before].stop == ",")
    return follows and owner is not None and "runs" in owner.slots


def _names_start(work: Work, piece: Piece) -> bool:
    """`finetune run fox-12`, `from run fox-12`: the start is said with its noun."""
    if piece.slots.get("run") in (None, "latest", "all"):
        return False
    return work.connector_before(piece.start) == "from" or _is_after_verb(work, piece.start)


def _is_after_verb(work: Work, at: int) -> bool:
    """Whether token `at` stands straight after a verb, its noun or the model."""
    before = work.word_before(at)
    ends = {*work.verb_ends, work.model_end}
    return before + 1 in ends and work.straight(before, at)


def take_functions(work: Work) -> None:
    """`package.module:name` in a process sentence."""
    if work.intent not in ("process", None):
        return
    for at, token in enumerate(work.tokens):
        if work.free(at) and token.kind == "word" and is_function(token.text):
            work.own(Piece(at, at + 1, "function", {"function": token.text}))


def take_literals(work: Work) -> None:
    """Literals that no phrase owns: data, source or out, by the word before them."""
    for at, token in enumerate(work.tokens):
        if not work.free(at) or token.kind not in ("path", "slash", "quoted") or not token.value:
            continue
        role, connector, appends = _role(work, at)
        if role is None:
            continue
        value: object = [token.value] if role == "data" else token.value
        piece = work.own(Piece(at, at + 1, role, {role: value}))
        piece.connector, piece.appends = connector, appends
    _finetune_start(work)


def _role(work: Work, at: int) -> tuple[str | None, str, bool]:
    """Return (slot, connector, whether it adds to what was said before) of the literal at `at`."""
    connector = work.connector_before(at)
    joined = connector == "and"
    if joined or (not connector and _after_comma(work, at)):
        return _joined_role(work, at, connector)
    if not connector:
        return (_given(work) if _is_after_verb(work, at) else None), "", False
    if connector in OUT_CONNECTORS and _takes(work, "out"):
        return "out", connector, False
    if work.intent == "shard":
        return ("source" if connector in ("from", "of") else None), connector, False
    if connector in DATA_CONNECTORS or (connector == "of" and work.intent in OF_IS_DATA):
        return "data", connector, False
    return None, connector, False


def _after_comma(work: Work, at: int) -> bool:
    before = work.word_before(at)
    return before >= 0 and work.tokens[before].stop == ","


def _joined_role(work: Work, at: int, connector: str) -> tuple[str | None, str, bool]:
    """`and LITERAL`, `, LITERAL`: more data, unless it follows a literal of another slot."""
    place = work.word_before(at) if connector else at
    before = work.word_before(place)
    owner = work.piece_at(before)
    if owner is not None and owner.label == "data":
        return "data", "and", True
    followed = owner is not None and owner.label in ("val", "out", "source", "init_from")
    has_data = any("data" in piece.slots for piece in work.pieces if piece.start < at)
    return ("data" if connector and has_data and not followed else None), "and", True


def _given(work: Work) -> str:
    return "source" if work.intent == "shard" else "data"


def _takes(work: Work, slot: str) -> bool:
    return work.intent is not None and slot in work.intents[work.intent].slots


def _finetune_start(work: Work) -> None:
    """In finetune, `from LITERAL` is data unless other data is given."""
    if not work.is_finetune:
        return
    data = [piece for piece in work.pieces if "data" in piece.slots]
    given = [piece for piece in work.pieces if piece.override and _gives_data(piece)]
    starts = [piece for piece in data if piece.connector == "from" and not piece.appends]
    others = [piece for piece in data if piece.connector != "from" and not piece.appends]
    if len(starts) == 1 and (others or given):
        piece = starts[0]
        piece.slots = {"init_from": piece.slots["data"][0]}
        piece.label = "init_from"


def _gives_data(piece: Piece) -> bool:
    return piece.override is not None and piece.override[1] in ("data", "train_prefix")


def take_numbers(work: Work) -> None:
    """A number nobody owns: after with, on or for it has several readings."""
    at = 0
    while at < len(work.tokens):
        # `a dozen`: an article that begins a number is glue until here.
        begins = work.free(at) or (work.is_glue(at) and work.tokens[at].norm in ("a", "an"))
        number = read_number(work.tokens, at) if begins else None
        if number is None or not all(work.free(place) for place in range(at + 1, number.end)):
            at += 1
            continue
        if not _has_unit(work, at, number.end):
            _bare_number(work, at, number.end, number.suffix)
        at = number.end


def _has_unit(work: Work, at: int, end: int) -> bool:
    """Whether the number belongs to a unit or to a word that nobody knows."""
    tokens = work.tokens
    reads = (
        read_duration(tokens, at, minutes=False),
        read_size(tokens, at),
        read_money(tokens, at),
        read_rate(tokens, at),
    )
    if any(found is not None and found[1] > end for found in reads):
        return True
    if end >= len(tokens) or tokens[end - 1].stop or not work.free(end):
        return False
    if tokens[end].kind not in ("word", "odd"):
        return False
    return tokens[end].norm not in CONNECTORS and tokens[end].norm not in ("then", "or", "but")


def _bare_number(work: Work, at: int, end: int, suffix: str) -> None:
    connector = work.connector_before(at if work.free(at) else at + 1)
    if connector not in ("with", "on", "for") and suffix not in ("m", "b"):
        return
    text = work.text(at, end)
    if suffix in ("m", "b"):
        choices = [f"{text} steps", f"{text} tokens", f"{text} samples"]
    elif connector == "for":
        choices = [f"{text} epochs", f"{text} steps", f"{text} minutes"]
    else:
        choices = [f"{text} gpus", f"{text} workers", f"batch size {text}"]
    work.own(Piece(at, end, BARE, {}))
    work.unsure[BARE] = (f"{text} of what?", choices)
