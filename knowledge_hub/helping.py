"""The text of `help`: intents with their examples, or what one word means."""

from typing import Any

from knowledge_hub.phrases import phrase_table
from tools_utilities.setting_key import SettingKey
from tools_utilities.setting_keys import KEYS_BY_NAME, SETTING_KEYS

NOT_YET = " (not in this version)"
"""Of an intent that is read and cannot be carried out."""


def show_help(topic: str | None, resources: Any) -> int:
    """Print the help of a topic (or of everything) with the manager's console."""
    lines = help_lines(topic)
    resources.console.result(lines, {"schema": 1, "help": lines})
    return 0


def help_lines(topic: str | None) -> list[str]:
    """Return the help of an intent, a verb, a setting, `settings`, or of everything."""
    from knowledge_hub.hub import intents

    known = intents()
    if topic is None:
        lines = [
            f"{name:<13} {intent.summary}{'' if intent.run else NOT_YET}"
            for name, intent in sorted(known.items())
        ]
        return [
            *lines,
            "",
            "`quark help WORD` shows examples; `quark help settings` every setting.",
        ]
    if topic == "settings":
        return [_setting_line(key) for key in SETTING_KEYS]
    name = topic if topic in known else phrase_table().verbs.get(topic, topic)
    if name in known:
        intent = known[name]
        slots = ", ".join(sorted(intent.slots)) or "none"
        return [
            f"{name}: {intent.summary}{'' if intent.run else NOT_YET}", *(f"  quark {say}" for say in intent.examples),
            f"slots: {slots}",
        ]  # fmt: skip
    lines = [_setting_line(KEYS_BY_NAME[topic])] if topic in KEYS_BY_NAME else []
    lines += [f"  {row.example}" for row in phrase_table().phrases if topic in row.say.split()]
    return lines or [
        f"{topic}: not a word of the language; `quark help` lists what can be asked for."
    ]


def _setting_line(key: SettingKey) -> str:
    default = "" if key.default is None else f" (default {key.default})"
    return f"{key.name:<18} {key.help}{default}"
