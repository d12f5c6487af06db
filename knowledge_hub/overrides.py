"""`key=value`: which slot or setting a key names, and its value typed by that key.

A key that names a slot fills it; every other known key goes to `set`. Slots that are no settings
(model, run, shards …) are typed by the table below, settings by `tools_utilities/setting_keys.py`.
"""

from typing import Any, Final, NamedTuple

from knowledge_hub.captures import CODECS, EXPORT_FORMATS, GPUS, SHARD_FORMATS
from knowledge_hub.sentence import fold
from tools_utilities.errors import UsageError
from tools_utilities.refused_settings import REFUSED_SETTINGS
from tools_utilities.setting_key import SettingKey
from tools_utilities.setting_keys import KEYS_BY_NAME, parse_value

_TEXTS: Final = ["model", "init_from", "source", "out", "function", "run"]
_COUNTS: Final = [
    "from_step",
    "shards",
    "chunk_bytes",
    "samples_per_shard",
    "shard",
    "prefer",
    "lines",
]
_STATES: Final = ("running", "failed", "finished")
SLOT_KEYS: Final = frozenset(
    [
        *_TEXTS,
        *_COUNTS,
        *[
            "data",
            "weights",
            "groups",
            "val",
            "runs",
            "worker",
            "follow",
            "state",
            "format",
            "compression",
            "plan_only",
        ],
    ]
)
"""Slots that are no settings and can be given by `key=value`."""
_WHERE: Final = ("local", "vast", "aws", "gcp", "azure", "k8s", "slurm", "sky")
_FOLDED: Final = ("model", "name", "worker", "partition_key")


class Override(NamedTuple):
    """One `key=value`, typed."""

    slot: str
    """A slot, or `set`."""
    key: str
    value: Any


class BadOverrideError(ValueError):
    """The key or its value cannot be taken; the message says why, `suggest` what is near."""

    def __init__(self, message: str, suggest: str | None) -> None:
        super().__init__(message)
        self.suggest = suggest


def read_override(key: str, text: str, *, is_quoted: bool) -> Override:
    """Return the override that `key=text` makes.

    Raises:
        BadOverrideError: unknown key, or a value that the key does not take.
    """
    name = key.strip().casefold()
    if name in SLOT_KEYS:
        return Override(name, name, _slot_value(name, text, is_quoted=is_quoted))
    known = KEYS_BY_NAME.get(name)
    if name in REFUSED_SETTINGS:
        raise BadOverrideError(f"{name}: no such setting", REFUSED_SETTINGS[name])
    if known is None:
        near = _nearest(name)
        raise BadOverrideError(f"{name or '='}: no such setting", near and f"{near}={text}")
    try:
        value = parse_value(known.name, _trimmed(known, text))
    except (UsageError, ValueError, OverflowError) as error:
        hint = getattr(error, "hint", "") or f"{known.name} takes {known.kind}"
        raise BadOverrideError(str(error), hint) from error
    value = _finished(known, value, is_quoted=is_quoted)
    return Override(known.name if known.slot else "set", known.name, value)


def _trimmed(key: SettingKey, text: str) -> str:
    return text if key.kind == "text" else text.strip()


def _finished(key: SettingKey, value: Any, *, is_quoted: bool) -> Any:
    """Type what the settings table leaves as text, and word values, as the language has them."""
    if key.name == "where":
        return _where(value)
    if key.name == "gpu_type":
        return _gpu(value)
    if key.name == "max_seconds" and float(value).is_integer():
        return int(value)
    if key.name in _FOLDED and not is_quoted:
        return fold(value)
    return value


def _where(text: str) -> str:
    word = fold(text)
    if word in _WHERE or (word.startswith("ssh:") and len(word) > len("ssh:")):
        return word
    if word == "kubernetes":
        return "k8s"
    if word.startswith("sky:") and len(word) > len("sky:"):
        return f"sky:{text.partition(':')[2].strip()}"  # names of contexts keep their letters
    raise BadOverrideError(
        f"where={text}", f"where takes {', '.join(_WHERE)}, sky:CLOUD/REGION or ssh:HOST"
    )


def _gpu(text: str) -> str:
    word = fold(text).replace(" ", "").replace("rtx-", "rtx")
    if word == "a100-80gb":
        return "A100-80GB"
    found = GPUS.get(word) or GPUS.get(f"rtx{word}")
    if found is None:
        raise BadOverrideError(f"gpu_type={text}", f"gpu_type takes {', '.join(GPUS.values())}")
    return found


def _slot_value(name: str, text: str, *, is_quoted: bool) -> Any:
    if not text.strip():
        raise BadOverrideError(f"{name}=: no value", None)
    if name in _COUNTS:
        return _borrowed("max_steps" if name != "shard" else "seed", name, text)
    if name in _SPECIAL:
        return _SPECIAL[name](text)
    if name in _FOLDED and not is_quoted and ":" not in text and "/" not in text:
        return fold(text)
    return text


def _borrowed(like: str, name: str, text: str) -> Any:
    """Type a count as the setting `like` is typed."""
    borrowed = "seed" if name in ("from_step", "prefer") else like
    try:
        return parse_value(borrowed, text.strip())
    except (UsageError, ValueError, OverflowError) as error:
        raise BadOverrideError(f"{name}={text}", f"{name} takes a whole number") from error


def _flag(text: str) -> bool:
    try:
        return bool(parse_value("shuffle", text.strip()))
    except UsageError as error:
        raise BadOverrideError(text, "true or false") from error


def _val(text: str) -> str | bool:
    return False if text.strip().lower() in ("false", "no", "none") else text


def _weights(text: str) -> list[float]:
    try:
        return [float(part) for part in parse_value("betas", text.strip())]
    except (UsageError, ValueError) as error:
        raise BadOverrideError(f"weights={text}", "weights takes numbers: 0.7,0.3") from error


def _groups(text: str) -> dict[str, Any]:
    from knowledge_hub.captures import CONVERTERS
    from knowledge_hub.sentence import split_sentence

    word = text.strip().lower()
    if word in ("largest", "all"):
        return {"rule": word}
    tokens = split_sentence(word.replace(",", ", "))
    found = CONVERTERS["ints"](tokens, 0, lambda _: 0) if tokens else None
    if found is None or found[1] != len(tokens):
        raise BadOverrideError(f"groups={text}", "groups takes numbers (1,3-5), largest or all")
    picked: dict[str, Any] = found[0]
    return picked


def _choice(name: str, choices: dict[str, str], text: str) -> str:
    found = choices.get(text.strip().lower())
    if found is None:
        raise BadOverrideError(f"{name}={text}", f"{name} takes {', '.join(choices)}")
    return found


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


_SPECIAL: Final[dict[str, Any]] = {
    "data": _parts,
    "runs": _parts,
    "weights": _weights,
    "groups": _groups,
    "val": _val,
    "follow": _flag,
    "plan_only": _flag,
    "state": lambda text: _choice("state", {name: name for name in _STATES}, text),
    "format": lambda text: _choice(
        "format", {name: name for name in SHARD_FORMATS} | EXPORT_FORMATS, text
    ),
    "compression": lambda text: _choice("compression", {name: name for name in CODECS}, text),
}


def _nearest(name: str) -> str | None:
    from rapidfuzz import process
    from rapidfuzz.distance import OSA

    known = [*KEYS_BY_NAME, *SLOT_KEYS]
    found = process.extractOne(
        name, known, scorer=OSA.distance, score_cutoff=max(1, len(name) // 3)
    )
    return str(found[0]) if name and found else None
