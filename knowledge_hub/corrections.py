"""Misspelt words read as their nearest known word, where that is beyond doubt.

One edit or swap for a known word of 4 letters or more, two from 8; the nearest must be unique
(singular and plural count as one word). Never a word holding a digit, never a literal. A letter
mask leaves few words to measure, so that a line of unknown words stays cheap.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final

from knowledge_hub.captures import CODECS, EXPORT_FORMATS, GPUS, SHARD_FORMATS
from knowledge_hub.intent import Intent
from knowledge_hub.numbers import BYTES, NUMBER_WORDS, SECONDS
from knowledge_hub.phrases import PhraseTable, phrase_table
from knowledge_hub.reader import STATUSES, Draft, read_tokens
from knowledge_hub.sentence import Token
from knowledge_hub.vocabulary import CONNECTORS, NEVER_GLUE, POLITE, POLITE_PHRASES
from knowledge_hub.work import Work

SHORTEST: Final = 4
LONG: Final = 8
MOST_WORDS: Final = 40
"""Words of one sentence that are measured: a line of noise is not worth more."""
NO_TARGETS: Final = frozenset({"than", "will", "full", "less", "most"})
"""Short words of a phrase's rarer forms: they would only make a misspelt verb a tie (`tran`)."""
EVERY_UNITS: Final = ("step", "steps", "sample", "samples", "second", "minute", "hour", "day")


@cache
def _every_word() -> frozenset[str]:
    """Every word that means something, however short."""
    table = phrase_table()
    words = {
        *table.words, *table.verbs, *table.nouns, *POLITE, *CONNECTORS, *NEVER_GLUE,
        *NUMBER_WORDS, *SECONDS, *BYTES, *SHARD_FORMATS, *EXPORT_FORMATS, *CODECS, *EVERY_UNITS,
        *(word for phrase in POLITE_PHRASES for word in phrase),
        *(name for name in GPUS if name.isalpha()), "usd", "dollar", "dollars",
    }  # fmt: skip
    return frozenset(words)


@cache
def known_words() -> tuple[tuple[str, int, int], ...]:
    """Return the words that a misspelt one can be, with their letter mask and length."""
    fit = (
        word
        for word in _every_word()
        if len(word) >= SHORTEST and word.isalpha() and word not in NO_TARGETS
    )
    return tuple((word, _mask(word), len(word)) for word in sorted(fit))


def _mask(word: str) -> int:
    mask = 0
    for char in word:
        mask |= 1 << (ord(char) - ord("a")) % 64
    return mask


@cache
def _known_by_length() -> dict[int, list[tuple[str, int, int]]]:
    by_length: dict[int, list[tuple[str, int, int]]] = {}
    for known in known_words():
        by_length.setdefault(known[2], []).append(known)
    return by_length


@cache
def _known() -> frozenset[str]:
    return frozenset(word for word, _, _ in known_words())


@lru_cache(maxsize=4096)
def nearest_words(word: str) -> tuple[str, ...]:
    """Return the known words nearest to `word` within the limits; several when they tie."""
    if not (word.isalpha() and word.isascii()) or word in _every_word() or word == "quark":
        return ()
    mask, length = _mask(word), len(word)
    near = [
        (known, 2 if size >= LONG else 1)
        for distance in range(-2, 3)
        for known, letters, size in _known_by_length().get(length + distance, ())
        if abs(size - length) <= (2 if size >= LONG else 1)
        and (mask ^ letters).bit_count() <= (4 if size >= LONG else 2)
    ]
    if not near:
        return ()
    from rapidfuzz.distance import OSA

    distances = [
        (OSA.distance(word, known, score_cutoff=room), known, room) for known, room in near
    ]
    fit = [(distance, known) for distance, known, room in distances if distance <= room]
    best = min((distance for distance, _ in fit), default=0)
    return tuple(known for distance, known in fit if distance == best)


def _lemma(word: str) -> str:
    for ending in ("es", "s"):
        if word.endswith(ending) and word.removesuffix(ending) in _known():
            return word.removesuffix(ending)
    return word


def correct(
    tokens: list[Token], draft: Draft, table: PhraseTable, intents: Mapping[str, Intent]
) -> tuple[Draft, dict[int, str]]:
    """Return the draft with misspelt words read as meant, and those words by token start.

    A correction counts only if its word then belongs to something.
    """
    candidates = _candidates(tokens, draft)
    if not candidates or draft.status == "refused":
        return draft, {}
    best = draft
    corrected: dict[int, str] = {}
    for choice in _choices(candidates):
        tried = choice
        read = read_tokens(_apply(tokens, tried), table, intents)
        kept = _kept(draft, read, tried)
        while kept and kept != tried:
            tried = kept
            read = read_tokens(_apply(tokens, tried), table, intents)
            kept = _kept(draft, read, tried)
        if kept and (not corrected or _better(read, best)):
            best, corrected = read, kept
    return best, corrected


def _better(first: Draft, second: Draft) -> bool:
    rank = (len(first.unknown()), -STATUSES.index(first.status))
    return rank < (len(second.unknown()), -STATUSES.index(second.status))


def _candidates(tokens: list[Token], draft: Draft) -> dict[int, tuple[str, ...]]:
    """Return the misspelt words (by token start), each with the known words it may be."""
    unknown = draft.unknown()
    places = {
        part.tokens[at].start
        for part in draft.parts
        for piece in part.pieces
        if "model" in piece.slots
        for at in range(piece.start, piece.end)
    }
    found: dict[int, tuple[str, ...]] = {}
    for token in tokens:
        if token.kind != "word" or token.start not in unknown | places or len(found) >= MOST_WORDS:
            continue
        near = nearest_words(token.norm)
        if near and len({_lemma(word) for word in near}) == 1:
            found[token.start] = near
    return found


def _choices(candidates: dict[int, tuple[str, ...]]) -> list[dict[int, str]]:
    """Return the ways to correct all words: the first choice of each, then the second."""
    ways = max(len(near) for near in candidates.values())
    return [
        {start: near[min(way, len(near) - 1)] for start, near in candidates.items()}
        for way in range(ways)
    ]


def _apply(tokens: list[Token], choice: Mapping[int, str]) -> list[Token]:
    return [
        token._replace(norm=choice[token.start]) if token.start in choice else token
        for token in tokens
    ]


def _kept(before: Draft, after: Draft, choice: dict[int, str]) -> dict[int, str]:
    """Return the corrections that hold in the new reading."""
    unknown = after.unknown()
    kept = {start: word for start, word in choice.items() if start not in unknown}
    models = _model_starts(before)
    kept = {
        start: word
        for start, word in kept.items()
        if start not in models or _takes_what_follows(after, start)
    }
    if _made_two_verbs(before, after):
        verbs = phrase_table().verbs
        kept = {start: word for start, word in kept.items() if word not in verbs}
    return kept


def _made_two_verbs(before: Draft, after: Draft) -> bool:
    return sum(part.is_two_verbs for part in after.parts) > sum(
        part.is_two_verbs for part in before.parts
    )


def _model_starts(draft: Draft) -> set[int]:
    return {
        part.tokens[piece.start].start
        for part in draft.parts
        for piece in part.pieces
        if "model" in piece.slots and piece.start < len(part.tokens)
    }


def _takes_what_follows(draft: Draft, start: int) -> bool:
    """Whether the corrected word in the model's place is followed by what it takes."""
    for part in draft.parts:
        for at, token in enumerate(part.tokens):
            if token.start == start:
                return _is_followed(part, at)
    return False


def _is_followed(work: Work, at: int) -> bool:
    piece = work.piece_at(at)
    if piece is not None:
        return piece.label != "model" and piece.end > at + 1
    after = at + 1
    while after < len(work.tokens) and work.glue[after]:
        after += work.glue[after]
    if after >= len(work.tokens) or work.tokens[at].norm not in CONNECTORS:
        return False
    # A connector takes a phrase, not a phrase with a connector of its own.
    return work.piece_at(after) is not None and work.tokens[after].norm not in CONNECTORS


def suggestion(word: str) -> str | None:
    """Return the known word that an unknown one may be, for a did-you-mean."""
    near = nearest_words(word)
    return near[0] if near else None
