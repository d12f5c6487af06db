"""The bridge's settings: YAML or TOML, `${VAR}` expanded, unknown keys refused with the nearest."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rapidfuzz import process as fuzzy

from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.prepared_types import prepared
from tools_utilities.process_environment import child_environment
from tools_utilities.redaction import KNOWN, is_secret_name
from tools_utilities.yaml_text import load_yaml

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NEAR = 60.0


class VastSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rented machine; used by `--use-vast` alone."""

    api_key: str = ""
    offer_id: int | None = None
    image: str | None = None
    storage_gb: float | None = None
    max_price_usd_hour: float | None = None
    """The highest price of the whole machine with its disk; must be said to rent."""
    repo_url: str | None = None
    """A checkout of Quark to run, cloned over there; None: the Quark that runs here is sent."""
    repo_ref: str | None = None
    """Branch, tag or commit of it; None: its usual branch."""
    workdir: str | None = None
    """The folder over there below which everything lies; None: the home folder's `.quark`."""
    max_cost_usd: float | None = None
    max_hours: float | None = None
    """Of the pipeline; this or max_cost_usd must be said to rent."""
    python: str = "python3"
    """The Python over there."""
    packages: str = "install"
    """`install` what is needed over there, or `inherit` what that Python has."""
    credentials: str = "send"
    """`send` the keys, or a `session` that R2 makes of them for this pipeline alone."""

    def __repr__(self) -> str:
        return f"VastSettings(offer_id={self.offer_id}, image={self.image})"  # never the key


class R2Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bucket of Cloudflare R2, or of any S3 store by `endpoint_url`."""

    bucket: str
    account_id: str | None = None
    access_key_id: str = ""
    secret_access_key: str = ""
    region: str = "auto"
    prefix: str = ""
    endpoint_url: str | None = None
    """Instead of account_id: another S3 store."""

    @property
    def endpoint(self) -> str | None:
        """The S3 endpoint of the account."""
        if self.endpoint_url:
            return self.endpoint_url
        return f"https://{self.account_id}.r2.cloudflarestorage.com" if self.account_id else None

    @property
    def signing_region(self) -> str | None:
        """The region that requests are signed for; None: what the environment says.

        `auto` is a region of R2 alone: another store would refuse it.
        """
        if self.region != "auto":
            return self.region
        return self.region if ".r2.cloudflarestorage.com" in (self.endpoint or "") else None

    def __repr__(self) -> str:
        return f"R2Settings({self.endpoint}/{self.bucket}/{self.prefix})"  # never the keys


class SourceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the source is read."""

    split: str | None = None
    config: str | None = None
    load_kwargs: dict[str, Any] = {}
    transport_params: dict[str, Any] = {}
    """endpoint_url, profile and region of the input's store."""


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is made of what."""

    name: str
    """webdataset, litdata, jsonl, parquet, mds, or `package.module:Class`."""
    input_uri: str
    input_format: str | None = None
    """Only files of this shard format; None: of any. A dataset of `hf://` has no files."""
    samples_per_shard: int = 10_000
    staging_dir: str | None = None
    source_options: SourceSettings = SourceSettings()


@prepared
class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file of settings."""

    pipeline: PipelineSettings
    r2: R2Settings | None = None
    vast: VastSettings | None = None
    output_dir: str | None = None
    """Instead of r2: a folder or store URI."""


def load_settings(path: str | Path, environ: Mapping[str, str] | None = None) -> BridgeSettings:
    """Return the settings in a `.yaml`, `.yml` or `.toml` file; `environ` defaults to the process's.

    Raises:
        DataNotFoundError: there is no such file.
        UsageError: an unknown key (names the nearest), a `${VAR}` that is not set (names all), or a
            value of the wrong kind.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataNotFoundError(
            f"{path}: no such file", hint="Write one with `quark-bridge init`."
        ) from error
    raw = _parsed(path, text)
    variables = child_environment({}) if environ is None else environ
    missing: set[str] = set()
    expanded = _expanded(raw, variables, missing)
    if missing:
        raise UsageError(
            f"{path}: not set: {', '.join(sorted(missing))}",
            hint="Set them in the environment; `.env-example` lists them.",
        )
    _refuse_unknown(expanded, BridgeSettings, str(path), "")
    try:
        settings = msgspec.convert(expanded, BridgeSettings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from error
    if settings.r2 is not None:
        KNOWN.add(settings.r2.access_key_id, settings.r2.secret_access_key)
    if settings.vast is not None:
        KNOWN.add(settings.vast.api_key)
    know_secrets(settings.pipeline.source_options.load_kwargs)
    return settings


def know_secrets(values: Mapping[str, Any]) -> None:
    """Have the values masked whose names are those of secrets (`token`)."""
    named = (value for name, value in values.items() if is_secret_name(name))
    KNOWN.add(*(value for value in named if isinstance(value, str)))


def _parsed(path: Path, text: str) -> dict[str, Any]:
    if path.suffix == ".toml":
        try:
            raw: Any = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: {error}", hint="It must be TOML.") from error
    else:
        raw = load_yaml(text, source=str(path))
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: not sections with keys", hint="`quark-bridge init` writes one.")
    return raw


def _expanded(value: Any, variables: Mapping[str, str], missing: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _expanded(inner, variables, missing) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(inner, variables, missing) for inner in value]
    if not isinstance(value, str):
        return value
    missing.update(name for name in _VARIABLE.findall(value) if name not in variables)
    return _VARIABLE.sub(lambda found: variables.get(found[1], ""), value)


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "pipeline": PipelineSettings,
    "r2": R2Settings,
    "vast": VastSettings,
    "source_options": SourceSettings,
}


def _refuse_unknown(raw: Any, kind: type[msgspec.Struct], path: str, where: str) -> None:
    known = kind.__struct_fields__
    for key, value in raw.items():
        if key not in known:
            near = fuzzy.extractOne(str(key), known, score_cutoff=_NEAR)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
            raise UsageError(f"{path}: unknown key {where}{key}", hint=hint)
        if key in SECTIONS and isinstance(value, dict):
            _refuse_unknown(value, SECTIONS[key], path, f"{where}{key}.")
