"""SettingKey: what one setting is; the table is in `setting_keys.py`."""

from typing import Any

import msgspec


class SettingKey(msgspec.Struct, frozen=True, kw_only=True):
    """One setting."""

    name: str
    kind: str
    """text, int, float, bool, choice, texts, floats, integers, every (steps, seconds or samples)."""
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    exclusive: bool = False
    """The minimum itself is refused."""
    maximum: float | None = None
    aliases: tuple[str, ...] = ()
    slot: bool = False
    """Also a slot of the language; an override of it fills the slot."""
    env: tuple[str, ...] = ()
    """Documented variables read beside `QUARK_<NAME>`, in this order."""


def plain_key(name: str, kind: str, help: str, **rest: Any) -> SettingKey:  # noqa: A002 - the field's own name
    """Return a setting that only overrides, files and variables name."""
    return SettingKey(name=name, kind=kind, help=help, **rest)


def slot_key(name: str, kind: str, help: str, **rest: Any) -> SettingKey:  # noqa: A002 - the field's own name
    """Return a setting that is also a slot of the language."""
    return SettingKey(name=name, kind=kind, help=help, slot=True, **rest)
