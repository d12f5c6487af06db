"""Settings: --override > sentence > environment > quark.yaml > user config > default.

One loader, and the only reader of the environment (torch's launcher variables aside, which
`brain/ml/process_group.py` reads). Every value knows where it came from. Nothing below
`resource_manager` sees a `Settings`: pass on the two values needed.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.project_file import (
    PROJECT_FILE,
    TRUSTED_VARIABLE,
    BucketEntry,
    project_of,
    typed_value,
    user_config,
)
from tools_utilities.setting_key import SettingKey
from tools_utilities.setting_keys import KEYS_BY_NAME, SETTING_KEYS, find_key

DEFAULT = "default"
_GB = 1_000_000_000
_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RELATIVE = ("add", "scale")
"""A sentence may ask for a change (`half the batch size`); the one who knows the old value applies it."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says beside settings."""

    home: Path | None = None
    state_home: Path | None = None
    """Where programs keep what is no setting; None without a home."""
    term: str = ""
    no_color: bool = False
    ci: bool = False
    columns: int | None = None
    visible_gpus: str | None = None
    """CUDA_VISIBLE_DEVICES; None: not set."""


class EnvironmentVariable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable that Quark reads."""

    name: str
    meaning: str
    setting: str | None
    """The setting that it gives; None: it is no setting."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting's value and where it came from."""

    root: Path
    """Dataset root, symbolic links resolved."""
    start_dir: Path
    aliases: dict[str, str]
    """Name → bucket or dataset, as quark.yaml and the user's config write them."""
    buckets: dict[str, BucketEntry]
    models: dict[str, tuple[str, ...]]
    """Model word → command of the user's own training program."""
    environment: Environment
    warnings: tuple[str, ...]
    values: dict[str, Any]
    sources: dict[str, str]

    def value(self, name: str) -> Any:
        """Return a setting's value; None when it has none. `data_mode` is never `auto`."""
        return self.values[find_key(name).name]

    def source(self, name: str) -> str:
        """Return where the value came from: `--override`, `sentence`, `environment QUARK_SEED`."""
        return self.sources[find_key(name).name]

    def is_set(self, name: str) -> bool:
        """Tell whether somebody gave the value."""
        return not self.source(name).startswith(DEFAULT)

    def nearer(self, one: str, other: str) -> str | None:
        """Return which of two settings was said closer to the command; None: neither."""
        ranks = {name: _rank(self.source(name)) for name in (one, other)}
        return None if ranks[one] == ranks[other] else min(ranks, key=lambda name: ranks[name])

    def non_defaults(self) -> list[tuple[str, Any, str]]:
        """Return (name, value, source) of every setting that somebody gave, in table order."""
        names = [key.name for key in SETTING_KEYS if self.is_set(key.name)]
        return [(name, self.values[name], self.sources[name]) for name in names]

    def path(self, name: str) -> Path | None:
        """Return a path setting as an absolute path; None when it has no value.

        `~` is the home folder. A relative path is relative to the file that holds it, else (given
        on the command line or by the environment) to the working directory.
        """
        text = self.value(name)
        if text is None:
            return None
        from_file = self.source(name) in {DEFAULT, PROJECT_FILE}
        return (self.root if from_file else self.start_dir) / _expand(text, self.environment.home)

    @property
    def cache_bytes(self) -> int:
        """The cache budget: `cache_bytes` or `cache_gb`, whichever was given closer to the command."""
        in_bytes, in_gb = self.value("cache_bytes"), self.value("cache_gb")
        if in_bytes is not None and _rank(self.source("cache_bytes")) <= _rank(
            self.source("cache_gb")
        ):
            return int(in_bytes)
        return int(in_gb * _GB)

    @property
    def bucket_uri(self) -> str | None:
        """The configured bucket as `scheme://bucket`, aliases followed; None when there is none."""
        bucket = self.value("bucket")
        return None if bucket is None else self._uri(bucket)

    @property
    def store_uri(self) -> str:
        """Where dataset paths point: the bucket when streaming, else the dataset root in place."""
        if self.value("data_mode") == "local":
            return f"file://{self.root}"
        if self.bucket_uri is None:
            raise UsageError(
                f"data_mode=streaming ({self.source('data_mode')}), and no bucket is configured",
                hint="Give a bucket: --override bucket=s3://NAME, QUARK_BUCKET, or quark.yaml.",
            )
        return self.bucket_uri

    def store_spec(self, uri: str | None = None) -> StoreSpec:
        """Return the spec of a store: by URI, bucket name or alias; without one, `store_uri`.

        Endpoint, profile, region and the rest come from the bucket's entry in quark.yaml where
        it has them and nobody gave them closer to the command.
        """
        named = self._uri(uri) if uri is not None else self.store_uri
        if named.startswith("file://"):
            return StoreSpec(uri=named)
        alias = uri if uri is not None else self.value("bucket")
        options = self._options(alias, named)
        return StoreSpec(uri=named, **options)

    def _options(self, alias: str | None, uri: str) -> dict[str, Any]:
        entries = [self.buckets[alias]] if alias in self.buckets else []
        entries += [entry for entry in self.buckets.values() if _with_scheme(entry.uri) == uri]
        written = entries[0].options if entries else {}
        names = ("endpoint_url", "profile", "region", "anonymous", "requester_pays")
        options: dict[str, Any] = {}
        for name in names:
            closer = _rank(self.source(name)) < _rank(PROJECT_FILE)
            use_entry = name in written and not closer
            options[name] = written[name] if use_entry else self.value(name)
        return options

    def _uri(self, text: str) -> str:
        entry = self.buckets.get(text)
        uri = _with_scheme(entry.uri if entry is not None else self.aliases.get(text, text))
        if uri is None:
            given = f" ({self.source('bucket')})" if text == self.value("bucket") else ""
            raise UsageError(
                f"bucket={text}{given}: not a bucket name or store URI",
                hint="Write a bucket's name, s3://NAME, file:///FOLDER, or a name of quark.yaml.",
            )
        return uri


def _with_scheme(text: str) -> str | None:
    """Return `scheme://bucket` for a URI, an absolute folder or a bare bucket name; else None."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "file":
        return f"file://{rest.rstrip('/') or '/'}"
    if separator:
        name, slash, below = rest.rstrip("/").partition("/")
        return None if not name or slash or below else f"{scheme}://{name}"
    if text.startswith("/"):
        return f"file://{text.rstrip('/') or '/'}"
    return f"s3://{text}" if _BUCKET_NAME.fullmatch(text) else None


def _expand(text: str, home: Path | None) -> Path:
    if home is not None and (text == "~" or text.startswith("~/")):
        return home / text[2:]
    return Path(text)


def _rank(source: str) -> int:
    """Return the precedence of a source; smaller is closer to the command."""
    order = ("--override", "sentence", "environment", PROJECT_FILE, "user config")
    return next((i for i, name in enumerate(order) if source.startswith(name)), len(order))


def load_settings(
    *,
    start_dir: Path,
    environ: Mapping[str, str] | None = None,
    sentence: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings for a command given in `start_dir`.

    `sentence` may hold slots that are no settings; they are left alone. `overrides` may hold text
    or typed values; an unknown key is an error.

    Raises:
        UsageError: an unknown key, or a value that its setting does not take, with its source.
    """
    variables = os.environ if environ is None else environ
    environment = read_environment(variables)
    start_dir = start_dir.resolve()
    spoken = {name: value for name, value in (sentence or {}).items() if name in KEYS_BY_NAME}
    nearest = [_typed(overrides or {}, "--override"), _typed(spoken, "sentence")]
    root, found_by = _root(start_dir, variables, nearest, environment)
    project = project_of(root, variables, come_upon=found_by.startswith(DEFAULT))
    user = user_config(variables, environment.home)
    layers = [
        *nearest,
        _from_environment(variables),
        _Layer(values=project.values, source=PROJECT_FILE),
        _Layer(values=user.values, source="user config"),
    ]
    values, sources = _merge(layers)
    if "root" in project.values and found_by.startswith(DEFAULT):
        root = _existing_folder(root / project.values["root"], PROJECT_FILE)
        found_by = PROJECT_FILE
    values["root"], sources["root"] = str(root), found_by
    buckets = {**user.buckets, **project.buckets}
    if values["data_mode"] == "auto":
        values["data_mode"] = "streaming" if values["bucket"] else "local"
    return Settings(
        root=root,
        start_dir=start_dir,
        aliases={name: entry.uri for name, entry in buckets.items()}
        | user.datasets
        | project.datasets,
        buckets=buckets,
        models={**user.models, **project.models},
        environment=environment,
        warnings=_unknown_variables(variables),
        values=values,
        sources=sources,
    )


class _Layer(msgspec.Struct, frozen=True, kw_only=True):
    values: Mapping[str, Any]
    source: str
    variables: Mapping[str, str] = {}
    """Setting → the variable that gave it."""

    def source_of(self, name: str) -> str:
        return f"{self.source} {self.variables[name]}" if self.variables else self.source


def _merge(layers: list[_Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {key.name: key.default for key in SETTING_KEYS}
    sources = dict.fromkeys(values, DEFAULT)
    for layer in reversed(layers):
        for name, value in layer.values.items():
            values[name], sources[name] = value, layer.source_of(name)
    return values, sources


def _typed(given: Mapping[str, Any], source: str) -> _Layer:
    values: dict[str, Any] = {}
    for name, value in given.items():
        key = find_key(name)
        if value is not None:
            values[key.name] = _typed_or_relative(key, value, source)
    return _Layer(values=values, source=source)


def _typed_or_relative(key: SettingKey, value: Any, source: str) -> Any:
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _RELATIVE:
        return value
    return typed_value(key, value, source)


def _variables_of(key: SettingKey) -> tuple[str, ...]:
    names = (key.name, *key.aliases)
    return (*(f"QUARK_{name.upper()}" for name in names), *key.env)


def _from_environment(variables: Mapping[str, str]) -> _Layer:
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key in SETTING_KEYS:
        # An empty variable is how a shell says "unset".
        name = next((name for name in _variables_of(key) if variables.get(name)), None)
        if name is not None and key.name != "root":
            values[key.name] = typed_value(key, variables[name], f"environment {name}")
            given[key.name] = name
    return _Layer(values=values, source="environment", variables=given)


def _root(
    start_dir: Path,
    variables: Mapping[str, str],
    nearest: list[_Layer],
    environment: Environment,
) -> tuple[Path, str]:
    """Return the dataset root and what it was found by."""
    for layer in nearest:
        if "root" in layer.values:
            given = start_dir / _expand(layer.values["root"], environment.home)
            return _existing_folder(given, layer.source), layer.source
    for folder in (start_dir, *start_dir.parents):
        for marker in (PROJECT_FILE, ".git"):
            if (folder / marker).exists():
                return folder, f"{DEFAULT}: the folder that holds {marker}"
    if variables.get("QUARK_ROOT"):
        given = start_dir / _expand(variables["QUARK_ROOT"], environment.home)
        return _existing_folder(given, "environment QUARK_ROOT"), "environment QUARK_ROOT"
    return start_dir, f"{DEFAULT}: the working directory"


def _existing_folder(path: Path, source: str) -> Path:
    resolved = path.resolve()
    if not resolved.is_dir():
        raise UsageError(f"{source}: root={path}: not a folder", key="root", source=source)
    return resolved


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Return what the environment says beside settings; never raises."""
    variables = os.environ if environ is None else environ
    columns = variables.get("COLUMNS", "")
    home = variables.get("HOME")
    state = variables.get("XDG_STATE_HOME") or (home and f"{home}/.local/state")
    return Environment(
        home=Path(home) if home else None,
        state_home=Path(state) if state else None,
        term=variables.get("TERM", ""),
        no_color=bool(variables.get("NO_COLOR")),
        ci=variables.get("CI", "").lower() not in {"", "0", "false", "no", "off"},
        columns=int(columns) if columns.isdecimal() and int(columns) > 0 else None,
        visible_gpus=variables.get("CUDA_VISIBLE_DEVICES"),
    )


def _unknown_variables(variables: Mapping[str, str]) -> tuple[str, ...]:
    known = {variable.name for variable in environment_variables()}
    from tools_utilities.setting_keys import nearest_key

    warnings = []
    for name in sorted(variables):
        if name.startswith("QUARK_") and name not in known:
            near = nearest_key(name.removeprefix("QUARK_"))
            meant = f"; did you mean QUARK_{near.upper()}?" if near else ""
            warnings.append(f"{name} is set and means nothing{meant}")
    return tuple(warnings)


def environment_variables() -> list[EnvironmentVariable]:
    """Return every variable Quark itself reads, settings in table order, then the rest."""
    found = [
        EnvironmentVariable(name=name, meaning=key.help, setting=key.name)
        for key in SETTING_KEYS
        for name in _variables_of(key)
    ]
    return [*found, *_OTHER_VARIABLES]


_OTHER_VARIABLES = tuple(
    EnvironmentVariable(name=name, meaning=meaning, setting=None)
    for name, meaning in (
        (TRUSTED_VARIABLE, "Folders whose quark.yaml is read though it is another user's."),
        ("QUARK_LAUNCHER_PID", "Set for the processes of a run: the launcher that they end with."),
        ("VAST_API_KEY", "The key of an account at vast.ai; sent to nobody else, shown nowhere."),
        ("VAST_URL", "Address of vast's API; default `https://console.vast.ai`."),
        ("CLOUDFLARE_API_TOKEN", "Token that R2 keys belong to; sent to Cloudflare alone."),
        (
            "CLOUDFLARE_BASE_URL",
            "Cloudflare's API; default `https://api.cloudflare.com/client/v4`.",
        ),
        ("CI", "Ask nothing and draw nothing, as off a terminal."),
        ("NO_COLOR", "No colour."),
        ("TERM", "`dumb`: no colour and no animation."),
        ("COLUMNS", "Width of the terminal."),
        ("CUDA_VISIBLE_DEVICES", "The GPUs that a run may use, as CUDA reads it."),
        ("HOME", "What `~` stands for."),
        ("XDG_CONFIG_HOME", "Folder of quark/config.yaml; default `~/.config`."),
        ("XDG_STATE_HOME", "Folder of quark/history; default `~/.local/state`."),
    )
)
