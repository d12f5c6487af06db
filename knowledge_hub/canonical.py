"""The one way to write a command: read again it gives the same intent and slots."""

from typing import Any, Final

from knowledge_hub.captures import is_word_value
from knowledge_hub.literals import is_function, is_run_id, is_safe_bare, quoted
from knowledge_hub.overrides import SLOT_KEYS
from knowledge_hub.slots import MODEL_INTENTS
from knowledge_hub.vocabulary import CONNECTORS, NEVER_GLUE, POLITE
from tools_utilities.setting_keys import KEYS_BY_NAME

VERB: Final = {
    "delete_run": "delete",
    "clean_cache": "clean the cache",
    "reset_shard": "reset",
    "shard_status": "shard status",
    "again": "repeat",
}
DATA_WORD: Final = {"train": "with", "shard": "from"}
_SCALED: Final = {"batch_size": "batch size", "lr": "learning rate"}


class UnsayableError(ValueError):
    """A text that no quotes can hold."""


def canonical_of(intent: str, slots: dict[str, Any]) -> str | None:
    """Return the canonical sentence of a command; None when a text in it cannot be written."""
    try:
        return _command(intent, slots)
    except UnsayableError:
        return None


def _command(intent: str, slots: dict[str, Any]) -> str:
    rest = dict(slots)
    following = rest.pop("then", [])
    parts = [VERB.get(intent, intent)]
    for slot, say in _SAID:
        if slot == "model" and intent not in MODEL_INTENTS:
            continue  # no word of theirs is a model: `model=…` below
        if slot in rest and not _is_unsayable_run(slot, rest[slot]):
            parts.append(say(intent, rest.pop(slot)))
    if "partition_key" in rest and rest.get("partition") == "stratified":
        rest.pop("partition")
        parts.append(f"stratified by {_name(rest.pop('partition_key'))}")
    scaled = [slot for slot in _SCALED if isinstance(rest.get(slot), dict)]
    parts += [f"{rest.pop(slot)['scale']!r} times the {_SCALED[slot]}" for slot in scaled]
    if isinstance(rest.get("epochs"), dict):
        parts.append(f"{rest.pop('epochs')['add']!r} more epochs")
    pairs = [*sorted(rest.items()), *sorted(rest.pop("set", {}).items())]
    pairs = [pair for pair in pairs if pair[0] != "set"]
    parts += [f"--override {_pair(key, value)}" for key, value in pairs]
    said = " ".join(part for part in parts if part)
    members = [_command(member["intent"], member["slots"]) for member in following]
    return " then ".join([said, *members])


def _literal(text: str) -> str:
    if is_safe_bare(text):
        return text
    written = quoted(text)
    if written is None or not text:
        raise UnsayableError(text)
    return written


def _name(text: str) -> str:
    """A word value: bare where it is read as it stands, else in quotes."""
    means_more = text in POLITE or text in CONNECTORS or text in NEVER_GLUE or text == "done"
    if is_word_value(text) and not is_run_id(text) and not means_more:
        return text
    written = quoted(text)
    if written is None:
        raise UnsayableError(text)
    return written


def _model(text: str) -> str:
    if is_function(text) or (text.startswith("hf:") and is_safe_bare(text)):
        return text
    return quoted(text) or _name(text) if not is_word_value(text) else text


def _data(intent: str, values: list[str]) -> str:
    return f"{DATA_WORD.get(intent, 'with' if intent == 'train' else 'on')} " + " and ".join(
        _literal(value) for value in values
    )


def _groups(_: str, value: dict[str, Any]) -> str:
    if "pick" in value:
        return "groups " + ", ".join(map(str, value["pick"]))
    if value["rule"] == "largest":
        return "the largest group only"
    excluded = value.get("exclude")
    return "all groups" + (f" except {', '.join(map(_name, excluded))}" if excluded else "")


def _val(_: str, value: Any) -> str:
    return "no validation" if value is False else f"validate on {_literal(value)}"


def _is_unsayable_run(slot: str, value: Any) -> bool:
    """Whether a run has a name that only `run=NAME` says: `call it genomes`."""
    if slot == "run":
        return value not in ("latest", "all") and not is_run_id(value)
    return slot == "runs" and not all(is_run_id(name) for name in value)


def _run(_: str, value: str) -> str:
    return {"latest": "the last run", "all": "everything"}.get(value, value)


def _start(intent: str, value: str) -> str:
    written = value if is_run_id(value) else _literal(value)
    return f"{'starting from' if intent == 'finetune' else 'from checkpoint'} {written}"


_SAID: Final[tuple[tuple[str, Any], ...]] = (
    ("topic", lambda _, value: _name(value)),
    ("model", lambda _, value: _model(value)),  # straight after the verb: before a run
    ("run", _run),
    ("runs", lambda _, value: " and ".join(value)),
    ("source", lambda _, value: f"from {_literal(value)}"),
    ("data", _data),
    ("out", lambda _, value: f"to {_literal(value)}"),
    ("function", lambda _, value: f"with {value}"),
    ("weights", lambda _, value: "with weights " + " and ".join(map(repr, value))),
    ("groups", _groups),
    ("val", _val),
    ("init_from", _start),
)


def _pair(key: str, value: Any) -> str:
    text = _value_text(key, value)
    plain = (
        text.isascii()
        and not any(char in text for char in " \t\r\n'\"`;<>|&$\\")
        and text.rstrip("?!.,:") == text
        and text.isprintable()
    )
    if plain:
        return f"{key}={text}"
    written = quoted(text)
    if written is None:
        raise UnsayableError(text)
    return f"{key}={written}"


def _value_text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(item if isinstance(item, str) else repr(item) for item in value)
    if isinstance(value, dict):
        [(unit, amount)] = value.items()
        return f"{amount}{unit}"
    known = key in KEYS_BY_NAME or key in SLOT_KEYS
    return value if isinstance(value, str) and known else repr(value)
