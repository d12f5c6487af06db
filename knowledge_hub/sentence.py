"""A sentence as tokens: quotes, literals, `key=value`, words; what must be refused is refused here.

Pure and linear in the length of the sentence. Offsets are code points of the sentence as typed.
"""

import re
import unicodedata
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from knowledge_hub.literals import (
    QUOTES,
    STRAY_QUOTES,
    literal_kind,
    quoted,
    without_closing,
)
from knowledge_hub.vocabulary import CLOSING

LONGEST: Final = 4096
LONGEST_LIST: Final = 64
"""Words of a list behind which `1,3` is still cut: bounds the work on a line of them."""
_SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACE = re.compile(f"[{_SPACES}]+")
_NUMBER_LIST = re.compile(
    r"(?![0-9]{1,3}(?:,[0-9]{3})+[?!.,:]*$)([0-9][0-9.%\u2013-]*(?:,[0-9][0-9.%\u2013-]*)+?)([?!.,:]*)"
)
"""`1,3,5-6`, `0.7,0.3`; not `1,000`."""
_LISTED = re.compile(r"[0-9.%\u2013-]+|and|of")
_LISTS: Final = frozenset({"group", "groups", "weights"})
_STOP = re.compile(f"[{_SPACES}'\"{''.join(QUOTES)}{STRAY_QUOTES}]".replace("\\", ""))
_SHELL = re.compile(r"[;`<>|]|\$\(|&&")
_SHELL_OR_CONTROL = re.compile(r"[;`<>|\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\$\(|&&")
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)?=")
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs"})
_ODD_FORMS: Final = ("<super>", "<sub>", "<circle>", "<fraction>", "<square>")
_FOLDED_APOSTROPHE = str.maketrans({"\u2019": "'", "\u2018": "'"})


class Token(NamedTuple):
    """One word of the sentence."""

    text: str
    """As typed, without the marks that end it."""
    norm: str
    """Folded for comparison; empty for what is only a literal."""
    start: int
    end: int
    kind: str
    """word, path, slash, run, quoted, pair, flag or odd (nobody can own it)."""
    value: str
    """A literal's bytes; a pair's value."""
    stop: str = ""
    """Closing marks after it."""
    key: str = ""
    """A pair's key."""


class RefusedError(ValueError):
    """The sentence may not be read; the message says why."""


def split_sentence(sentence: str, aliases: Container[str] = ()) -> list[Token]:
    """Return the tokens of a sentence.

    Raises:
        RefusedError: shell syntax, an open quote, a character that cannot be seen, too long.
    """
    if len(sentence) > LONGEST:
        raise RefusedError(f"more than {LONGEST} characters")
    if "\0" in sentence or "\x1b" in sentence:
        raise RefusedError("a NUL or ESC character")
    tokens: list[Token] = []
    position, length = 0, len(sentence)
    while position < length:
        space = _SPACE.match(sentence, position)
        if space:
            position = space.end()
            continue
        end, parts = _scan_word(sentence, position)
        word = sentence[position:end]
        for start, piece in [(0, word)] if parts else _cut_list(tokens, word):
            _add(tokens, _classify(piece, position + start, parts, aliases))
        position = end
    return tokens


def _cut_list(tokens: list[Token], word: str) -> list[tuple[int, str]]:
    """Return the pieces of `1,3,5-6` behind `groups` or `weights`, each with its offset.

    Everywhere else, and in `1,000`, a comma between digits belongs to the number.
    """
    listed = _NUMBER_LIST.fullmatch(word)
    before = len(tokens) - 1
    least = before - LONGEST_LIST
    while listed and before > least and before >= 0 and _LISTED.fullmatch(tokens[before].norm):
        before -= 1
    if not listed or before < 0 or tokens[before].norm not in _LISTS:
        return [(0, word)]
    pieces = re.findall(r"[^,]+,?", listed[1])
    pieces[-1] += listed[2]
    return [(sum(map(len, pieces[:at])), piece) for at, piece in enumerate(pieces)]


def _scan_word(sentence: str, start: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the end of the word at `start` and where its quoted parts lie (marks included)."""
    position = start
    parts: list[tuple[int, int]] = []
    while True:
        found = _STOP.search(sentence, position)
        stop = found.start() if found else len(sentence)
        _check_plain(sentence[position:stop])
        if found is None or _SPACE.match(sentence, stop):
            return stop, parts
        if _is_apostrophe(sentence, stop):
            position = stop + 1
            continue
        close = _closing(sentence, stop)
        parts.append((stop - start, close - start))
        position = close


def _check_plain(text: str) -> None:
    if _SHELL_OR_CONTROL.search(text):
        shell = _SHELL.search(text)
        what = f"shell syntax: {shell[0]}" if shell else "a control character"
        raise RefusedError(what)
    if not text.isascii() and any(
        unicodedata.category(char) in _REFUSED_CATEGORIES or char in _INVISIBLE for char in text
    ):
        raise RefusedError("a control, direction or zero-width character")


def _is_apostrophe(sentence: str, at: int) -> bool:
    """A mark between letters is never a quote."""
    return (
        sentence[at] in "'\u2019\u2018"
        and 0 < at < len(sentence) - 1
        and sentence[at - 1].isalpha()
        and sentence[at + 1].isalpha()
    )


def _closing(sentence: str, opening: int) -> int:
    """Return the position after the mark that closes the quote opened at `opening`."""
    marks = QUOTES.get(sentence[opening], "")
    for position in range(opening + 1, len(sentence)):
        if sentence[position] in marks and not _is_apostrophe(sentence, position):
            return position + 1
    raise RefusedError("quote not closed")


def _add(tokens: list[Token], token: Token) -> None:
    """Append a token; a word of closing marks alone belongs to the token before it."""
    if token.text:
        tokens.append(token)
    elif tokens:
        tokens[-1] = tokens[-1]._replace(stop=tokens[-1].stop + token.stop)


def _classify(
    word: str, start: int, parts: list[tuple[int, int]], aliases: Container[str]
) -> Token:
    if parts:
        return _classify_quoted(word, start, parts)
    core, stop = without_closing(word)
    end = start + len(core)
    if not core:
        return Token("", "", start, end, "word", "", stop)
    pair = _KEY.match(core)
    if pair:
        key = (pair[1] or "").casefold()
        return Token(core, "", start, end, "pair", core[pair.end() :], stop, key)
    norm = fold(core)
    if norm == "w/":
        return Token(core, "with", start, end, "word", core, stop)
    return Token(core, norm, start, end, _kind(core, norm, aliases), core, stop)


def _kind(core: str, norm: str, aliases: Container[str]) -> str:
    if norm == "--override":
        return "flag"
    if norm in aliases:
        return "alias"
    return literal_kind(core) or ("word" if _is_plain(core) else "odd")


def _classify_quoted(word: str, start: int, parts: list[tuple[int, int]]) -> Token:
    """A word with quoted parts: one quote around all of it or around a pair's value, else odd."""
    first, last = parts[0]
    after = word[last:]
    stop = after if after.strip(CLOSING) == "" else ""
    end = start + len(word) - len(stop)
    text = word[: len(word) - len(stop)]
    if len(parts) == 1 and last == len(text):
        inner = word[first + 1 : last - 1]
        if first == 0:
            return Token(text, "", start, end, "quoted", inner, stop)
        pair = _KEY.fullmatch(word, 0, first)
        if pair:
            return Token(text, "", start, end, "pair", inner, stop, (pair[1] or "").casefold())
    return Token(word, "", start, start + len(word), "odd", word)


def fold(text: str) -> str:
    """Return a word as it is compared: NFKC, case folded, one kind of apostrophe."""
    if text.isascii():
        return text.lower()
    if "½" in text:
        return text.casefold()
    return unicodedata.normalize("NFKC", text).casefold().translate(_FOLDED_APOSTROPHE)


def _is_plain(text: str) -> bool:
    """Whether folding keeps what the word says: no superscript, circle or squared form in it."""
    return text.isascii() or not any(
        unicodedata.decomposition(char).startswith(_ODD_FORMS) and char != "½" for char in text
    )


def join_arguments(argv: Sequence[str]) -> str:
    """Return shell arguments as one sentence.

    One argument before the overrides is the sentence itself; of several, one that holds blanks was
    quoted at the shell and is quoted again. The value of an override keeps its blanks.
    """
    plain = 0
    while plain < len(argv) and argv[plain] != "--override":
        plain += 1
    words = list(argv[:1]) if plain == 1 else [_requoted(word) for word in argv[:plain]]
    return " ".join([*words, *(_requoted(word) for word in argv[plain:])])


def _requoted(argument: str) -> str:
    """Quote an argument that would otherwise not stay one word."""
    if argument and not _SPACE.search(argument) and (argument[0] not in QUOTES):
        return argument
    return quoted(argument) or argument
