"""docs/language.md, written from the phrase table so that it cannot drift.

`python -m knowledge_hub.language_guide` prints it; a test compares it with the file.
"""

from knowledge_hub.hub import KnowledgeHub, intents
from knowledge_hub.phrases import phrase_table
from knowledge_hub.slots import EVERYWHERE

HEAD = """\
# What can be said

Written from `knowledge_hub/phrases.toml` and `knowledge_hub/intents/` by
`python -m knowledge_hub.language_guide`; do not edit it by hand. `quark explain "SENTENCE"` shows how
a sentence is read. Every word is owned by a slot, is glue, or is reported; nothing is dropped.
"""
NOTATION = """\
`[x]` may be left out, `(a|b)` is a choice, `{slot:converter}` is a value. Articles and polite words
between the words of a phrase do not count.
"""


def guide() -> str:
    """Return docs/language.md."""
    return "\n".join([HEAD, *_intent_lines(), "## Phrases\n", NOTATION, *_phrase_lines()]) + "\n"


def _intent_lines() -> list[str]:
    lines = ["## Intents\n"]
    verbs = phrase_table().verbs
    for name, intent in sorted(intents().items()):
        words = ", ".join(sorted(word for word, meant in verbs.items() if meant == name))
        lines += [
            f"### {name}\n",
            f"{intent.summary} Verbs: {words}."
            + (f" Needs: {', '.join(intent.needs)}." if intent.needs else "")
            + (" Asks before it acts." if intent.confirm else "")
            + ("" if intent.run else " Understood; a later version carries it out."),
            "",
            *(f'- `quark "{say}"`' for say in intent.examples),
            "",
            "Slots: "
            + ", ".join(f"`{slot}`" for slot in sorted(intent.slots | EVERYWHERE))
            + ".\n",
        ]
    return lines


def _phrase_lines() -> list[str]:
    hub = KnowledgeHub()
    lines = ["| said as | example | sets |", "| --- | --- | --- |"]
    for phrase in phrase_table().phrases:
        reading = hub.read(phrase.example)
        sets = ", ".join(sorted({span.slot for span in reading.spans} - {"intent"})) or "-"
        intent = f"{phrase.intent}: " if phrase.intent else ""
        said = phrase.say.replace("|", "\\|")
        lines.append(f"| `{said}` | {phrase.example} | {intent}{sets} |")
    return lines


if __name__ == "__main__":
    import sys

    sys.stdout.write(guide())
