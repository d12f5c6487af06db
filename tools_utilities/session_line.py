"""A line of the interactive session: the flags of `quark` beside a sentence. Pure.

Only a word that is exactly a flag of the program is one, and never inside quotes; `--override`
belongs to the language and stays. A flag is taken out as blanks, so that what is left keeps its
places: the reading below the line underlines the right words.
"""

import re
from collections.abc import Iterator

import msgspec

from tools_utilities.terminal_arguments import SWITCHES, VALUED, Arguments, parse_arguments

SESSION_FLAGS = (
    *SWITCHES,
    *(flag for flag in VALUED if flag not in ("--override", "--install-completion")),
)
_CLOSING = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019"}
_PROGRAM = re.compile(r"\s*quark\s+(?=\S)")
_AS_IS = ("explain",)
"""What takes the rest of the line as it is."""
_CONNECTOR = re.compile(r"(?:with|on|using|from|over|in)\b")
"""`quark with …` names the model, not the program."""


def split_line(line: str) -> tuple[str, list[str]]:
    """Return the line with its flags blanked out, and the flags as arguments of the program."""
    text = _without_program(line)
    kept, flags = text, []
    words = list(_words(text))
    if words and text[words[0][0] : words[0][1]].casefold() in _AS_IS:
        return text, []
    at = 0
    while at < len(words):
        start, end = words[at]
        flag, equals, _ = text[start:end].partition("=")
        at += 1
        if flag not in SESSION_FLAGS or (equals and flag in SWITCHES):
            continue
        flags.append(text[start:end])
        if flag in VALUED and not equals and at < len(words):
            value = text[words[at][0] : words[at][1]]
            flags.append(unquoted(value))
            end = words[at][1]
            at += 1
        kept = kept[:start] + " " * (end - start) + kept[end:]
    return kept, flags


def line_arguments(line: str, base: Arguments) -> Arguments:
    """Return what a session's line asks for, beside the flags that the session began with.

    Raises:
        UsageError: a flag without its value.
    """
    sentence, flags = split_line(line)
    said = parse_arguments(flags)
    switches = {name: getattr(said, name) or getattr(base, name) for name in SWITCHES.values()}
    words = unquoted(sentence.strip())
    return msgspec.structs.replace(
        said,
        words=(words,) if words else (),
        overrides=(*base.overrides, *said.overrides),
        groups=said.groups or base.groups,
        **switches,
    )


def unquoted(text: str) -> str:
    """Return a text that is one quoted string without its quotes, else as it is."""
    closing = _CLOSING.get(text[:1])
    whole = closing is not None and len(text) > 1 and text.find(closing, 1) == len(text) - 1
    return text[1:-1] if whole else text


def _without_program(line: str) -> str:
    """Blank out a pasted `quark `: a shell's command line means the same here."""
    found = _PROGRAM.match(line)
    if not found or _CONNECTOR.match(line, found.end()):
        return line
    return " " * found.end() + line[found.end() :]


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of what blanks separate, a quoted string being part of its word."""
    start: int | None = None
    closing = ""
    for at, char in enumerate(text):
        if closing:
            closing = "" if char == closing else closing
        elif char.isspace():
            if start is not None:
                yield start, at
            start = None
        else:
            begins = start is None or text[at - 1] == "="
            if begins and char in _CLOSING:
                closing = _CLOSING[char]
            start = at if start is None else start
    if start is not None:
        yield start, len(text)
