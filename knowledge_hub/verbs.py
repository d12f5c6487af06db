"""What the sentence asks for: its verbs, their nouns, a negation before them."""

from knowledge_hub.captures import is_word_value
from knowledge_hub.literals import is_function, is_run_id
from knowledge_hub.numbers import NUMBER_WORDS
from knowledge_hub.phrases import is_negation
from knowledge_hub.slots import MODEL_INTENTS
from knowledge_hub.vocabulary import CONNECTORS, DATA_CONNECTORS, NEVER_GLUE, NOUNS
from knowledge_hub.work import Piece, Work

STARTING = frozenset({"start", "launch", "off"})
"""Verbs of training that may carry the noun `run`: `start a run on …`."""
LABEL = "intent"
NO_MODELS = frozenset(["model", "training", "job", "network", "data", "dataset", "datasets"])
"""Words after a verb of training that nobody calls a model: stopped, not taken for one."""
MARKED = {
    "done": "complete",
    "complete": "complete",
    "completed": "complete",
    "finished": "complete",
    "failed": "fail",
}
"""What may follow `mark`."""


def take_help(work: Work) -> None:
    """`help WORD`: the word is the topic, whatever it means elsewhere."""
    first = work.next_word(0)
    if first >= len(work.tokens) or work.tokens[first].norm != "help":
        return
    work.own(Piece(first, first + 1, LABEL, {}, intent="help"))
    topic = work.next_word(first + 1)
    if topic < len(work.tokens) and work.tokens[topic].norm in CONNECTORS:
        topic = work.next_word(topic + 1)
    if topic >= len(work.tokens) or work.tokens[topic].norm == "then":
        return
    token = work.tokens[topic]
    is_topic = token.kind == "quoted" or (token.kind == "word" and is_word_value(token.norm))
    if is_topic and token.norm not in CONNECTORS:
        value = token.value if token.kind == "quoted" else token.norm
        work.own(Piece(topic, topic + 1, "topic", {"topic": value}))


def take_verbs(work: Work) -> None:
    """Find the verbs among what no phrase owns, and decide the intent."""
    verbs = sorted(
        [*_single_verbs(work), *(piece for piece in work.pieces if piece.intent)],
        key=lambda piece: piece.start,
    )
    verbs = _without_run(work, verbs)
    verbs = _with_nouns(work, verbs)
    for piece in verbs:
        if piece not in work.pieces:
            work.own(piece)
    _refuse_negated(work, verbs)
    _decide(work, verbs)


def _single_verbs(work: Work) -> list[Piece]:
    return _marks(work) + [
        Piece(at, at + 1, LABEL, _implied(token.norm), intent=work.table.verbs[token.norm])
        for at, token in enumerate(work.tokens)
        if work.free(at) and token.kind == "word" and token.norm in work.table.verbs
    ]


def _marks(work: Work) -> list[Piece]:
    """`mark … done`, `mark … as failed`: one verb with what it is about inside."""
    free = [at for at, token in enumerate(work.tokens) if work.free(at) and token.kind == "word"]
    first = next((at for at in free if work.tokens[at].norm == "mark"), None)
    if first is None:
        return []
    states = [piece for piece in work.pieces if piece.slots.keys() == {"state"}]
    places = sorted([*free, *(piece.start for piece in states)])
    last = next((at for at in places if at > first and work.tokens[at].norm in MARKED), None)
    if last is None:
        return []
    owner = work.piece_at(last)
    if owner is not None:
        owner.slots = {}
    work.own(Piece(last, last + 1, LABEL, {})).is_noun = True
    return [Piece(first, first + 1, LABEL, {}, intent=MARKED[work.tokens[last].norm])]


def _implied(verb: str) -> dict[str, object]:
    return {"follow": True} if verb == "tail" else {}


def _without_run(work: Work, verbs: list[Piece]) -> list[Piece]:
    """`run` before an intent's name is only its helper; before a run it is `again`."""
    kept: list[Piece] = []
    for index, piece in enumerate(verbs):
        is_run = piece.end - piece.start == 1 and work.tokens[piece.start].norm == "run"
        following = verbs[index + 1] if index + 1 < len(verbs) else None
        if is_run and following and _follows(work, piece, following.start):
            helper = work.own(Piece(piece.start, piece.end, LABEL, {}))
            helper.is_noun = True
            continue
        if is_run and _run_said_after(work, piece):
            piece.intent = "again"
        kept.append(piece)
    if not kept:
        _run_alone(work, kept)
    return kept


def _follows(work: Work, piece: Piece, start: int) -> bool:
    return work.straight(piece.end - 1, start)


def _run_said_after(work: Work, piece: Piece) -> bool:
    after = work.next_word(piece.end)
    owner = work.piece_at(after)
    return owner is not None and owner.slots.get("run") == "latest" and _follows(work, piece, after)


def _run_alone(work: Work, kept: list[Piece]) -> None:
    """`run fox-12` with no other verb means: again."""
    for piece in work.pieces:
        if "run" in piece.slots and work.tokens[piece.start].norm == "run" and not kept:
            piece.intent = "again"
            kept.append(piece)


def _with_nouns(work: Work, verbs: list[Piece]) -> list[Piece]:
    """Take nouns out of the verbs and give them to the verb before them, or to nobody."""
    if not verbs:
        return verbs
    first = verbs[0]
    kept = [first]
    places = {piece.start: piece for piece in verbs[1:]}
    for at in range(first.end, len(work.tokens)):
        token = work.tokens[at]
        if not work.free(at) or token.kind != "word":
            continue
        if token.norm in NOUNS:
            _take_noun(work, at, kept)
        elif at in places:
            kept.append(places[at])
            work.own(places[at])
    kept += [piece for piece in verbs[1:] if piece in work.pieces and piece not in kept]
    return sorted(kept, key=lambda piece: piece.start)


def _take_noun(work: Work, at: int, verbs: list[Piece]) -> None:
    earlier = [piece for piece in verbs if piece.start < at]
    if not earlier:
        return
    last = earlier[-1]
    allowed = last.intent in work.table.nouns.get(work.tokens[at].norm, ())
    if last.intent == "train" and work.tokens[at].norm == "run":
        allowed = work.tokens[last.end - 1].norm in STARTING
    if not allowed:
        return
    before = work.word_before(at)
    while before >= last.end and _may_stand_between(work, before):
        before = work.word_before(before)
    owner = work.piece_at(before)
    follows = before == last.end - 1 or (owner is not None and owner.is_noun)
    splits = last.intent == "shard" and work.tokens[at].norm == "shards"
    if follows or splits or _before_run(work, at) or _before_data(work, at):
        work.own(Piece(at, at + 1, LABEL, {})).is_noun = True


def _may_stand_between(work: Work, at: int) -> bool:
    """A connector, or what kind of runs: `list the failed runs`."""
    owner = work.piece_at(at)
    return work.tokens[at].norm in CONNECTORS or (owner is not None and "state" in owner.slots)


def _before_run(work: Work, at: int) -> bool:
    after = work.next_word(at + 1)
    return after < len(work.tokens) and work.tokens[after].kind == "run"


def _before_data(work: Work, at: int) -> bool:
    """`train quark on the shards in s3://b/x`."""
    after = work.next_word(at + 1)
    place = work.next_word(after + 1)
    return (
        place < len(work.tokens)
        and work.tokens[after].norm in (*DATA_CONNECTORS, "of")
        and work.tokens[place].kind in ("path", "quoted", "slash")
    )


def _refuse_negated(work: Work, verbs: list[Piece]) -> None:
    """A negation before the only verb refuses the command."""
    intents = {piece.intent for piece in verbs}
    if not verbs:
        if any(
            piece.slots.get("resume") == "never" and is_negation(work.tokens, piece.start)
            for piece in work.pieces
        ):
            work.refusal = "the command is negated"
        return
    for at in range(verbs[0].start):
        if work.free(at) and is_negation(work.tokens, at) and len(intents) == 1:
            work.refusal = "the command is negated"


def _decide(work: Work, verbs: list[Piece]) -> None:
    intents = list(dict.fromkeys(piece.intent for piece in verbs))
    is_finetune = intents[-1:] == ["finetune"]
    if intents[:1] == ["estimate"] and set(intents[1:]) in ({"train"}, {"finetune"}):
        for piece in verbs:
            piece.intent = "estimate"
        intents = ["estimate"]
    work.is_two_verbs = len(intents) > 1
    work.intent = intents[0] if len(intents) == 1 else None
    work.is_finetune = is_finetune and work.intent is not None
    work.verb_ends = [piece.end for piece in work.pieces if piece.intent or piece.is_noun]
    if work.is_two_verbs:
        names = [str(name) for name in intents]
        work.unsure["intent"] = ("more than one command: join them by `then`", names)


def take_model(work: Work) -> None:
    """The word after the verb is the model, where the intent takes one."""
    if work.intent not in MODEL_INTENTS:
        return
    for verb_end in sorted(work.verb_ends):
        end, at = verb_end, work.next_word(verb_end)
        size = work.piece_at(at)
        if size is not None and size.slots.keys() == {"parameters"} and work.straight(end - 1, at):
            end, at = size.end, work.next_word(size.end)  # `train a 10M parameter quark`
        if at >= len(work.tokens) or not work.free(at) or not work.straight(end - 1, at):
            continue
        names_run = work.tokens[end - 1].norm == "run" and "run" in work.intents[work.intent].slots
        if names_run and work.tokens[at].kind == "quoted":
            return  # `evaluate run "genomes"`
        value = _model_value(work, at)
        if value is not None:
            work.own(Piece(at, at + 1, *value))
            work.model_end = at + 1
            return


def _model_value(work: Work, at: int) -> tuple[str, dict[str, object]] | None:
    token = work.tokens[at]
    if token.kind == "run":
        slot = "init_from" if work.is_finetune else "run" if work.intent == "evaluate" else "model"
        return slot, {slot: token.norm if slot == "model" else token.value}
    value: str | None = None
    if token.kind == "quoted":
        value = token.value if _is_quoted_model(token.value) else None
    elif token.kind in ("path", "slash", "word") and _is_named_model(token.text):
        value = token.text
    elif token.kind == "word" and is_model_word(work, token.norm):
        value = token.norm
    return None if value is None else ("model", {"model": value})


def _is_named_model(text: str) -> bool:
    rest = text[len("hf:") :]
    if text.lower().startswith("hf:") and not rest.startswith("//"):
        return bool(rest) and rest.isascii()
    return is_function(text)


def _is_quoted_model(text: str) -> bool:
    """A quoted word; with a blank, a slash or a data suffix in it, it is data."""
    from knowledge_hub.literals import literal_kind

    if not text or any(char.isspace() for char in text):
        return False
    return _is_named_model(text) or literal_kind(text) in (None, "run")


def is_model_word(work: Work, word: str) -> bool:
    """Whether a word may be a model: a name that means nothing else in the language."""
    return (
        is_word_value(word)
        and word not in CONNECTORS
        and word not in NEVER_GLUE
        and word not in NUMBER_WORDS
        and word not in work.table.words
        and word not in NOUNS
        and word not in NO_MODELS
        and not is_run_id(word)
    )
