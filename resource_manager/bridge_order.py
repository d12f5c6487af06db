"""From the bridge's settings to what a machine is rented for: its terms, the order, what is sent with it.

What means nothing on another machine is refused here, before anybody is asked. Nothing is connected to.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.training_job import Remote, RentalTerms
from resource_manager.remote_credentials import (
    S3_SCHEMES,
    Sent,
    endpoint_of,
    sent_for,
    travelling_spec,
)
from tools_utilities.bridge.bridge_settings import BridgeSettings, R2Settings, VastSettings
from tools_utilities.bridge.checkout import check_repository
from tools_utilities.bridge.pipelines import output_of, transport_of
from tools_utilities.bridge.rented_process import Order
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.remote_keys import REMOTE_KEYS

VAST = "vast"
LEAST_DISK_GB = 10.0
CHOICES = {"packages": ("install", "inherit"), "credentials": ("send", "session")}
HUB = "hf://"
HUB_TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
STATE_FOLDER = Path(".local/state/quark/bridge")
_DEFAULTS = {key.name: key.default for key in REMOTE_KEYS}
_PLACE = re.compile(r"(?:/|~(?=/|$))[^\x00-\x1f]*")
_WORD = re.compile(r"[^A-Za-z0-9-]+")


class RentedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline that a machine is rented for."""

    name: str
    folder: Path
    """Where it is noted here what is rented for this output."""
    output: str
    order: Order
    sent: Sent
    endpoints: tuple[str, ...]
    """HOST:PORT that the machine must reach."""
    terms: RentalTerms
    max_price_hour: float
    remote: Remote
    max_seconds: float | None
    offer_id: int | None

    def __repr__(self) -> str:
        return f"RentedPipeline({self.name}, {self.output})"  # never the order

    @property
    def reads_hub(self) -> bool:
        """Whether its source is a Hugging Face dataset."""
        return self.order.settings.pipeline.input_uri.startswith(HUB)

    @property
    def identity(self) -> str:
        """Tells one order from another."""
        place = msgspec.structs.replace(self.remote, terms=None)
        parts = (self.order, self.terms.image, place)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def rented_pipeline(
    settings: BridgeSettings, prefix: str | None, here: Mapping[str, str], home: Path
) -> RentedPipeline:
    """Return what a machine is rented for; `here`: this environment, `home`: where state is kept.

    Raises:
        UsageError: a setting that means nothing on a rented machine, naming it.
        InputNeededError: nobody said what it may cost, or what ends it.
        AccessError: there are no credentials here to send.
    """
    vast = settings.vast
    if vast is None:
        raise UsageError(
            "--use-vast: there is no section vast", hint="`quark-bridge init` shows one."
        )
    _check_places(settings, prefix)
    terms = _terms_of(vast)
    output, endpoint = output_of(settings, prefix)
    identity = hashlib.sha256(f"{endpoint or ''} {output}".encode()).hexdigest()[:16]
    word = _WORD.sub("-", output.rpartition("/")[2]).strip("-")[:32] or "pipeline"
    into, source = _output_spec(settings, prefix), _input_spec(settings)
    specs = [spec for spec in (into, source) if spec is not None]
    return RentedPipeline(
        name=f"bridge-{word}",
        folder=home / STATE_FOLDER / identity,
        output=output,
        order=Order(
            settings=_travelling(settings, output, into, source),
            repo_url=vast.repo_url,
            repo_ref=vast.repo_ref,
            workdir=vast.workdir,
        ),
        sent=_sent(settings, specs, here),
        endpoints=_endpoints(settings, specs),
        terms=terms,
        max_price_hour=terms.max_price_hour or 0.0,
        remote=Remote(
            where=VAST,
            python=vast.python,
            packages=vast.packages,
            credentials=vast.credentials,
            folder="~/.quark" if vast.workdir is None else f"{vast.workdir.rstrip('/')}/.quark",
            terms=terms,
        ),
        max_seconds=None if vast.max_hours is None else vast.max_hours * 3600,
        offer_id=vast.offer_id,
    )


def _check_places(settings: BridgeSettings, prefix: str | None) -> None:
    pipeline, vast = settings.pipeline, settings.vast
    local = {
        "pipeline.input_uri": (
            pipeline.input_uri if _is_local(pipeline.input_uri) else None,
            "Upload it first, to s3://… for example, or run without --use-vast.",
        ),
        "pipeline.staging_dir": (
            pipeline.staging_dir,
            "Leave it out: shards are staged below vast.workdir until they are uploaded.",
        ),
        "the output": (
            output_of(settings, prefix)[0] if _is_local(output_of(settings, prefix)[0]) else None,
            "Give a section r2, or an output_dir that is a store: s3://….",
        ),
    }
    for name, (place, hint) in local.items():
        if place is not None:
            raise UsageError(
                f"{name} {place}: a place of this machine, and the pipeline runs on a rented one",
                hint=hint,
            )
    if transport_of(settings).get("profile") and _has_keys(settings):
        raise UsageError(
            "pipeline.source_options.transport_params.profile: the input and the output need"
            " different keys, and one pipeline is sent one set",
            hint="Copy the input first, or use keys that may read both.",
        )
    if vast is not None and vast.workdir is not None and not _PLACE.fullmatch(vast.workdir):
        raise UsageError(
            f"vast.workdir {vast.workdir!r}: not a folder of another machine",
            hint="Write it whole: /data/work, or ~/work.",
        )
    if vast is not None and vast.repo_url is not None:
        check_repository(vast.repo_url, vast.repo_ref)
    elif vast is not None and vast.repo_ref is not None:
        raise UsageError(
            f"vast.repo_ref {vast.repo_ref}: there is no vast.repo_url",
            hint="Give both, or neither: then the Quark that you run is sent.",
        )
    elif ":" in pipeline.name:
        raise UsageError(
            f"pipeline.name {pipeline.name}: your own code is on this machine, and the pipeline runs"
            " on a rented one",
            hint="Name a checkout of Quark that holds it: vast.repo_url.",
        )


def _is_local(place: str) -> bool:
    return "://" not in place or place.startswith(("file://", "memory://"))


def _terms_of(vast: VastSettings) -> RentalTerms:
    if vast.max_price_usd_hour is None:
        raise InputNeededError(
            "--use-vast: nobody said what the machine may cost an hour",
            hint="Say it in the settings: vast.max_price_usd_hour.",
        )
    if vast.max_cost_usd is None and vast.max_hours is None:
        raise InputNeededError(
            "--use-vast: nobody said what ends the renting",
            hint="Say it in the settings: vast.max_cost_usd, vast.max_hours, or both.",
        )
    for name in ("max_price_usd_hour", "max_cost_usd", "max_hours"):
        value = getattr(vast, name)
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"vast.{name}={value:g}: more than 0")
    disk_gb = float(_DEFAULTS["rental_disk_gb"]) if vast.storage_gb is None else vast.storage_gb
    if not LEAST_DISK_GB <= disk_gb < float("inf"):
        raise UsageError(f"vast.storage_gb={disk_gb:g}: at least {LEAST_DISK_GB:g}")
    for name, known in CHOICES.items():
        if getattr(vast, name) not in known:
            raise UsageError(
                f"vast.{name}={getattr(vast, name)}", hint=f"Known: {', '.join(known)}."
            )
    return RentalTerms(
        gpus=None,
        max_price_hour=vast.max_price_usd_hour,
        max_cost=vast.max_cost_usd,
        image=vast.image or str(_DEFAULTS["rental_image"]),
        disk_gb=disk_gb,
    )


def _output_spec(settings: BridgeSettings, prefix: str | None) -> StoreSpec | None:
    output, endpoint = output_of(settings, prefix)
    region = settings.r2.signing_region if settings.r2 is not None else None
    return travelling_spec(StoreSpec(uri=_bucket_of(output), endpoint_url=endpoint, region=region))


def _input_spec(settings: BridgeSettings) -> StoreSpec | None:
    """Return the store of the input; None: it is on the web or the hub."""
    uri = settings.pipeline.input_uri
    if uri.startswith((HUB, "http://", "https://")):
        return None
    said = dict(transport_of(settings))
    if _has_keys(settings) and settings.r2 is not None and said.get("region") is None:
        said["region"] = settings.r2.signing_region  # as where the pipeline runs here
    return travelling_spec(StoreSpec(uri=_bucket_of(uri), **said))


def _bucket_of(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _has_keys(settings: BridgeSettings) -> bool:
    return settings.r2 is not None and bool(settings.r2.access_key_id)


def _travelling(
    settings: BridgeSettings, output: str, into: StoreSpec | None, source: StoreSpec | None
) -> BridgeSettings:
    """Return the settings for a machine that has no profile and no variable of this one."""
    pipeline = settings.pipeline
    if source is not None:
        params: dict[str, Any] = {"endpoint_url": source.endpoint_url, "region": source.region}
        chosen = msgspec.structs.replace(
            pipeline.source_options,
            transport_params={name: value for name, value in params.items() if value is not None},
        )
        pipeline = msgspec.structs.replace(pipeline, source_options=chosen)
    if into is None or _scheme(output) not in S3_SCHEMES:
        return BridgeSettings(pipeline=pipeline, output_dir=output)
    bucket, _, folder = output.partition("://")[2].partition("/")
    r2 = R2Settings(
        bucket=bucket, prefix=folder, endpoint_url=into.endpoint_url, region=into.region or "auto"
    )
    return BridgeSettings(pipeline=pipeline, r2=r2)


def _sent(settings: BridgeSettings, specs: list[StoreSpec], here: Mapping[str, str]) -> Sent:
    """Return the keys that go with it: those of the section r2, else those that are used here."""
    r2 = settings.r2
    if r2 is None or not _has_keys(settings):
        profile = transport_of(settings).get("profile")
        # A profile's name is not in a spec that travels; whose keys they are is asked here.
        asked = [*specs[:1], *(msgspec.structs.replace(one, profile=profile) for one in specs[1:])]
        sent = sent_for(asked, here)
    else:
        others = sent_for([one for one in specs if _scheme(one.uri) not in S3_SCHEMES], here)
        keys = {
            "AWS_ACCESS_KEY_ID": r2.access_key_id,
            "AWS_SECRET_ACCESS_KEY": r2.secret_access_key,
        }
        sent = msgspec.structs.replace(
            others, variables={**others.variables, **keys}, long_lived=(*others.long_lived, *keys)
        )
    if settings.pipeline.input_uri.startswith(HUB) and here.get(HUB_TOKEN):
        sent = msgspec.structs.replace(
            sent,
            variables={**sent.variables, HUB_TOKEN: here[HUB_TOKEN]},
            long_lived=(*sent.long_lived, HUB_TOKEN),
        )
    return sent


def _endpoints(settings: BridgeSettings, specs: list[StoreSpec]) -> tuple[str, ...]:
    found = [endpoint_of(spec) for spec in specs]
    if settings.pipeline.input_uri.startswith(("http://", "https://")):
        found.append(endpoint_of(StoreSpec(uri=settings.pipeline.input_uri)))
    return tuple(dict.fromkeys(filter(None, found)))


def _scheme(uri: str) -> str:
    return uri.partition("://")[0]
