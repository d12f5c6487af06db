"""Which words are literals (kept byte for byte), and how a text is written so that it stays one."""

import re
from typing import Final

from tools_utilities.run_words import RUN_ID

DATA_SUFFIXES: Final = ("jsonl", "json", "parquet", "tar", "bin", "npy", "csv", "txt")
OTHER_SUFFIXES: Final = ("pt", "pth", "ckpt", "safetensors", "arrow", "mds", "zip")
QUOTES: Final = {
    "'": "'",
    '"': '"',
    "\u201c": "\u201d",
    "\u2018": "\u2019",
    "\u201e": "\u201c\u201d",
    "\u201a": "\u2018\u2019",
    "\u00ab": "\u00bb",
    "\u2039": "\u203a",
}
"""Opening mark → the marks that may close it."""
STRAY_QUOTES: Final = "\u2019\u201d\u00bb\u203a"
"""Marks that only close."""

_SUFFIXED = re.compile(
    rf".*[^.\s]\.(?:(?:{'|'.join(DATA_SUFFIXES)})(?:\.(?:gz|zst))?|{'|'.join(OTHER_SUFFIXES)})",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_ONE_SLASH = re.compile(r"[^\W\d_]([^/]*[^\W\d_])?/([^\W\d_][^/]*)?[^\W\d_]")
_FRACTION_OR_RATE = re.compile(
    r"[0-9.,]+[a-z]{0,2}/([0-9]{1,2}|gpus?|devices?|nodes?|workers?|steps?|epochs?|min"
    r"|minutes?|s|secs?|seconds?|h|hrs?|hours?|days?)",
    re.IGNORECASE,
)
"""`1/2`, `64/gpu`: a word with a slash that means no path."""
_PARTS_OF_LIST = re.compile(r",(?:[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:[\\/]|[/~])")
_FUNCTION = re.compile(r"(?!hf:)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def without_closing(word: str) -> tuple[str, str]:
    """Return a word and the closing marks that end it; a path's `..` is no closing mark."""
    core = word.rstrip("?!.,:")
    tail = word[len(core) :]
    if core.endswith(("/", "\\")) and tail.startswith(".."):
        core, tail = core + "..", tail[2:]
    elif not core and tail.startswith("..") and tail[2:3] != ".":
        core, tail = "..", tail[2:]
    return core, tail


def literal_kind(word: str) -> str | None:
    """Return `path`, `slash` (a literal only where one is due), `run`, `odd`, or None for a word.

    `odd` is a word that looks like a literal and cannot be trusted to be the one meant.
    """
    kind = None
    if "/" in word:
        kind = _kind_with_slash(word)
    elif _DRIVE.match(word) or word.startswith("\\\\") or word == "..":
        kind = "path"
    elif word[0] == "~":
        kind = "path" if word == "~" or word[1:2].isalpha() else "odd"
    elif _SUFFIXED.fullmatch(word):
        kind = "path"
    elif RUN_ID.fullmatch(word):
        kind = "run"
    return kind


def _kind_with_slash(word: str) -> str | None:
    scheme = _SCHEME.match(word)
    first = word.partition("/")[0]
    unsure = (
        ("://" in word and scheme is None and word[0] not in "/~.")
        or word[0] in "($"
        or (first[:1].isdigit() and _FRACTION_OR_RATE.fullmatch(word) is not None)
        or word.lower() in ("w/o", "and/or")
        or _PARTS_OF_LIST.search(word) is not None
        or (word[0] == "~" and len(first) > 1 and not first[1].isalpha())
    )
    if unsure:
        return "odd"
    return "slash" if _ONE_SLASH.fullmatch(word) else "path"


def is_run_id(text: str) -> bool:
    """Whether the text has the form of a run id (`fox-12`, `brave-heron-3`)."""
    return RUN_ID.fullmatch(text) is not None


def is_function(text: str) -> bool:
    """Whether the text is `package.module:name`."""
    return _FUNCTION.fullmatch(text) is not None


def quoted(text: str) -> str | None:
    """Return the text in quotes that it does not hold; None when every kind fails."""
    if "\0" in text or "\x1b" in text:
        return None
    for opening, closing in QUOTES.items():
        if opening not in text and not any(mark in text for mark in closing):
            return f"{opening}{text}{closing[0]}"
    return None


def is_safe_bare(text: str) -> bool:
    """Whether the text, unquoted, is read as that very literal wherever a literal is due."""
    return (
        text.isascii()
        and re.search(r"""[\s'"`;<>|\x00-\x1f\x7f]|\$\(|&&""", text) is None
        and "=" not in text.partition("/")[0]
        and without_closing(text)[1] == ""
        and literal_kind(text) == "path"
        and not text.startswith("--")
    )
