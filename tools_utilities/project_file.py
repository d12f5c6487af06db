"""`quark.yaml` (and the user's `config.yaml`): settings, and names for buckets, datasets, models.

    bucket: main
    lr: 1e-3
    buckets:
      main: s3://genomes                     # or a map: uri, endpoint_url, profile, region …
    datasets:
      alpha: data/datasets/alphagenome
    models:
      mine: {command: "python my_train.py"}  # gets the job file as its last argument

Any other key must be a setting. Values are typed by their setting, never by their looks.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.redaction import refuse_signed
from tools_utilities.setting_key import SettingKey
from tools_utilities.setting_keys import KEYS_BY_NAME, find_key, parse_value

PROJECT_FILE = "quark.yaml"
TRUSTED_VARIABLE = "QUARK_TRUSTED_PROJECTS"
_SYSTEM = 0
"""The user whom everybody has to trust."""
SECTIONS = ("buckets", "datasets", "models")
_STORE_KEYS = ("endpoint_url", "profile", "region", "anonymous", "requester_pays")


class BucketEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket with a name, and how to reach it where that differs from the settings."""

    uri: str
    options: dict[str, Any] = {}
    """endpoint_url, profile, region, anonymous, requester_pays: those that were written."""


class ProjectFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says."""

    values: dict[str, Any] = {}
    buckets: dict[str, BucketEntry] = {}
    datasets: dict[str, str] = {}
    models: dict[str, tuple[str, ...]] = {}
    """Model word → command and arguments of the user's own program."""


def project_of(root: Path, variables: Mapping[str, str], *, come_upon: bool) -> ProjectFile:
    """Read the project file of a folder; `come_upon`: the folder was found, nobody named it.

    Raises:
        UsageError: as of `read_project_file`; or it was come upon, and is another user's.
    """
    path = root / PROJECT_FILE
    if come_upon:
        _refuse_foreign(path, variables.get(TRUSTED_VARIABLE, ""))
    return read_project_file(path, PROJECT_FILE)


def user_config(variables: Mapping[str, str], home: Path | None) -> ProjectFile:
    """Read the user's own file, in the folder of their settings."""
    config_home = variables.get("XDG_CONFIG_HOME")
    if config_home and Path(config_home).is_absolute():
        folder = Path(config_home)
    elif home is not None:
        folder = home / ".config"
    else:
        return ProjectFile()
    return read_project_file(folder / "quark" / "config.yaml", "user config")


def _refuse_foreign(path: Path, trusted: str) -> None:
    """Refuse the project file of another user: it names programs, and places that data goes to.

    `trusted` are folders between path separators, `*` is all. Root reads everybody's, as in containers.

    Raises:
        UsageError: it belongs to somebody else.
    """
    user = os.geteuid() if hasattr(os, "geteuid") else _SYSTEM
    if user == 0 or not os.path.lexists(path):
        return
    folders = {Path(folder).resolve() for folder in trusted.split(os.pathsep) if folder}
    if "*" in trusted.split(os.pathsep) or path.parent.resolve() in folders:
        return
    try:
        owners = {path.lstat().st_uid, path.stat().st_uid}
    except OSError:
        return  # reading it tells
    if owners - {user, _SYSTEM}:
        raise UsageError(
            f"{path} belongs to another user, and decides what is run and where data goes",
            hint=f"Look into it; if you trust it, set {TRUSTED_VARIABLE}={path.parent}",
        )


def read_project_file(path: Path, source: str) -> ProjectFile:
    """Read a file; `source` is its name in messages. A missing file says nothing.

    Raises:
        UsageError: it cannot be read, holds an unknown key, or a value its setting does not take.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ProjectFile()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot be read: {error}", hint="It must be UTF-8 YAML."
        ) from error
    from tools_utilities.yaml_text import load_yaml_texts  # PyYAML: only for who has a file

    content = load_yaml_texts(text, source=source)
    if content is None:
        return ProjectFile()
    if not isinstance(content, dict):
        raise UsageError(f"{source}: must be a map of settings", hint="Write `key: value` lines.")
    buckets, datasets, models = (_section(content, name, source) for name in SECTIONS)
    both = sorted(set(buckets) & set(datasets))
    if both:
        raise UsageError(f"{source}: {both[0]} names both a bucket and a dataset")
    return ProjectFile(
        values={
            find_key(name).name: value
            for name, raw in content.items()
            if name not in SECTIONS and (value := _setting(name, raw, source)) is not None
        },
        buckets={name: _bucket(name, entry, source) for name, entry in buckets.items()},
        datasets={name: _dataset(name, entry, source) for name, entry in datasets.items()},
        models={name: _model(name, entry, source) for name, entry in models.items()},
    )


def typed_value(key: SettingKey, value: Any, source: str) -> Any:
    """Return a value as its setting types it; text is parsed, anything else is checked.

    Raises:
        UsageError: names key, value, what is accepted, and `source`.
    """
    try:
        if isinstance(value, str):
            refuse_signed(value, key.name)  # settings go into jobs and plans
        return parse_value(key.name, _as_text(key, value))
    except UsageError as error:
        raise located(error, source) from error


def located(error: UsageError, source: str) -> UsageError:
    """Return the error again, saying where its value came from."""
    return UsageError(
        f"{source}: {error.message_text}", hint=error.hint, **{**error.detail, "source": source}
    )


def _as_text(key: SettingKey, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple) and key.kind in {"texts", "floats"}:
        return ",".join(str(item) for item in value)
    if isinstance(value, dict) and key.kind == "every" and len(value) == 1:
        unit, amount = next(iter(value.items()))
        return f"{amount}{unit}"
    raise UsageError(
        f"{key.name}={value}: not {key.kind}",
        hint=f"{key.name} takes {' or '.join(key.choices) or key.kind}.",
        key=key.name,
        value=str(value),
        accepted=key.kind,
    )


def _setting(name: str, raw: Any, source: str) -> Any:
    if name not in KEYS_BY_NAME:
        raise _unknown(name, source)
    return None if raw is None else typed_value(find_key(name), raw, source)


def _unknown(name: str, source: str) -> UsageError:
    from rapidfuzz.distance import OSA

    for section in SECTIONS:
        if OSA.distance(name.lower(), section) <= 1:
            return UsageError(f"{source}: {name}: unknown key", hint=f"Did you mean {section}?")
    try:
        find_key(name)
    except UsageError as error:
        return located(error, source)
    raise QuarkError(f"{name} is a setting")


def _section(content: dict[str, Any], name: str, source: str) -> dict[str, Any]:
    entries = content.get(name)
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise UsageError(f"{source}: {name} must be a map of name to value")
    return entries


def _bucket(name: str, entry: Any, source: str) -> BucketEntry:
    if isinstance(entry, str):
        return BucketEntry(uri=entry)
    where = f"{source}: buckets: {name}"
    if not isinstance(entry, dict) or not isinstance(entry.get("uri"), str):
        raise UsageError(f"{where}: must be a bucket, or a map with `uri`")
    unknown = sorted(set(entry) - {"uri", *_STORE_KEYS})
    if unknown:
        raise UsageError(
            f"{where}: {unknown[0]}: unknown key", hint=f"Known: uri, {', '.join(_STORE_KEYS)}."
        )
    options = {
        option: typed_value(find_key(option), entry[option], where)
        for option in _STORE_KEYS
        if entry.get(option) is not None
    }
    return BucketEntry(uri=entry["uri"], options=options)


def _dataset(name: str, entry: Any, source: str) -> str:
    if not isinstance(entry, str) or not entry:
        raise UsageError(f"{source}: datasets: {name}: must be a path or a store URI")
    return entry


def _model(name: str, entry: Any, source: str) -> tuple[str, ...]:
    where = f"{source}: models: {name}"
    command = (
        entry.get("command") if isinstance(entry, dict) and set(entry) == {"command"} else None
    )
    if isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"{where}: {error}: {command}") from error
    if not command or not all(isinstance(part, str) for part in command):
        raise UsageError(
            f"{where}: must be a map with `command`",
            hint=f'Write `{name}: {{command: "python my_train.py"}}`.',
        )
    return tuple(command)
