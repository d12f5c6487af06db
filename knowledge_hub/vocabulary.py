"""The closed word lists of the language: glue, connectors, words that never are glue. Pure data."""

from typing import Final

POLITE: Final = frozenset(
    [
        "please",
        "pls",
        "just",
        "now",
        "the",
        "a",
        "an",
        "me",
        "my",
        "it",
        "this",
        "that",
        "some",
        "do",
        "hey",
        "ok",
        "thanks",
    ]
)
"""Glue of one word."""
POLITE_PHRASES: Final = (
    ("could", "you"),
    ("can", "you"),
    ("would", "you"),
    ("i", "want", "to"),
    ("i'd", "like", "to"),
    ("let's",),
    ("let", "me"),
    ("for", "me"),
    ("thank", "you"),
)
"""Glue of several words."""
CONNECTORS: Final = frozenset(
    [
        "on",
        "with",
        "for",
        "of",
        "to",
        "into",
        "at",
        "in",
        "by",
        "from",
        "over",
        "under",
        "using",
        "as",
        "is",
        "are",
        "and",
    ]
)
"""Glue directly before or inside an owned phrase."""
NEVER_GLUE: Final = frozenset(
    [
        "only",
        "or",
        "not",
        "every",
        "until",
        "after",
        "except",
        "without",
        "if",
        "unless",
        "instead",
        "but",
        "then",
        "no",
        "never",
    ]
)
NEGATIONS: Final = frozenset({"don't", "dont", "never"})
"""One word; `do not` is the other."""
DATA_CONNECTORS: Final = frozenset(["with", "on", "using", "from", "over", "in", "under"])
OUT_CONNECTORS: Final = frozenset({"to", "into"})
NOUNS: Final = frozenset(
    ["run", "runs", "shard", "shards", "logs", "checkpoint", "datasets", "groups"]
)
"""Words that belong to the verb before them."""
CLOSING: Final = "?!.,:"
"""Marks that may end a word."""
